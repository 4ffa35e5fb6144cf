"""Options of the data source `rocketmq`.

Names and meanings follow Spark's Kafka source where it has an equivalent. Options of a read: the source, one of

    storePath                store directories, separated by commas; each must have the same path on every worker
    nameServer               name servers of live brokers, host:port separated by semicolons; messages are pulled.
                             Default, if no store is given: the environment variable ROCKETMQ_NAMESRV or NAMESRV_ADDR
                             of the driver when its session starts

the credentials for live brokers with access control, by default those of the driver's environment:

    accessKey                the name of the account
    secretKey                its secret key; Spark's pages show it as redacted
    securityToken            a token that belongs to these keys
    credentialsFile          a file with the keys on the driver, like Apache's tools.yml, in place of the other three

the selection of messages:

    brokerName               a name for each store, in the same order; default: the path of the store
    path                     one store directory; Spark's name for the argument of load(path) and a table's LOCATION
    paths                    several store directories as JSON; Spark's name for the argument of load([path, path])
    subscribe                topics, separated by commas
    topic                    one topic; the same name as in a write, so that a table can be both read and written
    subscribePattern         regular expression that must match the whole name of a topic
    assign                   queues: {"topic":[0,1]} on every broker, or {"topic":{"broker":[0,1]}}
    includeSystemTopics      true includes system topics, unless topics are named; default false
    startingOffsets          earliest, latest or {"topic":{"broker":{"0":23}}}, where -2 is earliest and -1 latest.
                             Default: earliest for a batch and for queues not named, latest for a stream. A batch cannot
                             start at latest. The broker may be omitted if only one has the topic: {"topic":{"0":23}};
                             this applies to the following options as well
    endingOffsets            latest or offsets as above, exclusive; queues not named: latest; batch only
    startingOffsetsByTimestamp {"topic":{"broker":{"0":1700000000000}}}: each queue starts at its first message that was
                             stored at this time (ms) or later, or at its end; queues not named: earliest
    endingOffsetsByTimestamp the same format: each queue ends before that message; queues not named: latest; batch only
    startingTimestamp        only messages stored at this time or later, in milliseconds since 1970
    endingTimestamp          only messages stored before this time; batch only
    startingCommitLogOffset  only records from this physical offset on, at which a record must begin
    endingCommitLogOffset    only records that begin before this physical offset; batch only
    subExpression            only messages with one of these tags, TagA || TagB, or matching this SQL92 expression (see
                             `rucola.message.sql92`); default *
    expressionType           the type of subExpression, TAG or SQL92; default TAG
    keys                     only messages with one of these keys or unique keys, separated by commas

and the way of reading:

    columns                  columns to return, separated by commas; empty returns none, to count messages; default all
    includeBody              false omits the column body; default true
    corruptRecords           fail; skip: omit damaged records, with a warning that counts them; column: return a row for
                             each, NULL in all columns but brokerName, commitLogOffset and the additional column
                             _corrupt, which has the reason; default fail
    failOnDataLoss           true fails a query if messages to be read were deleted or the store was replaced; false
                             reads what is left, with a warning; default true
    failOnMissingBroker      true fails a query if a known broker is missing: not registered, or not answering; false
                             reads the other brokers, with a warning, and a stream keeps its offsets on a missing
                             broker; default true
    requiredBrokers          names of brokers that must be registered, separated by commas; name servers forget stopped
                             brokers, so a batch knows of them only by this option
    maxOffsetsPerTrigger     maximum number of messages in a batch of a stream; default unlimited
    minOffsetsPerTrigger     a batch of a stream waits for this backlog, at most for maxTriggerDelay
    maxTriggerDelay          maximum wait of a batch, such as 500ms, 30s, 15m, 2h or 1d; default 15m
    commitGroup              consumer group to which a stream commits the offsets of finished batches, for tools that
                             show its backlog; the stream itself relies on the checkpoint only
    minPartitions            minimum number of partitions, if the log is large enough
    consumerGroup            consumer group named in pulls from live brokers; default rucola_spark
    tlsConfigFile            tls.properties by which brokers are reached, with the same path on every worker; default
                             the file that the environment variable ROCKETMQ_TLS_CONFIG_FILE names there
    pushFilters              true evaluates conditions of the query in the source; needs the setting
                             spark.sql.python.filterPushdown.enabled, and a DataFrame that is queried once (see
                             `pushdown`); default false; batch only

subscribe, topic, subscribePattern and assign exclude each other. Without any of them the log of a store is read front
to back, and queues have no offsets; CommitLog offsets are for that, and for one store. Live brokers are always read by
queue; without any of these options, all queues of all topics are read.

Options of a write:

    nameServer               name servers of the brokers that store the messages; default as above, but a table of a
                             store has none
    accessKey ...            credentials as in a read
    topic                    topic of every message; without it each row names its topic in the column topic
    producerGroup            producer group of the messages; default rucola_spark
    deliveryTimeoutMs        how long a failed request is retried before its task fails; default 30000
    tlsConfigFile            as for a read
    invalidRows              fail; skip: omit rows that no broker accepts, such as one without a body, with a warning
                             that counts them; default fail
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from rucola.acl.credentials import Credentials, credentials_of_file, default_credentials
from rucola.client import ClientTls, ConnectionOptions
from rucola.errors import ConfigError
from rucola.files import local_path
from rucola.name_server_addresses import NAMESRV_VARIABLES, name_servers_in_environment
from rucola.spark.source import option_values as values
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


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read, validated one by one and against each other (see the module docstring).

    `stores` is {broker name: store directory}, empty for live brokers. At most one of `topics`, `pattern` and
    `assigned` is set; in `assigned`, None as broker is every broker. `starting_offsets` is None if the option is not
    given.
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
    tls_config_file: str | None = None
    push_filters: bool = False
    queue_filter: QueueFilter = QueueFilter()
    credentials: Credentials | None = None

    @property
    def by_queue(self) -> bool:
        """Whether queues are read, and not the whole log front to back."""
        chosen = not (self.topics is None and self.pattern is None and self.assigned is None)
        return chosen or self.name_server is not None


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write. Without `topic` every row names its topic."""

    name_server: str
    topic: str | None = None
    producer_group: str = GROUP
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    skip_invalid_rows: bool = False
    tls_config_file: str | None = None
    credentials: Credentials | None = None


