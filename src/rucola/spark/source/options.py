"""What the data source `rocketmq` can be told.

Names and meanings follow Spark's Kafka source where it has the like. Of a read: where the
messages are, one of the two:

    storePath                store directories, separated by commas; each must have the same path on every worker
    nameServer               name servers host:port, separated by semicolons: reads live brokers over the wire

which messages:

    brokerName               a name for each store, in the same order; by default a store's path is its name
    path                     one store directory; what load(path) and a table's LOCATION give
    paths                    several, as JSON; what load([path, path]) gives
    subscribe                topics, separated by commas
    topic                    one topic; what a write calls it, so that a table can be both read and written
    subscribePattern         a regular expression that the whole name of a topic must match
    assign                   queues, {"topic":[0,1]} on every broker or {"topic":{"broker":[0,1]}}
    includeSystemTopics      true also reads the system's own topics, unless topics are named; default false
    startingOffsets          earliest, latest or {"topic":{"broker":{"0":23}}} where -2 is earliest and -1 latest;
                             queues not named: earliest; default earliest, for a stream latest; not latest for a batch.
                             A topic that one broker has needs no broker: {"topic":{"0":23}}; the like below
    endingOffsets            latest, or the like, exclusive, where -1 is latest; queues not named: latest; batch only
    startingOffsetsByTimestamp {"topic":{"broker":{"0":1700000000000}}}: the queue begins with its first message that
                             was stored then or later, in milliseconds, or at its end; queues not named: earliest
    endingOffsetsByTimestamp the like, exclusive: the queue ends before that message; queues not named: latest; batch
                             only
    startingTimestamp        only messages stored at this time or later, in milliseconds
    endingTimestamp          only messages stored before this time; batch only
    startingCommitLogOffset  only records from this physical offset on, which must be where one begins
    endingCommitLogOffset    only records that begin before this physical offset; batch only
    subExpression            only messages with one of these tags, TagA || TagB, or that match this filter in SQL92, see
                             `rucola.message.sql92`; default *
    expressionType           what subExpression is: TAG or SQL92; default TAG
    keys                     only messages with one of these keys or unique keys, separated by commas

and how:

    columns                  columns to make, separated by commas, or nothing, to count messages; default all
    includeBody              false leaves out the column body; default true
    corruptRecords           fail; skip, which leaves damaged records out with a warning; or column, which makes a row
                             of each, with NULL in all columns but brokerName, commitLogOffset and the further column
                             _corrupt, which says why; default fail
    failOnDataLoss           true ends a query when messages it was to read are gone, be it that they were deleted or
                             that the store was replaced; false goes on with what is there and warns; default true
    failOnMissingBroker      true ends a query if a broker that it knows of is missing: not registered, or silent; false
                             warns, and reads the others. A stream keeps its offsets on a missing broker. Default true
    requiredBrokers          names of brokers that must be registered, separated by commas; name servers forget the ones
                             that stopped, so that a batch cannot know of them otherwise
    maxOffsetsPerTrigger     at most so many messages in one batch of a stream; default all there are
    minOffsetsPerTrigger     a batch of a stream waits for this backlog, but no longer than maxTriggerDelay
    maxTriggerDelay          how long a batch may wait, such as 500ms, 30s, 15m, 2h or 1d; default 15m
    commitGroup              consumer group to which a stream commits the offsets of finished batches, for tools that
                             show its lag; the checkpoint alone decides what is read
    minPartitions            cut the log into at least so many partitions, where it is large enough
    consumerGroup            as which group to pull from live brokers; default rucola_spark
    pushFilters              true leaves out what the query's own conditions do not ask for; needs the setting
                             spark.sql.python.filterPushdown.enabled, and a DataFrame that is asked once, see
                             `pushdown`; default false; batch only

subscribe, subscribePattern and assign exclude each other. Without any of them the log of a store is read from front to
back, for which queues have no offsets; bounds by CommitLog offset are for that, and for one store. Live brokers are
always read by queue; without any of the three, every queue of every topic.

Of a write:

    nameServer               the name servers of the brokers to send to
    topic                    the topic of every message; without it each row names its own in the column topic
    producerGroup            as which group to send; default rucola_spark
    deliveryTimeoutMs        how long a request that fails is tried again before its task fails; default 30000
    invalidRows              what becomes of a row that no broker can take, such as one without a body: fail, or skip,
                             which leaves it out with a warning that counts them; default fail
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from rucola.errors import ConfigError, InvalidMessage
from rucola.message.topics import check_group, check_topic
from rucola.spark.source.offset_options import (
    LATEST,
    QueueOffsets,
    parse_ending_offsets,
    parse_queues,
    parse_starting_offsets,
    parse_times,
)
from rucola.spark.source.schema import COLUMNS, CORRUPT

T = TypeVar("T")

GROUP: Final = "rucola_spark"
DELIVERY_TIMEOUT_MS: Final = 30_000

MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_CHECKPOINT: Final = "checkpointlocation"
"""An option of the query, which Spark hands to the sink as well."""


class CorruptRecords(Enum):
    """What becomes of a damaged record: the query fails, it is left out, or it is a row with the column `_corrupt`."""

    FAIL = "fail"
    SKIP = "skip"
    COLUMN = "column"


@dataclass(frozen=True)
class QueueFilter:
    """What the conditions of a query leave of a read: topics and queue ids, None for all, a range of queue offsets."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    begin_queue_offset: int = 0
    end_queue_offset: int = (1 << 63) - 1

    def intersect(
        self,
        *,
        topics: Iterable[str] | None = None,
        queue_ids: Iterable[int] | None = None,
        begin: int = 0,
        end: int = (1 << 63) - 1,
    ) -> QueueFilter:
        """Return what further conditions leave of this."""
        return QueueFilter(
            _common(self.topics, topics),
            _common(self.queue_ids, queue_ids),
            max(self.begin_queue_offset, begin),
            min(self.end_queue_offset, end),
        )

    def matches(self, topic: str, queue_id: int) -> bool:
        """Tell whether messages of this queue are left."""
        takes_topic = self.topics is None or topic in self.topics
        return takes_topic and (self.queue_ids is None or queue_id in self.queue_ids)


