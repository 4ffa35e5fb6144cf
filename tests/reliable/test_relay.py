"""The relay: what was committed reaches the broker, in order per key, whatever relays come and go."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_mock_engine, event, select, update
from sqlalchemy.orm import Session

from rucola.client import Message, MessageExt, MessageQueue
from rucola.errors import MQError
from rucola.message import properties
from rucola.reliable import lane_leases, operations, stub_claims
from rucola.reliable.errors import SchemaError
from rucola.reliable.idempotent import idempotent
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import Policy
from rucola.reliable.relay import Relay
from rucola.reliable.schema import LANES, NEW, SENT, Tables
from rucola.reliable.stub_claims import Outcome
from rucola.testing.rocketmq import RocketMQ
from support.cancelling import CancelledAt
from support.cluster import cluster
from support.databases import OutboxDatabase
from support.outbox import add, change, consumer_of, relay, statuses, stubs, transact, until

PATIENT = Policy(poll_ms=3_600_000)
ALL = frozenset(range(LANES))


@pytest.fixture
def topic(shared_rocketmq: RocketMQ) -> str:
    name = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(name, 4)
    return name


def claim_batch(db: OutboxDatabase, owner: str, held: frozenset[int] = ALL, **options: Any) -> stub_claims.Batch:
    transact(db, lane_leases.renew, owner, 60_000)
    settings = {"limit": 100, "lease_ms": 60_000, "max_sends": 3} | options
    return transact(db, stub_claims.claim_batch, owner, held, **settings)


def record(db: OutboxDatabase, owner: str, *outcomes: Outcome) -> int:
    return transact(db, stub_claims.record, owner, outcomes)


def test_no_assignment_depends_on_one_before_it_where_mysql_promises_no_order() -> None:
    """In an UPDATE of joined tables. MariaDB computes all values first, so the statement itself would not show it."""
    statements: list[str] = []

    def keep(statement: Any, *_: Any) -> Any:
        statements.append(str(statement))
        return SimpleNamespace(rowcount=1)

    connection: Any = create_mock_engine("mysql+pymysql://", keep)
    assert stub_claims.record(connection, Tables(), "relay", [Outcome(1, NEW, SENT)]) == 1
    assignments = re.split(r", (?=s\.\w+ = )", statements[0].partition(" SET ")[2])
    assert len(assignments) == 11
    for assignment in assignments:
        column, _, value = assignment.partition(" = ")
        others = set(re.findall(r"\bs\.\w+", value.replace("s.status IN (v.seen, v.status)", ""))) - {column}
        assert others == set(), assignment


async def test_messages_are_sent_after_the_commit_and_settled_by_the_broker(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    outbox = Outbox(tables=db.tables)
    message = Message(topic, b"x", tags="a", keys="k1 k2", properties={"colour": "red"}, flag=3)
    with Session(db.engine()) as session, session.begin():
        outbox.add(session, message)

    async with relay(db, shared_rocketmq):
        await until(lambda: statuses(db) == {"CONFIRMED": 1})
    (found,) = shared_rocketmq.messages(topic)
    assert (found.body, found.tags, found.flag, found.unique_key) == (b"x", "a", 3, message.unique_key)
    assert found.keys == f"k1 k2 {message.unique_key}"
    assert found.properties["colour"] == "red"
    (stub,) = stubs(db)
    assert (stub.sends, stub.due_at, stub.owner, stub.lease_until) == (1, None, None, 0)
    assert stub.confirmed_at >= stub.created_at
    assert (stub.queue_id, stub.queue_offset) == (found.queue_id, found.queue_offset)


async def test_several_relays_share_the_work_and_keep_the_order_of_each_key(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    outbox, engine = Outbox(tables=db.tables), db.engine()
    for number in range(15):
        with Session(engine) as session, session.begin():
            for key in range(10):
                outbox.add(session, Message(topic, b"%d %d" % (key, number)), shard_key=f"key-{key}")

    policy = Policy(batch=16, poll_ms=20, lease_ms=3000)  # leases are renewed, and lanes change hands, all the time
    async with (
        relay(db, shared_rocketmq, policy=policy) as first,
        relay(db, shared_rocketmq, policy=policy) as second,
    ):
        await until(lambda: statuses(db) == {"CONFIRMED": 150})
        assert first.sent + second.sent >= 150
    sent: dict[bytes, list[int]] = {}
    queues: dict[bytes, set[int]] = {}
    for message in sorted(shared_rocketmq.messages(topic), key=lambda message: message.queue_offset):
        key, number = message.body.split()
        if int(number) not in sent.setdefault(key, []):  # a copy that follows changes nothing
            sent[key].append(int(number))
        queues.setdefault(key, set()).add(message.queue_id)
    assert all(numbers == list(range(15)) for numbers in sent.values())
    assert all(len(ids) == 1 for ids in queues.values())


async def test_broker_outage_uses_up_no_sends_and_loses_nothing(sqlite_db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("T", 1)
    add(sqlite_db, "T", [b"0"])

    async with relay(sqlite_db, rocketmq) as running:
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 1})
        with rocketmq.broker_down():
            add(sqlite_db, "T", [b"%d" % number for number in range(1, 6)], shard_key="k")
            running.wake()
            await until(lambda: running._away_since is not None)
            sends = [stub.sends for stub in stubs(sqlite_db)]
            for _ in range(3):
                assert not await running._probe_broker()
            assert [stub.sends for stub in stubs(sqlite_db)] == sends
            assert max(sends) <= 2
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 6})
    first_copies = list(dict.fromkeys(message.body for message in rocketmq.messages("T")))
    assert first_copies == [b"%d" % number for number in range(6)]


async def test_commit_in_this_process_wakes_an_idle_relay(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    outbox = Outbox(tables=sqlite_db.tables)

    async with relay(sqlite_db, shared_rocketmq, outbox=outbox, policy=PATIENT):
        for number in range(3):
            with Session(sqlite_db.engine()) as session, session.begin():
                outbox.add(session, Message(topic, b"%d" % number))
            await until(lambda count=number + 1: statuses(sqlite_db) == {"CONFIRMED": count})


async def test_postgresql_notify_wakes_an_idle_relay(
    postgresql_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    async with relay(postgresql_db, shared_rocketmq, policy=PATIENT):
        for number in range(3):  # added as by another process: nothing but the database knows of it
            await asyncio.to_thread(add, postgresql_db, topic, [b"x"])
            await until(lambda count=number + 1: statuses(postgresql_db) == {"CONFIRMED": count})


async def test_relay_on_an_async_engine_records_the_position_of_each_message(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    add(db, topic, [b"%d" % number for number in range(300)], groups=["billing"])

    async with Relay(db.async_engine(), shared_rocketmq.namesrv, tables=db.tables, policy=PATIENT):
        await until(lambda: statuses(db) == {"SENT": 300})
    positions = {(m.msg_id, m.queue_id, m.queue_offset) for m in shared_rocketmq.messages(topic)}
    assert positions == {(stub.message_id, stub.queue_id, stub.queue_offset) for stub in stubs(db)}
    assert all(stub.due_at >= stub.created_at + PATIENT.confirm_timeout_ms for stub in stubs(db))


async def test_relay_names_missing_tables(empty_db: OutboxDatabase, shared_rocketmq: RocketMQ) -> None:
    with pytest.raises(SchemaError):
        async with relay(empty_db, shared_rocketmq):
            pass


async def test_relay_that_is_cancelled_while_it_opens_leaves_no_task(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    for number in count():
        opened = Relay(sqlite_db.engine(), shared_rocketmq.namesrv, tables=sqlite_db.tables)
        with suppress(asyncio.CancelledError):
            await CancelledAt(opened.open(), number)
            break
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert number >= 2
    await opened.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.rocketmq(maxMessageSize=65536)
async def test_message_that_a_broker_refuses_does_not_hold_up_the_others(
    sqlite_db: OutboxDatabase, rocketmq: RocketMQ
) -> None:
    rocketmq.create_topic("T", 1)
    add(
        sqlite_db, "T", [b"1", Random(1).randbytes(70_000), b"3"]
    )  # smaller than what the outbox takes, larger than this broker's

    async with relay(sqlite_db, rocketmq, policy=Policy(max_sends=2, retry_ms=1, poll_ms=10)):
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 2, "MANUAL": 1})
    _, refused, _ = stubs(sqlite_db)
    assert refused.status == "MANUAL"
    assert "code 13" in refused.error
    assert [message.body for message in rocketmq.messages("T")] == [b"1", b"3"]


@pytest.mark.rocketmq(maxMessageSize=65536)
async def test_refused_message_stops_its_key_in_the_batch_that_was_claimed_ahead(
    sqlite_db: OutboxDatabase, rocketmq: RocketMQ
) -> None:
    rocketmq.create_topic("T", 1)
    add(sqlite_db, "T", [b"1", Random(1).randbytes(70_000), b"3", b"4", b"5"], shard_key="k")
    add(sqlite_db, "T", [b"other"] * 5, shard_key="other")

    async with relay(sqlite_db, rocketmq, policy=Policy(batch=2, max_sends=2, retry_ms=1, poll_ms=10)):
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 6, "MANUAL": 1, "NEW": 3})
    assert [message.body for message in rocketmq.messages("T")] == [b"1", *[b"other"] * 5]
    assert [stub.sends for stub in stubs(sqlite_db) if stub.status == "NEW"] == [0, 0, 0]


@pytest.mark.rocketmq(maxMessageSize=65536)
async def test_closed_relay_sends_the_batch_that_was_claimed_ahead(
    sqlite_db: OutboxDatabase, rocketmq: RocketMQ
) -> None:
    rocketmq.create_topic("T", 1)
    add(sqlite_db, "T", [b"%d" % number for number in range(50)], shard_key="k")

    async with relay(sqlite_db, rocketmq, policy=Policy(batch=2)):
        await until(lambda: statuses(sqlite_db).get("CONFIRMED", 0) > 0)
    assert [stub.owner for stub in stubs(sqlite_db)] == [None] * 50
    assert {(stub.status, stub.sends) for stub in stubs(sqlite_db)} <= {("CONFIRMED", 1), ("NEW", 0)}
    assert len(rocketmq.messages("T")) == statuses(sqlite_db)["CONFIRMED"]


def test_idle_relay_runs_less_than_one_query_a_second(db: OutboxDatabase) -> None:
    engine = db.engine()
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    policy = Policy()

    def queries(work: Any, *arguments: Any, **options: Any) -> int:
        with engine.begin() as connection:
            connection.execute(select(1))  # what SQLAlchemy asks of a new connection, a pool keeps
            before = len(statements)
            work(connection, db.tables, *arguments, **options)
            return len(statements) - before

    queries(lane_leases.renew, "a", policy.lease_ms)
    renewing = queries(lane_leases.renew, "a", policy.lease_ms)
    renewing += queries(stub_claims.claim_batch, "a", ALL, limit=10, lease_ms=policy.lease_ms, max_sends=3)
    polling = queries(stub_claims.next_due_ms, ALL)
    assert renewing / (policy.lease_ms / 3000) + polling / (policy.poll_ms / 1000) < 1


# Claims, on each database, step by step.


def test_claim_is_counted_before_the_send_and_excludes_others(db: OutboxDatabase) -> None:
    add(db, "T", [b"1", b"2"])
    batch = claim_batch(db, "a")
    assert [(row.body, row.sends) for row in batch.to_send] == [(b"1", 1), (b"2", 1)]
    assert [(stub.sends, stub.owner) for stub in stubs(db)] == [(1, "a"), (1, "a")]
    assert claim_batch(db, "a").to_send == []
    change(db, lease_until=0)  # the lease is over: the claim can be had again, and counts again
    assert [row.sends for row in claim_batch(db, "a").to_send] == [2, 2]


def test_stubs_of_lanes_that_another_relay_holds_are_left_alone(db: OutboxDatabase) -> None:
    add(db, "T", [b"%d" % number for number in range(200)])
    own = transact(db, lane_leases.renew, "a", 60_000)
    assert own == ALL
    assert claim_batch(db, "b").to_send == [], "a claim checks the lease of the lane"
    own, other = (transact(db, lane_leases.renew, owner, 60_000) for owner in "ab")
    assert len(own) == len(other) == LANES // 2
    assert not own & other
    batches = claim_batch(db, "a", own, limit=1000), claim_batch(db, "b", other, limit=1000)
    taken = [row.seq for batch in batches for row in batch.to_send]
    assert len(taken) == len(set(taken)) == 200
    transact(db, lane_leases.leave, "a")
    assert transact(db, lane_leases.renew, "b", 60_000) == ALL


def test_relay_that_was_paused_past_its_lease_claims_and_records_nothing(db: OutboxDatabase) -> None:
    (message_id,) = add(db, "T", [b"1"], groups=["g"])
    (row,) = claim_batch(db, "paused").to_send
    with db.engine().begin() as connection:  # time passes, by the database's clock
        for table in (db.tables.stub, db.tables.lane):
            connection.execute(update(table).values(lease_until=0))
        connection.execute(update(db.tables.relay).values(seen_until=0))
    (again,) = claim_batch(db, "other").to_send
    assert (again.message_id, again.sends) == (message_id, 2)
    assert record(db, "paused", Outcome(row.seq, NEW, SENT, "late", 0, 7, wait_ms=5)) == 0
    late = transact(db, stub_claims.claim_batch, "paused", ALL, limit=9, lease_ms=60_000, max_sends=3)
    assert late.to_send == []
    assert record(db, "other", Outcome(row.seq, NEW, SENT, "b", 1, 2, wait_ms=1000)) == 1
    (stub,) = stubs(db)
    assert (stub.status, stub.broker, stub.queue_id, stub.queue_offset, stub.owner) == ("SENT", "b", 1, 2, None)


def test_relay_whose_lease_ends_during_a_renewal_is_its_own_only_competitor(sqlite_db: OutboxDatabase) -> None:
    assert len(transact(sqlite_db, lane_leases.renew, "paused", lease_ms=-1)) == LANES


def test_confirmation_before_the_send_was_recorded_is_kept(db: OutboxDatabase) -> None:
    add(db, "T", [b"1"], groups=["g"])
    (row,) = claim_batch(db, "a").to_send
    change(db, status="CONFIRMED", awaiting=",", due_at=None, confirmed_at=5)
    assert record(db, "a", Outcome(row.seq, NEW, SENT, "b", 1, 2, wait_ms=1000)) == 1
    (stub,) = stubs(db)
    assert (stub.status, stub.due_at, stub.confirmed_at) == ("CONFIRMED", None, 5)
    assert (stub.broker, stub.queue_offset) == ("b", 2)


def test_key_waits_for_its_oldest_message(db: OutboxDatabase) -> None:
    add(db, "T", [b"1", b"2", b"3"], shard_key="k")
    add(db, "T", [b"4"], shard_key="other")
    (first,) = claim_batch(db, "a", limit=1).to_send
    assert first.body == b"1"
    assert [row.body for row in claim_batch(db, "a").to_send] == [b"4"], "1 is in flight"
    record(db, "a", Outcome(first.seq, NEW, NEW, wait_ms=60_000, error="away"))
    change(db, db.tables.stub.c.error.is_(None), due_at=1)
    assert claim_batch(db, "a").to_send == [], "1 waits for its next try"
    change(db, due_at=1, lease_until=0)
    assert [row.body for row in claim_batch(db, "a").to_send] == [b"1", b"2", b"3", b"4"]


def test_key_does_not_wait_for_its_messages_in_flight(db: OutboxDatabase) -> None:
    add(db, "T", [b"1", b"2", b"3"], shard_key="k")
    (first,) = claim_batch(db, "a", limit=1).to_send
    (second,) = claim_batch(db, "a", limit=1, in_flight=[first.seq]).to_send
    assert second.body == b"2"
    assert claim_batch(db, "a", in_flight=[second.seq]).to_send == [], "1 is neither answered nor in flight"
    change(db, due_at=1, lease_until=0)
    record(db, "a", Outcome(first.seq, NEW, SENT, "b", 0, 1, wait_ms=60_000))
    assert [row.body for row in claim_batch(db, "a", in_flight=[second.seq]).to_send] == [b"2", b"3"]


def test_key_waits_for_a_manual_message_that_was_never_answered(db: OutboxDatabase) -> None:
    add(db, "T", [b"1", b"2"], shard_key="k")
    stub = db.tables.stub
    first = stubs(db)[0].seq
    change(db, stub.c.seq == first, status="MANUAL", due_at=None)
    assert claim_batch(db, "a").to_send == []
    assert stubs(db)[1].due_at > stubs(db)[1].created_at
    change(db, stub.c.seq == first, status="VOID")
    change(db, stub.c.seq != first, due_at=1)
    assert [row.body for row in claim_batch(db, "a").to_send] == [b"2"]


def test_late_commit_with_a_smaller_number_is_not_skipped(db: OutboxDatabase) -> None:
    """Sequence order is not commit order: a relay that remembers the last number would lose the first message."""
    if db.name == "sqlite":
        return  # one writer: the second transaction cannot overtake
    outbox = Outbox(tables=db.tables)
    with Session(db.engine()) as slow, Session(db.engine()) as fast:
        outbox.add(slow, Message("T", b"slow"))
        slow.flush()
        outbox.add(fast, Message("T", b"fast"))
        fast.commit()
        (row,) = claim_batch(db, "a").to_send
        assert row.body == b"fast"
        record(db, "a", Outcome(row.seq, NEW, "CONFIRMED", "b", 0, 0))
        slow.commit()
    assert [row.body for row in claim_batch(db, "a").to_send] == [b"slow"]


async def test_delayed_messages_are_held_until_they_are_due(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    at_ms = 4_000_000_000_000
    delays = {properties.TIMER_DELIVER_MS: str(at_ms)}, {properties.DELAY: "18"}, {properties.TIMER_DELAY_SEC: "7200"}
    outbox = Outbox(["g"], tables=db.tables)
    with Session(db.engine()) as session, session.begin():
        for number, names in enumerate(delays):
            outbox.add(session, Message(topic, b"%d" % number, properties=dict(names)), shard_key="k")
        outbox.add(session, Message(topic, b"at once"), shard_key="k")
        passed = {properties.TIMER_DELIVER_MS: "1"}
        outbox.add(session, Message(topic, b"passed", properties=passed), shard_key="k")

    async with relay(db, shared_rocketmq, policy=PATIENT) as running:
        await until(lambda: statuses(db) == {"NEW": 3, "SENT": 2})
        *held, _, _ = stubs(db)
        assert [stub.due_at for stub in held] == [at_ms, *(stub.created_at + 7_200_000 for stub in held[1:])]
        assert [stub.sends for stub in held] == [0, 0, 0]
        assert transact(db, operations.resend, [held[0].message_id]) == 1
        change(db, db.tables.stub.c.delay_ms == 7_200_000, created_at=1, due_at=2)
        running.wake()
        await until(lambda: statuses(db) == {"NEW": 1, "SENT": 4})
    assert stubs(db)[0].due_at == at_ms, "a resend does not hasten it"
    stored = shared_rocketmq.messages(topic)
    assert [message.body for message in stored] == [b"at once", b"passed", b"1", b"2"]
    assert not any({properties.DELAY, properties.TIMER_DELAY_SEC} & set(message.properties) for message in stored)
    assert sorted(stub.queue_offset for stub in stubs(db)[1:]) == [0, 1, 2, 3]


async def test_relay_sleeps_until_the_next_stub_is_due(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    with Session(sqlite_db.engine()) as session, session.begin():
        message = Message(topic, b"x", properties={properties.DELAY: "1"})
        Outbox(tables=sqlite_db.tables).add(session, message)
    async with relay(sqlite_db, shared_rocketmq, policy=Policy(poll_ms=3_600_000, lease_ms=3_600_000)):
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 1})
    (stub,) = stubs(sqlite_db)
    assert stub.confirmed_at >= stub.created_at + 1000


def test_next_due_time_is_that_of_the_relays_own_lanes(db: OutboxDatabase) -> None:
    def next_due_ms(lanes: frozenset[int]) -> int | None:
        return transact(db, stub_claims.next_due_ms, lanes)

    assert next_due_ms(ALL) is None
    add(db, "T", [b"x"])
    (stub,) = stubs(db)
    due_ms = next_due_ms(frozenset({stub.lane}))
    assert due_ms is not None
    assert due_ms <= 0
    assert next_due_ms(ALL - {stub.lane}) is None
    change(db, due_at=stub.due_at + 3_600_000)
    due_ms = next_due_ms(ALL)
    assert due_ms is not None
    assert 0 < due_ms <= 3_600_000
    change(db, lease_until=stub.due_at + 7_200_000)
    assert next_due_ms(ALL) is None


def test_policy_refuses_invalid_values() -> None:
    for options in ({"batch": 0}, {"jitter": 1}, {"lease_ms": -1}, {"keyed_resend": "yes"}):
        with pytest.raises(MQError):
            Policy(**options)  # type: ignore[arg-type]


def test_queue_of_a_key_is_that_of_its_newest_unconfirmed_message(db: OutboxDatabase) -> None:
    tables, stub = db.tables, db.tables.stub

    def place(body: bytes, status: str, queue_id: int | None, topic: str = "T", key: str = "k") -> None:
        (message_id,) = add(db, topic, [body], groups=["g"], shard_key=key)
        values = {"status": status, "due_at": None, "broker": None if queue_id is None else "b", "queue_id": queue_id}
        change(db, stub.c.message_id == message_id, **values)

    def queues() -> dict[tuple[str, str], MessageQueue]:
        with db.engine().begin() as connection:
            rows = connection.execute(select(stub).where(stub.c.status == NEW)).all()
            return dict(stub_claims.key_queues(connection, tables, rows))

    place(b"next", NEW, None)
    place(b"other", NEW, None, key="other")
    place(b"confirmed", "CONFIRMED", 1)
    place(b"void", "VOID", 2)
    place(b"other topic", SENT, 3, topic="U")
    place(b"never stored", "MANUAL", None)
    assert queues() == {}
    place(b"sent", SENT, 4)
    assert queues() == {("T", "k"): MessageQueue("T", "b", 4)}
    place(b"has lost its place", "DEAD", 5)
    assert queues() == {("T", "k"): MessageQueue("T", "b", 4)}
    for queue_id, status in enumerate(("STUCK", "MANUAL"), 6):
        place(b"later", status, queue_id)
        assert queues() == {("T", "k"): MessageQueue("T", "b", queue_id)}


async def test_key_waits_for_the_broker_that_has_its_unconfirmed_messages(
    sqlite_db: OutboxDatabase, tmp_path: Path
) -> None:
    outbox = Outbox(["g"], tables=sqlite_db.tables)
    keys, received = ("alice", "bob", "carol", "dave", "erin", "frank"), list[tuple[str, str]]()

    def add_for_all(number: int) -> None:
        with Session(sqlite_db.engine()) as session, session.begin():
            for key in keys:
                outbox.add(session, Message("T", f"{key} {number}".encode()), shard_key=key)

    @idempotent(sqlite_db.engine(), "g", tables=sqlite_db.tables)
    def listener(message: MessageExt, session: Session) -> None:
        key, number = message.body.decode().split()
        received.append((key, number))

    async with cluster(tmp_path) as running:
        brokers = {name: await running.start_broker(name) for name in ("a", "b")}
        for broker in brokers.values():
            await running.create_topic(broker, "T", 2)
        fast = Policy(batch=4, retry_ms=1, max_retry_ms=50, poll_ms=20, jitter=0)
        async with Relay(sqlite_db.engine(), running.namesrv, outbox=outbox, policy=fast):
            add_for_all(0)
            await until(lambda: statuses(sqlite_db) == {"SENT": 6})
            first = {stub.shard_key: (stub.broker, stub.queue_id) for stub in stubs(sqlite_db)}
            at_a = {key for key in keys if first[key][0] == "a"}
            assert 0 < len(at_a) < 6
            await brokers["a"].stop()
            add_for_all(1)
            add_for_all(2)
            await until(lambda: statuses(sqlite_db) == {"SENT": 18 - 2 * len(at_a), "NEW": 2 * len(at_a)})
            waiting = [stub for stub in stubs(sqlite_db) if stub.status == NEW]
            assert {stub.shard_key for stub in waiting} == at_a
            await until(lambda: any("T@a" in (stub.error or "") for stub in stubs(sqlite_db)))
            brokers["a"] = await running.start_broker("a", port=brokers["a"].config.listen_port)
            await until(lambda: statuses(sqlite_db) == {"SENT": 18})
            assert all((stub.broker, stub.queue_id) == first[stub.shard_key] for stub in stubs(sqlite_db))
            consumer = consumer_of(running.namesrv, "g", "T", listener, orderly=True)
            async with consumer:
                await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 18})
    for key in keys:
        assert [number for name, number in received if name == key] == ["0", "1", "2"]
