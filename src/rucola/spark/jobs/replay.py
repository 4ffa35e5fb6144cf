"""Replay job: sends messages of a store directory or a lake to live brokers again.

    select   a filter chooses the messages (see `rucola.spark.jobs.selection`)
    plan     the messages of each source queue are counted, and the last one fixes the end of the replay
    lanes    queues are assigned to tasks with near-equal row counts; each lane gets its share of the rate. A task of a
             store reads its queues in log order; Spark sorts the rows of a lake into that order
    send     each task sends its rows in order (see `rucola.spark.jobs.replay_sender`)

Every message is sent at least once, under its original unique key, so that consumers can drop duplicates. The ledger
records acknowledged messages (see `rucola.spark.jobs.replay_ledger`): a killed run is continued by the same call.
System properties, such as a delay level, are not sent: a replayed message is stored in its queue at once.
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
from rucola.spark.archive import Archive
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import replay_sender
from rucola.spark.jobs.progress import ProgressCallback, call_periodically
from rucola.spark.jobs.replay_ledger import QueueProgress, ReplayLedger, SourceQueue, open_ledger
from rucola.spark.jobs.replay_sender import ResendTask
from rucola.spark.jobs.selected_messages import Batches, SelectedMessages, map_partitions, source_of
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.shared_files import not_shared, share
from rucola.spark.source import columns
from rucola.spark.source.array_conversions import ints, mask
from rucola.spark.source.grouping import Groups
from rucola.spark.source.log_reader import check_log
from rucola.spark.source.log_splits import LogSplit
from rucola.spark.source.options import SinkOptions, parse_sink_options

GROUP: Final = "rucola_replay"

_QUEUE: Final = list(replay_sender.QUEUE_COLUMNS)
_QUEUES: Final = "brokerName string, topic string, queueId int, lane int, after bigint, upto bigint"
_SENT: Final = "sent bigint"


@dataclass(frozen=True)
class QueuePlan:
    """Messages to send from one queue: `rows` of them, `size` bytes, the last at `last_physical_offset`."""

    broker_name: str
    topic: str
    queue_id: int
    rows: int
    size: int
    last_physical_offset: int

    @property
    def queue(self) -> SourceQueue:
        """The identity of the queue."""
        return SourceQueue(self.broker_name, self.topic, self.queue_id)


@dataclass(frozen=True)
class ReplayResult:
    """Plan of a replay and its progress: `reached` over all runs; `sent` counts the messages of this run."""

    source: str
    topic: str | None
    queues: tuple[QueuePlan, ...]
    reached: Mapping[SourceQueue, QueueProgress]
    sent: int = 0
    is_dry: bool = False

    @property
    def rows(self) -> int:
        """Messages in the plan."""
        return sum(queue.rows for queue in self.queues)

    @property
    def acknowledged(self) -> int:
        """Messages that brokers have acknowledged."""
        return sum(reached.count for reached in self.reached.values())

    @property
    def unsafe(self) -> int:
        """Acknowledged messages that brokers did not flush or replicate in time."""
        return sum(reached.unsafe for reached in self.reached.values())

    @property
    def missing(self) -> int:
        """Planned messages that are no longer in the source."""
        return 0 if self.is_dry else self.rows - self.acknowledged

    def acknowledged_of(self, queue: QueuePlan) -> int:
        """Return the number of acknowledged messages of one queue."""
        return self.reached.get(queue.queue, QueueProgress()).count

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
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
                    "acknowledged": self.acknowledged_of(each),
                }
                for each in self.queues
            ],
        }


@dataclass(frozen=True)
class PendingQueue:
    """The unsent part of a queue: about `rows` messages, at physical offsets above `after` and up to `upto`."""

    queue: SourceQueue
    after: int
    upto: int
    rows: int


def pending_queues(queues: Iterable[QueuePlan], reached: Mapping[SourceQueue, QueueProgress]) -> list[PendingQueue]:
    """Return the queues of a plan with unsent messages, given the acknowledged progress of each."""
    pending = []
    for plan in queues:
        progress = reached.get(plan.queue, QueueProgress())
        if progress.physical_offset < plan.last_physical_offset:
            # At least one row is pending until the last one is acknowledged: the counts alone do not show it, because
            # messages may have been deleted from the source since they were counted.
            rows = max(plan.rows - progress.count, 1)
            pending.append(PendingQueue(plan.queue, progress.physical_offset, plan.last_physical_offset, rows))
    return pending


def partition_by_lane(messages: DataFrame, lanes: DataFrame, count: int) -> DataFrame:
    """Return the messages of each queue's lane, above `after` and up to `upto`, sorted by broker and offset."""
    return (
        messages.join(F.broadcast(lanes), _QUEUE)
        .where("commitLogOffset > after AND commitLogOffset <= upto")
        .repartitionById(count, F.col("lane"))
        .sortWithinPartitions("brokerName", "commitLogOffset")
        .select(*replay_sender.COLUMNS)
    )