def _common(known: frozenset[T] | None, further: Iterable[T] | None) -> frozenset[T] | None:
    if further is None:
        return known
    return frozenset(further) if known is None else known & frozenset(further)


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read, checked one by one and against each other.

    `stores` is {broker name: store directory}, empty where live brokers are read. Of `topics`, `pattern` and `assigned`
    at most one is set; `assigned` has None for a broker where queues of every broker are meant. `starting_offsets` is
    EARLIEST or LATEST where a word said so, and None where nothing was said. `queue_filter` is what a query asks
    besides.
    """

    stores: Mapping[str, str]
    name_server: str | None = None
    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[tuple[str, str | None, int]] | None = None
    include_system_topics: bool = False
    starting_offsets: QueueOffsets | int | None = None
    ending_offsets: QueueOffsets | None = None
    starting_times: QueueOffsets | None = None
    ending_times: QueueOffsets | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_commit_log_offset: int | None = None
    ending_commit_log_offset: int | None = None
    tags: frozenset[str] | None = None
    expression: str | None = None
    keys: frozenset[str] | None = None
    columns: tuple[str, ...] = tuple(COLUMNS)
    corrupt_records: CorruptRecords = CorruptRecords.FAIL
    fail_on_data_loss: bool = True
    fail_on_missing_broker: bool = True
    required_brokers: frozenset[str] = frozenset()
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None
    commit_group: str | None = None
    min_partitions: int = 1
    consumer_group: str = GROUP
    push_filters: bool = False
    queue_filter: QueueFilter = QueueFilter()

    @property
    def by_queue(self) -> bool:
        """Whether queues are read; otherwise the log is, from front to back."""
        chosen = not (self.topics is None and self.pattern is None and self.assigned is None)
        return chosen or self.name_server is not None


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. Without `topic` every row names its own."""

    name_server: str
    topic: str | None = None
    producer_group: str = GROUP
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    skip_invalid_rows: bool = False


