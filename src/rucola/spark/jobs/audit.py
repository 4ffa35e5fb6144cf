"""Audit job: statistics of the messages in a log.

    facts         one narrow row per message, made of record batches
    topics        by topic: messages, bytes, sizes, born-to-store latency, repeats
    hours         by topic and hour: messages, bytes, rates, born-to-store latency
    timeline      by topic and a step from a second to a week
    failures      by group, kind and hour: retries and dead letters
    sizes         by topic: a histogram of record sizes, by powers of two
    hot_keys      by topic: the most frequent keys
    consumption   by group and topic: store-to-consumption latency
    lags          by group and queue: the backlog in messages, bytes and time

Each table is one query over the facts, in the SQL that DuckDB, in this process, and Spark have in common.

**Repeats** have the msgId or body of an earlier message of the topic; retry and dead letter topics do not count.
**Consumption times** come from traces, or are estimated for retried messages: one delay before the first retry.

Times are UTC. The current time is not used: waiting times end at the last message of the source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from rucola.errors import ConfigError, StoreError
from rucola.files import local_path, make_directory
from rucola.message import properties
from rucola.message.delay import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_system_topic
from rucola.spark.archive import Archive
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import report, store_offsets
from rucola.spark.jobs.selected_messages import Batches, SelectedMessages, source_of
from rucola.spark.jobs.selection import Selection
from rucola.spark.jobs.time_axis import TimeAxis
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source.array_conversions import arrow, bools, ints, mask, milliseconds, scalar, strings, values_of
from rucola.spark.source.columns import TIMESTAMP
from rucola.spark.source.options import is_store
from rucola.store.directory_reader import StoreReader

HOT_KEYS: Final = 10
HOUR_MS: Final = 3_600_000

_COPIED: Final = (
    "brokerName", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "keys", "reconsumeTimes", "storeSize",
)  # fmt: skip
_COLUMNS: Final = (*_COPIED, "storeTimestamp", "bornTimestamp", "body", "properties")
_FACTS: Final = (
    "brokerName string, topic string, queueId int, queueOffset bigint, msgId string, offsetMsgId string, "
    "keys array<string>, reconsumeTimes int, size int, storedMs bigint, latency bigint, bodyHash bigint, "
    "kind string, consumer string, originTopic string, originId string, delayMs bigint"
)
_TRACES: Final = "consumer string, msgId string, at bigint"
_COMMITS: Final = "brokerName string, consumer string, topic string, queueId int, committed bigint"
_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": TIMESTAMP,
    "array<string>": pa.list_(pa.field("element", pa.string())),
}
_KINDS: Final = strings([b"message", b"retry", b"dead letter"])
_INT: Final = "^[+-]?[0-9]{1,9}$"


def facts(messages: pa.RecordBatch, delays_ms: Sequence[int]) -> pa.RecordBatch:
    """Reduce messages to the counted values: position, times, size, kind, group and a body hash.

    `delays_ms` are the delays of the delay levels.
    """
    topic, pairs = messages["topic"], messages["properties"]
    retry, dead = bools(pc.starts_with(topic, RETRY_PREFIX)), bools(pc.starts_with(topic, DLQ_PREFIX))
    names = [pc.utf8_slice_codeunits(topic, len(prefix)) for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    consumer = pc.if_else(mask(retry), names[0], pc.if_else(mask(dead), names[1], pa.nulls(len(topic), pa.string())))
    level = values_of(pairs, properties.DELAY)
    levels = ints(
        pc.if_else(pc.match_substring_regex(level, _INT), level, scalar("0")).fill_null(scalar("0")).cast(pa.int32())
    )
    stored, born = milliseconds(messages["storeTimestamp"]), milliseconds(messages["bornTimestamp"])
    arrays = [
        *(messages[name] for name in _COPIED),
        arrow(stored),
        # A message whose born time is no time has no latency: it counts as born when it was stored.
        arrow(np.where(bools(messages["bornTimestamp"].is_valid()), stored - born, 0)),
        # Python salts the hash of bytes: per process, but PySpark gives all its workers the same PYTHONHASHSEED.
        arrow(np.fromiter(map(hash, messages["body"].to_pylist()), np.int64, len(messages))),
        _KINDS.take(arrow(np.where(retry, 1, np.where(dead, 2, 0)))),
        consumer,
        values_of(pairs, properties.RETRY_TOPIC),
        values_of(pairs, properties.ORIGIN_MESSAGE_ID),
        # Levels above the last have the last delay, and level 0 has none.
        arrow(np.array([0, *delays_ms])[levels.clip(0, len(delays_ms))]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(_FACTS))


def consumed(traces: pa.RecordBatch) -> pa.RecordBatch:
    """Return group, msgId and time of the first consumptions in the bodies of messages of RMQ_SYS_TRACE_TOPIC."""
    # A line "SubBefore" is written before a message is passed to the listener. Field 1 is the time, 3 the group, 5 the
    # msgId, 6 the number of retries (only first deliveries count).
    lines = (line for body in traces["body"].to_pylist() for line in body.decode("utf-8", "replace").split("\x02"))
    fields = [
        line
        for line in (line.split("\x01") for line in lines)
        if len(line) > 6 and line[0] == "SubBefore" and line[6] == "0" and line[1].isdecimal()
    ]
    groups, ids = (strings([each[at].encode() for each in fields]) for at in (3, 5))
    times = arrow(np.array([int(each[1]) for each in fields], np.int64))
    return pa.RecordBatch.from_arrays([groups, ids, times], schema=_schema(_TRACES))


@dataclass(frozen=True)
class _Table:
    """A query, in double quotes the names that are keywords, and the columns of its result."""

    columns: str
    order: str
    sql: str

    @property
    def query(self) -> str:
        order = ", ".join(f'"{name}" NULLS FIRST' for name in self.order.split(", "))
        return f"SELECT * FROM ({self.sql}) ORDER BY {order}"


_PERCENTILES: Final = ", ".join(
    f"percentile_disc({share}) WITHIN GROUP (ORDER BY latency) AS {name}"
    for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99}.items()
)
_LATENCY: Final = f"{_PERCENTILES}, max(latency) AS most"
_LATENCY_COLUMNS: Final = "p50 bigint, p95 bigint, p99 bigint, most bigint"


def _repeats(column: str) -> str:
    return f"""(
        SELECT topic, sum(n - 1) AS more
        FROM (SELECT topic, count(*) AS n FROM {{facts}} WHERE kind = 'message' GROUP BY topic, {column})
        GROUP BY topic
    )"""


def _by_step(name: str, step: str) -> str:
    return f"""
        SELECT a.*, messages / 3600 AS "perSecond", "peakPerSecond"
        FROM (
            SELECT topic, storedMs - storedMs % {step} AS "{name}", min(kind) AS kind, min(consumer) AS "group",
                count(*) AS messages, sum(size) AS bytes, {_LATENCY}
            FROM {{facts}} GROUP BY topic, storedMs - storedMs % {step}
        ) AS a JOIN (
            SELECT topic, second - second % {step} AS "{name}", max(n) AS "peakPerSecond"
            FROM (
                SELECT topic, storedMs - storedMs % 1000 AS second, count(*) AS n
                FROM {{facts}} GROUP BY topic, storedMs - storedMs % 1000
            ) GROUP BY topic, second - second % {step}
        ) AS b ON a.topic = b.topic AND a."{name}" = b."{name}"
    """


TABLES: Final = {
    "topics": _Table(
        "topic string, kind string, queues bigint, messages bigint, bytes bigint, averageSize double, largestSize int, "
        f"first timestamp, last timestamp, {_LATENCY_COLUMNS}, repeatedIds bigint, repeatedBodies bigint",
        "topic",
        f"""
        SELECT a.*, coalesce(i.more, 0) AS "repeatedIds", coalesce(b.more, 0) AS "repeatedBodies"
        FROM (
            SELECT topic, min(kind) AS kind, count(DISTINCT (brokerName, queueId)) AS queues, count(*) AS messages,
                sum(size) AS bytes, avg(size) AS "averageSize", max(size) AS "largestSize",
                min(storedMs) AS "first", max(storedMs) AS "last", {_LATENCY}
            FROM {{facts}} GROUP BY topic
        ) AS a
        LEFT JOIN {_repeats("msgId")} AS i ON a.topic = i.topic
        LEFT JOIN {_repeats("bodyHash")} AS b ON a.topic = b.topic
        """,
    ),
    "hours": _Table(
        f"topic string, hour timestamp, messages bigint, bytes bigint, perSecond double, {_LATENCY_COLUMNS}, "
        "peakPerSecond bigint",
        "hour, topic",
        _by_step("hour", str(HOUR_MS)),
    ),
    "timeline": _Table(
        f"topic string, begin timestamp, kind string, group string, messages bigint, bytes bigint, {_LATENCY_COLUMNS}, "
        "peakPerSecond bigint",
        "begin, topic",
        _by_step("begin", "{step_ms}"),
    ),
    "failures": _Table(
        "group string, kind string, originTopic string, hour timestamp, messages bigint, mostTries int",
        "hour, group, kind, originTopic",
        f"""
        SELECT consumer AS "group", kind, originTopic, storedMs - storedMs % {HOUR_MS} AS "hour",
            count(*) AS messages, max(reconsumeTimes) AS "mostTries"
        FROM {{facts}} WHERE kind <> 'message'
        GROUP BY consumer, kind, originTopic, storedMs - storedMs % {HOUR_MS}
        """,
    ),
    "sizes": _Table(
        "topic string, upto bigint, messages bigint, bytes bigint",
        "topic, upto",
        """
        SELECT topic, pow(2, ceil(log2(size))) AS upto, count(*) AS messages, sum(size) AS bytes
        FROM {facts} GROUP BY topic, pow(2, ceil(log2(size)))
        """,
    ),
    "hot_keys": _Table(
        "topic string, key string, messages bigint, rank int",
        "topic, rank",
        """
        SELECT * FROM (
            SELECT topic, "key", count(*) AS messages,
                row_number() OVER (PARTITION BY topic ORDER BY count(*) DESC, "key") AS "rank"
            FROM (SELECT topic, unnest(keys) AS "key" FROM {facts})
            GROUP BY topic, "key" HAVING count(*) > 1
        ) WHERE "rank" <= {hottest}
        """,
    ),
    "consumption": _Table(
        f"group string, topic string, known string, messages bigint, {_LATENCY_COLUMNS}",
        "group, topic, known",
        # The first retry was stored when its delay had passed. A retry keeps the offsetMsgId of the original message.
        f"""
        SELECT consumer AS "group", topic, known, count(*) AS messages, {_LATENCY}
        FROM (
            SELECT r.consumer, m.topic, 'retried' AS known,
                greatest(r.storedMs - r.delayMs - m.storedMs, 0) AS latency
            FROM {{facts}} AS m JOIN {{facts}} AS r ON m.offsetMsgId = r.originId
            WHERE m.kind = 'message' AND r.kind = 'retry' AND r.reconsumeTimes = 1
            UNION ALL
            SELECT t.consumer, m.topic, 'trace' AS known, greatest(t.at - m.storedMs, 0) AS latency
            FROM {{facts}} AS m JOIN {{traces}} AS t ON m.msgId = t.msgId
            WHERE m.kind = 'message'
        ) GROUP BY consumer, topic, known
        """,
    ),
    "lags": _Table(
        "group string, brokerName string, topic string, queueId int, committed bigint, end bigint, messages bigint, "
        "bytes bigint, waitingMs bigint",
        "group, topic, brokerName, queueId",
        # The left join keeps groups whose queue has no message left; their backlog is 0, their end the commit.
        """
        SELECT c.consumer AS "group", c.brokerName, c.topic, c.queueId, c.committed,
            coalesce(max(m.queueOffset) + 1, c.committed) AS "end",
            count(CASE WHEN m.queueOffset >= c.committed THEN 1 END) AS messages,
            coalesce(sum(CASE WHEN m.queueOffset >= c.committed THEN m.size END), 0) AS bytes,
            coalesce(max(l.last) - min(CASE WHEN m.queueOffset >= c.committed THEN m.storedMs END), 0) AS "waitingMs"
        FROM {commits} AS c
        LEFT JOIN {facts} AS m ON c.brokerName = m.brokerName AND c.topic = m.topic AND c.queueId = m.queueId
        CROSS JOIN (SELECT max(storedMs) AS last FROM {facts}) AS l
        GROUP BY c.consumer, c.brokerName, c.topic, c.queueId, c.committed
        """,
    ),
}
"""The tables of an audit."""


@dataclass(frozen=True)
class AuditResult:
    """The `TABLES` of an audit as Arrow tables."""

    sources: tuple[str, ...]
    tables: Mapping[str, pa.Table]

    @property
    def messages(self) -> int:
        """Number of messages in all topics."""
        return sum(self.tables["topics"]["messages"].to_pylist())

    def to_json(self) -> dict[str, Any]:
        """Return sources and tables as a JSON-serializable dict."""
        rows = {name: table.to_pylist() for name, table in self.tables.items()}
        return {"sources": list(self.sources), "messages": self.messages, **rows}

    def write(self, out: Path) -> None:
        """Write each table as Parquet, and report.html, into a directory, which is created if needed."""
        make_directory(out)
        for name, table in self.tables.items():
            pq.write_table(table, out / f"{name}.parquet")
        (out / "report.html").write_text(report.page(self.sources, {n: t.to_pylist() for n, t in self.tables.items()}))


@translate_spark_errors()
def run(
    spark: AnySession,
    sources: Sequence[str | Path | Archive],
    out: str | Path | None = None,
    *,
    selection: Selection | None = None,
    corrupt_records: str = "fail",
    hottest: int = HOT_KEYS,
    delay_levels: str | None = None,
) -> AuditResult:
    """Audit store directories and lakes together; write the tables and report.html into `out`, if given.

    Consumer offsets come from the stores; lakes have none. Raises StoreError if a source is damaged, or neither store
    nor lake, and ConfigError for invalid options.
    """
    if not sources:
        raise ConfigError("an audit needs a source: name a store directory or a lake")
    chosen, options = selection or Selection(), {"corruptRecords": corrupt_records}
    delays = parse_delay_levels(delay_levels or DEFAULT_DELAY_LEVELS)
    target = out and local_path(out)
    found = [SelectedMessages(source_of(source), chosen, options) for source in sources]
    inputs = {
        "facts": _Input(_FACTS, _COLUMNS, partial(facts, delays_ms=delays), found),
        "traces": _Input(_TRACES, ("body",), consumed, [e for each in found if (e := _traces(each.source, options))]),
    }
    commits = [row for each in found for row in _committed_offsets(each.source, chosen)]
    is_large = runs_in_spark(spark, lambda: sum(each.size() for each in found))
    with _spark_queries(resolve_session(spark), inputs, commits) if is_large else _queries(inputs, commits) as query:
        tables = {"topics": query("topics")}
        step_ms = _step_ms(tables["topics"])
        tables |= {name: query(name, step_ms=step_ms, hottest=hottest) for name in TABLES if name != "topics"}
    audit = AuditResult(tuple(map(str, sources)), tables)
    if target:
        audit.write(target)
    return audit


@dataclass(frozen=True)
class _Input:
    """A table that is computed batch by batch from the columns `names` of messages."""

    ddl: str
    names: tuple[str, ...]
    reduce: Callable[[pa.RecordBatch], pa.RecordBatch]
    messages: Sequence[SelectedMessages]

    def map(self, batches: Batches) -> Batches:
        return map(self.reduce, batches)


Query: TypeAlias = Callable[..., pa.Table]
"""Computes one of `TABLES`, given its parameters."""


@contextmanager
def _queries(inputs: Mapping[str, _Input], commits: Sequence[tuple[Any, ...]]) -> Iterator[Query]:
    """Yield queries of this process. What does not fit into memory is in temporary files."""
    with (
        _duckdb_errors(),
        tempfile.TemporaryDirectory(prefix="rucola-audit-") as directory,
        duckdb.connect(config={"temp_directory": directory, "autoload_known_extensions": False}) as connection,
    ):
        for name, each in inputs.items():
            schema = _schema(each.ddl)
            nothing = pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
            connection.from_arrow(nothing).create(name)
            for messages in each.messages:
                for batch in each.map(messages.batches(each.names)):
                    connection.from_arrow(pa.Table.from_batches([batch])).insert_into(name)
        connection.execute(f"CREATE TABLE commits ({_COMMITS})")
        if commits:
            connection.executemany("INSERT INTO commits VALUES (?, ?, ?, ?, ?)", commits)

        def query(name: str, **parameters: Any) -> pa.Table:
            sql = TABLES[name].query.format(facts="facts", traces="traces", commits="commits", **parameters)
            return _table(name, connection.sql(sql).to_arrow_table())

        yield query


@contextmanager
def _duckdb_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:  # neither memory nor the directory of temporary files suffices
        raise StoreError(f"the audit needs more memory or space in {tempfile.gettempdir()}: {error}") from None


@contextmanager
def _spark_queries(
    session: SparkSession, inputs: Mapping[str, _Input], commits: Sequence[tuple[Any, ...]]
) -> Iterator[Query]:
    with translate_spark_errors():
        frames: dict[str, Any] = {"commits": session.createDataFrame(commits, _COMMITS)}
        for name, each in inputs.items():
            frames[name] = session.createDataFrame([], each.ddl)
            for messages in each.messages:
                frames[name] = frames[name].unionByName(messages.map(session, each.names, each.map, each.ddl))
        frames["facts"] = frames["facts"].persist(StorageLevel.MEMORY_AND_DISK)

        def query(name: str, **parameters: Any) -> pa.Table:
            sql = TABLES[name].query.replace('"', "`").replace("unnest(", "explode(")
            return _table(name, session.sql(sql, **frames, **parameters).toArrow())

        try:
            yield query
        finally:
            frames["facts"].unpersist()


def _table(name: str, found: pa.Table) -> pa.Table:
    """Return the columns of a table, whose times are milliseconds before."""
    schema = _schema(TABLES[name].columns)
    arrays = [
        arrow(ints(found[field.name]) * 1000).view(field.type)
        if field.type == TIMESTAMP
        else found[field.name].cast(field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _schema(ddl: str) -> pa.Schema:
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split(" ") for column in ddl.split(", "))])


def _step_ms(topics: pa.Table) -> int:
    if not len(topics):
        return TimeAxis(0, 0).step_ms
    first, last = (milliseconds(topics[name]) for name in ("first", "last"))
    return TimeAxis(int(first.min()), int(last.max())).step_ms


def _traces(source: Path | Archive, options: Mapping[str, str]) -> SelectedMessages | None:
    if isinstance(source, Path) and is_store(source):
        with StoreReader(source) as store:
            if all(topic != TRACE_TOPIC for topic, _ in store.queues()):
                return None
    return SelectedMessages(source, Selection(topics=(TRACE_TOPIC,)), options)


def _committed_offsets(source: Path | Archive, selection: Selection) -> Iterator[tuple[str, str, str, int, int]]:
    if not isinstance(source, Path) or not is_store(source):
        return
    for group, topic, queue_id, committed in store_offsets.read(source):
        if not is_system_topic(topic) and (selection.topics is None or topic in selection.topics):
            yield str(source.absolute()), group, topic, queue_id, committed
