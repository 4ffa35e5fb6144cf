"""A model of the whole way: senders, two relays, a broker, two workers, an operator and time, in any order of steps.

Tables, claims, decisions, listener and operator's commands are the program's own, on a real SQLite in memory; the
broker, Redis and the end of leases are modelled. Hypothesis chooses the steps: crashes between any two, responses that
are lost, a disk that is wiped, commands at the same time as claims and deliveries. Then the faults end, and what is
left to do is done.

The result of each message is counted: it was done once, or an operator settled it, or it is MANUAL, STUCK or DEAD with
an alert. No message is lost silently, none is done twice.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import Row, func, select, update

from rucola.reliable import lane_leases, operations, stub_claims
from rucola.reliable.database import Database
from rucola.reliable.policy import Decision, GroupProgress, GroupState, KeyedResend, Policy, Position, decide
from rucola.reliable.schema import LANES, MANUAL, NEW, SENT, now_ms
from rucola.reliable.stub_checks import receipts_of, sent_stub_of
from rucola.reliable.stub_claims import Outcome
from support.reliable_model import EFFECT, GROUP, LEASE_MS, Keys, Worker, make_world

pytestmark = pytest.mark.slow

POLICY = Policy(max_sends=3, jitter=0, lease_ms=LEASE_MS)
MAX_RECONSUME_TIMES = 1
HOUR_MS = 3_600_000
RESULTS: Counter[str] = Counter()


class Batch(NamedTuple):
    """What a relay has claimed and maybe sent, and not recorded."""

    to_send: list[Row[Any]]
    outcomes: list[Outcome]


class ModelBroker:
    """A topic with one queue, the group's offset and its retries and dead letters."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.committed = 0
        self.retries: Counter[str] = Counter()
        self.to_retry: list[str] = []
        self.dead_letters: Counter[str] = Counter()
        self.redriven: Counter[str] = Counter()

    def wipe(self) -> None:
        self.__init__()  # type: ignore[misc]