READ_OPTION_NAMES: Final = (
    "storePath",
    "nameServer",
    "brokerName",
    "path",
    "paths",
    "subscribe",
    "topic",
    "subscribePattern",
    "assign",
    "includeSystemTopics",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingCommitLogOffset",
    "endingCommitLogOffset",
    "subExpression",
    "expressionType",
    "keys",
    "columns",
    "includeBody",
    "corruptRecords",
    "failOnDataLoss",
    "failOnMissingBroker",
    "requiredBrokers",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitGroup",
    "minPartitions",
    "consumerGroup",
    "pushFilters",
)
SINK_OPTION_NAMES: Final = ("nameServer", "topic", "producerGroup", "deliveryTimeoutMs", "invalidRows")


class _OptionParser:
    """ReadOptions as Spark gives them; their names ignore case."""

    def __init__(self, options: Mapping[str, str], names: Sequence[str], what: str) -> None:
        self._given = {name.lower(): value for name, value in options.items() if name.lower() != _CHECKPOINT}
        known = {name.lower() for name in names}
        for name in self._given:
            if name not in known:
                raise ConfigError(
                    f"the data source rocketmq has no option {name!r} for {what}; it has {', '.join(names)}"
                )

    def take(self, name: str, read: Callable[[str], T], default: T) -> T:
        """Return what `read` makes of an option; ConfigError with its reasons where it cannot."""
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return read(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"option {name} is {text!r}: {error}") from error

    def exclude(self, *names: str) -> None:
        """Raise ConfigError when more than one of these is given."""
        found = [name for name in names if name.lower() in self._given]
        if len(found) > 1:
            raise ConfigError(f"options {' and '.join(found)} contradict each other; give one of them")


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write. Raises ConfigError as `parse` does."""
    given = _OptionParser(options, SINK_OPTION_NAMES, "a write")
    name_server = given.take("nameServer", _name_server, "")
    if not name_server:
        raise ConfigError("option nameServer is missing; messages are written to live brokers, which it finds")
    return SinkOptions(
        name_server,
        given.take("topic", _topic, None),
        given.take("producerGroup", _group, GROUP),
        given.take("deliveryTimeoutMs", _number, DELIVERY_TIMEOUT_MS),
        given.take("invalidRows", _is_skip, False),
    )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read.

    Raises ConfigError for an option that does not exist, that cannot be understood or that contradicts another.
    """
    given = _OptionParser(options, READ_OPTION_NAMES, "a read")
    take, exclude = given.take, given.exclude
    exclude("subscribe", "topic", "subscribePattern", "assign")
    exclude("storePath", "path", "paths", "nameServer")
    exclude("startingOffsets", "startingOffsetsByTimestamp")
    exclude("endingOffsets", "endingOffsetsByTimestamp")
    for name in ("brokerName", "startingCommitLogOffset", "endingCommitLogOffset"):
        exclude("nameServer", name)
    for name in ("failOnMissingBroker", "requiredBrokers", "commitGroup"):
        exclude("storePath", name)
    name_server = take("nameServer", _name_server, None)
    paths: list[str] = take("storePath", _words, []) or take("path", _path, []) or take("paths", _paths, [])
    corrupt_records = take("corruptRecords", _corrupt_records, CorruptRecords.FAIL)
    is_sql = take("expressionType", _is_sql, False)
    parsed = ReadOptions(
        stores={} if name_server else _stores(paths, take("brokerName", _words, None)),
        name_server=name_server,
        topics=take("subscribe", lambda text: frozenset(_words(text)), None) or take("topic", _one_topic, None),
        pattern=take("subscribePattern", _pattern, None),
        assigned=take("assign", lambda text: frozenset(parse_queues(text)), None),
        include_system_topics=take("includeSystemTopics", _boolean, False),
        starting_offsets=take("startingOffsets", parse_starting_offsets, None),
        ending_offsets=take("endingOffsets", parse_ending_offsets, None),
        starting_times=take("startingOffsetsByTimestamp", parse_times, None),
        ending_times=take("endingOffsetsByTimestamp", parse_times, None),
        starting_timestamp=take("startingTimestamp", _number, None),
        ending_timestamp=take("endingTimestamp", _number, None),
        starting_commit_log_offset=take("startingCommitLogOffset", _number, None),
        ending_commit_log_offset=take("endingCommitLogOffset", _number, None),
        tags=None if is_sql else take("subExpression", parse_tags, None),
        expression=take("subExpression", _expression, None) if is_sql else None,
        keys=take("keys", lambda text: frozenset(_words(text)), None),
        columns=_columns(take("columns", _names, None), take("includeBody", _boolean, None), corrupt_records),
        corrupt_records=corrupt_records,
        fail_on_data_loss=take("failOnDataLoss", _boolean, True),
        fail_on_missing_broker=take("failOnMissingBroker", _boolean, True),
        required_brokers=take("requiredBrokers", lambda text: frozenset(_words(text)), frozenset()),
        max_offsets_per_trigger=take("maxOffsetsPerTrigger", _count, None),
        min_offsets_per_trigger=take("minOffsetsPerTrigger", _count, None),
        max_trigger_delay_ms=take("maxTriggerDelay", _duration_ms, None),
        commit_group=take("commitGroup", _group, None),
        min_partitions=take("minPartitions", _number, 1),
        consumer_group=take("consumerGroup", _group, GROUP),
        push_filters=take("pushFilters", _boolean, False),
    )
    _check(parsed)
    return parsed


