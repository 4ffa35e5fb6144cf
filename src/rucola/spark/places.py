"""Where reading can be: the logs or queues of a read, how far each reaches, and what a read takes of them.

A `Place` is what has offsets of its own: the log of a store, whose offsets are physical, or a queue on a broker, whose
offsets are queue offsets. Batches and streams see stores and live brokers through the same four questions, those of
`Source`: what is there, how a range of it becomes partitions, where a range ends that has at most so many messages, and
where in a queue a time is.

Messages are lost to a read when what it was to begin with is no longer there: deleted, since brokers delete the oldest
files, or never there, since the place was made anew. `failOnDataLoss` decides what then happens (see `settled`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import InputPartition

from rucola.errors import ConfigError, StoreError
from rucola.message.topics import is_system_topic
from rucola.spark.options import EARLIEST, LATEST, Options, QueueOffsets

_log = logging.getLogger(__name__)


class Queue(NamedTuple):
    """A queue on a broker; its offsets are queue offsets."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on {self.broker_name}"


class Log(NamedTuple):
    """The CommitLog of a store; its offsets are physical."""

    broker_name: str

    def __str__(self) -> str:
        return f"the log of {self.broker_name}"


Place: TypeAlias = Queue | Log
Offsets: TypeAlias = Mapping[Place, int]
Ranges: TypeAlias = Mapping[Place, tuple[int, int]]
"""Offsets from begin to end, half-open, of each place."""


class Source(Protocol):
    """What is read."""

    def bounds(self) -> Ranges:
        """Return what there is now of every place that is chosen."""

    def plan(self, ranges: Ranges) -> Sequence[InputPartition]:
        """Return the partitions that hold what is chosen of these ranges, which must lie in the bounds."""

    def at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        """Return for each queue the offset of its first message stored at a time or later; without one, its end."""

    def limit(self, ranges: Ranges, count: int) -> Ranges:
        """Return the beginnings of these ranges that together hold at most `count` messages; not none if any."""


def is_chosen(options: Options, queue: Queue) -> bool:
    """Tell whether a read takes this queue."""
    if options.topics is not None:
        return queue.topic in options.topics
    if options.assigned is not None:
        return not options.assigned.isdisjoint({(queue.topic, None, queue.queue_id), queue})
    return is_chosen_topic(options, queue.topic)


def is_chosen_topic(options: Options, topic: str) -> bool:
    """Tell whether a read without named topics takes this one."""
    if is_system_topic(topic) and not options.include_system_topics:
        return False
    return options.pattern is None or options.pattern.fullmatch(topic) is not None


def at_offsets(options: Options, source: Source, bounds: Ranges) -> Options:
    """Return the options with queue offsets where they have times."""

    def offsets(times: QueueOffsets) -> QueueOffsets:
        queues = {Queue(*named): time for named, time in times.items()}
        for queue in queues:
            if queue not in bounds:
                raise ConfigError(f"times name {queue}, which this read has not")
        return {(*queue,): offset for queue, offset in source.at_times(queues, bounds).items()}

    if options.starting_times is not None:
        options = replace(options, starting_offsets=offsets(options.starting_times), starting_times=None)
    if options.ending_times is not None:
        options = replace(options, ending_offsets=offsets(options.ending_times), ending_times=None)
    return options


def batch_ranges(options: Options, bounds: Ranges) -> dict[Place, tuple[int, int]]:
    """Return what a batch takes of each place."""
    starting = options.starting_offsets if isinstance(options.starting_offsets, Mapping) else {}
    ending = options.ending_offsets or {}
    brokers = sorted(options.stores or {place.broker_name for place in bounds})
    for named in {**starting, **ending}:
        queue = Queue(*named)
        if queue.broker_name not in brokers:
            raise ConfigError(f"offsets name broker {queue.broker_name!r}; this read has {', '.join(brokers)}")
        if queue not in bounds:
            raise ConfigError(f"offsets name {queue}, which this read has not")
    ranges = {}
    for place, (least, most) in sorted(bounds.items()):
        if isinstance(place, Log):
            begin, end = options.starting_commit_log_offset, options.ending_commit_log_offset
            begin, end = least if begin is None else begin, most if end is None else min(end, most)
        else:
            begin, end = starting.get(place, EARLIEST), ending.get(place, LATEST)
            begin, end = least if begin == EARLIEST else begin, most if end == LATEST else end
        for offset in (begin,) if isinstance(place, Log) else (begin, end):
            if not least <= offset <= most:
                _lost(options, f"offset {offset} of {place} is not there; it holds {least} to {most}", ConfigError)
        begin, end = min(max(begin, least), most), min(max(end, least), most)
        if begin < end:
            ranges[place] = begin, end
    return ranges


