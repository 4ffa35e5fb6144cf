"""The replay job: messages of a store directory or a lake are sent again, to live brokers.

    select      which messages: a filter (see `rucola.spark.jobs.selection`)
    queues_of   what there is to send of each queue of the source, and its last message, which freezes the end: what is
                stored later, be it by the replay itself, is not part of it
    lanes       queues are dealt out to tasks of near-equal count, each with its share of the rate. The task of a store
                reads its queues in the order of their log; the rows of a lake are put in that order by Spark
    send        messages are sent as they come (see `rucola.spark.jobs.resend`)

Every message is sent at least once, under its own unique key, so that consumers can drop repeats. What brokers have
acknowledged stands in the ledger (see `rucola.spark.jobs.replay_ledger`); a run that was killed is started again with
the same ledger and goes on where that ends. Properties that the system set, such as a delay, are not sent along: a
message comes to its queue at once.
"""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.client import Producer
from rucola.errors import ConfigError
from rucola.spark.errors import translate_spark_errors
from rucola.spark.jobs import resend
from rucola.spark.jobs.grouping import Groups
from rucola.spark.jobs.messages import Messages
from rucola.spark.jobs.progress import Progress, looking
from rucola.spark.jobs.replay_ledger import Ledger, Reached, SourceQueue, open_ledger
from rucola.spark.jobs.resend import Resending
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source import columns
from rucola.spark.source.arrays import ints, mask
from rucola.spark.source.options import SinkOptions, parse_sink_options

GROUP: Final = "rucola_replay"

_QUEUE: Final = ["brokerName", "topic", "queueId"]
_QUEUES: Final = "brokerName string, topic string, queueId int, lane int, after bigint, upto bigint"
_LANE: Final = "lane int, bounds binary"
_SENT: Final = "sent bigint"


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
        messages.join(F.broadcast(lanes), _QUEUE)
        .where("commitLogOffset > after AND commitLogOffset <= upto")
        .repartitionById(count, F.col("lane"))
        .sortWithinPartitions("brokerName", "commitLogOffset")
        .select(*resend.COLUMNS)
    )


def counted(batches: Iterable[pa.RecordBatch]) -> list[QueueToReplay]:
    """Return what `queues_of` counts of record batches."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for batch in batches:
        groups = Groups(pa.Table.from_batches([batch]), _QUEUE)
        sizes, offsets = ints(batch["storeSize"]), ints(batch["commitLogOffset"])
        numbers = np.stack([groups.count(), groups.sum(sizes), groups.most(offsets)], 1).tolist()
        for key, (rows, size, last) in zip(groups.keys.to_pylist(), numbers, strict=True):
            total = found.setdefault(tuple(key.values()), [0, 0, 0])
            total[:] = total[0] + rows, total[1] + size, max(total[2], last)
    return [QueueToReplay(*key, *total) for key, total in found.items()]


Bounds: TypeAlias = Mapping[SourceQueue, tuple[int, int]]
"""The physical offset behind which a queue is to be sent, and that of the last message to be sent."""


def in_order(messages: Messages, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Yield the messages between the bounds of their queues, in the order of their logs."""

    def between(batch: pa.RecordBatch) -> pa.RecordBatch:
        found, codes = resend.queues_in(batch)
        after, upto = np.array([bounds.get(queue, (0, -1)) for queue in found], np.int64).reshape(-1, 2).T
        offsets = ints(batch["commitLogOffset"])
        return batch.filter(mask((offsets > after[codes]) & (offsets <= upto[codes])))

    left = messages.of_queues({queue.topic for queue in bounds}, {queue.queue_id for queue in bounds})
    batches = map(between, left.batches(resend.COLUMNS))
    if not messages.is_lake:
        return batches
    rows = pa.Table.from_batches(list(batches), columns.schema_of(resend.COLUMNS))
    order = pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")])
    return iter(rows.take(order).to_batches())