def count(batch: pa.RecordBatch) -> Iterator[QueuePlan]:
    """Count the messages of each queue in a record batch."""
    groups = Groups(pa.Table.from_batches([batch]), _QUEUE)
    sizes, offsets = ints(batch["storeSize"]), ints(batch["commitLogOffset"])
    numbers = np.stack([groups.count(), groups.sum(sizes), groups.max(offsets)], 1).tolist()
    return (QueuePlan(*key.values(), *each) for key, each in zip(groups.keys.to_pylist(), numbers, strict=True))


def merge(plans: Iterable[QueuePlan]) -> tuple[QueuePlan, ...]:
    """Add the counts of each queue. Memory holds one entry per queue."""
    totals: dict[SourceQueue, QueuePlan] = {}
    for plan in plans:
        rows, size, last = 0, 0, -1
        if (known := totals.get(plan.queue)) is not None:
            rows, size, last = known.rows, known.size, known.last_physical_offset
        last = max(last, plan.last_physical_offset)
        totals[plan.queue] = replace(plan, rows=rows + plan.rows, size=size + plan.size, last_physical_offset=last)
    return tuple(totals[queue] for queue in sorted(totals))


def _count_task(batches: Batches) -> Batches:
    plans = merge(plan for batch in batches for plan in count(batch))
    if plans:
        yield pa.RecordBatch.from_pylist([{"plan": pickle.dumps(plans)}])


Bounds: TypeAlias = Mapping[SourceQueue, tuple[int, int]]
"""Physical offsets by queue: (last one already sent, last one to send)."""


