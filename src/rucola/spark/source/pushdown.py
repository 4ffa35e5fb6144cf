"""Filters of a query, as far as they spare reading.

Spark hands a reader the conditions that a query asks of single columns. Of these a read makes use so:

    topic, queueId, queueOffset     queues are left out and their ranges cut if queues are read; of a log the rows are
                                    left out before anything but the fixed part of their records is decoded
    storeTimestamp                  as startingTimestamp and endingTimestamp: splits of the log are left out
    tags                            as subExpression: units whose hash of the tag says no are passed over

These are answered exactly, row by row where a range is not enough, so the source claims them: Spark does not evaluate
them again, and `explain("formatted")` shows them as PushedFilters. Any other condition is left to Spark, and so are all
with corruptRecords=column.

Only reads with the option pushFilters take filters, and only for a DataFrame that is asked once. Up to 4.3 Spark keeps
with a DataFrame what was planned for its last filters, and takes it for the next query that has none: a program that
counts `df.where(...)` and then `df` gets the same number twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rucola.spark.source.options import CorruptRecords, QueueFilter, ReadOptions
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges, Origin

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def apply_filters(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """Return the options of a read that brings only rows these filters let through, and the filters left to Spark."""
    left: list[Filter] = []
    queue_filter = options.queue_filter
    for each in filters:
        match each:
            case EqualTo(("topic",), str(topic)):
                queue_filter = queue_filter.intersect(topics={topic})
            case In(("topic",), topics):
                queue_filter = queue_filter.intersect(topics=topics)
            case EqualTo(("queueId",), int(queue_id)):
                queue_filter = queue_filter.intersect(queue_ids={queue_id})
            case In(("queueId",), queue_ids):
                queue_filter = queue_filter.intersect(queue_ids=queue_ids)
            case EqualTo(("queueOffset",), int(offset)):
                queue_filter = queue_filter.intersect(begin=offset, end=offset + 1)
            case GreaterThan(("queueOffset",), int(offset)):
                queue_filter = queue_filter.intersect(begin=offset + 1)
            case GreaterThanOrEqual(("queueOffset",), int(offset)):
                queue_filter = queue_filter.intersect(begin=offset)
            case LessThan(("queueOffset",), int(offset)):
                queue_filter = queue_filter.intersect(end=offset)
            case LessThanOrEqual(("queueOffset",), int(offset)):
                queue_filter = queue_filter.intersect(end=offset + 1)
            case EqualTo(("tags",), str(tag)):
                options = _with_tags(options, {tag})
            case In(("tags",), tags):
                options = _with_tags(options, set(tags) - {None})
            case EqualTo(("storeTimestamp",), datetime(tzinfo=tzinfo()) as time):
                options = _with_time(options, _milliseconds(time, up=True), _milliseconds(time) + 1)
            case GreaterThan(("storeTimestamp",), datetime(tzinfo=tzinfo()) as time):
                options = _with_time(options, _milliseconds(time) + 1, None)
            case GreaterThanOrEqual(("storeTimestamp",), datetime(tzinfo=tzinfo()) as time):
                options = _with_time(options, _milliseconds(time, up=True), None)
            case LessThan(("storeTimestamp",), datetime(tzinfo=tzinfo()) as time):
                options = _with_time(options, None, _milliseconds(time, up=True))
            case LessThanOrEqual(("storeTimestamp",), datetime(tzinfo=tzinfo()) as time):
                options = _with_time(options, None, _milliseconds(time) + 1)
            case _:
                left.append(each)
    # Rows of damaged records come whatever the filters are, so Spark has to take them out.
    if options.corrupt_records is CorruptRecords.COLUMN:
        left = list(filters)
    return replace(options, queue_filter=queue_filter), left


def filter_ranges(queue_filter: QueueFilter, ranges: OffsetRanges) -> dict[Origin, tuple[int, int]]:
    """Return what is left of the queues among these ranges; logs are left as they are."""
    left: dict[Origin, tuple[int, int]] = {}
    for origin, (begin, end) in ranges.items():
        if isinstance(origin, BrokerQueue):
            if not queue_filter.matches(origin.topic, origin.queue_id):
                continue
            begin, end = max(begin, queue_filter.begin_queue_offset), min(end, queue_filter.end_queue_offset)
        if begin < end:
            left[origin] = begin, end
    return left


def _with_tags(options: ReadOptions, tags: Iterable[str]) -> ReadOptions:
    return replace(options, tags=frozenset(tags) if options.tags is None else options.tags & frozenset(tags))


def _with_time(options: ReadOptions, begin: int | None, end: int | None) -> ReadOptions:
    """Return the options with only the times from `begin` to `end`, half-open, in milliseconds."""
    if begin is not None and options.starting_timestamp is not None:
        begin = max(begin, options.starting_timestamp)
    if end is not None and options.ending_timestamp is not None:
        end = min(end, options.ending_timestamp)
    return replace(
        options,
        starting_timestamp=options.starting_timestamp if begin is None else begin,
        ending_timestamp=options.ending_timestamp if end is None else end,
    )


def _milliseconds(time: datetime, *, up: bool = False) -> int:
    """Return a time in milliseconds, rounded down unless `up`; storeTimestamp has no smaller unit."""
    since = time - _EPOCH
    return -(-since // _MILLISECOND) if up else since // _MILLISECOND