def _send_lanes(work: Resending, messages: Messages, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read and send the lanes of a store whose bounds these rows hold."""
    for batch in tasks:
        for pickled in batch["bounds"].to_pylist():
            yield from work(in_order(messages, pickle.loads(pickled)))


def run(
    spark: AnySession,
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
    messages = Messages(Path(source).absolute(), selection or Selection(), {"corruptRecords": corrupt_records})
    if name_server is None or ledger is None:
        if name_server is not ledger:
            raise ConfigError("a replay needs both a name server and the directory of its ledger; a dry run neither")
        queues = _count(spark, messages)
        return Summary(str(source), topic, queues, {}, is_dry=True)
    given = {"nameServer": name_server, "producerGroup": producer_group}
    target = parse_sink_options(given if topic is None else {**given, "topic": topic})
    with open_ledger(ledger) as opened:
        if topic is not None:
            asyncio.run(_check_topics({topic}, target))
        queues = _settled(opened, spark, messages, target)
        before = dict(opened.acks().reached)
        left = [queue for queue in queues if _rows_left(queue, before)]
        sent = 0
        if left:
            asyncio.run(_check_topics({topic or queue.topic for queue in left}, target))
            messages = replace(messages)  # as the source is now, of which messages may have been deleted
            with _watched(opened, sum(queue.rows for queue in queues), progress):
                if runs_in_spark(spark, messages.size):
                    sent = _send(resolve_session(spark), messages, opened, target, left, before, rate)
                else:
                    bounds = {queue.queue: _bounds(queue, before) for queue in left}
                    work = Resending(uuid.uuid4().hex, opened.directory, target, None if rate is None else [rate])
                    sent = work.send(in_order(messages, bounds))
        return Summary(str(source), topic, queues, opened.acks().reached, sent)


def _send(
    session: SparkSession,
    messages: Messages,
    ledger: Ledger,
    target: SinkOptions,
    left: Sequence[QueueToReplay],
    before: Mapping[SourceQueue, Reached],
    rate: float | None,
) -> int:
    """Send what is left of these queues, in as many tasks as Spark runs at a time, and return how much that was."""
    lanes = deal(left, before, session.sparkContext.defaultParallelism)
    rates = None if rate is None else _rates(lanes, before, rate)
    work = Resending(uuid.uuid4().hex, ledger.directory, target, rates)
    if messages.is_lake:  # whose files Spark has to put in order
        rows = [(*queue.queue, lane, *_bounds(queue, before)) for lane, dealt in enumerate(lanes) for queue in dealt]
        queues = session.createDataFrame(rows, _QUEUES)
        sent = in_lanes(messages.frame(session, resend.COLUMNS), queues, len(lanes)).mapInArrow(work, _SENT)
    else:
        bounds = [pickle.dumps({queue.queue: _bounds(queue, before) for queue in dealt}) for dealt in lanes]
        tasks = session.createDataFrame(list(enumerate(bounds)), _LANE).repartitionById(len(lanes), "lane")
        sent = tasks.mapInArrow(partial(_send_lanes, work, replace(messages)), _SENT)
    with translate_spark_errors():
        return sum(row.sent for row in sent.collect())


def _bounds(queue: QueueToReplay, before: Mapping[SourceQueue, Reached]) -> tuple[int, int]:
    """Return the physical offset that a queue has reached, and that of its last message."""
    return before.get(queue.queue, Reached()).physical_offset, queue.last_physical_offset


def _count(spark: AnySession, messages: Messages) -> tuple[QueueToReplay, ...]:
    names = (*_QUEUE, "storeSize", "commitLogOffset")
    if runs_in_spark(spark, messages.size):
        with translate_spark_errors():
            rows = queues_of(messages.frame(resolve_session(spark), names)).collect()
        queues = [QueueToReplay(*row) for row in rows]
    else:
        queues = counted(messages.batches(names))
    return tuple(sorted(queues, key=lambda each: each.queue))


def _settled(ledger: Ledger, spark: AnySession, messages: Messages, target: SinkOptions) -> tuple[QueueToReplay, ...]:
    """Return what the ledger says is to be replayed; if it is new, after writing that down."""
    asked = {
        "source": str(messages.source),
        "nameServer": target.name_server,
        "topic": target.topic,
        "selection": messages.selection.to_json(),
    }
    settled = ledger.read()
    if settled is None:
        queues = _count(spark, messages)
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