def in_log_order(messages: SelectedMessages, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Yield the messages within the bounds of their queues, in log order. Rows of a lake are sorted in memory."""

    def between(batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = Groups(pa.Table.from_batches([batch]), _QUEUE)
        # Bounds per queue become bounds per row by indexing with the codes of the groups. A queue without bounds gets
        # (0, -1), which no offset can meet.
        found = [bounds.get(SourceQueue(*key.values()), (0, -1)) for key in groups.keys.to_pylist()]
        after, upto = np.array(found, np.int64).reshape(-1, 2).T
        offsets = ints(batch["commitLogOffset"])
        kept = (offsets > after[groups.codes]) & (offsets <= upto[groups.codes])
        return batch if kept.all() else batch.filter(mask(kept))

    narrowed = messages.narrow_to_queues({queue.topic for queue in bounds}, {queue.queue_id for queue in bounds})
    batches = map(between, narrowed.batches(replay_sender.COLUMNS))
    if not messages.is_lake:
        return batches
    rows = pa.Table.from_batches(list(batches), columns.schema_of(replay_sender.COLUMNS))
    # Within a broker, the log has the order of each queue.
    order = pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")])
    return iter(rows.take(order).to_batches())


def _send_lane(task: ResendTask, messages: SelectedMessages, last: LogSplit | None, bounds: Bounds) -> Batches:
    if last is not None:
        check_log(last)
    return task(in_log_order(messages, bounds))


@dataclass(frozen=True)
class ReplayOptions:
    """Destination, ledger and rate of a replay; without `name_server` and `ledger` a dry run, which only counts.

    Without `topic`, each message is sent to its own topic; `rate` limits messages per second over all tasks. With
    `otel`, sends have spans and metrics of OpenTelemetry (see `rucola.client.otel`), by the providers of the process
    that sends. Raises ConfigError if only one of `name_server` and `ledger` is given.
    """

    name_server: str | None = None
    ledger: str | Path | None = None
    topic: str | None = None
    rate: float | None = None
    corrupt_records: str = "fail"
    producer_group: str = GROUP
    otel: bool = False

    def __post_init__(self) -> None:
        if (self.name_server is None) != (self.ledger is None):
            raise ConfigError("a replay needs both a name server and a ledger directory; a dry run needs neither")

    def sink(self) -> SinkOptions:
        """Return the destination as options of the Spark sink."""
        given = {"nameServer": str(self.name_server), "producerGroup": self.producer_group}
        return parse_sink_options(given if self.topic is None else {**given, "topic": self.topic})


def run(
    spark: AnySession,
    source: str | Path | Archive,
    options: ReplayOptions | None = None,
    *,
    selection: Selection | None = None,
    progress: ProgressCallback | None = None,
) -> ReplayResult:
    """Send the selected messages of a store directory or lake; `progress` gets acknowledged and planned messages.

    Raises StoreError if the source is neither store nor lake, is damaged, or is being replayed with this ledger;
    ConfigError if the ledger belongs to another replay; RemotingError if brokers reject a message, after which the same
    call continues.
    """
    options = options or ReplayOptions()
    corrupt = {"corruptRecords": options.corrupt_records}
    messages = SelectedMessages(source_of(source), selection or Selection(), corrupt)
    if options.ledger is None:
        return ReplayResult(str(source), options.topic, _count_queues(spark, messages), {}, is_dry=True)
    target, topic = options.sink(), options.topic
    with open_ledger(options.ledger) as ledger:
        if topic is not None:
            # Fail before the source is read; without a topic, the queues name the topics and have to be known first.
            asyncio.run(_check_topics({topic}, target))
        queues = _load_plan(ledger, spark, messages, target)
        pending = pending_queues(queues, ledger.read_acks().reached)
        sent = 0
        if pending:
            asyncio.run(_check_topics({topic or each.queue.topic for each in pending}, target))
            messages = replace(messages)  # looks at the source again: messages may have been deleted while counting
            task = ResendTask(uuid.uuid4().hex, ledger.directory, target, otel=options.otel)
            before = ledger.read_acks().count
            with _report_acks(ledger, sum(queue.rows for queue in queues), progress):
                if runs_in_spark(spark, messages.size):
                    sent = _send(resolve_session(spark), messages, task, pending, options.rate)
                else:
                    task = replace(task, rates=None if options.rate is None else [options.rate])
                    sent = task.send(in_log_order(messages, _bounds(pending)))
            if ledger.read_acks().count - before < sent:
                raise not_shared(ledger.directory)
        return ReplayResult(str(source), topic, queues, ledger.read_acks().reached, sent)


def _send(
    session: SparkSession,
    messages: SelectedMessages,
    task: ResendTask,
    pending: Sequence[PendingQueue],
    rate: float | None,
) -> int:
    lanes = assign_lanes(pending, session.sparkContext.defaultParallelism)
    task = replace(task, rates=None if rate is None else _lane_rates(lanes, rate))
    with share(task.ledger) as token, translate_spark_errors():
        task = replace(task, token=token)
        if messages.is_lake:
            # The files of a lake are not in log order, so Spark shuffles the rows to their lanes and sorts them there.
            rows = [(*each.queue, lane, each.after, each.upto) for lane, queues in enumerate(lanes) for each in queues]
            ranges = session.createDataFrame(rows, _QUEUES)
            chosen = messages.frame(session, replay_sender.COLUMNS)
            sent = partition_by_lane(chosen, ranges, len(lanes)).mapInArrow(task, _SENT)
        else:
            # A store is read in log order: each task reads its own queues, and no row is shuffled.
            send = partial(_send_lane, task, replace(messages), messages.last_split())
            sent = map_partitions(session, [_bounds(queues) for queues in lanes], send, _SENT)
        return sum(row.sent for row in sent.collect())


def _bounds(pending: Iterable[PendingQueue]) -> Bounds:
    return {each.queue: (each.after, each.upto) for each in pending}


def _count_queues(spark: AnySession, messages: SelectedMessages) -> tuple[QueuePlan, ...]:
    names = (*_QUEUE, "storeSize", "commitLogOffset")
    if not runs_in_spark(spark, messages.size):
        return merge(plan for batch in messages.batches(names) for plan in count(batch))
    with translate_spark_errors():
        found = messages.map(resolve_session(spark), names, _count_task, "plan binary").collect()
    return merge(plan for row in found for plan in pickle.loads(row.plan))  # noqa: S301 - the tasks'


def _load_plan(
    ledger: ReplayLedger, spark: AnySession, messages: SelectedMessages, target: SinkOptions
) -> tuple[QueuePlan, ...]:
    """Return the plan of the ledger; for a new ledger, count the source and write the plan first."""
    wanted = {
        "source": str(messages.source),
        "nameServer": target.name_server,
        "topic": target.topic,
        "selection": messages.selection.to_json(),
    }
    plan = ledger.read_plan()
    if plan is None:
        queues = _count_queues(spark, messages)
        ledger.write_plan({**wanted, "queues": [asdict(queue) for queue in queues]})
        return queues
    for name, value in wanted.items():
        if plan.get(name) != value:
            raise ConfigError(
                f"{ledger.directory} is the ledger of another replay, whose {name} is {plan.get(name)!r} and not "
                f"{value!r}; repeat the options of its first run, or name a new directory"
            )
    return tuple(QueuePlan(**queue) for queue in plan["queues"])


def assign_lanes(queues: Sequence[PendingQueue], count: int) -> list[list[PendingQueue]]:
    """Assign queues, largest first, to the lane with the fewest rows: 5, 3, 3 and 2 make 5 + 2 and 3 + 3."""
    lanes: list[list[PendingQueue]] = [[] for _ in range(min(count, len(queues)))]
    filled = [0] * len(lanes)
    for each in sorted(queues, key=lambda each: (-each.rows, each.queue)):
        lane = filled.index(min(filled))
        lanes[lane].append(each)
        filled[lane] += each.rows
    return lanes


def _lane_rates(lanes: Sequence[Sequence[PendingQueue]], rate: float) -> list[float]:
    """Split the rate in proportion to the lanes' rows, so that all lanes end at the same time."""
    rows = [sum(each.rows for each in lane) for lane in lanes]
    return [rate * count / sum(rows) for count in rows]


async def _check_topics(topics: set[str], target: SinkOptions) -> None:
    async with Producer(target.producer_group, target.name_server) as producer:
        for topic in sorted(topics):
            await producer.queues(topic)


@contextmanager
def _report_acks(ledger: ReplayLedger, total: int, progress: ProgressCallback | None) -> Iterator[None]:
    if progress is None:
        yield
        return
    acks = ledger.read_acks()

    def report() -> None:
        acks.refresh()
        progress(acks.count, total)

    with call_periodically(report):
        yield
