"""Planted bugs: each changes a function of the product, and must make some seed fail. They prove the checkers.

A mutation is a function that patches; its name is that of the bug, its docstring says what is wrong with the product
then. Runs with it are of seeds that suit it: `MOST_SEEDS` at most until one fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import create_engine, delete, event, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from rucola.admin.redrive import Redrive, RedriveResult, RedriveStatus
from rucola.broker.assembly import delivery as assembly_of_delivery
from rucola.broker.assembly.delivery import DeliveryServices
from rucola.broker.assembly.replication import _SlaveSide
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.delivery.delay import ScheduleMessageService
from rucola.broker.delivery.pop import PopConsumerService
from rucola.broker.delivery.pop_state import Begin, PopState
from rucola.broker.delivery.timer import TimerMessageService
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.mastership import Mastership
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.replication.ha_service import HAService
from rucola.broker.role import SwitchReason
from rucola.broker.services.cleanup import CleanupService
from rucola.broker.services.retry import RetryService
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.queue_locks import QueueLockTable
from rucola.client.consumer import retry as client_retry
from rucola.client.consumer.assignment import Assignment
from rucola.client.consumer.offset_store import LocalOffsetStore
from rucola.client.consumer.process_queue import ProcessQueue
from rucola.client.consumer.queue_locks import QueueLocks
from rucola.client.consumer.start_offsets import StartOffsets
from rucola.coordination.write_lease import WriteLease
from rucola.message import sysflag
from rucola.reliable import policy, receipts, stub_checks, stub_claims
from rucola.reliable.alerts import Alerts
from rucola.reliable.batch_sender import BatchSender, SentBatch
from rucola.reliable.idempotent import _Listener
from rucola.reliable.outbox import Outbox
from rucola.reliable.schema import CONFIRMED, Tables
from rucola.reliable.stub_claims import Outcome
from rucola.remoting.connection import Connection
from rucola.store.config import GetMessageStatus, PutMessageStatus, PutResult
from rucola.store.flusher import Flusher
from rucola.store.message_store import MessageStore
from rucola.store.recovery import Recovery
from rucola.store.replica import Replica
from rucola.store.retention import Retention
from simulation.cluster.plan import Plan, draw
from simulation.cluster.seeds import outcome_of, outcomes

MOST_SEEDS = 40
Plant: TypeAlias = Callable[[], object]
MUTATIONS: dict[str, tuple[Plant, Callable[[Plan], bool]]] = {}


def mutation(suits: Callable[[Plan], bool] = lambda plan: True) -> Callable[[Plant], Plant]:
    """Register a planted bug; only plans that suit it can find it."""

    def register(plant: Plant) -> Plant:
        MUTATIONS[plant.__name__] = plant, suits
        return plant

    return register


def _has(*kinds: str, faults: tuple[str, ...] = ()) -> Callable[[Plan], bool]:
    """Whether a plan has these kinds of clients, and one of these faults at least."""

    def suits(plan: Plan) -> bool:
        has_faults = not faults or any(fault.kind in faults for fault in plan.faults)
        return set(kinds) <= {client.kind for client in plan.clients} and has_faults

    return suits


def _crashes_master(plan: Plan) -> bool:
    """Whether a master crashes, and may lose nothing then."""
    kinds = ("kill", "power") if plan.is_sync_flush else ("kill",)
    return any(fault.kind in kinds and fault.target in plan.masters for fault in plan.faults)


def _cuts_power_of_sync_master(plan: Plan) -> bool:
    powers = [fault for fault in plan.faults if fault.kind == "power"]
    return plan.is_sync_flush and any(fault.target in plan.masters for fault in powers)


def _every(number: int) -> Callable[[], bool]:
    """A function that is true at every so manieth call."""
    calls = 0

    def is_turn() -> bool:
        nonlocal calls
        calls += 1
        return calls % number == 0

    return is_turn


def _patch(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a method; `function` gets the one before as its first argument."""
    before = getattr(owner, name)

    def mutated(*arguments: Any, **named: Any) -> Any:
        return function(before, *arguments, **named)

    setattr(owner, name, mutated)


# The durability of the log.


@mutation(_cuts_power_of_sync_master)
def answers_before_the_flush() -> None:
    """SYNC_FLUSH answers at once."""
    _patch(GroupCommit, "when_flushed", lambda before, self, end, timeout, done: (self.start_flush(), done(True)))


