"""Audit job: statistics of the messages in a log. Each table is a pure function of DataFrames.

    facts         one narrow row per message, from which all tables are computed
    topics        by topic: messages, bytes, sizes, born-to-store latency, repeats
    hours         by topic and hour: messages, bytes, rates, born-to-store latency
    timeline      by topic and a step from a second to a week
    failures      by group, kind and hour: retries and dead letters
    sizes         by topic: a histogram of record sizes, by powers of two
    hot_keys      by topic: the most frequent keys
    consumption   by group and topic: store-to-consumption latency
    lags          by group and queue: the backlog in messages, bytes and time

**Repeats** have the msgId or body of an earlier message of the topic; retry and dead letter topics do not count.
**Consumption times** come from traces, or are estimated for retried messages: one delay before the first retry.

Times are UTC. The current time is not used: waiting times end at the last message of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.errors import ConfigError
from rucola.files import local_path, make_directory
from rucola.message import properties
from rucola.message.delay import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_system_topic
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import audit_tables, report, store_offsets
from rucola.spark.jobs.audit_tables import HOUR_MS, PERCENTILES
from rucola.spark.jobs.selected_messages import SelectedMessages
from rucola.spark.jobs.selection import Selection
from rucola.spark.jobs.time_axis import TimeAxis
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source.columns import schema_of
from rucola.spark.source.options import is_store
from rucola.store.directory_reader import StoreReader

HOT_KEYS: Final = 10

_COMMITS: Final = "brokerName string, `group` string, topic string, queueId int, committed bigint"


def facts(messages: DataFrame) -> DataFrame:
    """Reduce messages to the counted values: position, times, size, kind, group and a body hash."""
    topic = F.col("topic")
    retry, dead = topic.startswith(RETRY_PREFIX), topic.startswith(DLQ_PREFIX)
    stored = F.coalesce(F.unix_millis("storeTimestamp"), F.lit(0))
    return messages.select(
        "brokerName",
        "topic",
        "queueId",
        "queueOffset",
        "msgId",
        "offsetMsgId",
        "keys",
        "reconsumeTimes",
        F.col("storeSize").alias("size"),
        stored.alias("storedMs"),
        # A message whose born time is no time has no latency: it counts as born when it was stored.
        F.coalesce(F.unix_millis("bornTimestamp"), stored).alias("bornMs"),
        # 64 bits: of a billion different bodies, about 0.03 pairs collide and would count as repeats.
        F.xxhash64("body", F.length("body")).alias("bodyHash"),
        F.when(retry, "retry").when(dead, "dead letter").otherwise("message").alias("kind"),
        F.when(retry, F.substr(topic, F.lit(len(RETRY_PREFIX) + 1)))
        .when(dead, F.substr(topic, F.lit(len(DLQ_PREFIX) + 1)))
        .alias("group"),
        F.element_at("properties", properties.RETRY_TOPIC).alias("originTopic"),
        F.element_at("properties", properties.ORIGIN_MESSAGE_ID).alias("originId"),
        F.element_at("properties", properties.DELAY).try_cast("int").alias("delayLevel"),
    )


def topics(facts: DataFrame) -> DataFrame:
    """Return one row per topic: messages, bytes, sizes, first and last time, born-to-store latency, repeats."""
    whole = facts.groupBy("topic").agg(
        F.first("kind").alias("kind"),
        F.count_distinct("brokerName", "queueId").alias("queues"),
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.avg("size").alias("averageSize"),
        F.max("size").alias("largestSize"),
        F.timestamp_millis(F.min("storedMs")).alias("first"),
        F.timestamp_millis(F.max("storedMs")).alias("last"),
        *_percentiles(_born_to_store()),
    )
    plain = facts.where("kind = 'message'")
    ids, bodies = _repeats(plain, "msgId", "repeatedIds"), _repeats(plain, "bodyHash", "repeatedBodies")
    return whole.join(ids, "topic", "left").join(bodies, "topic", "left").fillna(0, ["repeatedIds", "repeatedBodies"])


def hours(facts: DataFrame) -> DataFrame:
    """Return one row per topic and hour: messages, bytes, average and peak rate per second, born-to-store latency."""
    hour = _step("hour", HOUR_MS)
    rows = facts.groupBy("topic", hour).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        (F.count("*") / (HOUR_MS / 1000)).alias("perSecond"),
        *_percentiles(_born_to_store()),
    )
    return rows.join(_peaks(facts, hour, "hour"), ["topic", "hour"])


def timeline(facts: DataFrame, step_ms: int) -> DataFrame:
    """Return one row per topic and step of `step_ms`: kind, group, messages, bytes, latency, peak rate per second."""
    begin = _step("begin", step_ms)
    rows = facts.groupBy("topic", begin).agg(
        F.first("kind").alias("kind"),
        F.first("group").alias("group"),
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        *_percentiles(_born_to_store()),
    )
    return rows.join(_peaks(facts, begin, "begin"), ["topic", "begin"])


def _peaks(facts: DataFrame, step: Column, name: str) -> DataFrame:
    seconds = facts.groupBy("topic", step, F.expr("storedMs DIV 1000").alias("second")).agg(F.count("*").alias("n"))
    return seconds.groupBy("topic", name).agg(F.max("n").alias("peakPerSecond"))


def failures(facts: DataFrame) -> DataFrame:
    """Return one row per group, kind (`retry` or `dead letter`), original topic and hour: messages, most retries."""
    return (
        facts.where("kind <> 'message'")
        .groupBy("group", "kind", "originTopic", _step("hour", HOUR_MS))
        .agg(F.count("*").alias("messages"), F.max("reconsumeTimes").alias("mostTries"))
    )


def sizes(facts: DataFrame) -> DataFrame:
    """Return one row per topic and size class: records of more than `upto` / 2 and at most `upto` bytes."""
    upto = F.pow(F.lit(2), F.ceil(F.log2("size"))).cast("bigint").alias("upto")
    return facts.groupBy("topic", upto).agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))


def hot_keys(facts: DataFrame, limit: int = HOT_KEYS) -> DataFrame:
    """Return one row for each of the `limit` most frequent keys of a topic that occur more than once."""
    keys = facts.select("topic", F.explode("keys").alias("key"))
    counted = keys.groupBy("topic", "key").agg(F.count("*").alias("messages")).where("messages > 1")
    rank = F.row_number().over(Window.partitionBy("topic").orderBy(F.desc("messages"), "key"))
    return counted.withColumn("rank", rank).where(F.col("rank") <= limit)


def consumption(facts: DataFrame, traces: DataFrame, delay_levels: str = DEFAULT_DELAY_LEVELS) -> DataFrame:
    """Return store-to-consumption latency per group, topic and source: `trace` or `retried`.

    `traces` are the messages of RMQ_SYS_TRACE_TOPIC, `delay_levels` the brokers' messageDelayLevel.
    """
    plain = facts.where("kind = 'message'").select("topic", "msgId", "offsetMsgId", "storedMs")
    # Retried: the first retry was stored when its delay had passed, so the consumption failed at its store time minus
    # the delay of its level. Levels above the last have the last delay, and level 0 has none. A retry keeps the
    # offsetMsgId of the original message in a property.
    delays = parse_delay_levels(delay_levels)
    level = F.least(F.coalesce("delayLevel", F.lit(0)), F.lit(len(delays)))
    delay = F.when(level > 0, F.element_at(F.array(*map(F.lit, delays)), level)).otherwise(0)
    retried = facts.where("kind = 'retry' AND reconsumeTimes = 1").select(
        "group", F.col("originId").alias("offsetMsgId"), (F.col("storedMs") - delay).alias("at")
    )
    # Trace: a line "SubBefore" is written before a message is passed to the listener. Field 1 is the time, 3 the group,
    # 5 the msgId, 6 the number of retries (only first deliveries count).
    traced = (
        traces.select(F.explode(F.split(F.col("body").cast("string"), "\x02")).alias("line"))
        .select(F.split("line", "\x01").alias("f"))
        .where("size(f) > 6 AND f[0] = 'SubBefore' AND f[6] = '0'")
        .selectExpr("f[3] AS `group`", "f[5] AS msgId", "TRY_CAST(f[1] AS bigint) AS at")
        .where("at IS NOT NULL")
    )
    ways = {"retried": plain.join(retried, "offsetMsgId"), "trace": plain.join(traced, "msgId")}
    known = union_all(
        [way.select("group", "topic", F.lit(name).alias("known"), "storedMs", "at") for name, way in ways.items()]
    )
    waited = F.greatest(F.col("at") - F.col("storedMs"), F.lit(0))
    return known.groupBy("group", "topic", "known").agg(F.count("*").alias("messages"), *_percentiles(waited))


def lags(facts: DataFrame, commits: DataFrame) -> DataFrame:
    """Return the backlog per group and queue, for `commits` (brokerName, group, topic, queueId, committed)."""
    queue = ["brokerName", "topic", "queueId"]
    last = facts.agg(F.max("storedMs").alias("lastMs"))
    # The left join keeps groups whose queue has no message left; their backlog is 0 and their end the committed offset.
    rows = commits.join(facts.select(*queue, "queueOffset", "size", "storedMs"), queue, "left")
    waits = F.col("queueOffset") >= F.col("committed")
    return (
        rows.groupBy("group", *queue, "committed")
        .agg(
            F.coalesce(F.max("queueOffset") + 1, F.col("committed")).alias("end"),
            F.count_if(waits).alias("messages"),
            F.coalesce(F.sum(F.when(waits, F.col("size"))), F.lit(0)).alias("bytes"),
            F.min(F.when(waits, F.col("storedMs"))).alias("oldestMs"),
        )
        .join(last)
        .withColumn("waitingMs", F.coalesce(F.col("lastMs") - F.col("oldestMs"), F.lit(0)))
        .drop("oldestMs", "lastMs")
    )


def _step(name: str, step_ms: int) -> Column:
    return F.timestamp_millis(F.expr(f"(storedMs DIV {step_ms}) * {step_ms}")).alias(name)


def _step_ms(topics: pa.Table) -> int:
    if not len(topics):
        return TimeAxis(0, 0).step_ms
    # As integers: Arrow loads pandas to convert a timestamp with a time zone to Python.
    first, last = pc.min(topics["first"]), pc.max(topics["last"])
    begin_ms, end_ms = (each.cast(pa.timestamp("ms", "UTC"), safe=False).value for each in (first, last))
    return TimeAxis(begin_ms, end_ms).step_ms


def _born_to_store() -> Column:
    """Return the latency in milliseconds; negative if the producer's clock is ahead of the broker's."""
    return F.col("storedMs") - F.col("bornMs")


def _percentiles(value: Column) -> list[Column]:
    """Return the columns of `PERCENTILES`, accurate to a ten-thousandth of the rank, and `most`, the maximum."""
    found = [F.percentile_approx(value, share).alias(name) for name, share in PERCENTILES.items()]
    return [*found, F.max(value).alias("most")]


def _repeats(facts: DataFrame, column: str, name: str) -> DataFrame:
    counts = facts.groupBy("topic", column).agg((F.count("*") - 1).alias("more"))
    return counts.groupBy("topic").agg(F.sum("more").alias(name))


TABLES: Final = {
    "topics": ("topic",),
    "hours": ("hour", "topic"),
    "timeline": ("begin", "topic"),
    "failures": ("hour", "group", "kind", "originTopic"),
    "sizes": ("topic", "upto"),
    "hot_keys": ("topic", "rank"),
    "consumption": ("group", "topic", "known"),
    "lags": ("group", "topic", "brokerName", "queueId"),
}
"""The tables of an audit, each with its sort columns."""


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
    sources: Sequence[str | Path],
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
    directories, target = [local_path(source).absolute() for source in sources], out and local_path(out)
    found = [SelectedMessages(directory, chosen, options) for directory in directories]
    traces = [each for directory in directories if (each := _traces(directory, options))]
    commits = [row for directory in directories for row in _committed_offsets(directory, chosen)]
    levels = delay_levels or DEFAULT_DELAY_LEVELS
    if runs_in_spark(spark, lambda: sum(each.size() for each in found)):
        tables = _in_spark(resolve_session(spark), found, traces, commits, hottest, levels)
    else:
        tables = _in_this_process(found, traces, commits, hottest, levels)
    audit = AuditResult(tuple(map(str, sources)), tables)
    if target:
        audit.write(target)
    return audit


def _in_spark(
    session: SparkSession,
    messages: Sequence[SelectedMessages],
    traces: Sequence[SelectedMessages],
    commits: Sequence[tuple[Any, ...]],
    hottest: int,
    delay_levels: str,
) -> dict[str, pa.Table]:
    bodies = [each.frame(session, ["body"]).select("body") for each in traces]
    with translate_spark_errors():
        counted = union_all([facts(each.frame(session, audit_tables.COLUMNS)) for each in messages])
        counted = counted.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            by_topic = topics(counted).orderBy(*TABLES["topics"]).toArrow()
            frames = {
                "hours": hours(counted),
                "timeline": timeline(counted, _step_ms(by_topic)),
                "failures": failures(counted),
                "sizes": sizes(counted),
                "hot_keys": hot_keys(counted, hottest),
                "consumption": consumption(
                    counted, union_all([session.createDataFrame([], "body binary"), *bodies]), delay_levels
                ),
                "lags": lags(counted, session.createDataFrame(commits, _COMMITS)),
            }
            found = {name: frame.orderBy(*TABLES[name]).toArrow() for name, frame in frames.items()}
            return {"topics": by_topic, **found}
        finally:
            counted.unpersist()


def _in_this_process(
    messages: Sequence[SelectedMessages],
    traces: Sequence[SelectedMessages],
    commits: Sequence[tuple[Any, ...]],
    hottest: int,
    delay_levels: str,
) -> dict[str, pa.Table]:
    # An empty batch gives the tables their schema even if there is no message.
    schema = schema_of(audit_tables.COLUMNS)
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
    batches = chain([nothing], *(each.batches(audit_tables.COLUMNS) for each in messages))
    counted = pa.concat_tables(map(audit_tables.facts, batches)).combine_chunks()
    bodies = (body for each in traces for batch in each.batches(["body"]) for body in batch["body"].to_pylist())
    by_topic = audit_tables.topics(counted)
    found = {
        "topics": by_topic,
        "hours": audit_tables.hours(counted),
        "timeline": audit_tables.timeline(counted, _step_ms(by_topic)),
        "failures": audit_tables.failures(counted),
        "sizes": audit_tables.sizes(counted),
        "hot_keys": audit_tables.hot_keys(counted, hottest),
        "consumption": audit_tables.consumption(counted, bodies, delay_levels),
        "lags": audit_tables.lags(counted, commits),
    }
    return {name: _ordered(found[name], order) for name, order in TABLES.items()}


def _ordered(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Sort a table with nulls first, as Spark does; Arrow sorts them last by default."""
    keys = {
        f"{column} {name}": made
        for name in names
        for column, made in (("is", table[name].is_valid()), ("as", table[name]))
    }
    return table.take(pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys]))


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames."""
    return reduce(DataFrame.unionByName, frames)


def _traces(source: Path, options: Mapping[str, str]) -> SelectedMessages | None:
    if is_store(source):
        with StoreReader(source) as store:
            if all(topic != TRACE_TOPIC for topic, _ in store.queues()):
                return None
    return SelectedMessages(source, Selection(topics=(TRACE_TOPIC,)), options)


def _committed_offsets(source: Path, selection: Selection) -> Iterator[tuple[str, str, str, int, int]]:
    if not is_store(source):
        return
    for group, topic, queue_id, committed in store_offsets.read(source):
        if not is_system_topic(topic) and (selection.topics is None or topic in selection.topics):
            yield str(source.absolute()), group, topic, queue_id, committed
