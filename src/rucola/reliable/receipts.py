"""Receipts: a consumer's claims on messages, and the `done` rows of committed effects.

    claim      inserts a receipt with an owner and a lease, unless the message is done, void or held; one statement
    finish     in the business transaction: inserts `done`, deletes the receipt and confirms the stub
    confirm    confirms the stub for one group

The primary key of `done` makes the effect happen once: only one of two transactions that finish a message can commit.
The receipt's owner is the fencing token: a worker whose claim was taken over finds no receipt and rolls back.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    Update,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from rucola.reliable.database import idle_limit
from rucola.reliable.dbapi import DriverConnection
from rucola.reliable.errors import LeaseLost
from rucola.reliable.schema import CONFIRMED, VOID, Tables, now_ms


class ClaimState(Enum):
    FREE = "FREE"
    HELD = "HELD"
    DONE = "DONE"
    VOID = "VOID"


class GroupDelivery(NamedTuple):
    """One delivery of a message to a group; only a first delivery has a position."""

    message_id: str
    group: str
    token: str
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


class AlreadyDone(Exception):
    """Another transaction has committed the effect of the message."""


class Voided(Exception):
    """An operator has voided the message."""


def claim(connection: Connection, tables: Tables, delivery: GroupDelivery, lease_ms: int, has_done_table: bool) -> bool:
    """Insert or take over the receipt; return whether that succeeded. `has_done_table`: `done` is in this database."""
    receipt = tables.receipt
    row = {
        "message_id": literal(delivery.message_id),
        "consumer_group": literal(delivery.group),
        "broker": literal(delivery.broker, receipt.c.broker.type),
        "queue_id": literal(delivery.queue_id, receipt.c.queue_id.type),
        "queue_offset": literal(delivery.queue_offset, receipt.c.queue_offset.type),
        "received_at": now_ms(),
        "owner": literal(delivery.token),
        "lease_until": now_ms() + lease_ms,
    }
    stub = tables.stub
    conditions = [~exists().where(stub.c.message_id == delivery.message_id, stub.c.status == VOID)]
    if has_done_table:
        conditions.append(~exists().where(*_of(tables.done, delivery)))
    source = select(*row.values()).where(*conditions)
    # A message that is done or void yields no source row: the statement then inserts nothing and returns no owner.
    statement = _upsert(connection.dialect.name, tables, source, list(row))
    # If another worker holds the receipt, the upsert leaves its owner: the token differs, or no row is returned.
    if connection.dialect.insert_returning:
        return bool(connection.scalar(statement.returning(receipt.c.owner)) == delivery.token)
    connection.execute(statement)
    return bool(connection.scalar(select(receipt.c.owner).where(*_of(receipt, delivery))) == delivery.token)


def state(connection: Connection, tables: Tables, delivery: GroupDelivery, has_done_table: bool) -> ClaimState:
    receipt, stub = tables.receipt, tables.stub
    if has_done_table and is_done(connection, tables, delivery):
        return ClaimState.DONE
    status = connection.scalar(select(stub.c.status).where(stub.c.message_id == delivery.message_id))
    if status == VOID:
        return ClaimState.VOID
    held = select(receipt.c.owner).where(*_of(receipt, delivery), receipt.c.lease_until > now_ms())
    return ClaimState.HELD if connection.scalar(select(exists(held))) else ClaimState.FREE


def is_done(connection: Connection, tables: Tables, delivery: GroupDelivery) -> bool:
    return bool(connection.scalar(select(exists().where(*_of(tables.done, delivery)))))


def renew(connection: Connection, tables: Tables, delivery: GroupDelivery, lease_ms: int) -> None:
    receipt = tables.receipt
    renewal = update(receipt).where(*_of(receipt, delivery), receipt.c.owner == delivery.token)
    connection.execute(renewal.values(lease_until=now_ms() + lease_ms))


def release(connection: Connection, tables: Tables, delivery: GroupDelivery) -> None:
    """Release a claim after a failure, if still held. The receipt stays, since the broker will retry."""
    receipt = tables.receipt
    connection.execute(
        update(receipt)
        .where(*_of(receipt, delivery), receipt.c.owner == delivery.token)
        .values(owner=None, lease_until=0)
    )


def forget(connection: Connection, tables: Tables, delivery: GroupDelivery) -> None:
    """Delete the receipt of a done or void message, unless another worker holds it."""
    receipt = tables.receipt
    is_ours = (receipt.c.owner == delivery.token) | receipt.c.owner.is_(None) | (receipt.c.lease_until <= now_ms())
    connection.execute(delete(receipt).where(*_of(receipt, delivery), is_ours))


def insert_done(
    connection: Connection | DriverConnection, tables: Tables, delivery: GroupDelivery, lease_ms: int
) -> None:
    """Insert the `done` row in the effect's transaction; commit it within `lease_ms`. AlreadyDone if present."""
    row = _insert_done(tables, delivery)
    limit = idle_limit(connection, lease_ms)
    try:
        connection.execute(row.returning(*limit) if limit else row)
    except IntegrityError:
        raise AlreadyDone from None