@mutation(_cuts_power_of_sync_master)
def flushes_without_a_sync() -> None:
    """A flush by the kernel does not reach the disk."""
    from simulation.cluster.world import SimulatedKernelFlush

    _patch(SimulatedKernelFlush, "submit", lambda before, self, fd: before(self, fd) and _forget_content(self))


def _forget_content(kernel: Any) -> bool:
    inode, path, content = kernel._content
    kernel._content = inode, path, kernel.world.disk.contents.get(inode, [b""])[0] or b"\0" * len(content)
    return True


@mutation(_crashes_master)
def recovery_drops_the_last_record() -> None:
    """After a crash the log ends before the last message of a user."""

    def run(before: Callable[..., int], self: Recovery) -> int:
        end = before(self)
        if self.after_crash and end > self._files.begin:
            queues = [queue for queue in self._queues.values() if queue.topic in ("plain", "ordered")]
            last = max((queue.max_physical_offset for queue in queues), default=-1)
            if 0 <= last < end:
                self._files.truncate(last)
                for queue in self._queues.values():
                    queue.rewind_to_physical_offset(last)
                    queue.finish_rewind()
                return last
        return end

    _patch(Recovery, "run", run)


@mutation(lambda plan: any(fault.kind == "eio" for fault in plan.faults) and plan.is_sync_flush)
def a_failed_flush_counts_as_success() -> None:
    """An error of fsync is swallowed."""
    _patch(Flusher, "_sync", lambda before, self, flush, passing=(): _swallow(flush))


def _swallow(flush: Callable[[], object]) -> None:
    try:
        flush()
    except OSError:
        pass


# Dispatch and queues.


@mutation()
def skips_a_unit_in_the_dispatch() -> None:
    """Every hundredth record is not dispatched to its queue."""
    is_turn = _every(100)

    def enqueue(before: Callable[..., None], self: MessageStore, request: Any) -> None:
        if not is_turn():
            before(self, request)

    _patch(MessageStore, "_enqueue", enqueue)


@mutation()
def gives_an_offset_twice() -> None:
    """Every hundredth message gets the queue offset of the one before."""
    is_turn = _every(100)

    def put(before: Callable[..., PutResult], self: MessageStore, message: Any, *rest: Any, **named: Any) -> PutResult:
        name = message.topic, message.queue_id
        if is_turn() and self._next_offsets.get(name, 0) > 0:
            self._next_offsets[name] -= 1
        return before(self, message, *rest, **named)

    _patch(MessageStore, "put", put)


@mutation()
def puts_a_message_twice() -> None:
    """Every fiftieth message is put twice."""
    is_turn = _every(50)

    def put(before: Callable[..., PutResult], self: MessageStore, message: Any, *rest: Any, **named: Any) -> PutResult:
        if is_turn():
            before(self, message, *rest, **named)
        return before(self, message, *rest, **named)

    _patch(MessageStore, "put", put)


@mutation()
def acknowledges_without_a_put() -> None:
    """Every hundredth message is answered as if it was stored."""
    is_turn = _every(100)

    def put(before: Callable[..., PutResult], self: MessageStore, message: Any, *rest: Any, **named: Any) -> PutResult:
        if is_turn() and message.topic in ("plain", "ordered"):
            return PutResult(
                PutMessageStatus.PUT_OK, self.max_physical_offset, self.max_offset(message.topic, message.queue_id), 1
            )
        return before(self, message, *rest, **named)

    _patch(MessageStore, "put", put)


@mutation(_crashes_master)
def recovery_leaves_queues_behind() -> None:
    """After a crash the units that the queues lack are not written."""
    _patch(
        Recovery, "_continue_queue",
        lambda before, self, request, units, expected, begin: before(self, request, [], expected, begin),
    )  # fmt: skip


@mutation()
def wakes_no_pull() -> None:
    """A held pull is not woken by new messages, and ends at its timeout, with nothing."""
    _patch(PullRequestHold, "arrived", lambda before, self, queue, end=None: None)
    _patch(PullRequestHold, "_try_complete", lambda before, self, pull, is_last: is_last or before(self, pull, is_last))


