"""Origins of messages, their offsets, and the ranges of offsets that batches and streams read.

An `Origin` is a queue on a broker, with queue offsets, or the CommitLog of a store, with physical offsets. Two things
can be wrong with it:

    lost         messages to be read no longer exist: brokers delete their oldest files, a store was replaced, a topic
                 was deleted. `failOnDataLoss` decides whether the read fails or skips them.
    unavailable  the broker is missing: not registered, not answering, or not letting the queue be read now. The
                 messages still exist, so a stream must neither skip them nor forget its offset. `failOnMissingBroker`
                 decides whether the read fails or continues with the other brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import InputPartition

from rucola.errors import ConfigError, RemotingError, StoreError
from rucola.message.topics import is_system_topic
from rucola.spark.source.option_values import EARLIEST, LATEST, QueueOffsets
from rucola.spark.source.options import ReadOptions

_log = logging.getLogger(__name__)


class BrokerQueue(NamedTuple):
    """A queue on a broker, with queue offsets."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on {self.broker_name}"


class BrokerLog(NamedTuple):
    """The CommitLog of a store, named like its broker, with physical offsets."""

    broker_name: str

    def __str__(self) -> str:
        return f"the log of {self.broker_name}"


Origin: TypeAlias = BrokerQueue | BrokerLog
Offsets: TypeAlias = Mapping[Origin, int]
OffsetRanges: TypeAlias = Mapping[Origin, tuple[int, int]]
"""Start and end offset (exclusive) of each origin."""


NO_OFFSETS: Final[Offsets] = {}


@dataclass(frozen=True)
class SourceBounds:
    """The current bounds of a source. A known origin that is neither in `ranges` nor `unavailable` was deleted."""

    ranges: OffsetRanges
    """The first and the next offset of every chosen origin that can be read."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The reason why a broker cannot be read now, by broker name."""
    unavailable: frozenset[Origin] = frozenset()
    """Known origins on missing brokers, and queues that were read to their end and are no longer in the route."""

    def describe_missing(self) -> list[str]:
        """Return one sentence per missing broker, with its known queues."""
        return [
            f"{name} {why}" + (f": {_queues_text(queues)}" if (queues := self._unavailable_on(name)) else "")
            for name, why in sorted(self.missing.items())
        ]

    def _unavailable_on(self, name: str) -> list[BrokerQueue]:
        return sorted(each for each in self.unavailable if isinstance(each, BrokerQueue) and each.broker_name == name)


def _queues_text(queues: Iterable[BrokerQueue]) -> str:
    """Describe sorted queues topic by topic, as in `queues 0 to 3 of topic 'T'`."""
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
        raise RemotingError(
            f"{'; '.join(bounds.describe_missing())}. Start it again, or {remedy} to read the rest",
            subject=", ".join(sorted(bounds.missing)),
        )


class MessageSource(Protocol):
    """Store directories or live brokers to read from."""

    def bounds(self, known: Offsets = NO_OFFSETS) -> SourceBounds:
        """Return the bounds of every chosen origin, and the state of `known` ones, read up to their offsets."""

    def plan(self, ranges: OffsetRanges) -> Sequence[InputPartition]:
        """Return partitions that hold the chosen messages of these ranges, which must be within the bounds."""

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        """Return by queue the offset of the first message stored at a time (ms) or later, or the queue's end."""

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        """Return the first parts of ranges, at most `count` messages together, but at least one if there are any."""

    def count(self, ranges: OffsetRanges, most: int) -> int:
        """Return the number of messages in the ranges. Counting may stop at `most`."""


def is_chosen(options: ReadOptions, queue: BrokerQueue) -> bool:
    """Return whether the options choose a queue."""
    if options.topics is not None:
        return queue.topic in options.topics
    if options.assigned is not None:
        return not options.assigned.isdisjoint({(queue.topic, None, queue.queue_id), queue})
    return is_chosen_topic(options, queue.topic)


def is_chosen_topic(options: ReadOptions, topic: str) -> bool:
    """Return whether options that name no topics choose this one, by pattern and system topics."""
    if is_system_topic(topic) and not options.include_system_topics:
        return False
    return options.pattern is None or options.pattern.fullmatch(topic) is not None


def resolve_offsets(options: ReadOptions, source: MessageSource, bounds: SourceBounds) -> ReadOptions:
    """Return the options with times replaced by offsets, and every queue's broker filled in."""

    def offsets(times: QueueOffsets) -> QueueOffsets:
        queues: dict[BrokerQueue, int] = {}
        for queue, time in _with_brokers(times, bounds).items():
            if queue in bounds.ranges:
                queues[queue] = time
            elif queue not in bounds.unavailable:
                raise ConfigError(f"times name {queue}, which this read does not include")
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
    brokers: dict[str, set[str]] = {}
    for origin in (*bounds.ranges, *bounds.unavailable):
        if isinstance(origin, BrokerQueue):
            brokers.setdefault(origin.topic, set()).add(origin.broker_name)
    found = {}
    for (topic, broker, queue_id), value in given.items():
        if broker is None:
            names = sorted(brokers.get(topic, ()))
            if not names:
                raise ConfigError(f"offsets name queue {queue_id} of topic {topic!r}, which this read does not include")
            if len(names) > 1:
                raise ConfigError(
                    f"offsets of topic {topic!r} must name the broker, since {' and '.join(names)} have the topic: "
                    f'{{"{topic}":{{"{names[0]}":{{"{queue_id}":{value}}}}}}}'
                )
            broker = names[0]
        found[BrokerQueue(topic, broker, queue_id)] = value
    return found


