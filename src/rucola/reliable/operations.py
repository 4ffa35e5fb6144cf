"""Inspection and repair by operators, and the purge.

    hasten     makes stubs due now, unless they have changed since; the next relay decides
    resend     from MANUAL, STUCK, DEAD, VOID and SENT: due now, with a new send count; the next relay sends it
    reopen     from DEAD, when a copy of the dead letter was sent: SENT, and the relay waits for a confirmation again
    confirm    for one group or all: an operator has verified the effect
    void       consumers drop the message and no relay sends it; refused if CONFIRMED, since a confirmation wins
    purge      deletes, a thousand messages at a time, rows too old for any duplicate

Each function works in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    literal,
    select,
    true,
    tuple_,
    union_all,
    update,
)

from rucola.reliable import receipts
from rucola.reliable.errors import ReliableError
from rucola.reliable.outbox import awaited
from rucola.reliable.policy import Position
from rucola.reliable.schema import CONFIRMED, DEAD, MANUAL, NEW, SENT, STATUSES, STUCK, VOID, Tables, now_ms
from rucola.reliable.stub_claims import one_of

PURGE_AFTER_MS: Final = 7 * 24 * 3_600_000
"""Retention of settled rows: longer than a broker keeps messages (72 h) and retries them (4 h 46 min)."""
PURGE_ROWS: Final = 1000


class StubView(msgspec.Struct, frozen=True, rename="camel"):
    """A stub without its body. Ages and waits are milliseconds by the database's clock."""

    message_id: str
    topic: str
    status: str
    awaiting: tuple[str, ...]
    shard_key: str | None
    sends: int
    broker: str | None
    queue_id: int | None
    queue_offset: int | None
    age_ms: int
    due_in_ms: int | None
    created_at: int
    confirmed_at: int | None
    reopened_at: int | None
    error: str | None


class ReceiptView(msgspec.Struct, frozen=True, rename="camel"):
    """A group's receipt of a message; `held_for_ms` is the rest of a worker's lease."""

    group: str
    queue_id: int | None
    queue_offset: int | None
    age_ms: int
    held_for_ms: int | None


class MessageView(msgspec.Struct, frozen=True, rename="camel"):
    stub: StubView | None
    receipts: list[ReceiptView]
    done: dict[str, int]
    """Commit time of the effect by group, milliseconds since 1970."""
    body: bytes
    tags: str | None
    keys: str | None
    properties: str


class Unsettled(msgspec.Struct, frozen=True, rename="camel"):
    """Count and age of messages not CONFIRMED, by status, and the lag of the relays."""

    counts: dict[str, int]
    oldest_ms: dict[str, int]
    relay_lag_ms: int
    """How long the longest overdue stub has been due."""


class Stats(Unsettled, frozen=True, rename="camel"):
    receipts: int
    done: int


class SeenStub(NamedTuple):
    """The state in which a program has seen a stub."""

    seq: int
    status: str
    sends: int
    broker: str | None
    queue_id: int | None
    queue_offset: int | None


def find(
    connection: Connection,
    tables: Tables,
    *,
    statuses: Iterable[str] = (),
    topic: str | None = None,
    group: str | None = None,
    shard_key: str | None = None,
    older_than_ms: int | None = None,
    limit: int = 100,
) -> list[StubView]:
    """Return stubs, oldest first, that match one of the statuses and all other criteria."""
    stub = tables.stub
    conditions = []
    if topic is not None:
        conditions.append(stub.c.topic == topic)
    if group is not None:
        conditions.append(stub.c.awaiting.contains(f",{group},", autoescape=True))
    if shard_key is not None:
        conditions.append(stub.c.shard_key == shard_key)
    if older_than_ms is not None:
        conditions.append(stub.c.created_at <= now_ms() - older_than_ms)
    rows: list[Row[Any]] = []
    # The index of each status ends its query after `limit` rows. One query for all statuses would sort every unsettled
    # stub, or read all CONFIRMED ones before the first match.
    for status in list(statuses) or [status for status in STATUSES if status != CONFIRMED]:
        oldest = (stub.c.seq,) if status == CONFIRMED else (stub.c.created_at, stub.c.seq)
        is_wanted = stub.c.status == literal(status, literal_execute=True)
        rows += connection.execute(
            _view(tables).add_columns(stub.c.seq).where(is_wanted, *conditions).order_by(*oldest).limit(limit)
        )
    rows.sort(key=lambda row: (row.created_at, row.seq))
    return [_view_of(row) for row in rows[:limit]]


