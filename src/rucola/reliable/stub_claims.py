"""Claims of stubs by a relay, and the recording of their outcomes.

A claim consists of `owner` and `lease_until` of the row. `record` updates only rows that the relay still owns, so a
relay that was paused past its lease changes nothing (fencing). It also compares the status with the one at the claim,
so that a concurrent confirmation or operator command is kept.

A delayed stub is held until `created_at + delay_ms`: the first claim that finds it makes it due at that time.

Order per key: a NEW stub may be sent only if no older stub of its key waits for its first response, except stubs of the
same batch and of the batch in flight, which are sent before it. A MANUAL stub without a response blocks its key as
well. A delayed stub counts from when it is due. `key_queues` finds the queue with a key's unconfirmed messages: the
next ones must follow them there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    any_,
    case,
    cast,
    func,
    literal,
    select,
    text,
    update,
)

from rucola.client import MessageQueue
from rucola.reliable.alerts import DueAlert
from rucola.reliable.database import idle_limit
from rucola.reliable.schema import ALERTING, CONFIRMED, MANUAL, NEW, SENT, STUCK, Tables, now_ms

T = TypeVar("T")

BLOCKED_RETRY_MS = 1000
"""Minimum wait of a stub whose key is blocked by an older stub; longer if that stub is due later."""
BLOCKED_BY_MANUAL_MS = 60_000

ALERTED_TOGETHER = 100_000

KeyQueues: TypeAlias = Mapping[tuple[str, str], MessageQueue]
"""The queue that a key's messages go to, by topic and sharding key."""

_MESSAGE = ("message_id", "topic", "tags", "keys", "properties", "flag", "body")
_TO_SEND = ("seq", *_MESSAGE, "shard_key", "status", "awaiting", "sends")


class Outcome(NamedTuple):
    """Result of handling a claimed stub.

    `seen` is the status at the claim, `status` the new one. Without `broker`, the recorded position is kept. `wait_ms`
    is the time until due again, None for never. `is_unsent` reverts the count of a send that was not tried.
    """

    seq: int
    seen: str
    status: str
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    wait_ms: int | None = None
    error: str | None = None
    is_unsent: bool = False
    dead_letters: int | None = None


class Batch(NamedTuple):
    """Stubs claimed by `claim_batch`: `to_send` is in order of `seq`, the others lack the message."""

    to_send: Sequence[Row[Any]]
    to_check: Sequence[Row[Any]]
    to_alert: Sequence[Row[Any]]
    exhausted: Sequence[Row[Any]]
    """NEW stubs that have reached `max_sends`."""
    key_queues: KeyQueues
    is_full: bool

    @property
    def rows(self) -> list[Row[Any]]:
        return [*self.to_send, *self.to_check, *self.to_alert, *self.exhausted]


def claim_batch(
    connection: Connection,
    tables: Tables,
    owner: str,
    lanes: frozenset[int],
    *,
    limit: int,
    lease_ms: int,
    max_sends: int,
    in_flight: Collection[int] = (),
) -> Batch:
    """Claim up to `limit` due stubs and count their sends. `in_flight` has the `seq` of stubs that are sent before
    these.

    1. Select due stubs, skipping rows that another relay has locked. 2. Postpone NEW stubs that are held, or whose key
    is blocked by an older one. 3. Claim the other NEW stubs and count the send, then claim the stubs to check and to
    alert.
    """
    stub = tables.stub
    names = ["seq", "message_id", "status", "shard_key", "sends", "awaiting", "topic", "broker", "queue_id"]
    names += ["queue_offset", "dead_letters", "error", "reopened_at"]
    age_ms = (now_ms() - func.coalesce(stub.c.reopened_at, stub.c.created_at) - stub.c.delay_ms).label("age_ms")
    reopened_ms_ago = (now_ms() - stub.c.reopened_at).label("reopened_ms_ago")
    is_held = _is_held(stub).label("is_held")
    due = (
        select(age_ms, reopened_ms_ago, is_held, *(stub.c[name] for name in names), *idle_limit(connection, lease_ms))
        .where(stub.c.due_at <= now_ms(), _is_free(connection, tables, lanes))
        .order_by(stub.c.due_at, stub.c.seq)
        .limit(limit)
        .with_for_update(skip_locked=True)  # not rendered for SQLite, which has a single writer
    )
    rows: Sequence[Row[Any]] = connection.execute(due).all()
    is_full = len(rows) == limit
    # Held and blocked stubs are postponed, not claimed: that keeps the front of the due index short.
    held_until = stub.c.created_at + stub.c.delay_ms
    _postpone(connection, tables, [row.seq for row in rows if row.status == NEW and row.is_held], held_until)
    rows = [row for row in rows if not (row.status == NEW and row.is_held)]
    fresh = [row for row in rows if row.status == NEW and row.sends < max_sends]
    blocked = _blocked(connection, tables, fresh, in_flight)
    for wait_ms in set(blocked.values()):
        waiting = [seq for seq, blocked_ms in blocked.items() if blocked_ms == wait_ms]
        _postpone(connection, tables, waiting, now_ms() + wait_ms)
    # The claims repeat the fence in their own WHERE: rows are locked only where the database supports SKIP LOCKED, and
    # without it another relay may have claimed some of them since the SELECT.
    sendable = [row.seq for row in fresh if row.seq not in blocked]
    others = [row for row in rows if row.status != NEW or row.sends >= max_sends]
    fence = _holds_lane(connection, tables, owner)
    to_send = _claim(connection, tables, owner, sendable, lease_ms, fence, _TO_SEND, sends=1)
    claimed = {row.seq for row in _claim(connection, tables, owner, [r.seq for r in others], lease_ms, fence)}
    others = [row for row in others if row.seq in claimed]
    return Batch(
        to_send=to_send,
        to_check=[row for row in others if row.status == SENT],
        to_alert=[row for row in others if row.status in ALERTING],
        exhausted=[row for row in others if row.status == NEW],
        key_queues=key_queues(connection, tables, to_send),
        is_full=is_full,
    )


