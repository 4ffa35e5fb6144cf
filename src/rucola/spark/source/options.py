"""Options of the data source `rocketmq`, described in docs/spark.md.

Names and meanings follow Spark's Kafka source where it has an equivalent. An option is a field of `ReadOptions` or
`SinkOptions`, which has its parser, its default and, if it is not the field's in camel case, its name. Options that
several fields depend on, or that together make one field, are in `_COMBINED`.
"""

# ruff: noqa: RUF009 - `_option` returns a field

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from rucola.acl.credentials import Credentials, credentials_of_file, default_credentials
from rucola.client import ClientTls, ConnectionOptions
from rucola.errors import ConfigError
from rucola.files import local_path
from rucola.name_server_addresses import NAMESRV_VARIABLES, name_servers_in_environment
from rucola.settings import key_of
from rucola.spark.source import option_values as values
from rucola.spark.source.option_values import INVALID, LATEST, QueueOffsets, one_of
from rucola.spark.source.schema import COLUMNS, CORRUPT

T = TypeVar("T")

GROUP: Final = "rucola_spark"
MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000

_CHECKPOINT: Final = "checkpointlocation"


class CorruptRecords(Enum):
    """The policy for damaged records: fail the query, omit them, or return rows with the column `_corrupt`."""

    FAIL = "fail"
    SKIP = "skip"
    COLUMN = "column"


@dataclass(frozen=True)
class QueueFilter:
    """A selection of queues and queue offsets, in addition to the options; None is all."""

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
        """Return the selection of messages that match both this filter and the given conditions."""
        return QueueFilter(
            _intersection(self.topics, topics),
            _intersection(self.queue_ids, queue_ids),
            max(self.begin_queue_offset, begin),
            min(self.end_queue_offset, end),
        )

    def matches(self, topic: str, queue_id: int) -> bool:
        """Return whether messages of this queue can match."""
        takes_topic = self.topics is None or topic in self.topics
        return takes_topic and (self.queue_ids is None or queue_id in self.queue_ids)


def _intersection(known: frozenset[T] | None, further: Iterable[T] | None) -> frozenset[T] | None:
    if further is None:
        return known
    return frozenset(further) if known is None else known & frozenset(further)


def _option(parse: Callable[[str], Any], default: Any = None, *, key: str | None = None, only: str = "") -> Any:
    """Declare a field that is an option; `only` batches or streams can have it."""
    return dataclasses.field(default=default, metadata={"parse": parse, "key": key, "only": only})


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read, validated one by one and against each other.

    `stores` is {broker name: store directory}, empty for live brokers and for a lake alone. At most one of `topics`,
    `pattern` and `assigned` is set; in `assigned`, None as broker is every broker. `starting_offsets` is None if the
    option is not given.
    """

    stores: Mapping[str, str]
    name_server: str | None = _option(values.name_servers)
    lake: str | None = _option(values.lake, only="batches")
    catalog: str | None = _option(str, only="batches")
    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = _option(re.compile, key="subscribePattern")
    assigned: frozenset[tuple[str, str | None, int]] | None = _option(values.queues, key="assign")
    include_system_topics: bool = _option(values.boolean, False)
    starting_offsets: QueueOffsets | int | None = _option(values.starting_offsets)
    ending_offsets: QueueOffsets | None = _option(values.ending_offsets, only="batches")
    starting_times: QueueOffsets | None = _option(values.times, key="startingOffsetsByTimestamp")
    ending_times: QueueOffsets | None = _option(values.times, key="endingOffsetsByTimestamp", only="batches")
    starting_timestamp: int | None = _option(values.number)
    ending_timestamp: int | None = _option(values.number, only="batches")
    starting_commit_log_offset: int | None = _option(values.number)
    ending_commit_log_offset: int | None = _option(values.number, only="batches")
    tags: frozenset[str] | None = None
    expression: str | None = None
    keys: frozenset[str] | None = _option(values.word_set)
    columns: tuple[str, ...] = tuple(COLUMNS)
    corrupt_records: CorruptRecords = _option(
        one_of({each.value: each for each in CorruptRecords}), CorruptRecords.FAIL
    )
    fail_on_data_loss: bool = _option(values.boolean, True)
    fail_on_missing_broker: bool = _option(values.boolean, True)
    required_brokers: frozenset[str] = _option(values.word_set, frozenset())
    max_offsets_per_trigger: int | None = _option(values.positive_number, only="streams")
    min_offsets_per_trigger: int | None = _option(values.positive_number, only="streams")
    max_trigger_delay_ms: int | None = _option(values.duration_ms, key="maxTriggerDelay")
    commit_group: str | None = _option(values.group, only="streams")
    min_partitions: int = _option(values.number, 1)
    consumer_group: str = _option(values.group, GROUP)
    tls_config_file: str | None = _option(values.path)
    push_filters: bool = _option(values.boolean, False, only="batches")
    queue_filter: QueueFilter = QueueFilter()
    archived_topics: frozenset[str] = frozenset()
    """Topics that the log may lack, since the lake has them."""
    credentials: Credentials | None = None

    @property
    def has_log(self) -> bool:
        """Whether stores or live brokers are read, and not a lake alone."""
        return bool(self.stores) or self.name_server is not None

    @property
    def named_topics(self) -> frozenset[str]:
        """The topics that the options name."""
        return (self.topics or frozenset()) | {topic for topic, _, _ in self.assigned or ()}

    @property
    def by_queue(self) -> bool:
        """Whether queues are read, and not the whole log front to back."""
        chosen = not (self.topics is None and self.pattern is None and self.assigned is None)
        return chosen or self.name_server is not None


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. Without `topic` every row names its topic."""

    name_server: str = _option(values.name_servers)
    topic: str | None = _option(values.topic)
    producer_group: str = _option(values.group, GROUP)
    delivery_timeout_ms: int = _option(values.number, 30_000)
    skip_invalid_rows: bool = _option(one_of({"fail": False, "skip": True}), False, key="invalidRows")
    tls_config_file: str | None = _option(values.path)
    credentials: Credentials | None = None