def find_by_id(connection: Connection, tables: Tables, message_ids: Iterable[str]) -> list[StubView]:
    stub = tables.stub
    found = _view(tables).where(stub.c.message_id.in_(list(message_ids))).order_by(stub.c.seq)
    return [_view_of(row) for row in connection.execute(found)]


def show(connection: Connection, tables: Tables, message_id: str) -> MessageView:
    """Return all rows about a message, even without stub."""
    stub, receipt, done = tables.stub, tables.receipt, tables.done
    message = (stub.c.body, stub.c.tags, stub.c["keys"], stub.c.properties)
    query = _view(tables).add_columns(*message).where(stub.c.message_id == message_id)
    row = connection.execute(query).one_or_none()
    held = case((receipt.c.lease_until > now_ms(), receipt.c.lease_until - now_ms()), else_=None)
    received = connection.execute(
        select(
            receipt.c.consumer_group, receipt.c.queue_id, receipt.c.queue_offset, now_ms() - receipt.c.received_at, held
        )
        .where(receipt.c.message_id == message_id)
        .order_by(receipt.c.consumer_group)
    )
    done_at = connection.execute(select(done.c.consumer_group, done.c.done_at).where(done.c.message_id == message_id))
    return MessageView(
        None if row is None else _view_of(row),
        [ReceiptView(*row) for row in received],
        {row[0]: row[1] for row in done_at},
        *((b"", None, None, "{}") if row is None else (row[-4:])),
    )


def resend(connection: Connection, tables: Tables, message_ids: Sequence[str]) -> int:
    """Make stubs, except CONFIRMED ones, due now with a new send count and age; return how many."""
    stub = tables.stub
    return connection.execute(
        update(stub)
        .where(stub.c.message_id.in_(message_ids), stub.c.status != CONFIRMED)
        .values(
            status=NEW, sends=0, due_at=now_ms(), error=None, broker=None, queue_id=None, queue_offset=None,
            confirmed_at=None, reopened_at=now_ms(),
        )
    ).rowcount  # fmt: skip


def reopen(
    connection: Connection, tables: Tables, message_id: str, group: str, position: Position | None, wait_ms: int
) -> bool:
    """Set a DEAD stub to SENT, due after `wait_ms`, once a copy of its dead letter was sent; return whether it changed.

    `position` is the copy's in the stub's own topic, which every group receives, or None in the retry topic, which only
    this group receives: then a stub that awaits other groups stays DEAD, since these may have dead letters, too.
    Repeated, or after a confirmation or another command, this changes nothing.
    """
    stub = tables.stub
    values: dict[str, Any] = {"status": SENT, "sends": 1, "error": None, "reopened_at": now_ms()}
    awaits = stub.c.awaiting == f",{group},"
    if position is not None:
        awaits = stub.c.awaiting.contains(f",{group},", autoescape=True) & (stub.c.topic == position.topic)
        values |= {"broker": position.broker, "queue_id": position.queue_id, "queue_offset": position.queue_offset}
    reopened = (
        update(stub)
        .where(stub.c.message_id == message_id, stub.c.status == DEAD, awaits)
        .values(due_at=now_ms() + wait_ms, **values)
    )
    return connection.execute(reopened).rowcount == 1


