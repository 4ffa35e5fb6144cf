"""Filters of a query, as far as they spare reading.

Spark hands a reader the conditions that a query asks of single columns. Of these a read makes use so:

    topic, queueId, queueOffset     queues are left out and their ranges cut where queues are read; of a log the rows
                                    are left out before anything but the fixed part of their records is looked at
    storeTimestamp                  as startingTimestamp and endingTimestamp: stretches of the log are left out
    tags                            as subExpression: units whose hash of the tag says no are passed over

Nothing is claimed: Spark asks every row again. So what is done here must never leave out too much, and need not leave
out everything; conditions that are not understood are passed over.

Only reads with the option pushFilters take filters, and only for a DataFrame that is asked once. Up to 4.3 Spark keeps
with a DataFrame what was planned for its last filters, and takes it for the next query that has none: whoever counts
`df.where(...)` and then `df` gets the same number twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rucola.spark.options import Narrowing, Options
from rucola.spark.places import Place, Queue, Ranges

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(options: Options, filters: Sequence[Filter]) -> Options:
    """Return the options of a read that need not bring what these filters do not let through."""
    narrowing = options.narrowing
    for each in filters:
        match each:
            case EqualTo(("topic",), str(topic)):
                narrowing = narrowing.within(topics={topic})
            case In(("topic",), topics):
                narrowing = narrowing.within(topics=topics)
            case EqualTo(("queueId",), int(queue_id)):
                narrowing = narrowing.within(queue_ids={queue_id})
            case In(("queueId",), queue_ids):
                narrowing = narrowing.within(queue_ids=queue_ids)
            case EqualTo(("queueOffset",), int(offset)):
                narrowing = narrowing.within(begin=offset, end=offset + 1)
            case GreaterThan(("queueOffset",), int(offset)):
                narrowing = narrowing.within(begin=offset + 1)
            case GreaterThanOrEqual(("queueOffset",), int(offset)):
                narrowing = narrowing.within(begin=offset)
            case LessThan(("queueOffset",), int(offset)):
                narrowing = narrowing.within(end=offset)
            case LessThanOrEqual(("queueOffset",), int(offset)):
                narrowing = narrowing.within(end=offset + 1)
            case EqualTo(("tags",), str(tag)):
                options = _with_tags(options, {tag})
            case In(("tags",), tags):
                options = _with_tags(options, tags)
            case EqualTo(("storeTimestamp",), datetime() as time):
                options = _with_time(options, time, time)
            case GreaterThan(("storeTimestamp",), datetime() as time):
                options = _with_time(options, time, None)
            case GreaterThanOrEqual(("storeTimestamp",), datetime() as time):
                options = _with_time(options, time, None)
            case LessThan(("storeTimestamp",), datetime() as time):
                options = _with_time(options, None, time)
            case LessThanOrEqual(("storeTimestamp",), datetime() as time):
                options = _with_time(options, None, time)
    return replace(options, narrowing=narrowing)


def narrowed_ranges(narrowing: Narrowing, ranges: Ranges) -> dict[Place, tuple[int, int]]:
    """Return what is left of the queues among these ranges; logs are left as they are."""
    left: dict[Place, tuple[int, int]] = {}
    for place, (begin, end) in ranges.items():
        if isinstance(place, Queue):
            if not narrowing.takes(place.topic, place.queue_id):
                continue
            begin, end = max(begin, narrowing.begin_queue_offset), min(end, narrowing.end_queue_offset)
        if begin < end:
            left[place] = begin, end
    return left


def _with_tags(options: Options, tags: Iterable[str]) -> Options:
    return replace(options, tags=frozenset(tags) if options.tags is None else options.tags & frozenset(tags))


def _with_time(options: Options, first: datetime | None, last: datetime | None) -> Options:
    """Return the options with times from `first` to `last`, both included: Spark asks again which are meant."""
    begin, end = options.starting_timestamp, options.ending_timestamp
    if first is not None and first.tzinfo is not None:
        begin = max(_milliseconds(first), 0 if begin is None else begin)
    if last is not None and last.tzinfo is not None:
        upto = _milliseconds(last) + 1
        end = upto if end is None else min(upto, end)
    return replace(options, starting_timestamp=begin, ending_timestamp=end)


def _milliseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(milliseconds=1)
