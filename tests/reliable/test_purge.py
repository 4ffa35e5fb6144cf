"""Purge: what is too old for any duplicate goes, and nothing that could still be sent again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, insert, select, update

from rucola.errors import ConfigError
from rucola.message import MessageExt
from rucola.reliable import migration, operations
from rucola.reliable.errors import ReliableError
from rucola.reliable.idempotent import idempotent
from rucola.reliable.operations import PURGE_AFTER_MS
from rucola.reliable.policy import Policy
from rucola.reliable.schema import now_ms
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.errors import raises
from support.outbox import add, change, delivery, relay, transact, until

GROUP = "billing"
OLD_MS = PURGE_AFTER_MS + 60_000


def purge_all(db: OutboxDatabase, *ledgers: Connection) -> int:
    """Purge until nothing is left, after a dry run that promised as much; return the number of rows."""
    removed = 0
    with db.engine().begin() as connection:
        promised = sum(operations.purgeable(connection, db.tables, PURGE_AFTER_MS, ledgers).values())
        while count := operations.purge(connection, db.tables, PURGE_AFTER_MS, ledgers):
            removed += count
    assert removed == promised
    return removed


def done_of(db: OutboxDatabase) -> set[str]:
    with db.engine().connect() as connection:
        return set(connection.scalars(select(db.tables.done.c.message_id)))


def stubs_of(db: OutboxDatabase) -> dict[str, str]:
    stub = db.tables.stub
    with db.engine().connect() as connection:
        return {row[0]: row[1] for row in connection.execute(select(stub.c.message_id, stub.c.status))}


def test_effects_are_remembered_as_long_as_their_message_can_be_sent_again(db: OutboxDatabase) -> None:
    tables = db.tables
    ids = add(db, "T", [b"x"] * 5, groups=[GROUP, "stock"])
    confirmed_long_ago, confirmed_late, void, void_long_ago, stuck = ids
    with db.engine().begin() as connection:
        rows = [{"message_id": each, "consumer_group": GROUP} for each in [*ids, "no stub"]]
        connection.execute(insert(tables.done), [row | {"done_at": 1} for row in rows])
        connection.execute(insert(tables.receipt), [row | {"received_at": 1} for row in rows])
        assert operations.confirm(connection, tables, [confirmed_long_ago, confirmed_late]) == 2
        assert operations.void(connection, tables, [void, void_long_ago]) == 2
        stub = tables.stub
        connection.execute(update(stub).where(stub.c.message_id == stuck).values(status="STUCK", due_at=None))
        long_ago = stub.c.message_id.in_([confirmed_long_ago, void_long_ago])
        connection.execute(update(stub).where(long_ago).values(confirmed_at=now_ms() - OLD_MS))
    assert purge_all(db) == 2 + 2 * 3
    assert set(stubs_of(db)) == done_of(db) == {confirmed_late, void, stuck}
    with db.engine().begin() as connection:
        assert operations.resend(connection, tables, [void]) == 1
        assert connection.scalar(select(stub.c.confirmed_at).where(stub.c.message_id == void)) is None
        connection.execute(update(stub).values(created_at=1))
    assert purge_all(db) == 0


def test_message_that_an_older_program_voided_is_purged_after_the_whole_retention(sqlite_db: OutboxDatabase) -> None:
    add(sqlite_db, "T", [b"x"])
    stub = sqlite_db.tables.stub
    with sqlite_db.engine().begin() as connection:
        connection.execute(update(stub).values(status="VOID", due_at=None, created_at=1))
    assert purge_all(sqlite_db) == 0
    with sqlite_db.engine().begin() as connection:
        connection.execute(update(stub).values(confirmed_at=stub.c.confirmed_at - OLD_MS))
    assert purge_all(sqlite_db) == 1


def test_effects_of_a_ledger_are_remembered_as_long_as_its_stubs(
    db: OutboxDatabase, make_sqlite: Callable[[str], OutboxDatabase]
) -> None:
    business, ledger, other = db, make_sqlite("ledger.db"), make_sqlite("other.db")
    for each in (ledger, other):
        each.tables = business.tables
        transact(each, migration.init)
    ids = add(ledger, "T", [b"x"] * 1500, groups=[GROUP, "stock"])

    @idempotent(business.engine(), GROUP, tables=business.tables, ledger=ledger.engine())
    def listener(message: MessageExt, session: object) -> None: ...

    listener(delivery(ids[0]))
    done, stub = business.tables.done, ledger.tables.stub
    with business.engine().begin() as connection:
        rows = [{"message_id": each, "consumer_group": GROUP, "done_at": 1} for each in [*ids[1:], "purged"]]
        connection.execute(insert(done), [*rows, {"message_id": "own", "consumer_group": "own", "done_at": 1}])
        connection.execute(update(done).values(done_at=1))
    with ledger.engine().connect() as connection, other.engine().connect() as wrong:
        for ledgers in ([], [wrong]):
            with pytest.raises(ReliableError):
                purge_all(business, *ledgers)
        assert len(done_of(business)) == 1502
        assert purge_all(business, wrong, connection) == 2
    assert done_of(business) == set(ids)
    change(ledger, stub.c.message_id != ids[7], status="CONFIRMED", confirmed_at=1)
    assert purge_all(ledger) == 1499
    with ledger.engine().connect() as connection:
        assert purge_all(business, connection) == 1499
    assert done_of(business) == {ids[7]}


async def test_a_relay_deletes_what_is_old_enough_and_nothing_else(db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    ids = add(db, "T", [b"x"] * 3, groups=[GROUP])
    with db.engine().begin() as connection:
        operations.void(connection, db.tables, ids[:2])
    change(db, db.tables.stub.c.message_id == ids[0], confirmed_at=now_ms() - OLD_MS)
    async with relay(db, rocketmq, policy=Policy(purge_after_ms=PURGE_AFTER_MS)):
        await until(lambda: ids[0] not in stubs_of(db))
    assert set(stubs_of(db)) == set(ids[1:])


async def test_a_relay_without_a_policy_to_purge_deletes_nothing(db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    old, new = add(db, "T", [b"x"] * 2, groups=[GROUP])
    with db.engine().begin() as connection:
        operations.void(connection, db.tables, [old])
    change(db, db.tables.stub.c.message_id == old, confirmed_at=now_ms() - OLD_MS)
    async with relay(db, rocketmq):
        await until(lambda: stubs_of(db)[new] == "SENT")
    assert stubs_of(db)[old] == "VOID"


def test_a_policy_does_not_purge_what_brokers_may_deliver_again() -> None:
    with raises(ConfigError):
        Policy(purge_after_ms=76 * 3_600_000)
