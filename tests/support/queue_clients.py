"""A producer and a pull consumer of one queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rucola.client import MessageQueue, Producer, PullConsumer
from support.cluster import Cluster, cluster


@asynccontextmanager
async def queue_clients(path: Path) -> AsyncIterator[tuple[Cluster, Producer, PullConsumer, MessageQueue]]:
    """Open both clients, of group g, on a cluster of one broker, whose topic T has one queue."""
    async with (
        cluster(path) as running,
        Producer("g", running.namesrv) as producer,
        PullConsumer("g", running.namesrv) as consumer,
    ):
        await running.create_topic(await running.start_broker(), "T", queues=1)
        (queue,) = await consumer.queues("T")
        yield running, producer, consumer, queue