def next_due_ms(connection: Connection, tables: Tables, lanes: frozenset[int]) -> int | None:
    """Return the time until the next stub of these lanes is due, 0 or less if now, or None."""
    stub = tables.stub
    waiting = select((stub.c.due_at - now_ms()).label("wait_ms")).where(
        stub.c.due_at.is_not(None), _is_free(connection, tables, lanes)
    )
    wait_ms: int | None = connection.scalar(waiting.order_by(stub.c.due_at, stub.c.seq).limit(1))
    return wait_ms


def due_alerts(connection: Connection, tables: Tables, lanes: frozenset[int], status: str) -> set[DueAlert]:
    """Return the due stubs of these lanes with a status, at most `ALERTED_TOGETHER`."""
    stub = tables.stub
    due = select(stub.c.seq, stub.c.reopened_at).where(
        stub.c.due_at <= now_ms(), stub.c.lane.in_(lanes), stub.c.status == status
    )
    return {DueAlert(*row) for row in connection.execute(due.limit(ALERTED_TOGETHER))}


def claim_for_resend(
    connection: Connection, tables: Tables, owner: str, seqs: Sequence[int], lease_ms: int
) -> Sequence[Row[Any]]:
    stub = tables.stub
    fence = (stub.c.owner == owner) & (stub.c.status == SENT)
    return _claim(connection, tables, owner, seqs, lease_ms, fence, _TO_SEND, sends=1)


def key_queues(connection: Connection, tables: Tables, rows: Sequence[Row[Any]]) -> KeyQueues:
    """Return the queue of the newest stored and unconfirmed message of each key in `rows`, except DEAD ones.

    A dead letter has lost its place among the messages of its key.
    """
    seqs = {(row.topic, row.shard_key): row.seq for row in rows if row.shard_key is not None}
    if not seqs:
        return {}
    stub = tables.stub

    def newest(status: str) -> ScalarSelect[int]:
        stored = stub.alias(f"stored_{status.lower()}")
        is_of_key = (stored.c.shard_key == stub.c.shard_key) & (stored.c.topic == stub.c.topic)
        found = select(stored.c.seq).where(is_of_key, _has_status(stored, status), stored.c.broker.is_not(None))
        return found.order_by(stored.c.seq.desc()).limit(1).scalar_subquery()

    # As in `_blocked`, the index ends each search at its first row.
    columns = map(newest, (SENT, MANUAL, STUCK))
    found = connection.execute(select(*columns).where(one_of(connection, stub.c.seq, seqs.values())))
    stored = [max(filter(None, of_key)) for of_key in found if any(of_key)]
    if not stored:
        return {}
    names = ("topic", "shard_key", "broker", "queue_id")
    queues = select(*(stub.c[name] for name in names)).where(one_of(connection, stub.c.seq, stored))
    return {
        (row.topic, row.shard_key): MessageQueue(row.topic, row.broker, row.queue_id)
        for row in connection.execute(queues)
    }


def record(connection: Connection, tables: Tables, owner: str, outcomes: Sequence[Outcome]) -> int:
    """Write the outcomes of claimed stubs, release the claims, and return how many the relay still owned."""
    if not outcomes:
        return 0
    statement = _record_statement(connection.dialect.name, tables, connection)
    rows = msgspec.json.encode([outcome._asdict() | {"is_unsent": int(outcome.is_unsent)} for outcome in outcomes])
    return connection.execute(text(statement), {"rows": rows.decode(), "owner": owner}).rowcount


