"""Comparison of the tables with the log, as functions of DataFrames.

Unknown is not lost, and is counted apart: a position below the first offset of its queue has expired; one beyond the
end of a lake is not archived yet; a queue that no source has is not covered; an effect older than the shortest
retention of stubs may belong to a purged one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.message.topics import DLQ_PREFIX
from rucola.reliable.policy import (
    LEAST_PURGE_AFTER_MS,
    GroupProgress,
    GroupState,
    Policy,
    Position,
    SentStub,
    decide,
    may_be_dead,
)
from rucola.reliable.schema import DEAD, MANUAL, NEW, SENT, STUCK, VOID

SEND: Final = "SEND"
"""Decision about a NEW stub; for SENT stubs see `policy.Decision`."""
RESEND: Final = "RESEND"
BLOCKED: Final = "BLOCKED"

ABSENT: Final = "absent"
BEYOND: Final = "beyond the end"
EXPIRED: Final = "expired"
UNARCHIVED: Final = "not archived"
UNCOVERED: Final = "not covered"
PURGED: Final = "may be purged"

PASSED: Final = "passed"
WAITING: Final = "waiting"

_QUEUE: Final = ["brokerName", "topic", "queueId"]
_POSITION: Final = ["brokerName", "queueId", "queueOffset"]
_CHECKED: Final = [
    *("seq", "messageId", "topic", "status", "sends", "shardKey", *_POSITION, "awaiting", "createdAt", "ageMs"),
    *("deadLetters", "reopenedMsAgo", "isDue"),
]
_DECIDED: Final = (
    "seq bigint, messageId string, topic string, status string, sends int, shardKey string, brokerName string, "
    "queueId int, queueOffset bigint, awaiting string, createdAt bigint, ageMs bigint, deadLetters int, "
    "reopenedMsAgo bigint, isDue boolean, decision string, why string"
)


@dataclass(frozen=True)
class Evidence:
    """The compared data; for the order of its reads see `reconcile`.

    Exported tables are in camelCase. `brokers` are those whose queues have known ends. `now_ms` is the database's time
    when the stubs were read.
    """

    stubs: DataFrame
    receipts: DataFrame
    done: DataFrame
    log: DataFrame
    ends: DataFrame
    commits: DataFrame
    brokers: Sequence[str]
    now_ms: int
    horizon_ms: int


def camel(frame: DataFrame) -> DataFrame:
    """Rename the columns of an exported table: message_id to messageId, broker to brokerName."""
    renamed = {"broker": "brokerName", "consumer_group": "group"}
    return frame.select(*(F.col(name).alias(renamed.get(name) or _camel(name)) for name in frame.columns))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def groups_of(awaiting: Column) -> Column:
    """Return the array of groups in a column such as `,billing,stock,`."""
    return F.filter(F.split(awaiting, ","), lambda group: group != "")


# Due stubs.


def checked(evidence: Evidence, policy: Policy) -> DataFrame:
    """Return stubs with the relay's decision: SEND, BLOCKED, MANUAL, or a `policy.Decision` about SENT stubs.

    Stubs without `isDue` are SENT ones that a group's offset has passed before the relay's next check.
    """
    is_due = F.coalesce(F.col("dueAt") <= evidence.now_ms, F.lit(False)) & ~_is_held(evidence)
    age_ms = evidence.now_ms - F.coalesce("reopenedAt", "createdAt") - F.col("delayMs")
    reopened_ms_ago = evidence.now_ms - F.col("reopenedAt")
    stubs = evidence.stubs.where(F.col("leaseUntil") <= evidence.now_ms).select(
        "*", age_ms.alias("ageMs"), reopened_ms_ago.alias("reopenedMsAgo"), is_due.alias("isDue")
    )
    # A position that is unknown says nothing before the message is due.
    may_be_lost = F.col("isDue") | (F.col("brokerName").isNotNull() & F.col("queueOffset").isNotNull())
    sent = stubs.where((F.col("status") == SENT) & may_be_lost).select(*_CHECKED)
    states = _group_states(evidence, sent)
    decided = sent.join(states, "seq", "left").mapInArrow(partial(_decide, policy, evidence.now_ms), _DECIDED)
    decided = decided.where(F.col("isDue") | (F.col("decision") == RESEND))
    return decided.unionByName(_new(evidence, stubs.where("isDue"), policy))


def _is_held(evidence: Evidence) -> Column:
    return (F.col("status") == NEW) & (F.col("createdAt") + F.col("delayMs") > evidence.now_ms)


def _new(evidence: Evidence, due: DataFrame, policy: Policy) -> DataFrame:
    """Decide about due NEW stubs, as `stub_claims.claim_batch` does."""
    is_sendable = (
        (F.col("status") == NEW)
        & (F.col("dueAt") <= evidence.now_ms)
        & (F.col("leaseUntil") <= evidence.now_ms)
        & (F.col("sends") < policy.max_sends)
    )
    # A stub waits for the oldest one of its key that has no response and that the relay cannot send now.
    blockers = evidence.stubs.where(
        F.col("shardKey").isNotNull()
        & F.col("status").isin(NEW, MANUAL)
        & F.col("brokerName").isNull()
        & ~F.coalesce(is_sendable, F.lit(False))
        & ~_is_held(evidence)
    )
    oldest = blockers.groupBy("shardKey").agg(F.min("seq").alias("blockedBy"))
    fresh = due.where(F.col("status") == NEW).join(oldest, "shardKey", "left")
    tried = F.concat(F.lit("sent "), F.col("sends"), F.lit(" times without success"))
    decision = (
        F.when(F.col("sends") >= policy.max_sends, MANUAL)
        .when(F.col("blockedBy") < F.col("seq"), BLOCKED)
        .otherwise(SEND)
    )
    why = (
        F.when(decision == BLOCKED, "an older message of its key waits")
        .when(F.col("sends") > 0, tried)
        .otherwise("not sent yet")
    )
    return fresh.select(*_CHECKED, decision.alias("decision"), why.alias("why"))


def _group_states(evidence: Evidence, sent: DataFrame) -> DataFrame:
    rows = sent.select(
        *("seq", "messageId", "topic", *_POSITION, "isDue"),
        F.posexplode(groups_of(F.col("awaiting"))).alias("number", "group"),
    )
    received = evidence.receipts.select("messageId", "group", "receivedAt")
    letters = (
        evidence.log.where(F.col("topic").startswith(DLQ_PREFIX))
        .select("messageId", F.substr("topic", F.lit(len(DLQ_PREFIX) + 1)).alias("group"), *_POSITION)
        .groupBy("messageId", "group")
        # A dead letter that is in a store and in a lake is one.
        .agg(F.count_distinct(*_POSITION).cast("int").alias("letters"))
    )
    joined = (
        rows.join(received, ["messageId", "group"], "left")
        .join(letters, ["messageId", "group"], "left")
        .join(F.broadcast(evidence.commits), [*_QUEUE, "group"], "left")
        .join(F.broadcast(evidence.ends), _QUEUE, "left")
    )
    # A send of this moment may be beyond the end that was read: the end counts only when the stub is due.
    end = F.when(F.col("isDue"), _end(evidence)).otherwise(F.greatest(_end(evidence), F.col("queueOffset") + 1))
    state = F.struct("number", "group", "receivedAt", "committed", end.alias("end"), "letters")
    return joined.groupBy("seq").agg(F.sort_array(F.collect_list(state)).alias("states"))


def _end(evidence: Evidence) -> Column:
    """Return the end of a stub's queue: 0 if its broker lacks the queue, null if the broker is not read."""
    return F.when(F.col("brokerName").isin(*evidence.brokers), F.coalesce("end", F.lit(0)))


