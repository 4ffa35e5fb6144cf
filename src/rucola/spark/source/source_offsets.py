"""The logs or queues of a read: the bounds of each, and the ranges of them that a batch reads.

A `Origin` has offsets of its own: the log of a store, whose offsets are physical, or a queue on a broker, whose
offsets are queue offsets. Batches and streams see stores and live brokers through the same questions, those of
`MessageSource`: the bounds of every origin, the partitions of a range, the part of a range with a given number of messages, the
number of messages in a range, and the offset at a time.

Two things can be wrong with a origin:

    lost       messages that were to be read no longer exist: brokers delete their oldest files, a store was replaced, a
               topic was deleted. `failOnDataLoss` decides whether the read fails or skips them.
    missing    the broker is not registered, does not answer, or does not let the queue be read now. Its messages still
               exist, so a stream must neither skip them nor forget its offset. `failOnMissingBroker` decides whether
               the read fails or continues with the other brokers (see `SourceBounds`).
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
from rucola.spark.source.options import ReadOptions

_log = logging.getLogger(__name__)


class BrokerQueue(NamedTuple):
    """A queue on a broker; its offsets are queue offsets."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on {self.broker_name}"


class BrokerLog(NamedTuple):
    """The CommitLog of a store; its offsets are physical."""

    broker_name: str

    def __str__(self) -> str:
        return f"the log of {self.broker_name}"


Origin: TypeAlias = BrokerQueue | BrokerLog
Offsets: TypeAlias = Mapping[Origin, int]
OffsetRanges: TypeAlias = Mapping[Origin, tuple[int, int]]
"""Offsets from begin to end, half-open, of each origin."""


@dataclass(frozen=True)
class SourceBounds:
    """What a source holds now.

    `ranges` has the least and the next offset of every chosen origin. `missing` names brokers that cannot be read now,
    with the reason; `unavailable` holds the origins on them that are known all the same: from routes, options, or the offsets
    of earlier batches. A known origin that is in neither is gone.
    """

    ranges: OffsetRanges
    missing: Mapping[str, str] = field(default_factory=dict)
    unavailable: frozenset[Origin] = frozenset()

    def describe_missing(self) -> list[str]:
        """Return one sentence for each missing broker, with the queues that are known to be on it."""
        return [
            f"{name} {why}" + (f": {_queues_text(on_it)}" if (on_it := self._unavailable_on(name)) else "")
            for name, why in sorted(self.missing.items())
        ]

    def _unavailable_on(self, name: str) -> list[BrokerQueue]:
        return sorted(
            origin for origin in self.unavailable if isinstance(origin, BrokerQueue) and origin.broker_name == name
        )


def _queues_text(queues: Iterable[BrokerQueue]) -> str:
    """Return `queues 0 to 3 of topic 'T'`, topic by topic, for sorted queues."""
    texts = []
    for topic, of_topic in groupby(queues, lambda queue: queue.topic):
        ids = [queue.queue_id for queue in of_topic]
        numbers = f"queue {ids[0]}" if len(ids) == 1 else f"queues {', '.join(map(str, ids))}"
        if len(ids) > 2 and ids[-1] - ids[0] == len(ids) - 1:
            numbers = f"queues {ids[0]} to {ids[-1]}"
        texts.append(f"{numbers} of topic {topic!r}")
    return ", ".join(texts)


def refuse_missing(options: ReadOptions, bounds: SourceBounds, remedy: str = "set failOnMissingBroker=false") -> None:
    """Raise RemotingError if a broker is missing, unless failOnMissingBroker is false."""
    if bounds.missing and options.fail_on_missing_broker:
        raise RemotingError(f"{'; '.join(bounds.describe_missing())}. Start it again, or {remedy} to read the rest")


class MessageSource(Protocol):
    """A store, or live brokers, to read from."""

    def bounds(self, known: Iterable[Origin] = ()) -> SourceBounds:
        """Return the bounds of every chosen origin, and the state of those that are `known` from before."""

    def plan(self, ranges: OffsetRanges) -> Sequence[InputPartition]:
        """Return the partitions that hold what is chosen of these ranges, which must lie in the bounds."""

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        """Return for each queue the offset of its first message stored at a time or later; without one, its end."""

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        """Return the beginnings of these ranges that together hold at most `count` messages; not none if any."""

    def count(self, ranges: OffsetRanges, most: int) -> int:
        """Return the number of messages in these ranges; counting may end at `most`."""


def is_chosen(options: ReadOptions, queue: BrokerQueue) -> bool:
    """Tell whether a read takes this queue."""
    if options.topics is not None:
        return queue.topic in options.topics
    if options.assigned is not None:
        return not options.assigned.isdisjoint({(queue.topic, None, queue.queue_id), queue})
    return is_chosen_topic(options, queue.topic)


def is_chosen_topic(options: ReadOptions, topic: str) -> bool:
    """Tell whether a read without named topics takes this one."""
    if is_system_topic(topic) and not options.include_system_topics:
        return False
    return options.pattern is None or options.pattern.fullmatch(topic) is not None