@mutation()
def reads_skip_a_message() -> None:
    """Each read of the tenth message of a queue begins at the next one."""

    def get(
        before: Callable[..., Any], self: MessageStore, topic: str, queue_id: int, offset: int, *rest: Any, **named: Any
    ) -> Any:
        return before(self, topic, queue_id, offset + (offset == 10), *rest, **named)

    _patch(MessageStore, "get", get)


# Replication.


def _is_synchronous(plan: Plan) -> bool:
    return plan.is_sync_master


@mutation(lambda plan: plan.has_slaves)
def a_slave_begins_too_late() -> None:
    """A slave asks for the log from behind its end."""
    _patch(HAService, "_begin", lambda before, self, connection: _later(before(self, connection)))


async def _later(begin: Any) -> int:
    return int(await begin) + 8


@mutation(lambda plan: plan.has_slaves)
def a_master_stops_to_send() -> None:
    """After the first hundred messages a slave that is not behind gets nothing more."""
    is_turn = _every(100)
    stopped = [False]

    def send(before: Callable[..., bool], self: HAService, connection: Any) -> bool:
        stopped[0] = stopped[0] or is_turn()
        return True if stopped[0] else before(self, connection)

    _patch(HAService, "_send_now", send)


@mutation(
    lambda plan: (
        plan.has_slaves
        and any(fault.kind in ("kill", "power", "restart") and "slave" in fault.target for fault in plan.faults)
    )
)
def a_slave_keeps_half_a_record() -> None:
    """A slave does not cut what is incomplete at its end before it goes on."""
    _patch(Replica, "truncate", lambda before, self: self._log.copy(memoryview(bytes(8))))


@mutation(lambda plan: plan.has_slaves)
def a_slave_does_not_dispatch() -> None:
    """A slave has the log, and no queues."""
    _patch(Replica, "_enqueue_complete_records", lambda before, self: None)


# Offsets of consumers.


@mutation(_has("push", faults=("crash", "leave", "kill")))
def commits_what_is_not_consumed() -> None:
    """The offset that is committed is that of the newest message pulled."""
    ProcessQueue.commit_offset = property(lambda self: self.next_offset)  # type: ignore[method-assign, assignment]


@mutation(_has("push"))
def commits_one_too_far() -> None:
    """The broker takes an offset one further than what was committed, and members begin there."""

    def get(before: Callable[..., int], self: ConsumerOffsetTable, *names: Any) -> int:
        offset = before(self, *names)
        return offset + (offset > 0)

    _patch(ConsumerOffsetTable, "get", get)


@mutation(_has("push"))
def begins_at_the_end() -> None:
    """A member that finds no offset begins at the end of the queue."""
    _patch(StartOffsets, "find", lambda before, self, queue: _end_of(before, self, queue))


async def _end_of(find: Callable[..., Any], self: StartOffsets, queue: Any) -> int:
    committed = await self._offset_store.read(queue)
    return int(await self._pull_consumer.max_offset(queue) if committed is None else committed)


@mutation(_has("broadcast", faults=("crash", "leave")))
def broadcast_commits_too_far() -> None:
    """A broadcasting member reads an offset that is five too far from its file."""

    async def read(before: Callable[..., Any], self: LocalOffsetStore, queue: Any) -> int | None:
        offset = await before(self, queue)
        return None if offset is None else offset + 5

    _patch(LocalOffsetStore, "read", read)


@mutation(_has("push", faults=("crash", "leave", "kill", "restart", "power")))
def offsets_are_swapped_between_queues() -> None:
    """A commit for queue 1 is taken for queue 0."""
    _patch(
        ConsumerOffsetTable,
        "commit",
        lambda before, self, group, topic, queue_id, offset: before(self, group, topic, 0, offset),
    )


@mutation(_has("push"))
def forgets_a_retry() -> None:
    """A message that is sent back for a retry is not stored."""

    async def retry(before: Callable[..., Any], self: RetryService, *arguments: Any) -> Callable[[], None]:
        await before(self, *arguments)
        return lambda: None

    _patch(RetryService, "retry", retry)


@mutation(_has("push"))
def completes_what_has_failed() -> None:
    """A message whose listener has failed counts as consumed."""

    async def retry(before: Callable[..., Any], self: Any, delivery: Any, message: Any, level: int) -> None:
        delivery.complete([message])

    _patch(client_retry.ConsumeRetry, "_retry_by_broker", retry)


# Order and locks.