def hasten(connection: Connection, tables: Tables, seen: Sequence[SeenStub], *, forget_position: bool = False) -> int:
    """Make stubs due now, so that a relay decides at once; return how many changed.

    Stubs that are due, claimed, or changed since they were `seen` stay. With `forget_position`, a wrong position is
    removed, due or not: the relay then counts the message as lost unless a group has received it.
    """
    stub = tables.stub
    # NULL equals nothing, so absent values are compared as values that no stub has.
    now_seen = tuple_(
        stub.c.seq, stub.c.status, stub.c.sends,
        func.coalesce(stub.c.broker, ""), func.coalesce(stub.c.queue_id, -1), func.coalesce(stub.c.queue_offset, -1),
    )  # fmt: skip
    expected = [
        (each.seq, each.status, each.sends, each.broker or "", _or_absent(each.queue_id), _or_absent(each.queue_offset))
        for each in seen
    ]
    is_free = (stub.c.lease_until <= now_ms()) & stub.c.due_at.is_not(None)
    change = update(stub).where(stub.c.seq.in_([each.seq for each in seen]), now_seen.in_(expected), is_free)
    if forget_position:
        change = change.values(
            due_at=case((stub.c.due_at > now_ms(), now_ms()), else_=stub.c.due_at), queue_offset=None
        )
    else:
        change = change.where(stub.c.due_at > now_ms()).values(due_at=now_ms())
    return connection.execute(change).rowcount


def _or_absent(value: int | None) -> int:
    return -1 if value is None else value


def confirm(connection: Connection, tables: Tables, message_ids: Sequence[str], group: str | None = None) -> int:
    """Confirm stubs for one group or all awaited groups; return how many changed."""
    stub = tables.stub
    if group is not None:
        return sum(receipts.confirm(connection, tables, message_id, group) for message_id in message_ids)
    return connection.execute(
        update(stub)
        .where(stub.c.message_id.in_(message_ids), stub.c.status.not_in((CONFIRMED, VOID)))
        .values(status=CONFIRMED, awaiting=",", due_at=None, confirmed_at=now_ms())
    ).rowcount


def void(connection: Connection, tables: Tables, message_ids: Sequence[str]) -> int:
    """Void stubs, except CONFIRMED ones; return how many changed."""
    stub = tables.stub
    return connection.execute(
        update(stub)
        .where(stub.c.message_id.in_(message_ids), stub.c.status.not_in((CONFIRMED, VOID)))
        .values(status=VOID, due_at=None, confirmed_at=now_ms())
    ).rowcount


def unsettled(connection: Connection, tables: Tables) -> Unsettled:
    """Count the messages that are not CONFIRMED, from the index that contains only those."""
    stub = tables.stub
    # One count for each status: without statistics, PostgreSQL expects few rows of one status and uses its index, but
    # scans the table for `<> 'CONFIRMED'`.
    counts = [
        select(
            literal(status, literal_execute=True).label("status"),
            func.count().label("count"),
            (now_ms() - func.min(stub.c.created_at)).label("oldest_ms"),
        ).where(stub.c.status == literal(status, literal_execute=True))
        for status in STATUSES
        if status != CONFIRMED
    ]
    counted = [row for row in connection.execute(union_all(*counts)) if row[1]]
    lag_ms = connection.scalar(select(now_ms() - func.min(stub.c.due_at)).where(stub.c.due_at <= now_ms()))
    return Unsettled(
        counts={row[0]: row[1] for row in counted},
        oldest_ms={row[0]: row[2] for row in counted if row[0] != VOID},
        relay_lag_ms=lag_ms or 0,
    )


def stats(connection: Connection, tables: Tables) -> Stats:
    """Count all rows. Slow in large tables: CONFIRMED stubs, receipts and `done` rows are scanned."""
    stub = tables.stub
    active = unsettled(connection, tables)
    settled = select(func.count()).select_from(stub).where(stub.c.status == CONFIRMED)
    return Stats(
        counts=dict.fromkeys(STATUSES, 0) | active.counts | {CONFIRMED: connection.scalar(settled) or 0},
        oldest_ms=active.oldest_ms,
        relay_lag_ms=active.relay_lag_ms,
        receipts=connection.scalar(select(func.count()).select_from(tables.receipt)) or 0,
        done=connection.scalar(select(func.count()).select_from(tables.done)) or 0,
    )