def check_for_batch(options: ReadOptions) -> None:
    """Raise ConfigError for what only a stream can be told."""
    given = options.starting_offsets
    if given == LATEST or (isinstance(given, Mapping) and LATEST in given.values()):
        raise ConfigError("startingOffsets is latest, where nothing is to be read; a batch must begin before that")
    if options.max_offsets_per_trigger is not None:
        raise ConfigError("maxOffsetsPerTrigger is for streams; a batch is bounded by endingOffsets or endingTimestamp")
    if options.min_offsets_per_trigger is not None:
        raise ConfigError("minOffsetsPerTrigger is for streams; a batch does not wait")
    if options.commit_group is not None:
        raise ConfigError("commitGroup is for streams; a batch has no progress to commit")


def check_for_stream(options: ReadOptions) -> None:
    """Raise ConfigError for what only a batch can be told."""
    if options.push_filters:
        raise ConfigError("pushFilters is for batches; Spark hands no conditions to streams")
    endings = {
        "endingOffsets": options.ending_offsets,
        "endingOffsetsByTimestamp": options.ending_times,
        "endingTimestamp": options.ending_timestamp,
        "endingCommitLogOffset": options.ending_commit_log_offset,
    }
    for name, value in endings.items():
        if value is not None:
            raise ConfigError(f"{name} is for batches; a stream has no end")


def _check(options: ReadOptions) -> None:
    offsets = options.starting_offsets, options.ending_offsets, options.starting_times, options.ending_times
    if any(isinstance(each, Mapping) for each in offsets) and not options.by_queue:
        raise ConfigError(
            "offsets of queues need subscribe, subscribePattern or assign; without them the whole log is read, "
            "which startingCommitLogOffset and endingCommitLogOffset bound"
        )
    if options.starting_commit_log_offset is not None or options.ending_commit_log_offset is not None:
        if options.by_queue:
            raise ConfigError("a CommitLog offset bounds reads of the whole log; it cannot be used with topics")
        if len(options.stores) > 1:
            raise ConfigError("a CommitLog offset belongs to one store, but storePath names several")
        if options.starting_commit_log_offset is not None and options.starting_offsets is not None:
            raise ConfigError("startingCommitLogOffset and startingOffsets contradict each other; give one of them")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    if options.max_trigger_delay_ms is not None and least is None:
        raise ConfigError("maxTriggerDelay limits how long minOffsetsPerTrigger makes a batch wait; give both")
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"startingTimestamp {begin} is later than endingTimestamp {end}")


