"""The logs or queues of a read: the bounds of each, and the ranges of them that a batch reads.

A `Place` has offsets of its own: the log of a store, whose offsets are physical, or a queue on a broker, whose
offsets are queue offsets. Batches and streams see stores and live brokers through the same questions, those of
`Source`: the bounds of every place, the partitions of a range, the part of a range with a given number of messages, the
number of messages in a range, and the offset at a time.

Two things can be wrong with a place:

    lost       messages that were to be read no longer exist: brokers delete their oldest files, a store was replaced, a
               topic was deleted. `failOnDataLoss` decides whether the read fails or skips them.
    missing    the broker is not registered, does not answer, or does not let the queue be read now. Its messages still
               exist, so a stream must neither skip them nor forget its offset. `failOnMissingBroker` decides whether
               the read fails or continues with the other brokers (see `Bounds`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import InputPartition

from rucola.errors import ConfigError, RemotingError, StoreError
from rucola.message.topics import is_system_topic
from rucola.spark.source.offset_options import EARLIEST, LATEST, QueueOffsets
from rucola.spark.source.options import Options

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


@dataclass(frozen=True)
class Bounds:
    """What a source holds now.

    `ranges` has the least and the next offset of every chosen place. `missing` names brokers that cannot be read now,
    with the reason; `away` holds the places on them that are known all the same: from routes, options, or the offsets
    of earlier batches. A known place that is in neither is gone.
    """

    ranges: Ranges
    missing: Mapping[str, str] = field(default_factory=dict)
    away: frozenset[Place] = frozenset()

    def missing_sentences(self) -> list[str]:
        """Return one sentence for each missing broker, with the queues that are known to be on it."""
        return [
            f"{name} {why}" + (f": {_queues_text(on_it)}" if (on_it := self._away_on(name)) else "")
            for name, why in sorted(self.missing.items())
        ]

    def _away_on(self, name: str) -> list[Queue]:
        return sorted(place for place in self.away if isinstance(place, Queue) and place.broker_name == name)


def _queues_text(queues: Iterable[Queue]) -> str:
    """Return `queues 0 to 3 of topic 'T'`, topic by topic, for sorted queues."""
    texts = []
    for topic, of_topic in groupby(queues, lambda queue: queue.topic):
        ids = [queue.queue_id for queue in of_topic]
        numbers = f"queue {ids[0]}" if len(ids) == 1 else f"queues {', '.join(map(str, ids))}"
        if len(ids) > 2 and ids[-1] - ids[0] == len(ids) - 1:
            numbers = f"queues {ids[0]} to {ids[-1]}"
        texts.append(f"{numbers} of topic {topic!r}")
    return ", ".join(texts)


def refuse_missing(options: Options, bounds: Bounds, remedy: str = "set failOnMissingBroker=false") -> None:
    """Raise RemotingError if a broker is missing, unless failOnMissingBroker is false."""
    if bounds.missing and options.fail_on_missing_broker:
        raise RemotingError(f"{'; '.join(bounds.missing_sentences())}. Start it again, or {remedy} to read the rest")


class Source(Protocol):
    """A store, or live brokers, to read from."""

    def bounds(self, known: Iterable[Place] = ()) -> Bounds:
        """Return the bounds of every chosen place, and the state of those that are `known` from before."""

    def plan(self, ranges: Ranges) -> Sequence[InputPartition]:
        """Return the partitions that hold what is chosen of these ranges, which must lie in the bounds."""

    def at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        """Return for each queue the offset of its first message stored at a time or later; without one, its end."""

    def limit(self, ranges: Ranges, count: int) -> Ranges:
        """Return the beginnings of these ranges that together hold at most `count` messages; not none if any."""

    def count(self, ranges: Ranges, most: int) -> int:
        """Return the number of messages in these ranges; counting may end at `most`."""


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


def at_offsets(options: Options, source: Source, bounds: Bounds) -> Options:
    """Return the options with offsets in place of times, and with the broker of every queue."""

    def offsets(times: QueueOffsets) -> QueueOffsets:
        queues: dict[Queue, int] = {}
        for queue, time in _with_brokers(times, bounds).items():
            if queue in bounds.ranges:
                queues[queue] = time
            elif queue not in bounds.away:
                raise ConfigError(f"times name {queue}, which this read has not")
        return {(*queue,): offset for queue, offset in source.at_times(queues, bounds.ranges).items()}

    def named(given: QueueOffsets) -> QueueOffsets:
        return {(*queue,): offset for queue, offset in _with_brokers(given, bounds).items()}

    if isinstance(options.starting_offsets, Mapping):
        options = replace(options, starting_offsets=named(options.starting_offsets))
    if options.ending_offsets is not None:
        options = replace(options, ending_offsets=named(options.ending_offsets))
    if options.starting_times is not None:
        options = replace(options, starting_offsets=offsets(options.starting_times), starting_times=None)
    if options.ending_times is not None:
        options = replace(options, ending_offsets=offsets(options.ending_times), ending_times=None)
    return options


def _with_brokers(given: QueueOffsets, bounds: Bounds) -> dict[Queue, int]:
    """Return values by queue, with the broker filled in. Raises ConfigError if several brokers have the topic."""
    brokers: dict[str, set[str]] = {}
    for place in (*bounds.ranges, *bounds.away):
        if isinstance(place, Queue):
            brokers.setdefault(place.topic, set()).add(place.broker_name)
    found = {}
    for (topic, broker, queue_id), value in given.items():
        if broker is None:
            names = sorted(brokers.get(topic, ()))
            if not names:
                raise ConfigError(f"offsets name queue {queue_id} of topic {topic!r}, which this read has not")
            if len(names) > 1:
                raise ConfigError(
                    f"offsets of topic {topic!r} must name the broker, since {' and '.join(names)} have the topic: "
                    f'{{"{topic}":{{"{names[0]}":{{"{queue_id}":{value}}}}}}}'
                )
            broker = names[0]
        found[Queue(topic, broker, queue_id)] = value
    return found


def _by_queue(given: QueueOffsets | int | None) -> dict[Place, int]:
    """Return offsets by queue; `at_offsets` has filled in the brokers."""
    return {
        Queue(topic, broker, queue_id): offset
        for (topic, broker, queue_id), offset in (given if isinstance(given, Mapping) else {}).items()
        if broker is not None
    }


def batch_ranges(options: Options, bounds: Bounds) -> dict[Place, tuple[int, int]]:
    """Return what a batch takes of each place, for options that `at_offsets` returned."""
    starting, ending = _by_queue(options.starting_offsets), _by_queue(options.ending_offsets)
    brokers = sorted(options.stores or {place.broker_name for place in bounds.ranges})
    for queue in {**starting, **ending}:
        if queue in bounds.away:
            continue
        if queue.broker_name not in brokers:
            raise ConfigError(f"offsets name broker {queue.broker_name!r}; this read has {', '.join(brokers)}")
        if queue not in bounds.ranges:
            raise ConfigError(f"offsets name {queue}, which this read has not")
    ranges = {}
    for place, (least, most) in sorted(bounds.ranges.items()):
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


def initial_offsets(options: Options, bounds: Bounds) -> dict[Place, int]:
    """Return where a new stream begins, for options that `at_offsets` returned."""
    ranges = bounds.ranges
    given = options.starting_offsets
    word = starting_word(options)
    offsets = {place: least if word == EARLIEST else most for place, (least, most) in ranges.items()}
    named: dict[Place, int] = {}
    if options.starting_commit_log_offset is not None:
        named = dict.fromkeys(ranges, options.starting_commit_log_offset)
    elif isinstance(given, Mapping):
        named |= _by_queue(given)
        offsets = {place: least for place, (least, _) in ranges.items()}
    for place, offset in named.items():
        if place not in ranges:
            raise ConfigError(f"offsets name {place}, which this read has not")
        least, most = ranges[place]
        if offset >= 0 and not least <= offset <= most:
            _lost(options, f"offset {offset} of {place} is not there; it holds {least} to {most}", ConfigError)
        offsets[place] = least if offset == EARLIEST else most if offset == LATEST else min(max(offset, least), most)
    return offsets


def starting_word(options: Options) -> int | None:
    """Return EARLIEST or LATEST if a new stream begins there in every place; None if offsets or times are given."""
    if options.starting_times is not None or isinstance(options.starting_offsets, Mapping):
        return None
    if options.starting_offsets is None:
        return LATEST if options.starting_timestamp is None else EARLIEST
    assert isinstance(options.starting_offsets, int)
    return options.starting_offsets


def available(options: Options, known: Offsets, bounds: Bounds) -> dict[Place, tuple[int, int]]:
    """Return the range of each place that the next batch of a stream can read after the offsets `known`.

    Asked before the batch is logged. A place that is away keeps its offset, and a new one is read from its beginning.
    Raises StoreError for lost messages; with failOnDataLoss=false they are skipped with a warning.
    """
    ranges = {}
    for place in sorted(known.keys() - bounds.ranges.keys()):
        if place in bounds.away:
            ranges[place] = known[place], known[place]
        else:
            _lost(options, f"{place} is gone, and with it what came after offset {known[place]}", StoreError)
    for place, (least, most) in bounds.ranges.items():
        ranges[place] = _still_there(options, place, known.get(place, _first(place, least)), most, (least, most)), most
    return ranges


def settled(options: Options, start: Offsets, end: Offsets, bounds: Bounds) -> dict[Place, tuple[int, int]]:
    """Return the ranges of a logged batch, from `start` to `end`, that still exist.

    A place that `start` does not know is read from its beginning. Raises StoreError for lost messages; with
    failOnDataLoss=false they are skipped with a warning. Raises RemotingError if a place of the batch is away: its
    offsets are logged, so leaving it out would lose its messages for ever.
    """
    needed = frozenset(place for place, upto in end.items() if start.get(place, 0) < upto)
    needed |= start.keys() - end.keys()
    if away := needed & bounds.away:
        concerned = Bounds({}, {place.broker_name: bounds.missing[place.broker_name] for place in away}, away)
        raise RemotingError(
            f"{'; '.join(concerned.missing_sentences())}. The checkpoint has begun a batch with them: "
            f"start the query again when they can be read"
        )
    for place in start.keys() - end.keys() - bounds.ranges.keys():
        _lost(options, f"{place} is gone, and with it what came after offset {start[place]}", StoreError)
    ranges = {}
    for place, upto in sorted(end.items()):
        begin = start.get(place, 0)
        if place not in bounds.ranges:
            if begin < upto:
                _lost(options, f"{place} is gone, and with it offsets {begin} to {upto}", StoreError)
            continue
        least, most = bounds.ranges[place]
        begin = _still_there(options, place, start.get(place, _first(place, least)), upto, (least, most))
        if begin < min(upto, most):
            ranges[place] = begin, min(upto, most)
    return ranges


def _first(place: Place, least: int) -> int:
    """Return the first offset of a new place: all messages of a queue are new, a log begins where its files do."""
    return 0 if isinstance(place, Queue) else least


def _still_there(options: Options, place: Place, begin: int, upto: int, bounds: tuple[int, int]) -> int:
    """Return the offset at which a stream that has read up to `begin` continues; report the messages lost before it."""
    least, most = bounds
    if begin < min(least, upto):
        _lost(options, f"offsets {begin} to {min(least, upto)} of {place} were deleted unread", StoreError)
    if max(begin, upto) > most:
        what = f"{place} was read up to offset {max(begin, upto)}, but ends at {most}: it was replaced, or lost its end"
        _lost(options, what, StoreError)
    return min(max(begin, least), most)


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


def to_json(offsets: Offsets, begins: Offsets | None = None) -> dict[str, Any]:
    """Return offsets as a stream logs them: {"broker":n} of logs, {"topic":{"broker":{"0":n}}} of queues.

    A place in `begins` is written [begin, offset]: the batch reads it from there, though the offsets before it lack it.
    """
    begins = begins or {}
    found: dict[str, Any] = {}
    for place, offset in sorted(offsets.items()):
        value = [begins[place], offset] if place in begins else offset
        if isinstance(place, Log):
            found[place.broker_name] = value
        else:
            found.setdefault(place.topic, {}).setdefault(place.broker_name, {})[str(place.queue_id)] = value
    return found


def from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Place, int]:
    """Return the offsets given to `to_json`. Raises ConfigError if a stream was started again with other options."""
    return {place: offset for place, (_, offset) in _from_json(value, by_queue).items()}


def begins_from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Place, int]:
    """Return the begins given to `to_json`. Raises ConfigError as `from_json` does."""
    return {place: begin for place, (begin, _) in _from_json(value, by_queue).items() if begin is not None}


def _from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Place, tuple[int | None, int]]:
    def pair(value: Any) -> tuple[int | None, int]:
        begin, offset = value if isinstance(value, list) else (None, value)
        return None if begin is None else int(begin), int(offset)

    try:
        if not by_queue:
            return {Log(broker): pair(offset) for broker, offset in value.items()}
        return {
            Queue(topic, broker, int(queue_id)): pair(offset)
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