@mutation(_has("orderly"))
def locks_are_given_to_anybody() -> None:
    """The broker gives the lock of a queue to each member that asks, and members take all queues."""

    def lock(
        before: Callable[..., Any], self: QueueLockTable, group: str, client: str, queues: Any, now_ms: int
    ) -> Any:
        return list(dict.fromkeys(queues))

    _patch(QueueLockTable, "lock", lock)
    _patch(Assignment, "_allocate", lambda before, self, route: _all_queues(self, route))


async def _all_queues(self: Any, route: Any) -> Any:
    return list(route.read_queues)


@mutation(_has("orderly"))
def members_take_no_locks() -> None:
    """Members consume in order without the lock, and take all queues."""
    _patch(QueueLocks, "holds", lambda before, self, queue: True)
    _patch(Assignment, "_allocate", lambda before, self, route: _all_queues(self, route))


@mutation(_has("orderly"))
def goes_on_after_a_failure_in_order() -> None:
    """In order, a message that failed is given up, and the next one is delivered."""

    async def requeue(before: Callable[..., Any], self: Any, delivery: Any, suspend_ms: Any) -> None:
        delivery.complete()
        self._ready_queue.unblock(delivery.assigned)

    _patch(client_retry.ConsumeRetry, "_requeue_in_order", requeue)


@mutation(_has("orderly", "keyed", faults=("crash", "leave", "kill")))
def commits_before_the_delivery_in_order() -> None:
    """In order, the commit is one message ahead."""
    ProcessQueue.commit_offset = property(  # type: ignore[method-assign, assignment]
        lambda self: min(next(iter(self._sizes), self.next_offset) + 1, self.next_offset)
    )


# Delayed messages.


@mutation(_has("delayed"))
def delivers_early() -> None:
    """Delayed messages are delivered half a second early."""
    _patch(
        ScheduleMessageService, "_deliver_level", lambda before, self, level, now_ms: before(self, level, now_ms + 500)
    )


@mutation(_has("delayed"))
def loses_a_delayed_message() -> None:
    """Every twentieth delayed message is skipped when it is due."""
    is_turn = _every(20)
    _patch(
        ScheduleMessageService, "_put_due",
        lambda before, self, *arguments, **named: True if is_turn() else before(self, *arguments, **named),
    )  # fmt: skip


@mutation(_has("delayed", faults=("kill", "restart", "power")))
def delayed_messages_end_at_a_restart() -> None:
    """After a restart, delivery goes on behind what waits."""

    def load(before: Callable[..., None], self: ScheduleMessageService) -> None:
        before(self)
        for level in self._offsets:
            self._offsets[level] = max(self._offsets[level], self._store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1))

    _patch(ScheduleMessageService, "load", load)


@mutation(_has("delayed", faults=("kill", "power")))
def delivers_delayed_messages_again() -> None:
    """After a crash, delivery begins at the first message, without a look at what was delivered."""

    def load(before: Callable[..., None], self: ScheduleMessageService) -> None:
        before(self)
        self._check_duplicates_before = 0
        for level in self._offsets:
            self._offsets[level] = 0

    _patch(ScheduleMessageService, "load", load)


@mutation(_has("delayed"))
def delivers_to_no_queue_when_late() -> None:
    """What is due for more than a second is dropped."""

    def put(
        before: Callable[..., bool], self: Any, kind: str, physical: int, due_ms: int, now_ms: int, **named: Any
    ) -> bool:
        return True if now_ms > due_ms + 1000 else before(self, kind, physical, due_ms, now_ms, **named)

    _patch(ScheduleMessageService, "_put_due", put)


# Transactions.


@mutation(_has("transactional"))
def commits_what_is_rolled_back() -> None:
    """A rollback is taken as a commit."""

    def end(before: Callable[..., Any], self: Any, request: Any, *rest: Any) -> Any:
        return before(self, request._replace(outcome=sysflag.TRANSACTION_COMMIT), *rest)

    _patch(TransactionalMessageService, "end", end)


@mutation(_has("transactional"))
def forgets_a_commit() -> None:
    """Every tenth commit is answered, and not done, but its half message counts as ended."""
    is_turn = _every(10)

    def put(before: Callable[..., Any], self: Any, half: Any, now_ms: int) -> Any:
        return PutResult(PutMessageStatus.PUT_OK, 0, 0, 1) if is_turn() else before(self, half, now_ms)

    _patch(TransactionalMessageService, "_put_committed", put)


