"""Filter pushdown: conditions of a query that the source evaluates, to read less.

Conditions on topic, queueId, queueOffset, storeTimestamp and tags skip queues, splits and units, and drop rows before
they are decoded. The source evaluates them exactly and claims them: Spark does not evaluate them again. All other
conditions are left to Spark, and with corruptRecords=column all conditions.

Pushdown is correct only for a DataFrame that is queried once. Up to 4.3 Spark caches a DataFrame's plan with its last
filters, and reuses it for the next query without filters: a program that counts `df.where(...)` and then `df` gets the
same number twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rucola.spark.source.options import CorruptRecords, QueueFilter, ReadOptions
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges, Origin

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


def apply_filters(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """Return options that select only matching rows, and the filters that Spark must evaluate."""
    left: list[Filter] = []
    queue_filter = options.queue_filter
    for each in filters:
        match each:
            case EqualTo(("topic",), str()) | In(("topic",)):
                queue_filter = queue_filter.intersect(topics=_values(each))
            case EqualTo(("queueId",), int()) | In(("queueId",)):
                queue_filter = queue_filter.intersect(queue_ids=_values(each))
            case EqualTo(("tags",), str()) | In(("tags",)):
                tags = _values(each)
                options = replace(options, tags=tags if options.tags is None else options.tags & tags)
            case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
                match each.attribute, each.value:
                    case ("queueOffset",), int(offset):
                        begin, end = _range(each, offset, offset)
                        queue_filter = queue_filter.intersect(begin=begin, end=end)
                    case ("storeTimestamp",), datetime(tzinfo=tzinfo()) as time:
                        # Times have microseconds, storeTimestamp milliseconds: exactly the matching rows are left.
                        since = time - _EPOCH
                        begin, end = _range(each, since // _MILLISECOND, -(-since // _MILLISECOND))
                        options = _with_time(options, begin, end)
                    case _:
                        left.append(each)
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


def _values(each: EqualTo | In) -> frozenset[Any]:
    return frozenset(each.value if isinstance(each, In) else [each.value]) - {None}


def _range(each: Filter, down: int, up: int) -> tuple[int, int]:
    """Return the range of integers that match a comparison with a number between `down` and `up`, half-open."""
    match each:
        case EqualTo():
            return up, down + 1
        case GreaterThan():
            return down + 1, _MOST
        case GreaterThanOrEqual():
            return up, _MOST
        case LessThan():
            return _LEAST, up
        case _:
            return _LEAST, down + 1


def _with_time(options: ReadOptions, begin: int, end: int) -> ReadOptions:
    first, last = options.starting_timestamp, options.ending_timestamp
    return replace(
        options,
        starting_timestamp=first if begin == _LEAST else max(begin, begin if first is None else first),
        ending_timestamp=last if end == _MOST else min(end, end if last is None else last),
    )