def _decide(policy: Policy, now_ms: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        decided = [_decision(row, policy, now_ms) for row in batch.to_pylist()]
        arrays = [pa.array(values, pa.string()) for values in zip(*decided, strict=True)] or [
            pa.array([], pa.string())
        ] * 2
        yield pa.RecordBatch.from_arrays([*(batch[name] for name in _CHECKED), *arrays], [*_CHECKED, "decision", "why"])


def _decision(row: dict[str, Any], policy: Policy, now_ms: int) -> tuple[str, str]:
    position = None
    if row["brokerName"] is not None and row["queueOffset"] is not None:
        position = Position(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"])
    groups = {}
    for each in row["states"] or ():
        received = None if each["receivedAt"] is None else now_ms - each["receivedAt"]
        known = position is not None and each["end"] is not None
        state = GroupState(received, GroupProgress(each["committed"], each["end"]) if known else None)
        if may_be_dead(position, state):
            state = state._replace(dead_letters=each["letters"] or 0)
        groups[each["group"]] = state
    is_keyed = row["shardKey"] is not None
    stub = SentStub(row["sends"], is_keyed, row["ageMs"], position, row["deadLetters"], row["reopenedMsAgo"])
    decision, why = decide(stub, groups, policy)
    return decision.name, why


# Facts that the relay does not have.


def missing(evidence: Evidence) -> DataFrame:
    """Return stubs with a position whose id is in no message; `reason` separates lost from unknown."""
    placed = evidence.stubs.where(F.col("brokerName").isNotNull() & F.col("queueOffset").isNotNull())
    placed = placed.where(F.col("status") != VOID).where(F.col("createdAt") <= evidence.now_ms - evidence.horizon_ms)
    absent = placed.join(evidence.log.select("messageId"), "messageId", "left_anti")
    # The offsets that each source has of each queue. With a store and a lake there are two ranges; messages deleted
    # between them before they were archived are unknown.
    ranges = evidence.log.groupBy("number", *_QUEUE).agg(
        F.min("queueOffset").alias("first"), F.max("queueOffset").alias("last")
    )
    ranges = ranges.groupBy(*_QUEUE).agg(F.collect_list(F.struct("first", "last")).alias("ranges"))
    joined = absent.join(F.broadcast(ranges), _QUEUE, "left").join(F.broadcast(evidence.ends), _QUEUE, "left")
    offset = F.col("queueOffset")
    is_covered = F.exists("ranges", lambda each: (each["first"] <= offset) & (offset <= each["last"]))
    end = _end(evidence)
    # Ends are read after the stubs, so every acknowledged position is before them.
    reason = (
        F.when(F.coalesce(is_covered, F.lit(False)), ABSENT)
        .when(offset >= end, BEYOND)
        .when(end.isNull() & (offset > F.array_max("ranges.last")), UNARCHIVED)
        .when(F.col("ranges").isNotNull() | end.isNotNull(), EXPIRED)
        .otherwise(UNCOVERED)
    )
    return joined.select(
        "seq", "messageId", "topic", "status", "sends", "shardKey", *_POSITION, "awaiting", "createdAt",
        (evidence.now_ms - F.col("createdAt")).alias("ageMs"), reason.alias("reason"),
    )  # fmt: skip


def never_received(evidence: Evidence) -> DataFrame:
    """Return a row per message in the log and awaited group that has neither received nor done it.

    `state` is `passed` if the group's offset is beyond every copy, but not beyond the end of the queue; else `waiting`.
    """
    open_stubs = evidence.stubs.where(F.col("status").isin(SENT, MANUAL, STUCK, DEAD))
    rows = open_stubs.select(
        "seq", "messageId", "topic", "status", "createdAt", F.explode(groups_of(F.col("awaiting"))).alias("group")
    )
    keys = ["messageId", "group"]
    rows = rows.join(evidence.receipts.select(*keys), keys, "left_anti")
    rows = rows.join(evidence.done.select(*keys), keys, "left_anti")
    copies = evidence.log.select("messageId", *_QUEUE, "queueOffset", "storedMs")
    stored = rows.join(copies, ["messageId", "topic"]).join(F.broadcast(evidence.commits), [*_QUEUE, "group"], "left")
    # The end of a queue that only lakes have is unknown; they may be older than the offsets.
    stored = stored.join(F.broadcast(evidence.ends), _QUEUE, "left")
    is_of_queue = F.coalesce(F.col("committed") <= _end(evidence), F.lit(True))
    is_passed = F.coalesce(F.col("queueOffset") < F.col("committed"), F.lit(False)) & is_of_queue
    first_copy = F.min_by(F.struct(*_POSITION), F.struct("storedMs", "queueOffset"))
    return (
        stored.groupBy("seq", "messageId", "topic", "status", "group", "createdAt")
        .agg(F.every(is_passed).alias("isPassed"), F.min("storedMs").alias("storedMs"), first_copy.alias("copy"))
        .select(
            "seq", "messageId", "topic", "status", "group",
            F.when(F.col("isPassed"), PASSED).otherwise(WAITING).alias("state"),
            "copy.*", "createdAt", "storedMs", (evidence.now_ms - F.col("storedMs")).alias("ageMs"),
        )
    )  # fmt: skip


def without_stub(evidence: Evidence, topics: Sequence[str] | None = None) -> DataFrame:
    """Return effects and messages without a stub; `reason` is null unless the stub may have been purged."""
    ids = evidence.stubs.select("messageId")
    effects = evidence.done.join(ids, "messageId", "left_anti").select(
        F.lit("done").alias("kind"), "messageId", F.lit(None).cast("string").alias("topic"), "group",
        *_no_position(), F.col("doneAt").alias("at"),
    )  # fmt: skip
    mine = evidence.log.where(F.col("storedMs") <= evidence.now_ms - evidence.horizon_ms)
    if topics is None:
        mine = mine.join(F.broadcast(evidence.stubs.select("topic").distinct()), "topic", "left_semi")
    else:
        mine = mine.where(F.col("topic").isin(*topics))
    messages = (
        mine.join(ids, "messageId", "left_anti")
        .groupBy("messageId", "topic")
        .agg(F.min_by(F.struct(*_POSITION), "queueOffset").alias("copy"), F.min("storedMs").alias("at"))
        .select(
            F.lit("message").alias("kind"), "messageId", "topic", F.lit(None).cast("string").alias("group"),
            "copy.*", "at",
        )
    )  # fmt: skip
    age = evidence.now_ms - F.col("at")
    return effects.unionByName(messages).select(
        "*", age.alias("ageMs"), F.when(age >= LEAST_PURGE_AFTER_MS, PURGED).alias("reason")
    )


def _no_position() -> list[Column]:
    kinds = {"brokerName": "string", "queueId": "int", "queueOffset": "bigint"}
    return [F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()]


# Counts.


def counts(rows: DataFrame, name: str) -> DataFrame:
    """Count a list by topic, group, status and day, with the oldest message's age."""
    if "awaiting" in rows.columns:
        rows = rows.withColumn("group", F.expr("nullif(trim(BOTH ',' FROM awaiting), '')"))
    present = {"group", "status"} & {*rows.columns}
    columns = [
        F.col(each) if each in present else F.lit(None).cast("string").alias(each) for each in ("group", "status")
    ]
    at = F.col("createdAt") if "createdAt" in rows.columns else F.col("at")
    return (
        rows.select("topic", *columns, F.to_date(F.timestamp_millis(at)).alias("day"), "ageMs")
        .groupBy("topic", "group", "status", "day")
        .agg(F.count("*").alias("messages"), F.max("ageMs").alias("oldestMs"))
        .select(F.lit(name).alias("list"), "*")
    )


def stub_counts(evidence: Evidence) -> DataFrame:
    """Count all stubs by topic, status and day, with the age of the oldest."""
    at = F.col("createdAt")
    return (
        evidence.stubs.groupBy("topic", "status", F.to_date(F.timestamp_millis(at)).alias("day"))
        .agg(F.count("*").alias("messages"), (evidence.now_ms - F.min(at)).alias("oldestMs"))
        .orderBy("topic", "status", "day")
    )