def purgeable(
    connection: Connection, tables: Tables, older_than_ms: int, ledgers: Sequence[Connection] = ()
) -> dict[str, int]:
    """Return the number of rows of each table that repeated calls of `purge` would delete."""
    _check_ledgers(connection, tables, ledgers)
    counts = {
        table.name: connection.scalar(select(func.count()).select_from(table).where(condition)) or 0
        for table, _, condition in _old_rows(tables, older_than_ms, is_stub_kept=~_is_old_stub(tables, older_than_ms))
    }
    counts[tables.done.name] += sum(map(len, _old_done_of_ledgers(connection, tables, older_than_ms, ledgers)))
    return counts


def purge(connection: Connection, tables: Tables, older_than_ms: int, ledgers: Sequence[Connection] = ()) -> int:
    """Delete up to a thousand old messages from each table; return the number of rows. Repeat, with commits, until 0.

    A stub is old if it was CONFIRMED or VOID before `older_than_ms`. Its receipts and `done` rows stay as long as it
    does, since it may be sent again until then. `ledgers` are the databases with the stubs of groups that were consumed
    with `ledger=`. If one is missing, raises ReliableError and deletes nothing.
    """
    _check_ledgers(connection, tables, ledgers)
    # Programs before version 1.2 did not record the time of VOID; it counts from now.
    stub, done = tables.stub, tables.done
    undated = select(stub.c.seq).where(
        stub.c.status == literal(VOID, literal_execute=True), stub.c.confirmed_at.is_(None)
    )
    if seqs := connection.scalars(undated.limit(PURGE_ROWS)).all():
        dated = update(stub).where(one_of(connection, stub.c.seq, seqs), stub.c.status == VOID)
        connection.execute(dated.values(confirmed_at=now_ms()))
    removed = 0
    for table, at, condition in _old_rows(tables, older_than_ms, is_stub_kept=true()):
        key = next(iter(table.primary_key))
        if keys := connection.scalars(select(key).where(condition).order_by(at).limit(PURGE_ROWS)).all():
            # The condition again: an operator may have reopened a VOID stub since.
            removed += connection.execute(delete(table).where(one_of(connection, key, keys), condition)).rowcount
    for message_ids in _old_done_of_ledgers(connection, tables, older_than_ms, ledgers):
        is_old = (done.c.done_at <= now_ms() - older_than_ms) & _is_of_ledger(tables)
        chosen = one_of(connection, done.c.message_id, message_ids)
        removed += connection.execute(delete(done).where(chosen, is_old)).rowcount
        break
    return removed


def _check_ledgers(connection: Connection, tables: Tables, ledgers: Sequence[Connection]) -> None:
    ledger = tables.ledger
    given = {receipts.database_id(each, tables) for each in (connection, *ledgers)}
    rows = connection.execute(
        select(ledger.c.consumer_group, ledger.c.database_id).where(ledger.c.consumer_group != "")
    )
    missing = sorted({row.consumer_group for row in rows if row.database_id not in given})
    if missing:
        raise ReliableError(
            f"the messages of group {', '.join(missing)} have their stubs in another database (`ledger=`), which knows "
            "whether they may be sent again: name it, too, with --ledger URL; nothing was deleted"
        )


def _is_old_stub(tables: Tables, older_than_ms: int) -> ColumnElement[bool]:
    return func.coalesce(tables.stub.c.confirmed_at <= now_ms() - older_than_ms, false())


def _is_of_ledger(tables: Tables) -> ColumnElement[bool]:
    return exists().where(tables.ledger.c.consumer_group == tables.done.c.consumer_group)


