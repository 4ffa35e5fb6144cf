"""A stream of messages for Structured Streaming: stores and live brokers, batch after batch.

An offset of the stream is the offset of every origin that is read (see `origins`): the physical offset of each store's
log, or the queue offset of each queue. Spark logs offsets in the checkpoint of the query and hands them back, so a
restarted query continues from them and repeats the batch that it had begun.

    initialOffset       startingOffsets and the like, asked for until the first batch is committed
    latestOffset        the end of the next batch: the end of every origin, or as far as maxOffsetsPerTrigger allows,
                        shared out by the backlog of each origin. With minOffsetsPerTrigger it returns the start, which
                        makes no batch, until the backlog is large enough or the time is up. A new origin is read from
                        its beginning
    reportLatestOffset  the end of every origin when latestOffset was asked, for the progress that Spark reports
    partitions          the partitions between two offsets, packed as for a batch

**A logged offset is final.** Spark logs the end of a batch before reading it, and repeats exactly that batch until it
succeeds. Therefore latestOffset detects lost messages and missing brokers before the end is logged. An end has every
origin of its start: a origin that is unavailable keeps its offset, since without one it would be read from its beginning later.

Earlier versions left such origins out. A batch whose end lacks them is repeated as soon as they can be read, and the
next batch continues at the offsets that the start of that batch had. Its own start lacks them, so its end carries both
(see `origins.to_json`).

A query with Trigger.AvailableNow records the end of every origin when it starts, and stops there.

Nothing depends on `commit` or `stop`: Spark calls neither for the last batch of an AvailableNow query. The offset that
latestOffset starts from is the end of a finished batch, so progress is committed to the commitGroup there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rucola.errors import MQError, RemotingError
from rucola.spark.errors import without_tracebacks
from rucola.spark.source import batch_reader
from rucola.spark.source.live_source import commit
from rucola.spark.source.offset_options import EARLIEST
from rucola.spark.source.options import MAX_TRIGGER_DELAY_MS, ReadOptions
from rucola.spark.source.source_offsets import (
    OffsetRanges,
    Offsets,
    Origin,
    SourceBounds,
    available_ranges,
    begins_from_json,
    from_json,
    initial_offsets,
    logged_ranges,
    refuse_missing,
    resolve_offsets,
    to_json,
    uniform_start,
)

_log = logging.getLogger(__name__)


@without_tracebacks
class RefusedStreamReader(DataSourceStreamReader):
    """A stream whose options are refused: the first call raises the error.

    An error of `DataSource.streamReader` itself would be lost: PySpark's runner fails in its own cleanup then, and
    reports that failure (UnboundLocalError).
    """

    def __init__(self, error: MQError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


@without_tracebacks
class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query, and on the workers, which get a pickled copy, reads their partitions."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._columns = names
        self._source = batch_reader.source_of(options)
        self._target: OffsetRanges | None = None
        """With Trigger.AvailableNow: the bounds when the query was started."""
        self._recovered: dict[Origin, int] = {}
        """The offsets of origins that the end of a repeated batch lacks, though its start has them."""
        self._latest: dict[str, Any] | None = None
        self._last_batch_s: float | None = None
        self._group_offsets: dict[Origin, int] = {}
        self._told: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        bounds = self._source.bounds()
        if bounds.missing and uniform_start(self._options) != EARLIEST:
            raise RemotingError(
                f"{'; '.join(bounds.describe_missing())}. A stream begins at offsets of all its brokers, or at "
                f"startingOffsets=earliest: start the query when they are back"
            )
        self._refuse_missing(bounds)
        return to_json(initial_offsets(resolve_offsets(self._options, self._source, bounds), bounds))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        bounds = self._source.bounds()
        self._refuse_missing(bounds)
        self._target = bounds.ranges

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        logged = from_json(start, self._options.by_queue)
        recovered = {origin: offset for origin, offset in self._recovered.items() if origin not in logged}
        known = {**logged, **recovered}
        bounds = self._source.bounds(known)
        self._refuse_missing(bounds)
        ranges: OffsetRanges = available_ranges(self._options, known, bounds)
        self._latest = to_json({origin: end for origin, (_, end) in ranges.items()})
        self._commit_to_group(logged, bounds)
        if self._target is not None:
            ranges = self._up_to_target(ranges, self._target, known, bounds)
        waiting = {origin: (begin, end) for origin, (begin, end) in ranges.items() if begin < end}
        if self._waits_for_more(waiting, limit):
            return dict(start)
        if isinstance(limit, ReadMaxRows) and waiting:
            ranges = {**ranges, **self._source.limit(waiting, limit.max_rows)}
        latest = {origin: end for origin, (_, end) in ranges.items()}
        if latest == logged:
            return dict(start)  # as it was logged, since Spark compares texts
        return to_json(latest, {origin: offset for origin, offset in recovered.items() if origin in latest})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        by_queue = self._options.by_queue
        begins = {**begins_from_json(end, by_queue), **from_json(start, by_queue)}
        upto = from_json(end, by_queue)
        bounds = self._source.bounds(begins.keys() | upto.keys())
        ranges = logged_ranges(self._options, begins, upto, bounds)
        self._recovered |= {
            origin: at for origin, at in begins.items() if origin not in upto and origin in bounds.ranges
        }
        return list(self._source.plan(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batch_reader.read(partition, self._options, self._columns)

    def _refuse_missing(self, bounds: SourceBounds) -> None:
        """Raise RemotingError if brokers are missing; if that is allowed, warn each time others are."""
        refuse_missing(self._options, bounds)
        if bounds.missing.keys() != self._told:
            self._told = set(bounds.missing)
            for sentence in bounds.describe_missing():
                _log.warning("%s; the stream continues without it", sentence)

    def _up_to_target(
        self, ranges: OffsetRanges, target: OffsetRanges, known: Offsets, bounds: SourceBounds
    ) -> OffsetRanges:
        """Return the ranges without what came after the query was started with Trigger.AvailableNow."""
        capped = {}
        for origin, (begin, end) in ranges.items():
            if origin in target:
                capped[origin] = begin, max(min(end, target[origin][1]), begin)
            elif origin in known:
                if origin not in bounds.unavailable and self._options.fail_on_missing_broker:
                    raise RemotingError(
                        f"{origin.broker_name} was missing when the query was started, and is back: start the query "
                        f"again to read {origin}"
                    )
                capped[origin] = begin, begin
        return capped

    def _waits_for_more(self, waiting: OffsetRanges, limit: ReadLimit) -> bool:
        """Tell whether a batch waits for minOffsetsPerTrigger. A query that is to end, or has just begun, does not."""
        least = self._options.min_offsets_per_trigger
        if least is None or not waiting or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        delay_ms = self._options.max_trigger_delay_ms
        delay_ms = MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms
        now_s = monotonic()
        is_due = self._last_batch_s is None or (now_s - self._last_batch_s) * 1000 >= delay_ms
        if not is_due and self._source.count(waiting, least) < least:
            return True
        self._last_batch_s = now_s
        return False

    def _commit_to_group(self, offsets: Offsets, bounds: SourceBounds) -> None:
        """Commit the offsets of finished batches to the commitGroup. A failure is no failure of the stream."""
        if self._options.commit_group is None:
            return
        changed = {
            origin: offset
            for origin, offset in offsets.items()
            if origin in bounds.ranges and self._group_offsets.get(origin) != offset
        }
        if not changed:
            return
        options = replace(self._options, consumer_group=self._options.commit_group)
        try:
            commit(options, changed)
        except RemotingError as error:
            _log.warning("progress of group %s was not committed: %s", self._options.commit_group, error)
        else:
            self._group_offsets |= changed
