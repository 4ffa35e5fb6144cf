"""Streaming reads for Structured Streaming, from stores and live brokers.

A stream's offset contains the offset of every origin that is read (see `source_offsets`). Spark writes offsets to the
query's checkpoint and passes them back, so a restarted query continues from them and repeats the batch that it had
begun. Spark's calls:

    initialOffset       startingOffsets and similar options; called until the first batch is committed
    latestOffset        the end of the next batch: the end of every origin or, with maxOffsetsPerTrigger, as many
                        messages as this allows. With minOffsetsPerTrigger it returns the start, which makes no batch,
                        until the backlog is large enough or maxTriggerDelay has passed. New origins are read from
                        their start
    reportLatestOffset  the end of every origin at the last latestOffset, for the progress that Spark reports
    partitions          the partitions between two offsets, packed as for a batch

**A logged offset is final.** Spark logs the end of a batch before reading it, and repeats exactly that batch until it
succeeds. Therefore latestOffset detects lost messages and missing brokers before the end is logged. The end has every
origin of the start: an unavailable origin keeps its offset, because without one it would later be read from its start.

Nothing depends on `commit` or `stop`: Spark calls neither for the last batch of an AvailableNow query. The start offset
passed to latestOffset is the end of a finished batch, so that call commits to the commitGroup.
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
from rucola.spark.error_translation import without_tracebacks
from rucola.spark.source import batch_reader
from rucola.spark.source.live_source import commit_offsets
from rucola.spark.source.option_values import EARLIEST
from rucola.spark.source.options import MAX_TRIGGER_DELAY_MS, ReadOptions
from rucola.spark.source.source_offsets import (
    OffsetRanges,
    Offsets,
    Origin,
    SourceBounds,
    available_ranges,
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
    """Raises the error of invalid options at its first call; PySpark's runner hides errors of `streamReader`."""

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
    """Planner of batches on the driver, called from one thread at a time, and pickled reader on workers."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._columns = names
        self._source = batch_reader.source_of(options)
        self._target: OffsetRanges | None = None
        """With Trigger.AvailableNow, the bounds when the query was started."""
        self._latest: dict[str, Any] | None = None
        """The end of every origin at the last `latestOffset`, as JSON."""
        self._last_batch_s: float | None = None
        """Monotonic time of the last batch that did not wait, for maxTriggerDelay."""
        self._group_offsets: dict[Origin, int] = {}
        self._warned: set[str] = set()
        """Missing brokers of the last warning, which is repeated only if the set changes."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        bounds = self._source.bounds()
        if bounds.missing and uniform_start(self._options) != EARLIEST:
            raise RemotingError(
                f"{'; '.join(bounds.describe_missing())}. A stream begins at offsets of all its brokers, or at "
                f"startingOffsets=earliest: start the query when these brokers are available",
                subject=", ".join(sorted(bounds.missing)),
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
        # 1. Determine what can be read after the start. Lost messages and missing brokers raise before Spark logs.
        known = from_json(start, self._options.by_queue)
        bounds = self._source.bounds(known)
        self._refuse_missing(bounds)
        ranges: OffsetRanges = available_ranges(self._options, known, bounds)
        # 2. `start` is the end of a finished batch: publish the lag, and commit to the group.
        self._latest = to_json({origin: end for origin, (_, end) in ranges.items()})
        self._commit_to_group(known, bounds)
        # 3. Cut the ranges by trigger, backlog and batch limit.
        if self._target is not None:
            ranges = self._up_to_target(ranges, self._target, known, bounds)
        waiting = {origin: (begin, end) for origin, (begin, end) in ranges.items() if begin < end}
        if self._waits_for_more(waiting, limit):
            return dict(start)
        if isinstance(limit, ReadMaxRows) and waiting:
            ranges = {**ranges, **self._source.limit(waiting, limit.max_rows)}
        latest = {origin: end for origin, (_, end) in ranges.items()}
        # If nothing is new, exactly what was logged, since Spark compares the JSON texts.
        return dict(start) if latest == known else to_json(latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        begins, upto = (from_json(offsets, self._options.by_queue) for offsets in (start, end))
        ranges = logged_ranges(self._options, begins, upto, self._source.bounds({**upto, **begins}))
        return list(self._source.plan(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batch_reader.read(partition, self._options, self._columns)

    def _refuse_missing(self, bounds: SourceBounds) -> None:
        """Raise RemotingError if brokers are missing or, if that is allowed, warn whenever they change."""
        refuse_missing(self._options, bounds)
        if bounds.missing.keys() != self._warned:
            self._warned = set(bounds.missing)
            for sentence in bounds.describe_missing():
                _log.warning("%s; the stream continues without it", sentence)

    def _up_to_target(
        self, ranges: OffsetRanges, target: OffsetRanges, known: Offsets, bounds: SourceBounds
    ) -> OffsetRanges:
        capped = {}
        for origin, (begin, end) in ranges.items():
            if origin in target:
                capped[origin] = begin, max(min(end, target[origin][1]), begin)
            elif origin in known:
                if origin not in bounds.unavailable and self._options.fail_on_missing_broker:
                    raise RemotingError(
                        f"{origin.broker_name} was missing when the query was started, and is available now: start the "
                        f"query again to read {origin}",
                        subject=origin.broker_name,
                    )
                capped[origin] = begin, begin
        return capped

    def _waits_for_more(self, waiting: OffsetRanges, limit: ReadLimit) -> bool:
        """Return whether a batch waits for minOffsetsPerTrigger; the first of a run and AvailableNow do not."""
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
        """Commit the offsets of finished batches to the commitGroup; a failure is only logged."""
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
            commit_offsets(options, changed)
        except RemotingError as error:
            _log.warning("offsets of group %s were not committed: %s", self._options.commit_group, error)
        else:
            self._group_offsets |= changed