CREDENTIAL_OPTION_NAMES: Final = ("accessKey", "secretKey", "securityToken", "credentialsFile")
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
    "tlsConfigFile",
    "pushFilters",
    *CREDENTIAL_OPTION_NAMES,
)
SINK_OPTION_NAMES: Final = (
    "nameServer",
    "topic",
    "producerGroup",
    "deliveryTimeoutMs",
    "invalidRows",
    "tlsConfigFile",
    *CREDENTIAL_OPTION_NAMES,
)


class _OptionParser:
    """Options as Spark passes them, each parsed on request. Names ignore case; unknown ones raise ConfigError."""

    def __init__(self, options: Mapping[str, str], names: Sequence[str], what: str) -> None:
        self._given = {name.lower(): value for name, value in options.items() if name.lower() != _CHECKPOINT}
        known = {name.lower() for name in names}
        for name in self._given:
            if name not in known:
                raise ConfigError(
                    f"the data source rocketmq has no option {name!r} for {what}; it has {', '.join(names)}",
                    subject=name,
                )

    def take(self, name: str, read: Callable[[str], T], default: T) -> T:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return read(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"option {name} is {text!r}: {error}", subject=name) from error

    def exclude(self, *names: str) -> None:
        found = [name for name in names if name.lower() in self._given]
        if len(found) > 1:
            raise ConfigError(
                f"options {' and '.join(found)} contradict each other; give one of them", subject=found[0]
            )


SOURCE_OPTION_NAMES: Final = ("storePath", "path", "paths", "nameServer")