def one_of(connection: Connection, column: ColumnElement[T], values: Iterable[T]) -> ColumnElement[bool]:
    """Return `column IN (values)`, on PostgreSQL with one array: 5 times as fast for a thousand values."""
    if connection.dialect.name == "postgresql":
        return column == any_(cast(list(values), ARRAY(column.type)))
    return column.in_(list(values))


def _is_free(connection: Connection, tables: Tables, lanes: frozenset[int]) -> ColumnElement[bool]:
    stub = tables.stub
    is_free: ColumnElement[bool] = (stub.c.lease_until <= now_ms()) & stub.c.lane.in_(lanes)
    if connection.dialect.name == "postgresql":
        # The planner has a fixed estimate for CASE. Without statistics it would underestimate the condition itself,
        # expect fewer rows than the limit, and scan the table instead of the index.
        return case((is_free, True), else_=False)
    return is_free


def _has_status(stub: Any, status: str) -> ColumnElement[bool]:
    """Return a condition that every database finds in the index of unsettled keys; SQLite needs its own."""
    is_unsettled = stub.c.status != literal(CONFIRMED, literal_execute=True)
    has_status: ColumnElement[bool] = (stub.c.status == literal(status, literal_execute=True)) & is_unsettled
    return has_status


def _is_held(stub: Any) -> ColumnElement[bool]:
    is_held: ColumnElement[bool] = stub.c.created_at + stub.c.delay_ms > now_ms()
    return is_held


def _postpone(connection: Connection, tables: Tables, seqs: Sequence[int], due_at: ColumnElement[int]) -> None:
    if seqs:
        stub = tables.stub
        postponed = update(stub).where(one_of(connection, stub.c.seq, seqs), stub.c.status == NEW)
        connection.execute(postponed.values(due_at=due_at))


def _holds_lane(connection: Connection, tables: Tables, owner: str) -> ColumnElement[bool]:
    """Return a claim's fence: this relay still holds the stub's lane, by the database's clock."""
    lane, stub = tables.lane, tables.stub
    held = select(lane.c.lane).where(lane.c.owner == owner, lane.c.lease_until > now_ms())
    if connection.dialect.name == "postgresql":
        # The array is evaluated once. `IN (SELECT ...)` becomes a join, which scans the stubs once per lane until
        # ANALYZE has run.
        in_held = stub.c.lane == any_(func.array(held.scalar_subquery(), type_=ARRAY(stub.c.lane.type)))
    else:
        in_held = stub.c.lane.in_(held)
    return (stub.c.lease_until <= now_ms()) & in_held


def _claim(
    connection: Connection,
    tables: Tables,
    owner: str,
    seqs: Sequence[int],
    lease_ms: int,
    fence: ColumnElement[bool],
    names: Sequence[str] = ("seq",),
    *,
    sends: int = 0,
) -> Sequence[Row[Any]]:
    """Claim stubs, adding `sends` to their count, unless the fence was lost; return these columns of the claimed."""
    if not seqs:
        return []
    stub = tables.stub
    claim = (
        update(stub)
        .where(one_of(connection, stub.c.seq, seqs), fence)
        .values(owner=owner, lease_until=now_ms() + lease_ms, sends=stub.c.sends + sends)
    )
    # With RETURNING (SQLite, PostgreSQL) one statement claims and reads; MariaDB needs a second one.
    columns = [stub.c[name] for name in names]
    if connection.dialect.update_returning:
        returned = claim.returning(*columns, *idle_limit(connection, lease_ms))
        return sorted(connection.execute(returned), key=lambda row: row.seq)
    connection.execute(claim)
    return connection.execute(
        select(*columns).where(one_of(connection, stub.c.seq, seqs), stub.c.owner == owner).order_by(stub.c.seq)
    ).all()