@mutation(_has("transactional"))
def half_messages_are_visible() -> None:
    """A half message is stored in its topic at once."""

    def prepare(before: Callable[..., Any], self: Any, topic: str, queue_id: int, pairs: Any, now_ms: int) -> Any:
        before(self, topic, queue_id, pairs, now_ms)
        return topic, queue_id

    _patch(TransactionalMessageService, "prepare", prepare)


@mutation(_has("transactional"))
def checks_no_transaction() -> None:
    """Transactions that stay open are not checked."""
    _patch(TransactionalMessageService, "check", lambda before, self, *arguments: iter(()))


@mutation(_has("transactional", faults=("kill", "restart", "power")))
def half_messages_are_lost_at_a_restart() -> None:
    """A restart takes all half messages as ended."""

    def load(before: Callable[..., None], self: Any) -> None:
        before(self)
        self._half_begin = self._store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)

    _patch(TransactionalMessageService, "load", load)


@mutation(_has("transactional"))
def commits_twice() -> None:
    """A committed message is put twice."""

    def put(before: Callable[..., Any], self: Any, half: Any, now_ms: int) -> Any:
        topic, queue_id = half.topic, half.queue_id
        before(self, half, now_ms)
        half.topic, half.queue_id = topic, queue_id
        return before(self, half, now_ms)

    _patch(TransactionalMessageService, "_put_committed", put)


@mutation(_has("transactional", faults=("power",)))
def commits_again_after_a_power_cut() -> None:
    """A commit whose op message was lost is not looked up before it is done again."""
    _patch(TransactionalMessageService, "_was_committed", lambda before, self, half: False)


# POP.


@mutation(_has("pop"))
def acknowledgements_by_pop_are_ignored() -> None:
    """An acknowledgement is answered and forgotten."""

    def record(before: Callable[..., int], self: Any, changes: Any, now_ms: int) -> int:
        kept = [(queue, change) for queue, change in changes if type(change).__name__ != "Done"]
        return before(self, kept, now_ms) if kept else int(self._store.max_physical_offset)

    _patch(PopConsumerService, "record", record)


@mutation(_has("pop"))
def pop_forgets_what_is_left() -> None:
    """A message whose invisible time is over is not delivered again."""
    _patch(PopConsumerService, "_put_copy", lambda before, self, *arguments: True)


@mutation(_has("pop"))
def pop_revives_nothing() -> None:
    """The end of an invisible time is never noticed."""
    _patch(PopConsumerService, "revive", lambda before, self, now_ms: None)


@mutation(_has("pop"))
def pop_skips_a_message() -> None:
    """A receive moves on by one message too many."""

    def receive(before: Callable[..., Any], self: PopState, *arguments: Any, **named: Any) -> Any:
        taken = before(self, *arguments, **named)
        return taken if taken is None else msgspec.structs.replace(taken, next_offset=taken.next_offset + 1)

    _patch(PopState, "receive", receive)


@mutation(_has("pop", faults=("kill", "restart", "power")))
def pop_forgets_acknowledgements_at_a_restart() -> None:
    """After a restart, POP begins at the first message."""

    def replay(before: Callable[..., int], self: Any) -> int:
        begin = before(self)
        for state in self.states.values():
            state.apply(Begin(next_offset=0))
        return begin

    _patch(PopConsumerService, "_replay", replay)


@mutation(_has("pop"))
def pop_revives_early() -> None:
    """The end of an invisible time comes nine seconds early, and the message is copied for others."""
    _patch(PopConsumerService, "revive", lambda before, self, now_ms: before(self, now_ms + 9900))


# Databases, and the archive.


def _sells(*faults: str, **changes: bool) -> Callable[[Plan], bool]:
    """Whether a plan has clients with databases, and one of these faults; `changes` are fields that it has."""

    def suits(plan: Plan) -> bool:
        is_so = all(getattr(plan, name) == value for name, value in changes.items())
        return is_so and plan.has_shop and (not faults or any(fault.kind in faults for fault in plan.faults))

    return suits


_loses = _sells("power", is_sync_flush=False, elected=0)