def with_default_source(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with the environment's name servers as nameServer, if they name neither store nor brokers."""
    default = name_servers_in_environment()
    if default is None or {name.lower() for name in SOURCE_OPTION_NAMES} & {name.lower() for name in options}:
        return dict(options)
    return {**options, "nameServer": default}


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises ConfigError as `parse_read_options` does."""
    given = _OptionParser(options, SINK_OPTION_NAMES, "a write")
    name_server = given.take("nameServer", values.name_servers, None)
    if name_server is None:
        raise ConfigError(
            "option nameServer is missing; it, or the environment variable "
            f"{NAMESRV_VARIABLES[0]}, names the name servers of the brokers to write to",
            subject="nameServer",
        )
    return SinkOptions(
        name_server,
        given.take("topic", values.topic, None),
        given.take("producerGroup", values.group, GROUP),
        given.take("deliveryTimeoutMs", values.number, DELIVERY_TIMEOUT_MS),
        given.take("invalidRows", values.is_skip, False),
        given.take("tlsConfigFile", values.file_path, None),
        _credentials(given),
    )


def connection_of(options: ReadOptions | SinkOptions) -> ConnectionOptions:
    """Return how this process, driver or worker, reaches the brokers. Reads `tlsConfigFile`; ConfigError."""
    tls = ClientTls.from_file(options.tls_config_file) if options.tls_config_file else None
    return ConnectionOptions(options.name_server, tls, options.credentials)


def _credentials(given: _OptionParser) -> Credentials | None:
    """Return the credentials of the options, or else of this process; workers get them with the options."""
    access_key, secret_key = given.take("accessKey", str, ""), given.take("secretKey", str, "")
    given.exclude("accessKey", "credentialsFile")
    if access_key or secret_key:
        if not access_key or not secret_key:
            raise ConfigError("options accessKey and secretKey belong together: give both, or neither")
        return Credentials(access_key, secret_key, given.take("securityToken", str, None))
    path = given.take("credentialsFile", values.file_path, None)
    return credentials_of_file(Path(path)) if path is not None else default_credentials()


_EXCLUSIVE: Final = (
    ("subscribe", "topic", "subscribePattern", "assign"),
    SOURCE_OPTION_NAMES,
    *((end, f"{end}ByTimestamp") for end in ("startingOffsets", "endingOffsets")),
    *(("nameServer", name) for name in ("brokerName", "startingCommitLogOffset", "endingCommitLogOffset")),
    *(("storePath", name) for name in ("failOnMissingBroker", "requiredBrokers", "commitGroup", "tlsConfigFile")),
)


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read; ConfigError for an option that is unknown, invalid or contradicts another."""
    # 1. Names: unknown options, and options that exclude each other.
    given = _OptionParser(options, READ_OPTION_NAMES, "a read")
    take, exclude = given.take, given.exclude
    for names in _EXCLUSIVE:
        exclude(*names)
    # 2. Values, each by its own parser.
    name_server = take("nameServer", values.name_servers, None)
    paths: list[str] = (
        take("storePath", values.words, []) or take("path", values.path, []) or take("paths", values.paths, [])
    )
    corrupt_records = take("corruptRecords", _corrupt_records, CorruptRecords.FAIL)
    is_sql = take("expressionType", values.is_sql92, False)
    parsed = ReadOptions(
        stores={} if name_server else _stores(paths, take("brokerName", values.words, None)),
        name_server=name_server,
        credentials=_credentials(given) if name_server else None,
        topics=take("subscribe", values.word_set, None) or take("topic", values.one_topic, None),
        pattern=take("subscribePattern", values.pattern, None),
        assigned=take("assign", lambda text: frozenset(parse_queues(text)), None),
        include_system_topics=take("includeSystemTopics", values.boolean, False),
        starting_offsets=take("startingOffsets", parse_starting_offsets, None),
        ending_offsets=take("endingOffsets", parse_ending_offsets, None),
        starting_times=take("startingOffsetsByTimestamp", parse_times, None),
        ending_times=take("endingOffsetsByTimestamp", parse_times, None),
        starting_timestamp=take("startingTimestamp", values.number, None),
        ending_timestamp=take("endingTimestamp", values.number, None),
        starting_commit_log_offset=take("startingCommitLogOffset", values.number, None),
        ending_commit_log_offset=take("endingCommitLogOffset", values.number, None),
        tags=None if is_sql else take("subExpression", values.parse_tags, None),
        expression=take("subExpression", values.expression, None) if is_sql else None,
        keys=take("keys", values.word_set, None),
        columns=_columns(
            take("columns", values.names, None), take("includeBody", values.boolean, None), corrupt_records
        ),
        corrupt_records=corrupt_records,
        fail_on_data_loss=take("failOnDataLoss", values.boolean, True),
        fail_on_missing_broker=take("failOnMissingBroker", values.boolean, True),
        required_brokers=take("requiredBrokers", values.word_set, frozenset()),
        max_offsets_per_trigger=take("maxOffsetsPerTrigger", values.positive_number, None),
        min_offsets_per_trigger=take("minOffsetsPerTrigger", values.positive_number, None),
        max_trigger_delay_ms=take("maxTriggerDelay", values.duration_ms, None),
        commit_group=take("commitGroup", values.group, None),
        min_partitions=take("minPartitions", values.number, 1),
        consumer_group=take("consumerGroup", values.group, GROUP),
        tls_config_file=take("tlsConfigFile", values.file_path, None),
        push_filters=take("pushFilters", values.boolean, False),
    )
    # 3. Values that contradict each other.
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
    if options.max_offsets_per_trigger is not None:
        raise ConfigError(
            "maxOffsetsPerTrigger is for streams; a batch is bounded by endingOffsets or endingTimestamp",
            subject="maxOffsetsPerTrigger",
        )
    if options.min_offsets_per_trigger is not None:
        raise ConfigError("minOffsetsPerTrigger is for streams; a batch does not wait", subject="minOffsetsPerTrigger")
    if options.commit_group is not None:
        raise ConfigError("commitGroup is for streams; a batch commits no offsets", subject="commitGroup")


def check_for_stream(options: ReadOptions) -> None:
    """Raise ConfigError for options that only a batch can have."""
    if options.push_filters:
        raise ConfigError("pushFilters is for batches; Spark pushes no filters to streams")
    endings = {
        "endingOffsets": options.ending_offsets,
        "endingOffsetsByTimestamp": options.ending_times,
        "endingTimestamp": options.ending_timestamp,
        "endingCommitLogOffset": options.ending_commit_log_offset,
    }
    for name, value in endings.items():
        if value is not None:
            raise ConfigError(f"{name} is for batches; a stream has no end", subject=name)


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
            "neither option storePath nor nameServer is given: storePath names a store directory, which holds "
            f"commitlog/, nameServer (or the environment variable {NAMESRV_VARIABLES[0]}) the name servers of live "
            "brokers",
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


def _corrupt_records(text: str) -> CorruptRecords:
    try:
        return CorruptRecords(text.lower())
    except ValueError:
        raise ValueError("it must be fail, skip or column") from None