def _by_queue(given: QueueOffsets | int | None) -> dict[Origin, int]:
    return {
        BrokerQueue(topic, broker, queue_id): offset
        for (topic, broker, queue_id), offset in (given if isinstance(given, Mapping) else {}).items()
        if broker is not None
    }


def batch_ranges(options: ReadOptions, bounds: SourceBounds) -> dict[Origin, tuple[int, int]]:
    """Return the ranges that a batch reads, for options returned by `resolve_offsets`.

    Raises ConfigError for offsets out of bounds; with failOnDataLoss=false they are cut, with a warning.
    """
    starting, ending = _by_queue(options.starting_offsets), _by_queue(options.ending_offsets)
    _check_queues_exist(options, {**starting, **ending}, bounds)
    ranges = {}
    for origin, (least, most) in sorted(bounds.ranges.items()):
        # 1. The given offsets, or the bounds.
        if isinstance(origin, BrokerLog):
            begin, end = options.starting_commit_log_offset, options.ending_commit_log_offset
            begin, end = least if begin is None else begin, most if end is None else min(end, most)
        else:
            begin, end = starting.get(origin, EARLIEST), ending.get(origin, LATEST)
            begin, end = least if begin == EARLIEST else begin, most if end == LATEST else end
        # 2. They must be within the bounds. The end of a log was cut above, as it may be in the future.
        for offset in (begin,) if isinstance(origin, BrokerLog) else (begin, end):
            _check_in_bounds(options, origin, offset, (least, most))
        # 3. If losses are allowed, read what is left.
        begin, end = min(max(begin, least), most), min(max(end, least), most)
        if begin < end:
            ranges[origin] = begin, end
    return ranges


def _check_queues_exist(options: ReadOptions, queues: Iterable[Origin], bounds: SourceBounds) -> None:
    """Raise ConfigError for queues with given offsets that the read lacks, unless their brokers are missing."""
    brokers = sorted(options.stores or {origin.broker_name for origin in bounds.ranges})
    for queue in queues:
        if queue in bounds.unavailable:
            continue
        if queue.broker_name not in brokers:
            raise ConfigError(f"offsets name broker {queue.broker_name!r}; this read has {', '.join(brokers)}")
        if queue not in bounds.ranges:
            raise ConfigError(f"offsets name {queue}, which this read does not include")


def _check_in_bounds(options: ReadOptions, origin: Origin, offset: int, bounds: tuple[int, int]) -> None:
    least, most = bounds
    if not least <= offset <= most:
        _report_loss(options, f"offset {offset} of {origin} is not there; it holds {least} to {most}", ConfigError)


def initial_offsets(options: ReadOptions, bounds: SourceBounds) -> dict[Origin, int]:
    """Return the offsets at which a new stream begins, for options returned by `resolve_offsets`."""
    ranges = bounds.ranges
    given = options.starting_offsets
    start = uniform_start(options)
    offsets = {origin: least if start == EARLIEST else most for origin, (least, most) in ranges.items()}
    # Offsets that are given override the start; queues that are not named then begin at the earliest offset.
    named: dict[Origin, int] = {}
    if options.starting_commit_log_offset is not None:
        named = dict.fromkeys(ranges, options.starting_commit_log_offset)
    elif isinstance(given, Mapping):
        named |= _by_queue(given)
        offsets = {origin: least for origin, (least, _) in ranges.items()}
    for origin, offset in named.items():
        if origin not in ranges:
            raise ConfigError(f"offsets name {origin}, which this read does not include")
        least, most = ranges[origin]
        if offset >= 0:
            _check_in_bounds(options, origin, offset, (least, most))
        offsets[origin] = least if offset == EARLIEST else most if offset == LATEST else min(max(offset, least), most)
    return offsets


def uniform_start(options: ReadOptions) -> int | None:
    """Return EARLIEST or LATEST if a new stream begins all origins there, None if offsets or times are given."""
    if options.starting_times is not None or isinstance(options.starting_offsets, Mapping):
        return None
    if options.starting_offsets is None:
        return LATEST if options.starting_timestamp is None else EARLIEST
    assert isinstance(options.starting_offsets, int)
    return options.starting_offsets


