"""Stubs that an operator reopens, by a resend or a redrive: they wait again as if they had just been sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from rucola.admin import AdminClient, RedriveResult, RedriveStatus
from rucola.cli.main import main
from rucola.message.topics import retry_topic
from rucola.reliable import lane_leases, operations, stub_claims
from rucola.reliable.alerts import Alerts
from rucola.reliable.database import Database
from rucola.reliable.policy import Policy, Position
from rucola.reliable.reopening import reopening
from rucola.reliable.schema import DEAD, SENT, STATUSES
from rucola.reliable.stub_claims import Outcome
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import (
    RecordingSink,
    RepairableConsumer,
    add,
    change,
    receive,
    relay,
    statuses,
    stubs,
    transact,
    until,
)
from support.servers import run

HOUR_MS = 3_600_000
WAIT_MS = 60_000


def reopen(db: OutboxDatabase, message_id: str, group: str, position: Position | None = None) -> bool:
    return transact(db, operations.reopen, message_id, group, position, WAIT_MS)


def age(db: OutboxDatabase, hours: int) -> None:
    """Let hours pass for stubs, receipts and whatever an operator did."""
    stub, receipt = db.tables.stub, db.tables.receipt
    with db.engine().begin() as connection:
        for column in (stub.c.created_at, stub.c.reopened_at, receipt.c.received_at):
            connection.execute(update(column.table).values({column: column - hours * HOUR_MS}))


# The statement.


@pytest.mark.parametrize(
    ("awaiting", "position_topic", "is_reopened"),
    [
        (",billing,", "T", True),
        (",billing,", None, True),
        (",billing,stock,", "T", True),
        # Only billing gets the copy, and stock may have a dead letter, too.
        (",billing,stock,", None, False),
        (",stock,", "T", False),
        (",", "T", False),
        (",billings,", "T", False),
        (",billing,", "Other", False),  # the dead letter of another message with this key
    ],
)
def test_dead_stub_is_reopened_if_the_copy_reaches_all_it_waits_for(
    db: OutboxDatabase, awaiting: str, position_topic: str | None, is_reopened: bool
) -> None:
    (message_id,) = add(db, "T", [b"x"])
    change(db, status=DEAD, awaiting=awaiting, due_at=None, sends=5, dead_letters=2, error="why", created_at=1)
    position = None if position_topic is None else Position(position_topic, "b2", 3, 44)
    assert reopen(db, message_id, "billing", position) is is_reopened
    (stub,) = stubs(db)
    if not is_reopened:
        assert (stub.status, stub.due_at, stub.sends, stub.reopened_at) == (DEAD, None, 5, None)
        return
    assert (stub.status, stub.sends, stub.dead_letters, stub.error) == (SENT, 1, 2, None)
    assert stub.due_at == stub.reopened_at + WAIT_MS
    where = (stub.broker, stub.queue_id, stub.queue_offset)
    assert where == ((None, None, None) if position is None else position[1:])
    # Once: a repeated run does not make it younger.
    change(db, reopened_at=7)
    assert not reopen(db, message_id, "billing", position)
    assert stubs(db)[0].reopened_at == 7


@pytest.mark.parametrize("status", [status for status in STATUSES if status != DEAD])
def test_no_other_state_is_reopened(sqlite_db: OutboxDatabase, status: str) -> None:
    (message_id,) = add(sqlite_db, "T", [b"x"], groups=["billing"])
    change(sqlite_db, status=status)
    before = stubs(sqlite_db)
    assert not reopen(sqlite_db, message_id, "billing")
    assert not reopen(sqlite_db, "unknown", "billing")
    assert stubs(sqlite_db) == before


def test_relay_that_reports_a_dead_stub_leaves_it_reopened(db: OutboxDatabase) -> None:
    """The relay has claimed the stub to raise its alert, and an operator is faster."""
    (message_id,) = add(db, "T", [b"x"], groups=["billing"])
    change(db, status=DEAD, due_at=1)
    lanes = transact(db, lane_leases.renew, "relay", 60_000)
    batch = transact(db, stub_claims.claim_batch, "relay", lanes, limit=10, lease_ms=60_000, max_sends=16)
    assert [row.status for row in batch.to_alert] == [DEAD]
    assert reopen(db, message_id, "billing")
    due_at = stubs(db)[0].due_at
    transact(db, stub_claims.record, "relay", [Outcome(row.seq, row.status, row.status) for row in batch.rows])
    (stub,) = stubs(db)
    assert (stub.status, stub.due_at, stub.owner) == (SENT, due_at, None)


# Redrive.


@pytest.mark.slow
@pytest.mark.parametrize("only_group", [False, True])
async def test_redrive_with_the_database_reopens_and_the_copy_confirms(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, only_group: bool
) -> None:
    group, told = shared_rocketmq.unique("g"), RecordingSink()
    (message_id,) = add(db, topic, [b"x"], groups=[group])
    redrive = ["admin", "redriveDlq", "-g", group, "-n", shared_rocketmq.namesrv, "--yes"]
    redrive += ["-r"] * only_group
    redrive += ["--database", db.url, "--prefix", db.tables.prefix]
    consumer = RepairableConsumer(db, shared_rocketmq, group, topic)
    alerts = Alerts([told], interval_ms=1)
    async with consumer.client, relay(db, shared_rocketmq, policy=Policy(poll_ms=20), alerts=alerts) as running:

        async def is_dead(letters: int) -> None:
            await until(lambda: len(shared_rocketmq.dead_letters(group)) == letters)
            change(db, due_at=1)  # the check of a sent stub, a minute later
            running.wake()
            await until(lambda: statuses(db) == {DEAD: 1} and len(told.alerts) == letters)

        await until(lambda: statuses(db) == {SENT: 1})
        await is_dead(1)
        # The consumer still fails: the next dead letter is reported by an alert of its own.
        done = await asyncio.to_thread(run, *redrive)
        assert done.returncode == 0, done.stderr
        assert "0 re-driven before, 0 failed, 1 DEAD stubs reopened" in done.stderr
        await is_dead(2)
        consumer.is_repaired = True
        done = await asyncio.to_thread(run, *redrive)
        assert done.returncode == 0, done.stderr  # the copy may be consumed before its stub could be reopened
        await until(lambda: statuses(db) == {"CONFIRMED": 1})
    assert consumer.effects == [message_id]
    assert stubs(db)[0].dead_letters == 2
    copies = shared_rocketmq.messages(retry_topic(group) if only_group else topic)
    assert sum("REDRIVEN_FROM" in copy.properties for copy in copies) == 2
    assert len(shared_rocketmq.dead_letters(group)) == 2


async def test_interrupted_redrive_reopens_what_it_has_sent_when_it_is_repeated(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """The database is away when the copy was sent: the run ends there, and the next one sends nothing twice."""
    group, told = shared_rocketmq.unique("g"), RecordingSink()
    (message_id,) = add(sqlite_db, topic, [b"x"], groups=[group])
    consumer = RepairableConsumer(sqlite_db, shared_rocketmq, group, topic)
    async with consumer.client, relay(sqlite_db, shared_rocketmq, alerts=Alerts([told])):
        await until(lambda: bool(told.alerts))
    assert statuses(sqlite_db) == {DEAD: 1}
    calls: list[RedriveStatus] = []
    reopen = reopening(Database(sqlite_db.engine()), sqlite_db.tables, group)

    async def fails_once(result: RedriveResult) -> bool:
        calls.append(result.status)
        if len(calls) == 1:
            raise OSError("no route to host")
        return await reopen(result)

    async with AdminClient(shared_rocketmq.namesrv) as admin:
        with pytest.raises(OSError, match="no route"):
            async for _ in admin.dead_letters.redrive(group, only_group=True, after=fails_once):
                pass
        assert statuses(sqlite_db) == {DEAD: 1}
        dry = [each async for each in admin.dead_letters.redrive(group, dry_run=True, after=fails_once)]
        assert [each.is_reopened for each in dry] == [False]
        again = [each async for each in admin.dead_letters.redrive(group, only_group=True, after=fails_once)]
    assert [(each.status, each.is_reopened) for each in again] == [(RedriveStatus.DONE_BEFORE, True)]
    assert calls == [RedriveStatus.SENT, RedriveStatus.DONE_BEFORE]
    assert statuses(sqlite_db) == {SENT: 1}
    assert [m.msg_id for m in shared_rocketmq.messages(retry_topic(group))] == [message_id]


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--prefix", "x_"], "belong to --database", 2),
        (["--database", "nonsense"], "write sqlite:///FILE", 2),
        (["--database", "sqlite:///{}/missing.db"], "there is no such file", 1),
        (["--database", "sqlite:///{}/business.db", "--prefix", "other_"], "there are no reliability tables", 1),
    ],
)
def test_redrive_checks_the_database_before_it_sends(
    sqlite_db: OutboxDatabase, tmp_path: Path, options: list[str], words: str, code: int
) -> None:
    given = [option.format(tmp_path) for option in options]
    line = ["admin", "redriveDlq", "-g", "g", "--yes", "-n", "127.0.0.1:1", *given]
    done = CliRunner(env={"RUCOLA_DATABASE": ""}).invoke(main, line)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"business.db"}


# Ages.


def state(db: OutboxDatabase, message_id: str) -> str:
    return next(stub.status for stub in stubs(db) if stub.message_id == message_id)


@pytest.mark.parametrize("is_received", [True, False])
async def test_stuck_message_that_is_sent_again_has_its_whole_time_again(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, is_received: bool
) -> None:
    """STUCK since a group has had it for 6 h, or since it has been in a backlog for 24 h."""
    group, told = shared_rocketmq.unique("g"), RecordingSink()
    (message_id,) = add(db, topic, [b"x"], groups=[group])
    if is_received:
        receive(db, message_id, group)
    hours = 6 if is_received else 24
    age(db, hours)
    async with relay(db, shared_rocketmq, alerts=Alerts([told], interval_ms=1)) as running:
        await until(lambda: bool(told.alerts))
        assert state(db, message_id) == "STUCK"
        assert transact(db, operations.resend, [message_id]) == 1
        running.wake()
        await until(lambda: state(db, message_id) == SENT)
        first_due = stubs(db)[0].due_at
        await until(lambda: stubs(db)[0].due_at > first_due)  # it was checked
        age(db, hours - 1)
        change(db, due_at=1)
        running.wake()
        await until(lambda: stubs(db)[0].due_at > 1)
        assert (state(db, message_id), len(told.alerts)) == (SENT, 1)
        age(db, 1)
        change(db, due_at=1)
        running.wake()
        await until(lambda: len(told.alerts) == 2)
    assert state(db, message_id) == "STUCK"
    assert len(shared_rocketmq.messages(topic)) == 2
