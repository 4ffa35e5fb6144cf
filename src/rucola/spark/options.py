"""What a read through the data source `rocketmq` can be told.

Names and meanings follow Spark's Kafka source where it has the like. Which messages:

    storePath                store directories, separated by commas; each must have the same path on every worker
    brokerName               a name for each of them, in the same order; by default a store's path is its name
    subscribe                topics, separated by commas
    subscribePattern         a regular expression that the whole name of a topic must match
    assign                   queues, {"topic":[0,1]} on every broker or {"topic":{"broker":[0,1]}}
    includeSystemTopics      true also reads the system's own topics, unless topics are named; default false
    startingOffsets          earliest, or {"topic":{"broker":{"0":23}}} where -2 is earliest; queues not named: earliest
    endingOffsets            latest, or the like, exclusive, where -1 is latest; queues not named: latest
    startingTimestamp        only messages stored at this time or later, in milliseconds
    endingTimestamp          only messages stored before this time
    startingCommitLogOffset  only records from this physical offset on, which must be where one begins
    endingCommitLogOffset    only records that begin before this physical offset

and how:

    columns                  columns to make, separated by commas; default all
    includeBody              false leaves out the column body; default true
    corruptRecords           fail, or skip, which leaves damaged records out with a warning; default fail
    minPartitions            cut the log into at least so many partitions, where it is large enough

subscribe, subscribePattern and assign exclude each other. Without any of them the log is read from front to back,
for which queues have no offsets; bounds by CommitLog offset are for that, and for one store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rucola.errors import ConfigError
from rucola.spark.columns import SCHEMA

EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets = Mapping[tuple[str, str, int], int]
"""Queue offsets by (topic, broker name, queue id)."""

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The options of a read, checked one by one and against each other.

    `stores` is {broker name: store directory}. Of `topics`, `pattern` and `assigned` at most one is set; `assigned`
    has None for a broker where queues of every broker are meant.
    """

    stores: Mapping[str, str]
    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[tuple[str, str | None, int]] | None = None
    include_system_topics: bool = False
    starting_offsets: QueueOffsets | None = None
    ending_offsets: QueueOffsets | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_commit_log_offset: int | None = None
    ending_commit_log_offset: int | None = None
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    skip_corrupt_records: bool = False
    min_partitions: int = 1

    @property
    def by_queue(self) -> bool:
        """Whether topics or queues are chosen; otherwise the log is read from front to back."""
        return not (self.topics is None and self.pattern is None and self.assigned is None)


NAMES: Final = (
    "storePath",
    "brokerName",
    "subscribe",
    "subscribePattern",
    "assign",
    "includeSystemTopics",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingCommitLogOffset",
    "endingCommitLogOffset",
    "columns",
    "includeBody",
    "corruptRecords",
    "minPartitions",
)