def _old_rows(
    tables: Tables, older_than_ms: int, is_stub_kept: ColumnElement[bool]
) -> list[tuple[Table, Column[Any], ColumnElement[bool]]]:
    """Return each table with the indexed time column and the condition of its old rows."""
    stub, receipt, done = tables.stub, tables.receipt, tables.done
    since = now_ms() - older_than_ms

    def is_kept(table: Table) -> ColumnElement[bool]:
        # With LIMIT, it is a search of the index for each row. EXISTS could become a join that reads whole tables.
        found = select(literal(1)).where(stub.c.message_id == table.c.message_id, is_stub_kept)
        return found.limit(1).scalar_subquery().is_not(None)

    return [
        (stub, stub.c.confirmed_at, stub.c.confirmed_at <= since),
        (receipt, receipt.c.received_at, and_(receipt.c.received_at <= since, ~is_kept(receipt))),
        (done, done.c.done_at, and_(done.c.done_at <= since, ~is_kept(done), ~_is_of_ledger(tables))),
    ]


def _old_done_of_ledgers(
    connection: Connection, tables: Tables, older_than_ms: int, ledgers: Sequence[Connection]
) -> Iterator[list[str]]:
    """Yield ids of old `done` rows in pages whose stubs neither this database nor a ledger has."""
    stub, done = tables.stub, tables.done
    key = (done.c.done_at, done.c.message_id, done.c.consumer_group)
    old = select(*key).where(
        done.c.done_at <= now_ms() - older_than_ms,
        _is_of_ledger(tables),
        select(literal(1)).where(stub.c.message_id == done.c.message_id).limit(1).scalar_subquery().is_(None),
    )
    page = old.order_by(*key).limit(PURGE_ROWS)
    while rows := connection.execute(page).all():
        ids = {row.message_id for row in rows}
        for ledger in ledgers:
            ids -= set(ledger.scalars(select(stub.c.message_id).where(one_of(ledger, stub.c.message_id, ids))))
        if ids:
            yield sorted(ids)
        # Kept rows stay in front, so the next page starts after them.
        last = rows[-1]
        page = old.where(done.c.done_at >= last.done_at, tuple_(*key) > tuple_(*map(literal, last)))
        page = page.order_by(*key).limit(PURGE_ROWS)


def next_step(stub: StubView) -> str:
    due = "now" if not stub.due_in_ms or stub.due_in_ms <= 0 else f"in {stub.due_in_ms / 1000:.0f} s"
    if stub.status == NEW and stub.sends:
        return f"sent {stub.sends} times without success; the relay tries again {due}"
    waits = f"waits for group {', '.join(stub.awaiting)}; checked {due}"
    return {
        NEW: f"the relay sends it {due}",
        SENT: waits if stub.awaiting else f"the broker did not vouch for it; sent again {due}",
        CONFIRMED: "nothing: it is settled, and purged later",
        VOID: "nothing: an operator voided it",
        DEAD: "nothing by itself: fix the consumer and redrive its dead letter, or resend, confirm or void it",
        MANUAL: "nothing by itself: resend, confirm or void it",
        STUCK: "nothing by itself: resend, confirm or void it",
    }.get(stub.status, "")


def _view(tables: Tables) -> Select[Any]:
    stub = tables.stub
    names = ["message_id", "topic", "status", "awaiting", "shard_key", "sends", "broker", "queue_id", "queue_offset"]
    return select(
        *(stub.c[name] for name in names),
        (now_ms() - stub.c.created_at).label("age_ms"),
        (stub.c.due_at - now_ms()).label("due_in_ms"),
        stub.c.created_at,
        stub.c.confirmed_at,
        stub.c.reopened_at,
        stub.c.error,
    )


def _view_of(row: Any) -> StubView:
    values = dict(row._mapping) | {"awaiting": awaited(row.awaiting)}
    return StubView(**{name: values[name] for name in StubView.__struct_fields__})