_LOG_OPTION_NAMES: Final = ("storePath", "path", "paths", "nameServer")
SOURCE_OPTION_NAMES: Final = (*_LOG_OPTION_NAMES, "lake")
_COMBINED: Final = (
    *("storePath", "path", "paths", "brokerName", "subscribe", "topic"),
    *("subExpression", "expressionType", "columns", "includeBody"),
)
_CREDENTIALS: Final = ("accessKey", "secretKey", "securityToken", "credentialsFile")


def _names(kind: type[ReadOptions] | type[SinkOptions]) -> tuple[str, ...]:
    return tuple(key_of(field) for field in fields(kind) if "parse" in field.metadata)


READ_OPTION_NAMES: Final = (*_COMBINED, *_names(ReadOptions), *_CREDENTIALS)
SINK_OPTION_NAMES: Final = (*_names(SinkOptions), *_CREDENTIALS)


def check_names(options: Iterable[str], names: tuple[str, ...], what: str) -> None:
    """Raise ConfigError for a name of an option that is not among `names`, ignoring case."""
    known = {name.lower() for name in names}
    for name in options:
        if name.lower() not in known:
            raise ConfigError(
                f"the data source rocketmq has no option {name!r} for {what}; it has {', '.join(names)}", subject=name
            )


class _GivenOptions:
    """Options as Spark passes them, each parsed on request. Names ignore case; unknown ones raise ConfigError."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...], what: str) -> None:
        self._given = {name.lower(): value for name, value in options.items() if name.lower() != _CHECKPOINT}
        check_names(self._given, names, what)

    def take(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text)
        except INVALID as error:
            raise ConfigError(f"option {name} is {text!r}: {error}", subject=name) from error

    def fields(self, kind: type[ReadOptions] | type[SinkOptions]) -> dict[str, Any]:
        """Return the fields of a dataclass that are options."""
        options = [field for field in fields(kind) if "parse" in field.metadata]
        return {field.name: self.take(key_of(field), field.metadata["parse"], field.default) for field in options}

    def exclude(self, *names: str) -> None:
        found = [name for name in names if name.lower() in self._given]
        if len(found) > 1:
            raise ConfigError(
                f"options {' and '.join(found)} contradict each other; give one of them", subject=found[0]
            )


def with_default_source(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with the environment's name servers as nameServer, if they name neither store nor brokers."""
    default = name_servers_in_environment()
    if default is None or {name.lower() for name in SOURCE_OPTION_NAMES} & {name.lower() for name in options}:
        return dict(options)
    return {**options, "nameServer": default}


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises ConfigError as `parse_read_options` does."""
    given = _GivenOptions(options, SINK_OPTION_NAMES, "a write")
    parsed = given.fields(SinkOptions)
    if parsed["name_server"] is None:
        raise ConfigError(
            "option nameServer is missing; it, or the environment variable "
            f"{NAMESRV_VARIABLES[0]}, names the name servers of the brokers to write to",
            subject="nameServer",
        )
    return SinkOptions(**parsed, credentials=_credentials(given))


def connection_of(options: ReadOptions | SinkOptions) -> ConnectionOptions:
    """Return how this process, driver or worker, reaches the brokers. Reads `tlsConfigFile`; ConfigError."""
    tls = ClientTls.from_file(options.tls_config_file) if options.tls_config_file else None
    return ConnectionOptions(options.name_server, tls, options.credentials)


def _credentials(given: _GivenOptions) -> Credentials | None:
    """Return the credentials of the options, or else of this process; workers get them with the options."""
    access_key, secret_key = given.take("accessKey", str, ""), given.take("secretKey", str, "")
    given.exclude("accessKey", "credentialsFile")
    if access_key or secret_key:
        if not access_key or not secret_key:
            raise ConfigError("options accessKey and secretKey belong together: give both, or neither")
        return Credentials(access_key, secret_key, given.take("securityToken", str, None))
    path = given.take("credentialsFile", values.path, None)
    return credentials_of_file(Path(path)) if path is not None else default_credentials()


_EXCLUSIVE: Final = (
    ("subscribe", "topic", "subscribePattern", "assign"),
    _LOG_OPTION_NAMES,
    *((end, f"{end}ByTimestamp") for end in ("startingOffsets", "endingOffsets")),
    *(("nameServer", name) for name in ("brokerName", "startingCommitLogOffset", "endingCommitLogOffset")),
    *(("lake", name) for bound in ("startingOffsets", "endingOffsets") for name in (bound, f"{bound}ByTimestamp")),
    *(("lake", name) for name in ("startingCommitLogOffset", "endingCommitLogOffset")),
    *(("storePath", name) for name in ("failOnMissingBroker", "requiredBrokers", "commitGroup", "tlsConfigFile")),
)


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read; ConfigError for an option that is unknown, invalid or contradicts another."""
    given = _GivenOptions(options, READ_OPTION_NAMES, "a read")
    take = given.take
    for names in _EXCLUSIVE:
        given.exclude(*names)
    found = given.fields(ReadOptions)
    is_live = found["name_server"] is not None
    path, paths = take("path", values.path, ""), take("paths", values.paths, list[str]())
    paths = take("storePath", values.words, [path] if path else paths)
    given_log = bool(paths) or found["lake"] is None
    topic = take("topic", values.topic, None)
    topics = frozenset({topic}) if topic is not None else None
    is_sql = take("expressionType", one_of({"TAG": False, "SQL92": True}), False)
    parsed = ReadOptions(
        stores={} if is_live or not given_log else _stores(paths, take("brokerName", values.words, None)),
        credentials=_credentials(given) if is_live else None,
        topics=take("subscribe", values.word_set, topics),
        tags=None if is_sql else take("subExpression", values.parse_tags, None),
        expression=take("subExpression", values.expression, None) if is_sql else None,
        columns=_columns(
            take("columns", values.names, None), take("includeBody", values.boolean, None), found["corrupt_records"]
        ),
        **found,
    )
    _check_consistency(parsed)
    return parsed