class Reliability(RuleBasedStateMachine):
    """Steps of all components. A worker, a relay and the operator never wait for each other."""

    messages: Bundle[str] = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.world = make_world(Keys())
        with self.world.engine.begin() as connection:
            connection.execute(self.world.tables.lane.insert(), [{"lane": number} for number in range(LANES)])
        self.database = Database(self.world.engine)
        self.broker = ModelBroker()
        self.batches: dict[str, Batch] = {}
        self.workers: list[tuple[Worker, int | None]] = []
        self.alerted: set[str] = set()
        self.settled_by_operator: set[str] = set()
        self.copies: list[tuple[str, Position | None]] = []
        self.added = 0

    def run_sql(self, work: Any, *arguments: Any, **options: Any) -> Any:
        return self.database.run_sync(work, self.world.tables, *arguments, **options)

    def rows(self) -> dict[str, Row[Any]]:
        with self.world.engine.connect() as connection:
            return {row.message_id: row for row in connection.execute(select(self.world.tables.stub))}

    # The sender.

    @rule(target=messages, is_keyed=st.booleans())
    def add(self, is_keyed: bool) -> str:
        message_id = f"m{self.added}"
        self.added += 1
        self.world.add(message_id, "key" if is_keyed else None)
        return message_id

    # Two relays.

    @rule(relay=st.sampled_from("ab"), keyed_resend=st.sampled_from(KeyedResend), is_alert_accepted=st.booleans())
    def claim(self, relay: str, keyed_resend: KeyedResend, is_alert_accepted: bool) -> None:
        """Claim a batch; what the relay had claimed before is forgotten, as after its crash."""
        lanes = self.run_sql(lane_leases.renew, relay, POLICY.lease_ms)
        batch = self.run_sql(
            stub_claims.claim_batch, relay, lanes, limit=10, lease_ms=POLICY.lease_ms, max_sends=POLICY.max_sends
        )
        outcomes = [Outcome(row.seq, NEW, MANUAL, wait_ms=0) for row in batch.exhausted]
        resend: list[int] = []
        for row in batch.to_check:
            outcome = self.check(row, keyed_resend)
            if isinstance(outcome, int):
                resend.append(outcome)
            else:
                outcomes.append(outcome)
        for row in batch.to_alert:
            if is_alert_accepted:
                self.alerted.add(f"{row.message_id} {row.status}")
            outcomes.append(Outcome(row.seq, row.status, row.status, wait_ms=None if is_alert_accepted else 60_000))
        to_send = [*batch.to_send]
        if resend:
            to_send += self.run_sql(stub_claims.claim_for_resend, relay, resend, POLICY.lease_ms)
        self.batches[relay] = Batch(to_send, outcomes)

    def check(self, row: Row[Any], keyed_resend: KeyedResend) -> Outcome | int:
        receipts = self.run_sql(receipts_of, [row])
        state = GroupState(
            receipts.get((row.message_id, GROUP)),
            GroupProgress(self.broker.committed, len(self.broker.queue)),
            self.broker.dead_letters[row.message_id],
        )
        policy = Policy(max_sends=POLICY.max_sends, jitter=0, keyed_resend=keyed_resend)
        decision, why = decide(sent_stub_of(row), {GROUP: state}, policy)
        match decision:
            case Decision.RESEND:
                return int(row.seq)
            case Decision.WAIT:
                return Outcome(row.seq, SENT, SENT, wait_ms=1000)
            case _:
                letters = state.dead_letters or None
                return Outcome(row.seq, SENT, decision.value, wait_ms=0, error=why, dead_letters=letters)

    @rule(relay=st.sampled_from("ab"), response=st.sampled_from(["stored", "stored", "lost", "unreached"]))
    def send(self, relay: str, response: str) -> None:
        """Send all claimed stubs. A lost response leaves the message in the queue without the relay's knowledge."""
        to_send, outcomes = self.batches.get(relay, Batch([], []))
        for row in to_send:
            if response != "unreached":
                self.broker.queue.append(row.message_id)
            if response == "stored":
                offset = len(self.broker.queue) - 1
                outcomes.append(Outcome(row.seq, row.status, SENT, "b", 0, offset, 1000))
            else:
                outcomes.append(Outcome(row.seq, row.status, row.status, wait_ms=1000, error=response))
        to_send.clear()

    @rule(relay=st.sampled_from("ab"))
    def record(self, relay: str) -> None:
        _, outcomes = self.batches.pop(relay, Batch([], []))
        self.database.run_sync(stub_claims.record, self.world.tables, relay, outcomes)

    # Two workers.

    @precondition(lambda self: len(self.workers) < 2)
    @rule(is_retry=st.booleans(), fails=st.booleans(), loses_commit=st.booleans())
    def deliver(self, is_retry: bool, fails: bool, loses_commit: bool) -> None:
        """Deliver the next message, or again the one that the other worker has."""
        if is_retry and self.broker.to_retry:
            worker, offset = Worker(self.world, self.broker.to_retry.pop(0)), None
        elif self.broker.committed < len(self.broker.queue):
            offset = self.broker.committed
            worker = Worker(self.world, self.broker.queue[offset])
        else:
            return
        worker.listener.fails, worker.listener.loses_commit = fails, loses_commit
        self.workers.append((worker, offset))

    @precondition(lambda self: bool(self.workers))
    @rule(number=st.integers(0, 1), steps=st.sampled_from([1, 2, 3, 100]))
    def work(self, number: int, steps: int) -> None:
        if not self.workers:
            return
        worker, offset = self.workers[number % len(self.workers)]
        for _ in range(steps):
            if worker.is_acknowledged is None:
                worker.advance()
        if worker.is_acknowledged is not None:
            self.workers.remove((worker, offset))
            self.respond(worker, offset)

    def respond(self, worker: Worker, offset: int | None) -> None:
        """As a broker: an offset advances, and a failed delivery is retried or becomes a dead letter."""
        broker = self.broker
        if not worker.is_acknowledged:
            broker.retries[worker.message_id] += 1
            if broker.retries[worker.message_id] > MAX_RECONSUME_TIMES:
                broker.dead_letters[worker.message_id] += 1
                broker.retries[worker.message_id] = 0
            else:
                broker.to_retry.append(worker.message_id)
        if offset is not None and offset < len(broker.queue) and broker.queue[offset] == worker.message_id:
            broker.committed = max(broker.committed, offset + 1)

    @precondition(lambda self: bool(self.workers))
    @rule()
    def crash_worker(self) -> None:
        """The process ends; the broker delivers its message again: the offset was not committed."""
        worker, offset = self.workers.pop(0)
        worker.abandon()
        if offset is None:
            self.broker.to_retry.append(worker.message_id)

    # The operator.

    @rule(message_id=messages)
    def void(self, message_id: str) -> None:
        self.run_sql(operations.void, [message_id])

    @rule(message_id=messages)
    def confirm(self, message_id: str) -> None:
        if self.run_sql(operations.confirm, [message_id]):
            self.settled_by_operator.add(message_id)

    @rule(message_id=messages)
    def resend(self, message_id: str) -> None:
        self.run_sql(operations.resend, [message_id])

    @rule(only_group=st.booleans())
    def redrive(self, only_group: bool) -> None:
        """Send a copy of each dead letter. A run that comes after one that was interrupted finds the copies."""
        broker = self.broker
        self.copies = []
        for message_id, letters in broker.dead_letters.items():
            if broker.redriven[message_id] == letters:
                self.copies.append((message_id, None))
                continue
            broker.redriven[message_id] = letters
            if only_group:
                broker.to_retry.append(message_id)
                self.copies.append((message_id, None))
            else:
                broker.queue.append(message_id)
                self.copies.append((message_id, Position("T", "b", 0, len(broker.queue) - 1)))

    @precondition(lambda self: bool(self.copies))
    @rule()
    def reopen(self) -> None:
        """The second half of a redrive, for one message; without it, the run was interrupted."""
        message_id, position = self.copies.pop(0)
        if self.run_sql(operations.reopen, message_id, GROUP, position, 60_000):
            RESULTS["a DEAD stub was reopened"] += 1

    # Longer stories, which random steps seldom tell.

    @rule(failures=st.integers(1, MAX_RECONSUME_TIMES + 1))
    def listener_is_broken(self, failures: int) -> None:
        """A message is sent and fails, perhaps until it is a dead letter. Hours later a relay checks it."""
        while self.workers:
            self.crash_worker()
        self.world.add(f"m{self.added}")
        self.added += 1
        self.time_passes()
        self.claim("a", KeyedResend.MANUAL, False)
        self.send("a", "stored")
        self.record("a")
        for _ in range(failures):
            self.deliver(bool(self.broker.to_retry), True, False)
            self.work(0, 100)
        self.hours_pass(6)
        self.claim("b", KeyedResend.MANUAL, False)
        self.record("b")

    @rule()
    def brokers_are_away(self) -> None:
        """A message is tried until its attempts are used up."""
        self.world.add(f"m{self.added}")
        self.added += 1
        for _ in range(POLICY.max_sends + 1):
            self.time_passes()
            self.claim("b", KeyedResend.MANUAL, False)
            self.send("b", "unreached")
            self.record("b")

    # Time and disks.

    @rule()
    def time_passes(self) -> None:
        """All leases end, and what waits comes due."""
        self.world.leases_end()
        tables = self.world.tables
        with self.world.engine.begin() as connection:
            connection.execute(update(tables.stub).values(lease_until=0))
            connection.execute(update(tables.stub).where(tables.stub.c.due_at.is_not(None)).values(due_at=1))
            connection.execute(update(tables.lane).values(lease_until=0))
            connection.execute(update(tables.relay).values(seen_until=0))

    @rule(hours=st.sampled_from([6, 24]))
    def hours_pass(self, hours: int) -> None:
        tables = self.world.tables
        with self.world.engine.begin() as connection:
            for column in (tables.stub.c.created_at, tables.stub.c.reopened_at):
                connection.execute(update(tables.stub).values({column: column - hours * HOUR_MS}))
            connection.execute(update(tables.receipt).values(received_at=now_ms() - hours * HOUR_MS))
        self.time_passes()

    @rule()
    def lose_disk(self) -> None:
        self.broker.wipe()

    # What holds at any time, and in the end.

    @invariant()
    def nothing_is_done_twice(self) -> None:
        with self.world.engine.connect() as connection:
            counts = connection.execute(select(EFFECT.c.message_id, func.count()).group_by(EFFECT.c.message_id)).all()
        assert all(count == 1 for _, count in counts), counts

    def teardown(self) -> None:
        for worker, _ in self.workers:
            worker.abandon()
        self.workers.clear()
        self.batches.clear()
        for number in range(40):
            # What a group has received and lost with a disk, as a retry or a redriven copy, becomes STUCK.
            if number == 20:
                self.hours_pass(24)
            self.time_passes()
            self.claim("a", KeyedResend.MANUAL, True)
            self.send("a", "stored")
            self.record("a")
            while self.broker.to_retry or self.broker.committed < len(self.broker.queue):
                self.deliver(bool(self.broker.to_retry), False, False)
                self.work(0, 100)
            if all(row.due_at is None or row.status == "NEW" for row in self.rows().values()) and number > 3:
                break
        self.check_results()
        self.world.engine.dispose()

    def is_behind_manual(self, row: Row[Any]) -> bool:
        """Whether the key waits for an operator; the alert about the first message of it is the alert."""
        others = [other for other in self.rows().values() if other.shard_key == row.shard_key]
        return any(other.status == "MANUAL" and other.seq < row.seq for other in others)

    def check_results(self) -> None:
        with self.world.engine.connect() as connection:
            effects = set(connection.scalars(select(EFFECT.c.message_id)))
        assert self.world.count(self.world.tables.done) == len(effects)
        for message_id, row in self.rows().items():
            result = row.status
            match row.status:
                case "CONFIRMED":
                    if message_id not in effects:
                        assert message_id in self.settled_by_operator, f"{message_id} is lost"
                        result = "CONFIRMED by an operator"
                case "VOID":
                    assert message_id not in effects, f"{message_id} is void and done"
                case "MANUAL" | "STUCK" | "DEAD":
                    assert f"{message_id} {row.status}" in self.alerted, (
                        f"{message_id} is {row.status} without an alert"
                    )
                case "NEW" if row.shard_key is not None and self.is_behind_manual(row):
                    result = "NEW behind a MANUAL one of its key"
                case _:
                    raise AssertionError(f"{message_id} is {row.status}, due {row.due_at}")
            RESULTS[result] += 1


def test_each_message_is_done_once_or_alerted() -> None:
    RESULTS.clear()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Reliability,
        settings=settings(
            max_examples=30,
            phases=[Phase.generate],  # a failing run is short enough as it is
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(RESULTS))
    assert {"CONFIRMED", "MANUAL", "STUCK", "DEAD", "a DEAD stub was reopened"} <= set(RESULTS)