def parse(options: Mapping[str, str]) -> Options:
    """Return the options as given to Spark, whose names ignore case.

    Raises ConfigError for an option that does not exist, that cannot be understood or that contradicts another.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name not in known:
            raise ConfigError(f"the data source rocketmq has no option {name!r}; it has {', '.join(NAMES)}")

    def take(name: str, read: Callable[[str], T], default: T) -> T:
        text = given.get(name.lower())
        if text is None:
            return default
        try:
            return read(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"option {name} is {text!r}: {error}") from error

    def exclude(*names: str) -> None:
        found = [name for name in names if name.lower() in given]
        if len(found) > 1:
            raise ConfigError(f"options {' and '.join(found)} contradict each other; give one of them")

    exclude("subscribe", "subscribePattern", "assign")
    parsed = Options(
        stores=_stores(take("storePath", _words, []), take("brokerName", _words, None)),
        topics=take("subscribe", lambda text: frozenset(_words(text)), None),
        pattern=take("subscribePattern", _pattern, None),
        assigned=take("assign", lambda text: frozenset(_queues(text)), None),
        include_system_topics=take("includeSystemTopics", _boolean, False),
        starting_offsets=take("startingOffsets", lambda text: _offsets(text, "earliest", EARLIEST), None),
        ending_offsets=take("endingOffsets", lambda text: _offsets(text, "latest", LATEST), None),
        starting_timestamp=take("startingTimestamp", _number, None),
        ending_timestamp=take("endingTimestamp", _number, None),
        starting_commit_log_offset=take("startingCommitLogOffset", _number, None),
        ending_commit_log_offset=take("endingCommitLogOffset", _number, None),
        columns=_columns(take("columns", _words, None), take("includeBody", _boolean, None)),
        skip_corrupt_records=take("corruptRecords", _corrupt_records, False),
        min_partitions=take("minPartitions", _number, 1),
    )
    _check(parsed)
    return parsed


def _check(options: Options) -> None:
    offsets = options.starting_offsets or options.ending_offsets
    if offsets and not options.by_queue:
        raise ConfigError(
            "offsets of queues need subscribe, subscribePattern or assign; without them the whole log is read, "
            "which startingCommitLogOffset and endingCommitLogOffset bound"
        )
    if options.starting_commit_log_offset is not None or options.ending_commit_log_offset is not None:
        if options.by_queue:
            raise ConfigError("a CommitLog offset bounds reads of the whole log; it cannot be used with topics")
        if len(options.stores) > 1:
            raise ConfigError("a CommitLog offset belongs to one store, but storePath names several")
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"startingTimestamp {begin} is later than endingTimestamp {end}")


def _stores(paths: list[str], names: list[str] | None) -> dict[str, str]:
    if not paths:
        raise ConfigError("option storePath is missing; it names the store directory, which holds commitlog/")
    directories = [Path(path).absolute() for path in paths]
    for directory in directories:
        if not (directory / "commitlog").is_dir():
            raise ConfigError(f"{directory} is no store directory: it holds no commitlog/")
    names = [str(directory) for directory in directories] if names is None else names
    if len(names) != len(paths) or len(set(names)) != len(names):
        raise ConfigError(f"storePath names {len(paths)} stores and brokerName {names}; each needs a name of its own")
    return {name: str(directory) for name, directory in zip(names, directories, strict=True)}


def _columns(names: list[str] | None, include_body: bool | None) -> tuple[str, ...]:
    if names is None:
        return tuple(name for name in SCHEMA.names if name != "body" or include_body is not False)
    for name in names:
        if name not in SCHEMA.names:
            raise ConfigError(f"option columns names {name!r}; the columns are {', '.join(SCHEMA.names)}")
    if len(set(names)) != len(names):
        raise ConfigError("option columns names a column twice")
    if include_body is not None and include_body != ("body" in names):
        raise ConfigError(f"options columns and includeBody={str(include_body).lower()} contradict each other")
    return tuple(names)


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError("it names nothing")
    return words


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("it must not be negative")
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _corrupt_records(text: str) -> bool:
    if text.lower() not in ("fail", "skip"):
        raise ValueError("it must be fail or skip")
    return text.lower() == "skip"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error


def _queues(text: str) -> Iterator[tuple[str, str | None, int]]:
    for topic, brokers in json.loads(text).items():
        by_broker: dict[str | None, Any] = brokers if isinstance(brokers, dict) else {None: brokers}
        for broker, queue_ids in by_broker.items():
            for queue_id in queue_ids:
                yield topic, broker, _queue_id(queue_id)


def _offsets(text: str, keyword: str, stand_in: int) -> QueueOffsets | None:
    if text.strip().lower() == keyword:
        return None
    if not text.strip().startswith("{"):
        raise ValueError(f'it must be {keyword} or JSON such as {{"topic":{{"broker":{{"0":23}}}}}}')
    offsets = {}
    for topic, brokers in json.loads(text).items():
        for broker, queues in brokers.items():
            for queue_id, offset in queues.items():
                if not isinstance(offset, int) or isinstance(offset, bool) or (offset < 0 and offset != stand_in):
                    raise ValueError(f"{offset!r} is no queue offset, nor {stand_in} for {keyword}")
                offsets[topic, broker, _queue_id(queue_id)] = offset
    return offsets


def _queue_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError(f"{value!r} is no queue id")
    return int(value)