def check_for_batch(options: ReadOptions) -> None:
    """Raise ConfigError for options that only a stream can have."""
    given = options.starting_offsets
    if given == LATEST or (isinstance(given, Mapping) and LATEST in given.values()):
        raise ConfigError(
            "startingOffsets is latest, so there would be nothing to read; a batch must begin before that",
            subject="startingOffsets",
        )
    _refuse(options, "streams")


def check_for_stream(options: ReadOptions) -> None:
    """Raise ConfigError for options that only a batch can have."""
    _refuse(options, "batches")


def _refuse(options: ReadOptions, only: str) -> None:
    for field in fields(options):
        if field.metadata.get("only") == only and getattr(options, field.name) != field.default:
            raise ConfigError(f"{key_of(field)} is for {only}; leave it out", subject=key_of(field))


def _check_consistency(options: ReadOptions) -> None:
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
    if options.catalog is not None and options.lake is None:
        raise ConfigError("catalog names the catalog of a lake; give lake as well", subject="catalog")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    if options.max_trigger_delay_ms is not None and least is None:
        raise ConfigError("maxTriggerDelay limits how long minOffsetsPerTrigger makes a batch wait; give both")
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"startingTimestamp {begin} is later than endingTimestamp {end}")


def is_store(directory: Path) -> bool:
    """Return whether a directory is a store, which has no CommitLog before the first message, but other files."""
    return (directory / "commitlog").is_dir() or any((directory / name).is_file() for name in ("lock", "checkpoint"))


def _stores(paths: list[str], names: list[str] | None) -> dict[str, str]:
    if not paths:
        raise ConfigError(
            "none of the options storePath, nameServer and lake is given: storePath names a store directory, which "
            f"holds commitlog/, nameServer (or the environment variable {NAMESRV_VARIABLES[0]}) the name servers of "
            "live brokers, lake the directory of an archive",
            subject="storePath",
        )
    directories = [local_path(path).absolute() for path in paths]
    for directory in directories:
        if not is_store(directory):
            raise ConfigError(f"{directory} is not a store directory: it holds no commitlog/")
    names = [str(directory) for directory in directories] if names is None else names
    if len(names) != len(paths) or len(set(names)) != len(names):
        raise ConfigError(f"storePath names {len(paths)} stores and brokerName {names}; each store needs its own name")
    return {name: str(directory) for name, directory in zip(names, directories, strict=True)}


def _columns(names: list[str] | None, include_body: bool | None, corrupt_records: CorruptRecords) -> tuple[str, ...]:
    additional = (CORRUPT,) if corrupt_records is CorruptRecords.COLUMN else ()
    if names is None:
        of_bodies = {"body", "bodyError"} if include_body is False else set()
        return (*(name for name in COLUMNS if name not in of_bodies), *additional)
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"option columns names {name!r}; the columns are {', '.join(COLUMNS)}")
    if len(set(names)) != len(names):
        raise ConfigError("option columns names a column twice")
    if include_body is not None and include_body != ("body" in names):
        raise ConfigError(f"options columns and includeBody={str(include_body).lower()} contradict each other")
    return (*names, *additional)
