"""Filter pushdown: conditions of a query that the source evaluates, to read less.

Conditions on topic, queueId, queueOffset, storeTimestamp and tags skip queues, splits and units, and drop rows before
they are decoded. The source evaluates them exactly and claims them: Spark does not evaluate them again. All other
conditions are left to Spark, and with corruptRecords=column all conditions.

Pushdown is correct only for a DataFrame that is queried once. Up to 4.3 Spark caches a DataFrame's plan with its last
filters, and reuses it for the next query without filters: a program that counts `df.where(...)` and then `df` gets the
same number twice.
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
    """Return options that select only matching rows, and the filters that Spark must evaluate."""
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
            # Times have microseconds, storeTimestamp milliseconds: round so that exactly the matching rows are left.
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
    # Rows of damaged records are returned regardless of the filters, so Spark must evaluate all of them.
    if options.corrupt_records is CorruptRecords.COLUMN:
        left = list(filters)
    return replace(options, queue_filter=queue_filter), left


def filter_ranges(queue_filter: QueueFilter, ranges: OffsetRanges) -> dict[Origin, tuple[int, int]]:
    """Return the parts of the ranges that match a queue filter; ranges of logs are not changed."""
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
    """Return a time in milliseconds, the resolution of storeTimestamp, rounded down or, with `up`, up."""
    since = time - _EPOCH
    return -(-since // _MILLISECOND) if up else since // _MILLISECOND
