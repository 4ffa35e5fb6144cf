"""Spark reading a live broker, beside Spark reading the same messages from the directory of its store.

A wide topic has many queues with few messages each, a long topic few queues with many.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from figures import Aim, Figure
from floors import Options, in_turns
from ready import drop
from rucola.admin import AdminClient, TopicConfig
from rucola.client import Message, MessageQueue
from rucola.client.sync import Producer
from rucola.spark.session import local_session
from rucola.spark.source import data_source
from servers import Server, standalone

WIDE = "BenchWide", 256, 4
LONG = "BenchLong", 8, 25_000
BODY = bytes(900)
BATCH_COUNT = 100


def measure(options: Options) -> list[Figure]:
    """Fill a wide and a long topic, and read both while the broker runs."""
    with TemporaryDirectory(prefix="rucola-bench-") as name, standalone(Path(name) / "store") as broker:
        topic, queues, count = LONG
        shapes = [WIDE, (topic, queues, options.count(count))]
        for shape in shapes:
            _fill(broker, *shape)
        session = local_session("rucola-bench")
        try:
            return [_figure(session, broker, Path(name) / "store", *shape, options.rounds) for shape in shapes]
        finally:
            session.stop()


def _fill(broker: Server, topic: str, queues: int, count: int) -> None:
    """Create a topic with `count` messages in each queue."""

    async def create() -> list[MessageQueue]:
        async with AdminClient(broker.namesrv) as admin:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            await admin.topics.create_or_update(f"127.0.0.1:{broker.port}", config)
            return await admin.topics.queues(topic)

    with Producer("bench", broker.namesrv) as producer:
        for queue in asyncio.run(create()):
            for begin in range(0, count, BATCH_COUNT):
                number = min(BATCH_COUNT, count - begin)
                producer.send_batch([Message(topic, BODY, tags="t") for _ in range(number)], queue)


def _figure(
    session: SparkSession, broker: Server, store: Path, topic: str, queues: int, count: int, rounds: int
) -> Figure:
    reading = session.read.format(data_source.FORMAT).option("subscribe", topic)
    stored = reading.option("storePath", str(store)).load()
    live = session.read.format(data_source.FORMAT).options(nameServer=broker.namesrv, subscribe=topic).load()
    for messages in (stored, live):
        if (found := messages.count()) != queues * count:
            raise RuntimeError(f"{queues * count} messages are stored, and Spark reads {found}")
    stored_s, live_s = in_turns([lambda: drop(stored), lambda: drop(live)], rounds)
    return Figure(
        f"spark_read_of_{queues}_live_queues",
        live_s,
        "s",
        floor=stored_s,
        floor_is="Spark reading the same messages from the store",
        aims=[Aim("ratio", 2)],
        more={"rows": queues * count, "rows/s": queues * count / live_s},
    )
