"""The replay job: messages of a store directory or a lake are sent again, to live brokers.

    select      which messages: a filter (see `rucola.spark.selection`)
    queues_of   what there is to send of each queue of the source, and its last message, which freezes the end: what is
                stored later, be it by the replay itself, is not part of it
    lanes       queues are dealt out to partitions of near-equal count; the rows of a partition are in the order of
                their logs, and so in that of each queue
    send        each partition is sent at its share of the rate (see `rucola.spark.resending`)

Every message is sent at least once, under its own unique key, so that consumers can drop repeats. What brokers have
acknowledged stands in the ledger (see `rucola.spark.ledger`); a run that was killed is started again with the same
ledger and goes on where that ends. Properties that the system set, such as a delay, are not sent along: a message comes
to its queue at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.client import Producer
from rucola.errors import ConfigError
from rucola.spark import resending
from rucola.spark.failure import plainly
from rucola.spark.ledger import Ledger, Reached, SourceQueue, open_ledger
from rucola.spark.options import SinkOptions, parse_sink
from rucola.spark.progress import Progress, looking
from rucola.spark.resending import Resending
from rucola.spark.selection import Selection, check_source, messages_of
from rucola.spark.session import Spark, session_of

GROUP: Final = "rucola_replay"

_QUEUE: Final = ("brokerName", "topic", "queueId")
_LANES: Final = "brokerName string, topic string, queueId int, lane int, after bigint, upto bigint"


@dataclass(frozen=True)
class QueueToReplay:
    """What is to be sent of one queue: `rows` messages of `size` bytes, the last one at `last_physical_offset`."""

    broker_name: str
    topic: str
    queue_id: int
    rows: int
    size: int
    last_physical_offset: int

    @property
    def queue(self) -> SourceQueue:
        """The queue itself."""
        return SourceQueue(self.broker_name, self.topic, self.queue_id)


@dataclass(frozen=True)
class Summary:
    """What was to be replayed, and how far that is.

    `reached` counts what brokers have acknowledged of each queue, in all runs; `sent` what this run has sent.
    """

    source: str
    topic: str | None
    queues: tuple[QueueToReplay, ...]
    reached: Mapping[SourceQueue, Reached]
    sent: int = 0
    is_dry: bool = False

    @property
    def rows(self) -> int:
        """Messages to be replayed."""
        return sum(queue.rows for queue in self.queues)

    @property
    def acknowledged(self) -> int:
        """Messages that were."""
        return sum(reached.count for reached in self.reached.values())

    @property
    def unsafe(self) -> int:
        """Messages that brokers stored, but did not flush or replicate in time."""
        return sum(reached.unsafe for reached in self.reached.values())

    @property
    def missing(self) -> int:
        """Messages that were to be replayed and are no longer in the source."""
        return 0 if self.is_dry else self.rows - self.acknowledged

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return {
            "source": self.source,
            "topic": self.topic,
            "dryRun": self.is_dry,
            "rows": self.rows,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "unsafe": self.unsafe,
            "missing": self.missing,
            "queues": [
                {
                    "brokerName": each.broker_name,
                    "topic": each.topic,
                    "queueId": each.queue_id,
                    "rows": each.rows,
                    "size": each.size,
                    "acknowledged": self.reached.get(each.queue, Reached()).count,
                }
                for each in self.queues
            ],
        }


def queues_of(messages: DataFrame) -> DataFrame:
    """Return what there is of each queue: brokerName, topic, queueId, rows, size and last, a physical offset."""
    return messages.groupBy(*_QUEUE).agg(
        F.count("*").alias("rows"), F.sum("storeSize").alias("size"), F.max("commitLogOffset").alias("last")
    )


def in_lanes(messages: DataFrame, lanes: DataFrame, count: int) -> DataFrame:
    """Return the messages that are to be sent, in `count` partitions, each in the order of its logs.

    `lanes` says the partition of each queue, and between which physical offsets its messages lie: behind `after`, up
    to `upto`.
    """
    return (
        messages.join(F.broadcast(lanes), list(_QUEUE))
        .where("commitLogOffset > after AND commitLogOffset <= upto")
        .repartitionById(count, F.col("lane"))
        .sortWithinPartitions("brokerName", "commitLogOffset")
        .select(*resending.COLUMNS)
    )


@plainly()
def run(
    spark: Spark,
    source: str | Path,
    *,
    name_server: str | None = None,
    ledger: str | Path | None = None,
    topic: str | None = None,
    selection: Selection | None = None,
    rate: float | None = None,
    corrupt_records: str = "fail",
    producer_group: str = GROUP,
    progress: Progress | None = None,
) -> Summary:
    """Send what is selected of a store directory or a lake, to `topic`, or each message to its own.

    At most `rate` messages are sent a second. Without `name_server` and `ledger` it is a dry run: what there is to be
    sent is counted. Raises StoreError for what is neither store nor lake, is damaged, or is replayed by another run;
    ConfigError where the ledger is that of another replay; RemotingError when brokers did not take a message, after
    which the same call goes on.
    """
    selection = selection or Selection()
    options = {"corruptRecords": corrupt_records}
    if name_server is None or ledger is None:
        if name_server is not ledger:
            raise ConfigError("a replay needs both a name server and the directory of its ledger; a dry run neither")
        return Summary(str(source), topic, _count(spark, source, selection, options), {}, is_dry=True)
    given = {"nameServer": name_server, "producerGroup": producer_group}
    target = parse_sink(given if topic is None else {**given, "topic": topic})
    check_source(source, selection)
    with open_ledger(ledger) as opened:
        if topic is not None:
            asyncio.run(_check_topics({topic}, target))
        queues = _settled(opened, spark, source, selection, options, target)
        before = dict(opened.acks().reached)
        left = [queue for queue in queues if _rows_left(queue, before)]
        sent = 0
        if left:
            asyncio.run(_check_topics({topic or queue.topic for queue in left}, target))
            session = session_of(spark)
            lanes = deal(left, before, session.sparkContext.defaultParallelism)
            rates = None if rate is None else _rates(lanes, before, rate)
            work = Resending(uuid.uuid4().hex, opened.directory, target, rates)
            rows = [
                (*queue.queue, lane, before.get(queue.queue, Reached()).physical_offset, queue.last_physical_offset)
                for lane, dealt in enumerate(lanes)
                for queue in dealt
            ]
            messages = messages_of(session, source, selection, options)
            waiting = in_lanes(messages, session.createDataFrame(rows, _LANES), len(lanes))
            with _watched(opened, sum(queue.rows for queue in queues), progress):
                sent = sum(row.sent for row in waiting.mapInArrow(work, "sent bigint").collect())
        return Summary(str(source), topic, queues, opened.acks().reached, sent)


def _count(
    spark: Spark, source: str | Path, selection: Selection, options: Mapping[str, str]
) -> tuple[QueueToReplay, ...]:
    messages = messages_of(spark, source, selection, {**options, "includeBody": "false"})
    rows = queues_of(messages).collect()
    return tuple(sorted((QueueToReplay(*row) for row in rows), key=lambda each: each.queue))


def _settled(
    ledger: Ledger,
    spark: Spark,
    source: str | Path,
    selection: Selection,
    options: Mapping[str, str],
    target: SinkOptions,
) -> tuple[QueueToReplay, ...]:
    """Return what the ledger says is to be replayed; where it is new, after writing that down."""
    asked = {
        "source": str(Path(source).absolute()),
        "nameServer": target.name_server,
        "topic": target.topic,
        "selection": selection.to_json(),
    }
    settled = ledger.read()
    if settled is None:
        queues = _count(spark, source, selection, options)
        ledger.settle({**asked, "queues": [asdict(queue) for queue in queues]})
        return queues
    for name, value in asked.items():
        if settled.get(name) != value:
            raise ConfigError(
                f"{ledger.directory} is the ledger of another replay, whose {name} is {settled.get(name)!r} and not "
                f"{value!r}; give the options it was started with, or a new directory"
            )
    return tuple(QueueToReplay(**queue) for queue in settled["queues"])


def _rows_left(queue: QueueToReplay, before: Mapping[SourceQueue, Reached]) -> int:
    reached = before.get(queue.queue, Reached())
    return 0 if reached.physical_offset >= queue.last_physical_offset else max(queue.rows - reached.count, 1)


def deal(
    queues: Sequence[QueueToReplay], before: Mapping[SourceQueue, Reached], count: int
) -> list[list[QueueToReplay]]:
    """Deal out queues to at most `count` lanes with near-equal rows left, the largest first."""
    lanes: list[list[QueueToReplay]] = [[] for _ in range(min(count, len(queues)))]
    filled = [0] * len(lanes)
    for queue in sorted(queues, key=lambda each: (-_rows_left(each, before), each.queue)):
        lane = filled.index(min(filled))
        lanes[lane].append(queue)
        filled[lane] += _rows_left(queue, before)
    return lanes


def _rates(lanes: Sequence[Sequence[QueueToReplay]], before: Mapping[SourceQueue, Reached], rate: float) -> list[float]:
    """Return the share of the rate of each lane, by its rows, so that all end together."""
    left = [sum(_rows_left(queue, before) for queue in lane) for lane in lanes]
    return [rate * rows / sum(left) for rows in left]


async def _check_topics(topics: set[str], target: SinkOptions) -> None:
    """Raise TopicNotFound or RemotingError unless every target has a route, before anything is shuffled."""
    async with Producer(target.producer_group, target.name_server) as producer:
        for topic in sorted(topics):
            await producer.queues(topic)


@contextmanager
def _watched(ledger: Ledger, total: int, progress: Progress | None) -> Iterator[None]:
    """Tell the progress by what is written into the ledger, while the block waits for Spark."""
    if progress is None:
        yield
        return
    acks = ledger.acks()

    def look() -> None:
        acks.refresh()
        progress(acks.count, total)

    with looking(look):
        yield