@mutation(_sells())
def an_outbox_ignores_a_rollback() -> None:
    """A message of the outbox is written when its transaction ends, however that ends."""

    def add(before: Any, self: Outbox, session: Session, row: dict[str, Any]) -> None:
        path = session.get_bind(self._stub).url.database  # type: ignore[call-overload]

        @event.listens_for(session, "after_transaction_end")
        def ended(session: Session, transaction: Any) -> None:
            if transaction.parent is None:
                engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
                with suppress(DBAPIError), engine.begin() as connection:
                    connection.execute(insert(self.tables.stub).values(due_at=0, created_at=0, **row))
                engine.dispose()

    _patch(Outbox, "_add_to_session", add)


@mutation(_sells())
def an_outbox_loses_a_message() -> None:
    """Every thirtieth message is not put into the outbox."""
    is_turn = _every(30)
    _patch(Outbox, "_add_to_session", lambda before, self, *rest: None if is_turn() else before(self, *rest))


@mutation(_sells())
def a_relay_takes_a_message_for_sent() -> None:
    """Every thirtieth message of an outbox counts as confirmed, and is not sent."""
    is_turn = _every(30)

    async def send(before: Any, self: BatchSender, rows: Any, *rest: Any) -> Any:
        left = [row for row in rows if is_turn()]
        sent = await before(self, [row for row in rows if row not in left], *rest)
        sent.outcomes += [Outcome(row.seq, row.status, CONFIRMED, "broker-0", 0, 0) for row in left]
        return sent

    _patch(BatchSender, "send", send)


@mutation(_loses)
def a_lost_message_is_not_sent_again() -> None:
    """A relay waits for the confirmation of a message that its queue has no more."""
    _patch(stub_checks, "is_lost", lambda before, *arguments: False)
    _patch(policy, "is_lost", lambda before, *arguments: False)


@mutation(_loses)
def an_alert_is_dropped() -> None:
    """An alert counts as delivered, and is not."""

    async def deliver(before: Any, self: Alerts, *arguments: Any) -> bool:
        return True

    _patch(Alerts, "_deliver", deliver)


@mutation(_sells("crash"))
def an_effect_is_not_recorded() -> None:
    """The row that says that a message is done is missing."""

    def insert_done(before: Any, connection: Any, *rest: Any) -> None:
        before(connection, *rest)
        connection.execute(delete(Tables().done))

    _patch(receipts, "insert_done", insert_done)


@mutation(_sells("crash"))
def an_effect_is_committed_alone() -> None:
    """The row that says that a message is done is in a transaction of its own, after the effect's."""

    def finish(before: Any, self: Any, session: Session, delivery: Any) -> Any:
        Session.commit(session)
        return before(self, session, delivery)

    _patch(_Listener, "_finish_session", finish)


@mutation(_sells("crash", "pause", "cut", "half-cut", "power", "kill"))
def a_relay_ignores_the_order_of_a_key() -> None:
    """A message is sent although one before it, of the same key, has failed."""
    _patch(stub_claims, "_blocked", lambda before, *arguments: {})

    def failed(before: Any, self: SentBatch, *arguments: Any) -> None:
        before(self, *arguments)
        self._stopped_keys.clear()
        self.unsent_keys.clear()

    _patch(SentBatch, "failed", failed)


def _archives(plan: Plan) -> bool:
    return plan.has_archive


@mutation(_archives)
def an_archive_lacks_a_message() -> None:
    """The job loses the last message of a batch."""
    from rucola.spark.archive import ArchiveWriter

    def append(before: Any, self: Any, batches: Any) -> Any:
        return before(self, (batch.slice(0, len(batch) - 1) for batch in batches))

    _patch(ArchiveWriter, "append", append)


@mutation(_archives)
def an_archive_forgets_its_progress() -> None:
    """A commit of the job has its messages, and not how far it has come."""
    from rucola.spark.lake.writer import LakeWriter

    _patch(LakeWriter, "publish", lambda before, self, staged, progress=None, **named: before(self, staged, **named))


@mutation(_archives)
def an_archive_commits_twice() -> None:
    """The job commits its messages first, and then how far it has come."""
    from rucola.spark.lake.writer import LakeWriter

    def publish(before: Any, self: Any, *staged: Any, **named: Any) -> Any:
        if len(staged) < 2:
            return before(self, *staged, **named)
        added = before(self, staged[0], **named)
        before(self, progress=staged[1])
        return added

    _patch(LakeWriter, "publish", publish)


# Elections.