def is_store(directory: Path) -> bool:
    """Tell whether a broker has this directory. Before the first message there is no log in it, but other files are."""
    return (directory / "commitlog").is_dir() or any((directory / name).is_file() for name in ("lock", "checkpoint"))


def _stores(paths: list[str], names: list[str] | None) -> dict[str, str]:
    if not paths:
        raise ConfigError(
            "neither option storePath nor nameServer is given: the one names a store directory, which holds "
            "commitlog/, the other the name servers of live brokers"
        )
    directories = [Path(path).absolute() for path in paths]
    for directory in directories:
        if not is_store(directory):
            raise ConfigError(f"{directory} is no store directory: it holds no commitlog/")
    names = [str(directory) for directory in directories] if names is None else names
    if len(names) != len(paths) or len(set(names)) != len(names):
        raise ConfigError(f"storePath names {len(paths)} stores and brokerName {names}; each needs a name of its own")
    return {name: str(directory) for name, directory in zip(names, directories, strict=True)}


def _columns(names: list[str] | None, include_body: bool | None, corrupt_records: CorruptRecords) -> tuple[str, ...]:
    further = (CORRUPT,) if corrupt_records is CorruptRecords.COLUMN else ()
    if names is None:
        return (*(name for name in COLUMNS if name != "body" or include_body is not False), *further)
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"option columns names {name!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(names)) != len(names):
        raise ConfigError("option columns names a column twice")
    if include_body is not None and include_body != ("body" in names):
        raise ConfigError(f"options columns and includeBody={str(include_body).lower()} contradict each other")
    return (*names, *further)


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError("it names nothing")
    return words


def _path(text: str) -> list[str]:
    """Read a path as Spark gives it: for LOCATION, and for the path of a table, with the scheme file."""
    scheme, _, rest = text.partition(":")
    if scheme == "file" and rest.startswith("/"):
        return ["/" + rest.lstrip("/")]
    if "://" in text:
        raise ValueError("it is no path of this machine")
    return [text]


def _paths(text: str) -> list[str]:
    """Read the paths of `load([...])`, which Spark hands on as JSON."""
    return [path for each in json.loads(text) for path in _path(each)]


def _one_topic(text: str) -> frozenset[str]:
    return frozenset({_topic(text)})


def _names(text: str) -> list[str]:
    return _words(text) if text.strip() else []


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("it must not be negative")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it must be at least 1")
    return number


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise ValueError("it must be a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def _name_server(text: str) -> str:
    addresses = [address.strip() for address in text.split(";") if address.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is no host:port")
    if not addresses:
        raise ValueError("it names nothing")
    return ";".join(addresses)


def _group(text: str) -> str:
    try:
        check_group(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


def _topic(text: str) -> str:
    try:
        check_topic(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


def parse_tags(text: str) -> frozenset[str] | None:
    """Return the tags of a subscription, None for all. ValueError where it is none."""
    tags = frozenset(tag.strip() for tag in text.split("||"))
    if tags == {"*"}:
        return None
    for tag in tags:
        if not tag or any(character.isspace() or character == "*" for character in tag):
            raise ValueError(f"{tag!r} is no tag; write TagA || TagB")
    return tags


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _corrupt_records(text: str) -> CorruptRecords:
    try:
        return CorruptRecords(text.lower())
    except ValueError:
        raise ValueError("it must be fail, skip or column") from None


def _is_skip(text: str) -> bool:
    if text.lower() not in ("fail", "skip"):
        raise ValueError("it must be fail or skip")
    return text.lower() == "skip"


def _is_sql(text: str) -> bool:
    if text.upper() not in ("TAG", "SQL92"):
        raise ValueError("it must be TAG or SQL92")
    return text.upper() == "SQL92"


def _expression(text: str) -> str:
    try:
        sql92_matcher(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


@cache
def sql92_matcher(expression: str) -> Callable[[Mapping[str, str]], bool]:
    """Return what tells whether properties match an expression in SQL92. Raises InvalidExpression."""
    from rucola.message import sql92  # here, since it loads a grammar, for which few ask

    return sql92.compile(expression).matches


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