def _blocked(
    connection: Connection, tables: Tables, fresh: Sequence[Row[Any]], in_flight: Collection[int]
) -> dict[int, int]:
    """Return the stubs blocked by an older one of their key, with waits in milliseconds."""
    keyed = [row for row in fresh if row.shard_key is not None]
    if not keyed:
        return {}
    stub = tables.stub
    newest = {row.shard_key: row.seq for row in sorted(keyed, key=lambda row: row.seq)}
    sent_before = [*(row.seq for row in keyed), *in_flight]

    def oldest(status: str) -> ScalarSelect[int]:
        """Select the oldest stub of a key without response, other than those sent before or in this batch."""
        older = stub.alias(f"older_{status.lower()}")
        return (
            select(older.c.seq)
            .where(
                older.c.shard_key == stub.c.shard_key,
                _has_status(older, status),
                older.c.seq < stub.c.seq,
                older.c.broker.is_(None),
                ~_is_held(older),
                ~one_of(connection, older.c.seq, sent_before),
            )
            .order_by(older.c.seq)
            .limit(1)
            .scalar_subquery()
        )

    # The index ends each search at its first row: a key with a long backlog is not read as a whole.
    found = connection.execute(
        select(stub.c.shard_key, oldest(NEW), oldest(MANUAL)).where(one_of(connection, stub.c.seq, newest.values()))
    )
    blockers = {key: min(filter(None, seqs)) for key, *seqs in found if any(seqs)}
    if not blockers:
        return {}
    wait_ms = func.coalesce(stub.c.due_at - now_ms(), BLOCKED_BY_MANUAL_MS).cast(BigInteger)
    waits_ms: dict[int, int] = {
        row.seq: row.wait_ms
        for row in connection.execute(
            select(stub.c.seq, wait_ms.label("wait_ms")).where(one_of(connection, stub.c.seq, blockers.values()))
        )
    }
    return {
        row.seq: max(BLOCKED_RETRY_MS, waits_ms.get(blocker, 0))
        for row in keyed
        if (blocker := blockers.get(row.shard_key)) is not None and blocker < row.seq
    }


_COLUMNS = {
    "seq": "BIGINT", "seen": "VARCHAR(9)", "status": "VARCHAR(9)", "broker": "VARCHAR(255)", "queue_id": "INTEGER",
    "queue_offset": "BIGINT", "wait_ms": "BIGINT", "error": "TEXT", "is_unsent": "INTEGER",
    "dead_letters": "INTEGER",
}  # fmt: skip


def _record_statement(dialect: str, tables: Tables, connection: Connection) -> str:
    """Return an UPDATE joined to JSON.

    MariaDB and MySQL let an assignment see the ones before, and MySQL promises no order if tables are joined. So each
    column depends on itself alone, and on the status by a comparison that is the same before and after its assignment.
    """
    stub = connection.dialect.identifier_preparer.format_table(tables.stub)
    now = str(now_ms().compile(dialect=connection.dialect))
    is_as_seen = "s.status IN (v.seen, v.status)"
    # A concurrent confirmation or operator command changed the status: then keep status, due time and confirmation,
    # and store only position, error and counts.
    assignments = {
        "due_at": f"CASE WHEN {is_as_seen} THEN {now} + v.wait_ms ELSE s.due_at END",
        "confirmed_at": f"CASE WHEN {is_as_seen} AND v.status = 'CONFIRMED' THEN {now} ELSE s.confirmed_at END",
        "broker": "COALESCE(v.broker, s.broker)",
        "queue_id": "CASE WHEN v.broker IS NULL THEN s.queue_id ELSE v.queue_id END",
        "queue_offset": "CASE WHEN v.broker IS NULL THEN s.queue_offset ELSE v.queue_offset END",
        "error": "CASE WHEN v.error IS NULL AND v.broker IS NULL THEN s.error ELSE v.error END",
        "sends": "s.sends - v.is_unsent",
        "dead_letters": "COALESCE(v.dead_letters, s.dead_letters)",
        "owner": "NULL",
        "lease_until": "0",
        "status": f"CASE WHEN {is_as_seen} THEN v.status ELSE s.status END",
    }
    # The fence: rows that another relay has claimed since are left unchanged.
    where = "s.seq = v.seq AND s.owner = :owner"
    if dialect in ("mysql", "mariadb"):
        columns = ", ".join(f"{name} {kind} PATH '$.{name}'" for name, kind in _COLUMNS.items())
        values = ", ".join(f"s.{name} = {value}" for name, value in assignments.items())
        # The outcomes drive the join through the primary key, so that only the named rows are read and locked.
        source = f"JSON_TABLE(:rows, '$[*]' COLUMNS ({columns})) v"
        return f"UPDATE {source} STRAIGHT_JOIN {stub} s FORCE INDEX (PRIMARY) ON {where} SET {values}"  # noqa: S608 - names
    values = ", ".join(f"{name} = {value}" for name, value in assignments.items())
    if dialect == "postgresql":
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        source = f"jsonb_to_recordset(CAST(:rows AS jsonb)) AS v({columns})"
    else:
        columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in _COLUMNS)
        source = f"(SELECT {columns} FROM json_each(:rows)) AS v"  # noqa: S608 - names
    return f"UPDATE {stub} AS s SET {values} FROM {source} WHERE {where}"  # noqa: S608 - names