def _elects(*faults: str) -> Callable[[Plan], bool]:
    """Whether a plan has a group with an election, and one of these faults to one of its members."""

    def suits(plan: Plan) -> bool:
        return plan.elected > 0 and any(
            fault.kind in faults and (fault.kind == "lease" or {fault.target, fault.other} & set(plan.brokers))
            for fault in plan.faults
        )

    return suits


@mutation(_elects("pause", "cut", "half-cut", "lease"))
def a_right_to_acknowledge_does_not_end() -> None:
    """A master goes on to acknowledge when its lease has ended."""
    _patch(WriteLease, "set", lambda before, self, until_s: before(self, until_s + 30 if until_s else self.until_s))


# Retention, topics that are removed, and roles that operators change.


def _expires(is_matching: Callable[[Plan], bool] = lambda plan: True) -> Callable[[Plan], bool]:
    return lambda plan: plan.reserved_s > 0 and is_matching(plan)


@mutation(_expires())
def deletes_messages_too_early() -> None:
    """Files are deleted a minute before fileReservedTime has passed."""
    _patch(Retention, "_may_expire_oldest", lambda before, self, now_ms: before(self, now_ms + 60_000))


@mutation(_expires(lambda plan: not plan.is_always_expiring))
def deletes_messages_at_any_hour() -> None:
    """Each round deletes what is old enough, in whatever hour."""

    def begin(before: Callable[..., None], self: Retention, *arguments: Any) -> None:
        self._manual_rounds = max(1, self._manual_rounds)
        before(self, *arguments)

    _patch(Retention, "begin_round", begin)


@mutation(_expires(lambda plan: plan.is_always_expiring))
def deletes_one_file_too_many() -> None:
    """With the oldest file, the one after it is deleted."""

    def expire(before: Callable[..., bool], self: Retention, now_ms: int, **named: Any) -> bool:
        begin = self._log.begin
        result = before(self, now_ms, **named)
        if self._log.begin > begin and len(self._log.files.files) > 2:
            self._detached.append(self._log.files.detach_first())
            self._detached += self._detach_dependents()
        return result

    _patch(Retention, "expire", expire)


@mutation(_expires(lambda plan: plan.reserved_s == 3 and plan.is_always_expiring and _has("delayed")(plan)))
def deletes_what_waits() -> None:
    """Messages that wait in a file are not put again before it is deleted."""
    _patch(assembly_of_delivery, "roll", lambda before, *arguments: asyncio.sleep(0, result=True))


