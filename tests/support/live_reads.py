"""Batch reads of live brokers as Spark runs them, without Spark."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from rucola.broker.broker import Broker
from rucola.client import Message, MessageQueue, Producer
from rucola.spark.source import batch_reader
from rucola.spark.source.options import parse_read_options
from support.cluster import Cluster, cluster

Row = dict[str, Any]


def read(namesrv: str, **given: str) -> list[Row]:
    """The rows of a batch; each partition goes through pickle as Spark sends it."""
    options = parse_read_options({"nameServer": namesrv, **given})
    partitions = pickle.loads(pickle.dumps(batch_reader.plan(options)))
    batches = [batch for partition in partitions for batch in batch_reader.read(partition, options, options.columns)]
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


@asynccontextmanager
async def live_cluster(path: Path) -> AsyncIterator[tuple[Cluster, Broker, Callable[..., Any]]]:
    """Run a test on a cluster with one broker; reads happen in a thread, for they have a loop of their own."""

    async with cluster(path) as running:
        broker = await running.start_broker()

        async def reading(**given: str) -> list[Row]:
            return await asyncio.to_thread(read, running.namesrv, **given)

        yield running, broker, reading


async def send(running: Cluster, topic: str, count: int, *, broker: str = "broker-a", **given: Any) -> list[str]:
    """Send messages to the queues 0 to 3 of a topic in turn; their unique keys."""
    async with Producer("senders", running.namesrv) as producer:
        sent = []
        for n in range(count):
            message = Message(topic, b"body %d" % n, **{name: value(n) for name, value in given.items()})
            result = await producer.send(message, MessageQueue(topic, broker, n % 4))
            sent.append(result.msg_id)
        return sent


def write(rows: DataFrame, namesrv: str, **options: str) -> None:
    rows.write.format("rocketmq").options(nameServer=namesrv, **options).mode("append").save()