def resolve_offsets(options: ReadOptions, source: MessageSource, bounds: SourceBounds) -> ReadOptions:
    """Return the options with offsets in origin of times, and with the broker of every queue."""

    def offsets(times: QueueOffsets) -> QueueOffsets:
        queues: dict[BrokerQueue, int] = {}
        for queue, time in _with_brokers(times, bounds).items():
            if queue in bounds.ranges:
                queues[queue] = time
            elif queue not in bounds.unavailable:
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


def _with_brokers(given: QueueOffsets, bounds: SourceBounds) -> dict[BrokerQueue, int]:
    """Return values by queue, with the broker filled in. Raises ConfigError if several brokers have the topic."""
    brokers: dict[str, set[str]] = {}
    for origin in (*bounds.ranges, *bounds.unavailable):
        if isinstance(origin, BrokerQueue):
            brokers.setdefault(origin.topic, set()).add(origin.broker_name)
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
        found[BrokerQueue(topic, broker, queue_id)] = value
    return found


def _by_queue(given: QueueOffsets | int | None) -> dict[Origin, int]:
    """Return offsets by queue; `resolve_offsets` has filled in the brokers."""
    return {
        BrokerQueue(topic, broker, queue_id): offset
        for (topic, broker, queue_id), offset in (given if isinstance(given, Mapping) else {}).items()
        if broker is not None
    }


def batch_ranges(options: ReadOptions, bounds: SourceBounds) -> dict[Origin, tuple[int, int]]:
    """Return what a batch takes of each origin, for options that `resolve_offsets` returned."""
    starting, ending = _by_queue(options.starting_offsets), _by_queue(options.ending_offsets)
    brokers = sorted(options.stores or {origin.broker_name for origin in bounds.ranges})
    for queue in {**starting, **ending}:
        if queue in bounds.unavailable:
            continue
        if queue.broker_name not in brokers:
            raise ConfigError(f"offsets name broker {queue.broker_name!r}; this read has {', '.join(brokers)}")
        if queue not in bounds.ranges:
            raise ConfigError(f"offsets name {queue}, which this read has not")
    ranges = {}
    for origin, (least, most) in sorted(bounds.ranges.items()):
        if isinstance(origin, BrokerLog):
            begin, end = options.starting_commit_log_offset, options.ending_commit_log_offset
            begin, end = least if begin is None else begin, most if end is None else min(end, most)
        else:
            begin, end = starting.get(origin, EARLIEST), ending.get(origin, LATEST)
            begin, end = least if begin == EARLIEST else begin, most if end == LATEST else end
        for offset in (begin,) if isinstance(origin, BrokerLog) else (begin, end):
            if not least <= offset <= most:
                _report_loss(
                    options, f"offset {offset} of {origin} is not there; it holds {least} to {most}", ConfigError
                )
        begin, end = min(max(begin, least), most), min(max(end, least), most)
        if begin < end:
            ranges[origin] = begin, end
    return ranges


def initial_offsets(options: ReadOptions, bounds: SourceBounds) -> dict[Origin, int]:
    """Return where a new stream begins, for options that `resolve_offsets` returned."""
    ranges = bounds.ranges
    given = options.starting_offsets
    word = uniform_start(options)
    offsets = {origin: least if word == EARLIEST else most for origin, (least, most) in ranges.items()}
    named: dict[Origin, int] = {}
    if options.starting_commit_log_offset is not None:
        named = dict.fromkeys(ranges, options.starting_commit_log_offset)
    elif isinstance(given, Mapping):
        named |= _by_queue(given)
        offsets = {origin: least for origin, (least, _) in ranges.items()}
    for origin, offset in named.items():
        if origin not in ranges:
            raise ConfigError(f"offsets name {origin}, which this read has not")
        least, most = ranges[origin]
        if offset >= 0 and not least <= offset <= most:
            _report_loss(options, f"offset {offset} of {origin} is not there; it holds {least} to {most}", ConfigError)
        offsets[origin] = least if offset == EARLIEST else most if offset == LATEST else min(max(offset, least), most)
    return offsets


def uniform_start(options: ReadOptions) -> int | None:
    """Return EARLIEST or LATEST if a new stream begins there in every origin; None if offsets or times are given."""
    if options.starting_times is not None or isinstance(options.starting_offsets, Mapping):
        return None
    if options.starting_offsets is None:
        return LATEST if options.starting_timestamp is None else EARLIEST
    assert isinstance(options.starting_offsets, int)
    return options.starting_offsets


def available_ranges(options: ReadOptions, known: Offsets, bounds: SourceBounds) -> dict[Origin, tuple[int, int]]:
    """Return the range of each origin that the next batch of a stream can read after the offsets `known`.

    Asked before the batch is logged. A origin that is unavailable keeps its offset, and a new one is read from its beginning.
    Raises StoreError for lost messages; with failOnDataLoss=false they are skipped with a warning.
    """
    ranges = {}
    for origin in sorted(known.keys() - bounds.ranges.keys()):
        if origin in bounds.unavailable:
            ranges[origin] = known[origin], known[origin]
        else:
            _report_loss(options, f"{origin} is gone, and with it what came after offset {known[origin]}", StoreError)
    for origin, (least, most) in bounds.ranges.items():
        ranges[origin] = (
            _resume_offset(options, origin, known.get(origin, _first_offset(origin, least)), most, (least, most)),
            most,
        )
    return ranges