@mutation(_expires(lambda plan: plan.is_always_expiring and _has("push", faults=("crash", "pause", "cut"))(plan)))
def skips_to_the_end_of_what_is_left() -> None:
    """Who asks for a message that was deleted is sent to the end of the queue, not to the first one that is left."""

    def get(before: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = before(*arguments, **named)
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
            return msgspec.structs.replace(result, next_begin_offset=result.max_offset)
        return result

    _patch(MessageStore, "get", get)


@mutation(_expires(lambda plan: plan.has_slaves and any(fault.kind == "usage" for fault in plan.faults)))
def a_slave_deletes_before_its_master() -> None:
    """A slave deletes files that its master still has."""
    _patch(_SlaveSide, "may_delete_oldest", lambda before, self: True)


@mutation(_expires(lambda plan: plan.is_always_expiring))
def deletes_the_queues_of_a_topic_that_exists() -> None:
    """A queue without messages is deleted, whether its topic exists or not, as by Apache."""

    async def delete(before: Callable[..., Any], self: CleanupService) -> None:
        for topic, queue_id in self._store.queue_names():
            if not self._topics.is_system_topic(topic) and self._store.delete_queue(topic, queue_id):
                self._offsets.remove_queue(topic, queue_id)

    _patch(CleanupService, "delete_unused_queues", delete)


@mutation(_has("push", faults=("purge",)))
def offsets_outlive_their_queue() -> None:
    """The offsets of groups stay when a queue is deleted, and its next messages are skipped."""
    _patch(ConsumerOffsetTable, "remove_queue", lambda before, self, topic, queue_id: None)


@mutation(
    lambda plan: (
        plan.has_slaves and not plan.is_sync_master and any(fault.kind == "switchover" for fault in plan.faults)
    )
)
def goes_on_while_it_hands_over() -> None:
    """A master takes messages until its slave is master."""
    _patch(Mastership, "pause", lambda before, self, reason: None)


@mutation(lambda plan: plan.has_slaves and _has("delayed", faults=("promote", "switchover"))(plan))
def a_promoted_slave_delivers_nothing() -> None:
    """A slave that becomes master does not begin to deliver delayed messages."""

    def start(before: Callable[..., None], self: DeliveryServices, scheduler: Any) -> None:
        if self._environment.roles.last_switch.reason not in (SwitchReason.PROMOTE, SwitchReason.SWITCHOVER):
            before(self, scheduler)

    _patch(DeliveryServices, "start", start)


# Timer messages and dead letters.


@mutation(_has("timed"))
def a_timer_message_comes_early() -> None:
    """Timer messages are delivered half a second before their time."""
    _patch(TimerMessageService, "deliver", lambda before, self, now_ms, *rest: before(self, now_ms + 500, *rest))


@mutation(_has("picky"))
def a_dead_letter_is_dropped() -> None:
    """Every second message that has failed for the last time is not put into the queue of dead letters."""
    is_turn = _every(2)

    def put(before: Callable[..., Any], self: MessageStore, message: Any, *rest: Any, **named: Any) -> Any:
        if message.topic.startswith("%DLQ%") and is_turn():
            return PutResult(PutMessageStatus.PUT_OK, 0, 0, 1)
        return before(self, message, *rest, **named)

    _patch(MessageStore, "put", put)


@mutation(_has("picky", faults=("redrive",)))
def dead_letters_are_sent_to_nobody() -> None:
    """A dead letter counts as sent again, and is not."""

    async def done(before: Any, self: Any, letters: Any) -> Any:
        for letter in letters:
            yield RedriveResult(letter, "", RedriveStatus.DONE_BEFORE)

    _patch(Redrive, "redrive", done)


# What grows.


class _Keeping(dict[int, Any]):
    """A table that keeps what is taken out of it, under another number."""

    def pop(self, key: int, *default: Any) -> Any:
        if key in self:
            self[-1 - key] = self[key]
        return super().pop(key, *default)


@mutation(_has("transactional"))
def ended_transactions_are_kept() -> None:
    """The table of transactions that have ended is never shortened."""
    _patch(TransactionalMessageService, "_forget_ended", lambda before, self: None)

    def start(before: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> None:
        before(self, *arguments, **named)
        self._ended = _Keeping(self._ended)

    _patch(TransactionalMessageService, "__init__", start)


# Connections and clients.


@mutation()
def a_response_goes_to_another_request() -> None:
    """Every three hundredth response of a server has the number of the request before."""
    is_turn = _every(300)

    def encode(before: Callable[..., Any], self: Connection, command: Any, reply: Any) -> Any:
        frame = before(self, command, reply)
        if isinstance(frame, bytes) and is_turn():
            return None
        return frame

    _patch(Connection, "encode_reply", encode)


def find(name: str, workers: int, most: int = MOST_SEEDS) -> tuple[int, list[str], int]:
    """Return a seed that finds a planted bug, what fails there, and how many seeds it took; seed 0 if none does."""
    plant, suits = MUTATIONS[name]

    def plans() -> Iterator[Plan]:
        number = 0
        for seed in range(1, 1 << 20):
            plan = draw(seed)
            if suits(plan):
                number += 1
                if number > most:
                    return
                yield plan

    for number, outcome in enumerate(outcomes(plans(), workers, prepare=plant), 1):
        if outcome.broken and not outcome_of(outcome.plan).broken:
            return outcome.plan.seed, outcome.broken, number
    return 0, [], most


def plant_all(part: str, workers: int) -> int:
    """Plant each bug whose name has this part; print by which seed it is found."""
    names = [name for name in MUTATIONS if part in name]
    missed = []
    for name in names:
        began_s = time.monotonic()
        seed, broken, count = find(name, workers)
        if seed:
            broken = [line.splitlines()[0] for line in broken]
            took = f"seed {seed:>4}, after {count:>3} runs, {time.monotonic() - began_s:4.0f} s"
            print(f"{name:<45} {took}: {broken[0][:120]}", flush=True)
        else:
            missed.append(name)
            print(f"{name:<45} not found in {count} runs", flush=True)
    print(f"{len(names) - len(missed)} of {len(names)} planted bugs are found within {MOST_SEEDS} seeds")
    return bool(missed)
