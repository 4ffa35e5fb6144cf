"""The history of a run, and what must be true of it: the checkers of docs/simulation.md, each a method `check_...`.

As Elle and Jepsen's checker for Kafka do, they compare what clients were told with what the log has at the end: lost
writes, duplicates in the log, reordered and non-monotonic reads. A body is unique, so it names its message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Queue = tuple[str, str, int]
"""Topic, broker and queue id."""

UNFLUSHED_S = 2.0
"""With ASYNC_FLUSH, what a power cut may take: flushIntervalCommitLog and the time of a slow flush."""
LOCK_S = 60.0
"""How long a broker keeps the lock of an ordered queue for a member that it does not hear of."""


def group_of(broker: str) -> str:
    """The brokerName of a broker, such as broker-0 of broker-0-2."""
    return "-".join(broker.split("-")[:2])


class Position(NamedTuple):
    queue: Queue
    offset: int


@dataclass
class Sent:
    """One message that a producer has sent."""

    body: str
    topic: str
    begin_s: float
    delay_s: float = 0.0
    acked_s: float | None = None
    position: Position | None = None
    """Where the broker has put it, by its answer; None for delayed and transactional messages."""
    is_retried: bool = False
    """Whether its client may have sent it more than once."""
    decision: str = ""
    """Of a transaction: commit or rollback."""
    broker: str = ""


@dataclass
class Delivery:
    group: str
    member: str
    """The process."""
    position: Position
    body: str
    begin_s: float
    asked_s: float | None = None
    """When it was asked for, with POP."""
    end_s: float | None = None
    is_consumed: bool = False


@dataclass
class History:
    sent: dict[str, Sent] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    log: dict[Position, str] = field(default_factory=dict)
    """What the queues hold at the end."""
    dead: dict[Position, str] = field(default_factory=dict)
    """What the queues of dead letters hold at the end."""
    expired: dict[Position, str] = field(default_factory=dict)
    """What retention has removed from the logs, of all topics."""
    unclaimed: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By group, bodies of messages that retention has removed before the group had committed an offset behind them."""
    gone: dict[str, Position] = field(default_factory=dict)
    """Bodies and positions in queues that were deleted with their topics, after retention had removed all of it."""
    set_aside: set[str] = field(default_factory=set)
    """Bodies of messages that an ASYNC_MASTER had alone, when an operator promoted its slave."""
    redriven: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By group, bodies of dead letters of which an operator was told that a copy is sent."""
    failed: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """How often a group has failed with a message."""
    is_sync_flush: bool = False
    is_elected: bool = False
    """Whether what was acknowledged is on two brokers of a group at least."""
    power_cuts: list[tuple[str, float]] = field(default_factory=list)
    """Broker, and time: of masters, and of brokers that may become it."""
    failed_syncs: list[tuple[str, float, float]] = field(default_factory=list)
    """Broker, and when its disk failed, from and to."""
    replaced: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """Offsets of messages that power cuts have taken, and that later messages got."""
    lost_copies: set[str] = field(default_factory=set)
    """Bodies of messages that were to be delivered again, until a power cut with ASYNC_FLUSH took that."""
    resets: list[tuple[str, float]] = field(default_factory=list)
    """Group of consumers, and time."""
    clock_jumps: list[tuple[str, float]] = field(default_factory=list)
    disturbed: defaultdict[str, float] = field(default_factory=lambda: defaultdict(lambda: -1e9))
    """Machines, and when they were paused or cut off last."""
    broken: list[str] = field(default_factory=list)
    """What was found wrong while it happened."""
    masters: dict[tuple[str, int], str] = field(default_factory=dict)
    """The broker that has acknowledged in each epoch of a group."""
    _consumed: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _active: dict[tuple[str, Queue], Delivery] = field(default_factory=dict)
    _frontiers: defaultdict[tuple[str, Queue], set[int]] = field(default_factory=lambda: defaultdict(set))
    _acked: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    # What brokers do.

    def acknowledges(self, group: str, broker: str, epoch: int, others: list[str]) -> None:
        """A broker has the right to acknowledge, and so have `others` of its group at the same time."""
        if others:
            self.broken.append(f"two masters: {broker} may acknowledge in epoch {epoch}, and {others[0]} may, too")
        key = group, epoch
        newest = max((each for other, each in self.masters if other == group), default=0)
        if epoch < newest or self.masters.setdefault(key, broker) != broker:
            self.broken.append(
                f"two masters: {broker} acknowledges in epoch {epoch}, and {self.masters[group, newest]} in {newest}"
            )

    def restart(self, queue: Queue) -> None:
        """A queue has been deleted: what comes later has its offsets again."""
        for position in [each for each in self.expired if each.queue == queue]:
            self.gone[self.expired.pop(position)] = position
        for sent in self.sent.values():
            if sent.position is not None and sent.position.queue == queue:
                sent.position = None

    # What clients note.

    def acked(self, group: str, body: str, now_s: float) -> None:
        """A receiver by POP has acknowledged in time, and was answered."""
        self._acked[group].setdefault(body, now_s)
        self._consumed[group].add(body)

    def begin(self, delivery: Delivery, *, in_order: bool = False) -> None:
        self.deliveries.append(delivery)
        queue, offset = delivery.position
        if in_order:
            self._check_order(delivery, queue, offset)
        acked_s = self._acked[delivery.group].get(delivery.body)
        sent = self.sent.get(delivery.body)
        is_asked_later = acked_s is not None and (delivery.asked_s or 0.0) > acked_s
        if is_asked_later and sent is not None and not sent.is_retried and not self.may_lose(queue[1]):
            self.broken.append(
                f"{delivery.group} gets {delivery.body} again, which it has acknowledged at {acked_s:.3f}"
            )
        if sent is None:
            self.broken.append(f"{delivery.group} gets {delivery.body!r}, which nobody has sent")
        elif sent.decision == "rollback":
            self.broken.append(f"{delivery.group} gets {delivery.body}, which was rolled back")
        elif delivery.begin_s < sent.begin_s + sent.delay_s - 0.001 and not self._has_jumped(
            sent.broker or queue[1],  # a dead letter may be sent again to another broker
            sent.begin_s,
        ):
            early_s = sent.begin_s + sent.delay_s - delivery.begin_s
            self.broken.append(f"{delivery.group} gets {delivery.body} {early_s:.3f} s too early")

    def _check_order(self, delivery: Delivery, queue: Queue, offset: int) -> None:
        key = delivery.group, queue
        active = self._active.get(key)
        trusted_s = delivery.begin_s - LOCK_S - 30
        if (
            active is not None
            and active.end_s is None
            and active.member != delivery.member
            and self.disturbed[active.member.partition("/")[0]] < trusted_s
            and self.disturbed[queue[1]] < trusted_s
            and self.disturbed[active.member] < trusted_s
        ):
            self.broken.append(
                f"{delivery.group}: {delivery.member} and {active.member} have {queue} at the same time, "
                f"{delivery.body} and {active.body}"
            )
        self._active[key] = delivery
        frontier = self._frontiers[key]
        is_first = offset == 0 or Position(queue, offset - 1) in self.expired
        if not is_first and offset not in frontier and offset - 1 not in frontier and queue not in self.replaced:
            self.broken.append(f"{delivery.group} gets {delivery.body} at {queue} {offset} before {offset - 1}")

    def end(self, delivery: Delivery, now_s: float, *, is_consumed: bool) -> None:
        delivery.end_s, delivery.is_consumed = now_s, is_consumed
        if is_consumed:
            self._consumed[delivery.group].add(delivery.body)
            self._frontiers[delivery.group, delivery.position.queue].add(delivery.position.offset)
        else:
            self.failed[delivery.group, delivery.body] += 1

    def ended(self, process: str) -> None:
        """A process was ended: what it was consuming is over."""
        for delivery in self._active.values():
            if delivery.member == process and delivery.end_s is None:
                delivery.end_s = delivery.begin_s

    def may_lose(self, broker: str) -> bool:
        """Whether a group of brokers had a power cut that may have cost what was acknowledged: ASYNC_FLUSH only."""
        return not self.is_sync_flush and any(group_of(each) == broker for each, _ in self.power_cuts)

    def is_replaced(self, position: Position) -> bool:
        """Whether a power cut has taken what was at a position; then a group may have seen that, and not this one."""
        if self.is_elected and self.may_lose(position.queue[1]):
            return True  # of a master that was alone in the in-sync set
        begin, end = self.replaced.get(position.queue, (0, 0))
        return begin <= position.offset < end

    def replace(self, queue: Queue, begin: int, end: int) -> None:
        """Note the offsets that a power cut has taken."""
        before = self.replaced.get(queue, (begin, end))
        self.replaced[queue] = min(begin, before[0]), max(end, before[1])

    def _has_jumped(self, broker: str, since_s: float) -> bool:
        return any(machine.startswith(broker) and at_s >= since_s for machine, at_s in self.clock_jumps)

    def missing(self, group: str, topic: str) -> list[str]:
        """Messages of a topic's log that a group has not consumed."""
        consumed, dead, unclaimed = self._consumed[group], self._dead_letters(group), self.unclaimed[group]
        waiting = [
            body
            for position, body in [*self.ever().items(), *((position, body) for body, position in self.gone.items())]
            if position.queue[0] == topic
            and body not in consumed
            and body not in dead
            and body not in self.lost_copies
            and not self.is_replaced(position)
            and not (body in unclaimed and (self.log.get(position) != body or self.failed[group, body]))
        ]
        return waiting + sorted(self.redriven[group] - consumed - self.lost_copies - unclaimed)

    def ever(self) -> dict[Position, str]:
        """What the queues of users' topics hold, or held until retention removed it."""
        if not self.expired:
            return self.log
        topics = {sent.topic for sent in self.sent.values()}
        return {position: body for position, body in self.expired.items() if position.queue[0] in topics} | self.log

    def _dead_letters(self, group: str) -> set[str]:
        dead = [*self.dead.items(), *self.expired.items()]
        return {body for position, body in dead if position.queue[0] == f"%DLQ%{group}"}

    # What must be true at the end.

    def check(self) -> list[str]:
        found = list(self.broken)
        for check in (
            self.check_acked_are_in_log,
            self.check_duplicates,
            self.check_transactions,
            self.check_reads,
            self.check_dead_letters,
            self.check_offsets_after_retention,
        ):
            found += check()
        return found

    def may_be_lost(self, sent: Sent) -> bool:
        """Whether a power cut came before the next good flush; by the durability table only with ASYNC_FLUSH."""
        assert sent.acked_s is not None
        if sent.body in self.set_aside:
            return True
        lost = {
            broker
            for broker, at_s in self.power_cuts
            if group_of(broker) == sent.broker
            and sent.begin_s - 0.1 <= at_s
            and sent.acked_s >= self._last_flush_s(broker, at_s)
        }
        return not self.is_sync_flush and len(lost) > self.is_elected

    def _last_flush_s(self, broker: str, at_s: float) -> float:
        """When all that was acknowledged had been flushed last, at a time."""
        since_s = at_s - UNFLUSHED_S
        for each, begin_s, end_s in reversed(self.failed_syncs):
            if each == broker and begin_s <= at_s and end_s >= since_s:
                since_s = min(since_s, begin_s - UNFLUSHED_S)
        return since_s

    def check_acked_are_in_log(self) -> Iterator[str]:
        """Each acknowledged message is in the log, where the answer said, unless the durability table allows a loss."""
        log = self.ever()
        bodies = self.gone | {body: position for position, body in log.items()}
        for sent in self.sent.values():
            if sent.acked_s is None or sent.decision == "rollback" or sent.decision == "unknown":
                continue
            if sent.body not in bodies:
                if not self.may_be_lost(sent):
                    yield f"lost: {sent.body}, acknowledged at {sent.acked_s:.3f} by {sent.broker}"
            elif sent.position is not None and log.get(sent.position) != sent.body and not self.may_be_lost(sent):
                yield f"moved: {sent.body} was acknowledged at {sent.position} and is at {bodies[sent.body]}"

    def check_duplicates(self) -> Iterator[str]:
        """No message is in the log twice, unless its client has sent it again."""
        log = self.ever()
        gone = [body for body, position in self.gone.items() if log.get(position) != body]  # a new master may have it
        for body, count in Counter([*log.values(), *gone]).items():
            if body not in self.sent:
                yield f"phantom: {body!r} is in the log, and nobody has sent it"
            elif count > 1 and not self.sent[body].is_retried:
                yield f"duplicate: {body} is {count} times in the log"

    def check_transactions(self) -> Iterator[str]:
        """A transaction that was committed is in the log once; one that was rolled back never."""
        bodies = {*self.ever().values(), *self.gone}
        for sent in self.sent.values():
            if sent.decision == "rollback" and sent.body in bodies:
                yield f"{sent.body} was rolled back, and is in the log"

    def check_reads(self) -> Iterator[str]:
        """Whatever was read at a position is what the log has there."""
        log = self.ever()
        for delivery in self.deliveries:
            there = log.get(delivery.position)
            if self.gone.get(delivery.body) == delivery.position:
                continue
            if there != delivery.body and not delivery.position.queue[0].startswith("%"):
                if self.is_replaced(delivery.position):
                    continue
                yield f"{delivery.group} has read {delivery.body} at {delivery.position}, where the log has {there}"

    def check_dead_letters(self) -> Iterator[str]:
        """A dead letter is a message with which its group has failed."""
        for position, body in self.dead.items():
            if not self.failed[position.queue[0].removeprefix("%DLQ%"), body]:
                yield f"dead: {body} is a dead letter at {position}, and nobody has failed with it"

    def check_offsets_after_retention(self) -> Iterator[str]:
        """An offset whose message retention has removed is not given to another one."""
        for position, body in self.log.items():
            before = self.expired.get(position, body)
            if before != body and not self.is_replaced(position):
                yield f"{body} is at {position}, where retention has removed {before}"