def initial_offsets(options: Options, bounds: Ranges) -> dict[Place, int]:
    """Return where a stream begins that was never run."""
    given = options.starting_offsets
    word = given if isinstance(given, int) else EARLIEST if options.starting_timestamp is not None else LATEST
    offsets = {place: least if word == EARLIEST else most for place, (least, most) in bounds.items()}
    named: dict[Place, int] = {}
    if options.starting_commit_log_offset is not None:
        named = dict.fromkeys(bounds, options.starting_commit_log_offset)
    elif isinstance(given, Mapping):
        named = {Queue(*queue): offset for queue, offset in given.items()}
        offsets = {place: least for place, (least, _) in bounds.items()}
    for place, offset in named.items():
        if place not in bounds:
            raise ConfigError(f"offsets name {place}, which this read has not")
        least, most = bounds[place]
        if offset >= 0 and not least <= offset <= most:
            _lost(options, f"offset {offset} of {place} is not there; it holds {least} to {most}", ConfigError)
        offsets[place] = least if offset == EARLIEST else most if offset == LATEST else min(max(offset, least), most)
    return offsets


def settled(options: Options, start: Offsets, end: Offsets, bounds: Ranges) -> dict[Place, tuple[int, int]]:
    """Return what lies between two offsets of a stream and is still there; StoreError for what is not.

    With failOnDataLoss=false what is not there is left out with a warning. A place that `start` does not know came
    into being since and is read from its beginning.
    """
    ranges = {}
    for place in start.keys() - end.keys():
        _lost(options, f"{place} is gone, and with it what came after offset {start[place]}", StoreError)
    for place, upto in sorted(end.items()):
        if place not in bounds:
            if start.get(place, 0) < upto:
                _lost(options, f"{place} is gone, and with it offsets {start.get(place, 0)} to {upto}", StoreError)
            continue
        least, most = bounds[place]
        begin = start.get(place, 0 if isinstance(place, Queue) else least)
        if begin < min(least, upto):
            _lost(options, f"offsets {begin} to {min(least, upto)} of {place} were deleted unread", StoreError)
        if max(begin, upto) > most:
            _lost(options, f"{place} was read up to offset {begin}, but ends at {most}: it was replaced", StoreError)
        begin, upto = max(begin, least), min(upto, most)
        if begin < upto:
            ranges[place] = begin, upto
    return ranges


def _lost(options: Options, what: str, error: type[ConfigError] | type[StoreError]) -> None:
    if options.fail_on_data_loss:
        raise error(f"{what}; failOnDataLoss=false reads what there is")
    _log.warning("%s; reading what there is", what)


def shares(ranges: Ranges, count: int) -> dict[Place, tuple[int, int]]:
    """Return the beginnings of ranges with `count` offsets in all, each place's share by its size."""
    total = sum(end - begin for begin, end in ranges.values())
    if total <= count:
        return dict(ranges)
    cut, passed, given = {}, 0, 0
    for place, (begin, end) in ranges.items():
        passed += end - begin
        upto = passed * count // total
        cut[place] = begin, begin + upto - given
        given = upto
    return cut


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Return offsets as a stream keeps them: {"broker":n} of logs, {"topic":{"broker":{"0":n}}} of queues."""
    found: dict[str, Any] = {}
    for place, offset in sorted(offsets.items()):
        if isinstance(place, Log):
            found[place.broker_name] = offset
        else:
            found.setdefault(place.topic, {}).setdefault(place.broker_name, {})[str(place.queue_id)] = offset
    return found


def from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Place, int]:
    """Return what `to_json` was given. Raises ConfigError where a stream was started over with other options."""
    try:
        if not by_queue:
            return {Log(broker): int(offset) for broker, offset in value.items()}
        return {
            Queue(topic, broker, int(queue_id)): int(offset)
            for topic, brokers in value.items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        kinds = ("logs", "queues") if by_queue else ("queues", "logs")
        raise ConfigError(
            f"the checkpoint of this stream has offsets of {kinds[0]}, but its options read {kinds[1]}; "
            f"give the options it was started with, or another checkpointLocation"
        ) from error