def finish(connection: Connection | DriverConnection, tables: Tables, delivery: GroupDelivery, lease_ms: int) -> bool:
    """Finish a message in the business transaction; return whether it has a stub. Commit within `lease_ms`.

    1. Insert the `done` row: AlreadyDone if another transaction was first. 2. Delete the own receipt: LeaseLost if
    another worker has taken it over. 3. Confirm the stub; if no row was updated, read its status: Voided if an operator
    voided it.

    The caller must roll back after any of these errors.
    """
    receipt = tables.receipt
    own_receipt = delete(receipt).where(*_of(receipt, delivery), receipt.c.owner == delivery.token)
    if connection.dialect.name == "postgresql":
        # All three statements in one round trip, as common table expressions.
        done = _insert_done(tables, delivery).returning(tables.done.c.done_at).cte("new_done")
        ended = own_receipt.returning(receipt.c.message_id).cte("ended")
        confirmed = _confirmation(tables, delivery.message_id, delivery.group).returning(tables.stub.c.seq)
        deletions = select(func.count()).select_from(ended).scalar_subquery()
        updates = select(func.count()).select_from(confirmed.cte("confirmed")).scalar_subquery()
        try:
            counts = select(deletions, updates, *idle_limit(connection, lease_ms))
            deleted, updated, *_ = connection.execute(counts.add_cte(done)).one()
        except IntegrityError:
            raise AlreadyDone from None
    else:
        # Three statements in the same order: the primary key of `done` is the first lock of every finishing worker.
        insert_done(connection, tables, delivery, lease_ms)
        deleted = connection.execute(own_receipt).rowcount
        updated = connection.execute(_confirmation(tables, delivery.message_id, delivery.group)).rowcount
    if deleted != 1:
        raise LeaseLost(f"message {delivery.message_id}: another worker of group {delivery.group} has taken it over")
    if updated:
        return True
    # A locking read sees the newest version: an operator may have voided the stub while the update waited for the lock.
    stub = tables.stub
    status = connection.scalar(
        select(stub.c.status).where(stub.c.message_id == delivery.message_id).with_for_update(read=True)
    )
    if status == VOID:
        raise Voided
    return status is not None


def confirm(connection: Connection, tables: Tables, message_id: str, group: str) -> bool:
    """Confirm a stub for one group, the last one settling it; return whether the group was awaited."""
    return connection.execute(_confirmation(tables, message_id, group)).rowcount == 1


def has_stub(connection: Connection, tables: Tables, message_id: str) -> bool:
    return bool(connection.scalar(select(exists().where(tables.stub.c.message_id == message_id))))


def database_id(connection: Connection, tables: Tables) -> str:
    """Return the id that the migration has generated for this database."""
    ledger = tables.ledger
    found: str = connection.execute(select(ledger.c.database_id).where(ledger.c.consumer_group == "")).scalar_one()
    return found


def register_ledger(connection: Connection, tables: Tables, group: str, ledger_id: str) -> None:
    """Record in the business database which database holds the stubs of a group's `done` rows."""
    row = {"consumer_group": group, "database_id": ledger_id}
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(insert(tables.ledger).prefix_with("IGNORE").values(row))
        return
    kind: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(kind.insert(tables.ledger).values(row).on_conflict_do_nothing())


def _confirmation(tables: Tables, message_id: str, group: str) -> Update:
    """Return one UPDATE. On MariaDB and MySQL an assignment sees the ones before; removing a group twice is no harm."""
    stub = tables.stub
    # ",billing,stock," without "billing" is ",stock,"; the list of the last group becomes ",".
    rest = func.replace(stub.c.awaiting, f",{group},", ",")
    is_last = rest == ","
    return (
        update(stub)
        .where(
            stub.c.message_id == message_id,
            stub.c.awaiting.contains(f",{group},", autoescape=True),
            stub.c.status != VOID,
        )
        .values(
            due_at=case((is_last, None), else_=stub.c.due_at),
            confirmed_at=case((is_last, now_ms()), else_=None),
            status=case((is_last, CONFIRMED), else_=stub.c.status),
            awaiting=rest,
        )
    )


def _insert_done(tables: Tables, delivery: GroupDelivery) -> Insert:
    return insert(tables.done).values(message_id=delivery.message_id, consumer_group=delivery.group, done_at=now_ms())


def _of(table: Table, delivery: GroupDelivery) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.message_id == delivery.message_id, table.c.consumer_group == delivery.group


def _upsert(dialect: str, tables: Tables, source: Select[Any], names: list[str]) -> Insert:
    """Return an upsert: insert the receipt, or take over an expired one, keeping its time of receipt."""
    receipt = tables.receipt
    # ON DUPLICATE KEY UPDATE has no WHERE, so each assignment repeats the condition. `lease_until`, which it reads, is
    # last: MariaDB and MySQL evaluate the assignments of a single table from left to right.
    if dialect in ("mysql", "mariadb"):
        statement = mysql.insert(receipt).from_select(names, source)
        is_over = receipt.c.lease_until <= now_ms()
        return statement.on_duplicate_key_update(
            [
                ("owner", func.if_(is_over, statement.inserted.owner, receipt.c.owner)),
                ("lease_until", func.if_(is_over, statement.inserted.lease_until, receipt.c.lease_until)),
            ]
        )
    kind: Any = postgresql if dialect == "postgresql" else sqlite
    upsert = kind.insert(receipt).from_select(names, source)
    taken: Insert = upsert.on_conflict_do_update(
        index_elements=["message_id", "consumer_group"],
        set_={"owner": upsert.excluded.owner, "lease_until": upsert.excluded.lease_until},
        where=receipt.c.lease_until <= now_ms(),
    )
    return taken