def available_ranges(options: ReadOptions, known: Offsets, bounds: SourceBounds) -> dict[Origin, tuple[int, int]]:
    """Return the ranges that the next batch of a stream can read, after the last one's offsets `known`.

    Call it before the batch is logged. An unavailable origin keeps its offset, and a new one is read from its start.
    Lost messages raise StoreError or, with failOnDataLoss=false, are skipped with a warning.
    """
    ranges = {}
    for origin in sorted(known.keys() - bounds.ranges.keys()):
        if origin in bounds.unavailable:
            ranges[origin] = known[origin], known[origin]
        else:
            _report_deleted(options, origin, known[origin])
    for origin, (least, most) in bounds.ranges.items():
        begin = known.get(origin, _first_offset(origin, least))
        ranges[origin] = _resume_offset(options, origin, begin, most, (least, most)), most
    return ranges


def logged_ranges(
    options: ReadOptions, start: Offsets, end: Offsets, bounds: SourceBounds
) -> dict[Origin, tuple[int, int]]:
    """Return the existing ranges of a logged batch; an origin that `start` does not have is read from its start.

    Lost messages raise StoreError or, with failOnDataLoss=false, are skipped with a warning. Raises RemotingError if an
    origin of the batch is unavailable: its end is logged, so leaving it out now would lose its messages.
    """
    # 1. Every origin with messages in the batch must be available.
    needed = frozenset(origin for origin, upto in end.items() if start.get(origin, 0) < upto)
    if unavailable := needed & bounds.unavailable:
        names = {origin.broker_name for origin in unavailable}
        concerned = SourceBounds(
            {}, {name: bounds.missing.get(name, "has these queues no more") for name in names}, unavailable
        )
        raise RemotingError(
            f"{'; '.join(concerned.describe_missing())}. The checkpoint has begun a batch with them: "
            f"start the query again when they can be read",
            subject=", ".join(sorted(names)),
        )
    # 2. Cut the ranges at the bounds, and report what is lost.
    ranges = {}
    for origin, upto in sorted(end.items()):
        begin = start.get(origin, 0)
        if origin not in bounds.ranges:
            if begin < upto:
                _report_loss(options, f"{origin} is gone, and with it offsets {begin} to {upto}", StoreError)
            continue
        least, most = bounds.ranges[origin]
        begin = start.get(origin, _first_offset(origin, least))
        begin = _resume_offset(options, origin, begin, upto, (least, most))
        if begin < min(upto, most):
            ranges[origin] = begin, min(upto, most)
    return ranges


def _first_offset(origin: Origin, least: int) -> int:
    """Return a new origin's first offset: 0 for a queue, so that deleted messages are noticed, else `least`."""
    return 0 if isinstance(origin, BrokerQueue) else least


def _resume_offset(options: ReadOptions, origin: Origin, begin: int, upto: int, bounds: tuple[int, int]) -> int:
    """Return the offset at which a stream continues after `begin`; report messages lost up to `upto`."""
    least, most = bounds
    if begin < min(least, upto):
        _report_loss(options, f"offsets {begin} to {min(least, upto)} of {origin} were deleted unread", StoreError)
    if max(begin, upto) > most:
        what = (
            f"{origin} was read up to offset {max(begin, upto)}, but ends at {most}: it was replaced, or lost its end"
        )
        _report_loss(options, what, StoreError)
    return min(max(begin, least), most)


def _report_deleted(options: ReadOptions, origin: Origin, offset: int) -> None:
    _report_loss(options, f"{origin} is gone, and with it the messages after offset {offset}", StoreError)


def _report_loss(options: ReadOptions, what: str, error: type[ConfigError] | type[StoreError]) -> None:
    if options.fail_on_data_loss:
        raise error(f"{what}; failOnDataLoss=false reads what there is")
    _log.warning("%s; reading what there is", what)


def limit_ranges(ranges: OffsetRanges, count: int) -> dict[Origin, tuple[int, int]]:
    """Return the first parts of ranges, exactly `count` offsets in all, in proportion to their sizes."""
    total = sum(end - begin for begin, end in ranges.values())
    if total <= count:
        return dict(ranges)
    cut, passed, given = {}, 0, 0
    for origin, (begin, end) in ranges.items():
        passed += end - begin
        # 5 of 9: after 3, 6 and 9 offsets have passed, 1, 3 and 5 are given, so the parts are 1, 2 and 2.
        upto = passed * count // total
        cut[origin] = begin, begin + upto - given
        given = upto
    return cut


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Return offsets as a stream logs them: {"broker":n} for logs, {"topic":{"broker":{"0":n}}} for queues."""
    found: dict[str, Any] = {}
    for origin, offset in sorted(offsets.items()):
        if isinstance(origin, BrokerLog):
            found[origin.broker_name] = offset
        else:
            found.setdefault(origin.topic, {}).setdefault(origin.broker_name, {})[str(origin.queue_id)] = offset
    return found


def from_json(value: Mapping[str, Any], by_queue: bool) -> dict[Origin, int]:
    """Return the offsets given to `to_json`; ConfigError if a stream was restarted with other options."""
    try:
        if not by_queue:
            return {BrokerLog(broker): int(offset) for broker, offset in value.items()}
        return {
            BrokerQueue(topic, broker, int(queue_id)): int(offset)
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