def logged_ranges(
    options: ReadOptions, start: Offsets, end: Offsets, bounds: SourceBounds
) -> dict[Origin, tuple[int, int]]:
    """Return the ranges of a logged batch, from `start` to `end`, that still exist.

    A origin that `start` does not know is read from its beginning. Raises StoreError for lost messages; with
    failOnDataLoss=false they are skipped with a warning. Raises RemotingError if a origin of the batch is unavailable: its
    offsets are logged, so leaving it out would lose its messages for ever.
    """
    needed = frozenset(origin for origin, upto in end.items() if start.get(origin, 0) < upto)
    needed |= start.keys() - end.keys()
    if unavailable := needed & bounds.unavailable:
        concerned = SourceBounds(
            {}, {origin.broker_name: bounds.missing[origin.broker_name] for origin in unavailable}, unavailable
        )
        raise RemotingError(
            f"{'; '.join(concerned.describe_missing())}. The checkpoint has begun a batch with them: "
            f"start the query again when they can be read"
        )
    for origin in start.keys() - end.keys() - bounds.ranges.keys():
        _report_loss(options, f"{origin} is gone, and with it what came after offset {start[origin]}", StoreError)
    ranges = {}
    for origin, upto in sorted(end.items()):
        begin = start.get(origin, 0)
        if origin not in bounds.ranges:
            if begin < upto:
                _report_loss(options, f"{origin} is gone, and with it offsets {begin} to {upto}", StoreError)
            continue
        least, most = bounds.ranges[origin]
        begin = _resume_offset(options, origin, start.get(origin, _first_offset(origin, least)), upto, (least, most))
        if begin < min(upto, most):
            ranges[origin] = begin, min(upto, most)
    return ranges


def _first_offset(origin: Origin, least: int) -> int:
    """Return the first offset of a new origin: all messages of a queue are new, a log begins where its files do."""
    return 0 if isinstance(origin, BrokerQueue) else least


def _resume_offset(options: ReadOptions, origin: Origin, begin: int, upto: int, bounds: tuple[int, int]) -> int:
    """Return the offset at which a stream that has read up to `begin` continues; report the messages lost before it."""
    least, most = bounds
    if begin < min(least, upto):
        _report_loss(options, f"offsets {begin} to {min(least, upto)} of {origin} were deleted unread", StoreError)
    if max(begin, upto) > most:
        what = (
            f"{origin} was read up to offset {max(begin, upto)}, but ends at {most}: it was replaced, or lost its end"
        )
        _report_loss(options, what, StoreError)
    return min(max(begin, least), most)


def _report_loss(options: ReadOptions, what: str, error: type[ConfigError] | type[StoreError]) -> None:
    if options.fail_on_data_loss:
        raise error(f"{what}; failOnDataLoss=false reads what there is")
    _log.warning("%s; reading what there is", what)


def limit_ranges(ranges: OffsetRanges, count: int) -> dict[Origin, tuple[int, int]]:
    """Return the beginnings of ranges with `count` offsets in all, each origin's share by its size."""
    total = sum(end - begin for begin, end in ranges.values())
    if total <= count:
        return dict(ranges)
    cut, passed, given = {}, 0, 0
    for origin, (begin, end) in ranges.items():
        passed += end - begin
        upto = passed * count // total
        cut[origin] = begin, begin + upto - given
        given = upto
    return cut


def to_json(offsets: Offsets, begins: Offsets | None = None) -> dict[str, Any]:
    """Return offsets as a stream logs them: {"broker":n} of logs, {"topic":{"broker":{"0":n}}} of queues.

    A origin in `begins` is written [begin, offset]: the batch reads it from there, though the offsets before it lack it.
    """
    begins = begins or {}
    found: dict[str, Any] = {}
    for origin, offset in sorted(offsets.items()):
        value = [begins[origin], offset] if origin in begins else offset
        if isinstance(origin, BrokerLog):
            found[origin.broker_name] = value
        else:
            found.setdefault(origin.topic, {}).setdefault(origin.broker_name, {})[str(origin.queue_id)] = value
    return found


def from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Origin, int]:
    """Return the offsets given to `to_json`. Raises ConfigError if a stream was started again with other options."""
    return {origin: offset for origin, (_, offset) in _pairs_from_json(value, by_queue).items()}


def begins_from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Origin, int]:
    """Return the begins given to `to_json`. Raises ConfigError as `from_json` does."""
    return {origin: begin for origin, (begin, _) in _pairs_from_json(value, by_queue).items() if begin is not None}


def _pairs_from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Origin, tuple[int | None, int]]:
    def pair(value: Any) -> tuple[int | None, int]:
        begin, offset = value if isinstance(value, list) else (None, value)
        return None if begin is None else int(begin), int(offset)

    try:
        if not by_queue:
            return {BrokerLog(broker): pair(offset) for broker, offset in value.items()}
        return {
            BrokerQueue(topic, broker, int(queue_id)): pair(offset)
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
