"""A simulated group around `Election`: brokers with logs, etcd, a network, clocks, crashes and pauses.

Time is a number of ticks. Every message of the network is delivered when the schedule says so, or never; a transaction
may reach etcd long after its sender has given up on it. A paused broker handles nothing, but its clock goes on. Clocks
have offsets, and rates that differ by less than the margin. The brokers' side is as small as it can be: a master
appends entries and acknowledges those that all required members have; a slave cuts its log where the master's differs,
and copies.

`World` checks after every step:

- at most one broker has the right to acknowledge;
- no acknowledgement of an epoch follows one of a later epoch, and each epoch has one master;
- every acknowledged entry is in the log of each member that may be elected, and of each broker that takes office.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from rucola.coordination.decisions import (
    Announce,
    ChangeInSync,
    Decision,
    Disconnect,
    Follow,
    Reclaim,
    Release,
    Resign,
    Stand,
    TakeOffice,
    Unfollow,
)
from rucola.coordination.election import Bounds, Election, Own, Role
from rucola.coordination.group_keys import ElectedState, Leader, LeaderRecord, MemberRecord, View

BOUNDS = Bounds(ttl_s=40, loop_wait_s=8, retry_timeout_s=12, in_sync_timeout_s=20)
Entry = tuple[int, int]
"""Epoch and number."""


class Broken(AssertionError):
    """A promise of the election that did not hold."""


class SimulatedEtcd:
    """Keys of one group, and leases that end by the world's own time."""

    def __init__(self) -> None:
        self.revision = 0
        self.leader: Leader | None = None
        self.state: ElectedState | None = None
        self.members: dict[int, tuple[MemberRecord, int]] = {}
        self.leases: dict[int, float] = {}

    def expire(self, now: float) -> None:
        for lease in [each for each, end in self.leases.items() if end <= now]:
            self.revoke(lease)

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        self.revision += 1
        if self.leader is not None and self.leader.lease == lease:
            self.leader = None
        self.members = {member: each for member, each in self.members.items() if each[1] != lease}

    def lose_data(self) -> None:
        """Begin with nothing. Revisions go on, so that no transaction from before takes effect."""
        self.revision += 1
        self.leader = self.state = None
        self.members, self.leases = {}, {}

    def view(self) -> View:
        return View(self.leader, self.state, {member: record for member, (record, _) in self.members.items()})

    def lead(self, member: int, lease: int, revision: int, epoch: int, in_sync: Mapping[int, int]) -> bool:
        current = 0 if self.state is None else self.state.revision
        if lease not in self.leases or self.leader is not None or current != revision:
            return False
        self.revision += 1
        self.leader = Leader(LeaderRecord(member, "", ""), lease, self.revision)
        self.state = ElectedState(epoch, member, in_sync, self.revision)
        return True

    def change(self, member: int, change: ChangeInSync | Resign) -> int | None:
        if self.leader is None or self.leader.revision != change.leader_revision:
            return None
        if self.state is None or self.state.revision != change.revision:
            return None
        self.revision += 1
        self.state = ElectedState(change.epoch, member, change.in_sync, self.revision, isinstance(change, Resign))
        return self.revision


class SimulatedBroker:
    """One broker with its election and log. `start` is called again after a crash."""

    def __init__(self, world: World, member: int, kind: type[Election]) -> None:
        self.world = world
        self.member = member
        self._kind = kind
        self.log: list[Entry] = []
        self.offset = world.random.randrange(1000)
        self.rate = 1 + world.random.uniform(-0.02, 0.02)
        self.is_paused = False
        self.start(incarnation=world.unique())

    @property
    def now(self) -> float:
        return self.offset + self.world.now * self.rate

    def start(self, incarnation: int) -> None:
        self.log_incarnation = incarnation
        priority = 0 if self.member in self.world.never_elected else 100
        record = MemberRecord(self.member, "", "", priority, incarnation)
        self.election = self._kind(record, BOUNDS, self.now)
        self.office: int | None = None
        """The epoch in which the broker serves as master."""
        self.following: tuple[int, int] | None = None
        """Epoch and member of the master that it copies."""
        self.is_connected = False
        self.confirmed: dict[int, int] = {}
        self.required: frozenset[int] = frozenset()
        self.has_failed = False
        """Whether the store takes nothing until it is opened again, by a start or as a slave."""
        self.incarnation = self.world.unique()
        self.round_since: float | None = None
        """When the request that the loop waits for was sent; None if it waits for none."""
        self.next_round = 0.0
        self.next_renewal = 0.0
        self.asking: tuple[float, set[int]] | None = None
        self.sessions: dict[int, int] = {}
        """As master: the last connection of each slave. One that is gone is not noticed: it may be half-open."""

    def is_entitled(self) -> bool:
        state = self.world.etcd.state
        return state is not None and state.in_sync.get(self.member) == self.log_incarnation

    def call(self, effect: Callable[[], object], done: Callable[[object], None]) -> None:
        """Send a request to etcd; `done` gets its result, unless the loop has given up on it."""
        world, incarnation, serial, sent = self.world, self.incarnation, self.world.unique(), self.now
        self.round_since, self.serial = sent, serial

        def answer(result: object) -> None:
            # `act` gives up on an answer that is late.
            is_awaited = self.round_since is not None and self.serial == serial
            if self.incarnation == incarnation and is_awaited and self.now - sent < BOUNDS.retry_timeout_s:
                self.round_since = None
                done(result)

        def at_etcd() -> None:
            result = effect()
            world.send(self, lambda: answer(result))

        world.send(None, at_etcd)

    # The loop, as in the coordinator.

    def act(self) -> None:
        """Do what the loop does now: a round that is due, a renewal, or giving up."""
        now = self.now
        if now >= self.next_renewal:
            self.next_renewal = now + BOUNDS.loop_wait_s
            self.renew()
        if self.round_since is not None:
            if now - self.round_since >= BOUNDS.retry_timeout_s:
                self.round_since = None
                self.ask()
                self.next_round = now + BOUNDS.loop_wait_s / 4
        elif now >= self.next_round:
            self.next_round = now + BOUNDS.loop_wait_s
            self.call(self.world.etcd.view, self.decide)

    def renew(self) -> None:
        world, incarnation, lease, sent = self.world, self.incarnation, self.election.lease, self.now

        def at_etcd() -> None:
            etcd, held = world.etcd, lease
            if not held:
                held = world.unique()
                etcd.leases[held] = world.now + BOUNDS.ttl_s
            is_alive = held in etcd.leases
            if is_alive:
                etcd.leases[held] = world.now + BOUNDS.ttl_s
            world.send(self, lambda: answer(held, is_alive))

        def answer(held: int, is_alive: bool) -> None:
            if self.incarnation != incarnation:
                return
            if is_alive and self.election.lease in (0, held):
                self.election.renewed(held, sent)
            elif not is_alive and self.election.lease == held:
                self.election.lease_lost()
                self.next_renewal = 0.0

        world.send(None, at_etcd)

    def ask(self) -> None:
        """Ask for promises, as etcd does not answer."""
        if self.office is None:
            return
        sent, epoch, incarnation = self.now, self.election.epoch, self.incarnation
        got: set[int] = set()
        for member in sorted(self.election.must_ask):
            other = self.world.brokers[member - 1]

            def at_other(other: SimulatedBroker = other) -> None:
                has_promised = other.election.promise(other.now, epoch)
                known = other.election.epoch
                self.world.send(self, lambda: answer(other.member, has_promised, known))

            self.world.send(other, at_other)

        def answer(member: int, has_promised: bool, known: int) -> None:
            if self.incarnation != incarnation:
                return
            if has_promised:
                got.add(member)
                self.election.promised(sent, frozenset(got))
            else:
                self.election.deposed(known)

        self.election.promised(sent, frozenset())

    def decide(self, view: object) -> None:
        assert isinstance(view, View)
        etcd, election, world = self.world.etcd, self.election, self.world
        last, may_grow = self.log[-1][0] if self.log else 0, self.following is not None
        own = Own(last, len(self.log), dict(self.confirmed), self.has_failed, may_grow)
        decision: Decision = election.decide(self.now, view, own)
        self.required = election.required
        self.next_round = 0.0
        lease = election.lease
        match decision:
            case Announce(record):
                self.call(
                    lambda: lease in etcd.leases and etcd.members.__setitem__(self.member, (record, lease)), ignore
                )
            case Stand() if not decision.revision and not self.log and world.has_lost_data:
                pass  # a group that etcd has lost begins without its messages: an operator sees to it that it does not
            case Stand():
                self.call(lambda: self.lead(lease, decision), ignore)
            case Reclaim(epoch, in_sync, revision):
                self.call(lambda: etcd.lead(self.member, lease, revision, epoch, in_sync), ignore)
            case Unfollow():
                self.following = None
            case Release(held):
                self.call(lambda: etcd.revoke(held), ignore)
            case Resign():
                resigns = decision
                self.call(lambda: etcd.change(self.member, resigns), lambda _: self.release(resigns.lease))
            case ChangeInSync():
                change = decision
                self.call(lambda: etcd.change(self.member, change), lambda result: self.changed(change, result))
            case TakeOffice(epoch, _):
                world.check_heir(self)
                self.office, self.following = epoch, None
                self.confirmed, self.sessions = {}, {}
                election.took_office(self.now)
                self.required = election.required
            case Disconnect(slave):
                self.confirmed.pop(slave, None)
                self.sessions.pop(slave, None)
            case Follow(epoch, master):
                if self.following != (epoch, master.member):
                    self.office, self.following, self.is_connected = None, (epoch, master.member), False
                    self.has_failed = False
                self.next_round = self.now + BOUNDS.loop_wait_s
            case _:
                self.next_round = self.now + (1 if election.is_joining else BOUNDS.loop_wait_s / 2)
        if election.role is Role.SLAVE and self.office is not None and not isinstance(decision, TakeOffice):
            self.office = None

    def release(self, lease: int) -> None:
        self.call(lambda: self.world.etcd.revoke(lease), ignore)

    def lead(self, lease: int, stand: Stand) -> None:
        """Write a new state in etcd, as its transaction does."""
        is_entitled, missing = self.is_entitled(), self.world.acknowledged.keys() - set(self.log)
        others = [] if self.world.etcd.state is None else self.world.etcd.state.in_sync.keys() - {self.member}
        is_elected = self.world.etcd.lead(self.member, lease, stand.revision, stand.epoch, stand.in_sync)
        if is_elected and not is_entitled:
            # All members were there, and this one has the most: power cuts have destroyed it in all logs.
            for member in others:
                if kept := missing & set(self.world.brokers[member - 1].log):
                    raise Broken(f"at {self.world.now}: {self.member} is elected without {kept}, which {member} has")
            for entry in missing:
                del self.world.acknowledged[entry]

    def changed(self, change: ChangeInSync, revision: object) -> None:
        assert revision is None or isinstance(revision, int)
        self.election.changed(change, revision)
        self.required = self.election.required

    # The broker.

    def append(self) -> None:
        if self.office is not None and not self.has_failed and self.election.right_until_s(self.now) > self.now:
            self.log.append((self.office, self.world.unique()))

    def fetch(self) -> None:
        """Copy a piece of the master's log, and report the end of the own one."""
        if self.following is None:
            return
        epoch, member = self.following
        master = self.world.brokers[member - 1]
        if master.office != epoch or self.office is not None or master.is_paused:
            return
        if not self.is_connected:
            same = 0
            while same < min(len(self.log), len(master.log)) and self.log[same] == master.log[same]:
                same += 1
            del self.log[same:]
            self.is_connected, self.session = True, self.world.unique()
            master.sessions[self.member] = self.session
            master.confirmed.pop(self.member, None)
        if master.sessions.get(self.member) != self.session:
            self.is_connected = False
            return
        self.log += master.log[len(self.log) :][: self.world.random.randrange(1, 4)]
        end, session, incarnation = len(self.log), self.session, master.incarnation

        def report() -> None:
            is_current = master.sessions.get(self.member) == session
            if is_current and master.incarnation == incarnation and master.office == epoch:
                master.confirmed[self.member] = max(end, master.confirmed.get(self.member, 0))

        self.world.send(master, report)

    def acknowledge(self) -> None:
        """Acknowledge all entries of the own epoch that the required members have."""
        if self.office is None or not self.election.right_until_s(self.now) > self.now:
            return
        others = self.required - {self.member}
        end = min([self.confirmed.get(member, 0) for member in others], default=len(self.log))
        for index in range(min(end, len(self.log))):
            if self.log[index][0] == self.office:
                self.world.acknowledged_by(self, index)


def ignore(result: object) -> None:
    """A result that the next view shows as well."""


class World:
    """All brokers, etcd and the network. `step` does one thing that `random` chooses.

    The members of `never_elected` have priority 0.
    """

    def __init__(
        self,
        random: Random,
        kind: type[Election] = Election,
        brokers: int = 3,
        never_elected: frozenset[int] = frozenset(),
    ) -> None:
        self.random = random
        self.never_elected = never_elected
        self.now = 0.0
        self._unique = 0
        self.etcd = SimulatedEtcd()
        self.brokers: list[SimulatedBroker] = []
        for member in range(1, brokers + 1):
            self.brokers.append(SimulatedBroker(self, member, kind))
        self.messages: list[tuple[SimulatedBroker | None, Callable[[], object]]] = []
        self.is_etcd_away = self.has_lost_data = False
        self.acknowledged: dict[Entry, int] = {}
        self.masters: dict[int, int] = {}
        self.last_epoch = 0
        self.elections = 0
        # Every schedule has faults of its own: with all of them at once, nothing ever works for long.
        self.weights = [random.choice((0, 1, 3)) for _ in range(7)]
        self.loss = random.choice((0, 0, 0.02, 0.2))

    def unique(self) -> int:
        self._unique += 1
        return self._unique

    def send(self, to: SimulatedBroker | None, deliver: Callable[[], object]) -> None:
        """Put a message into the network, to a broker or, if None, to etcd."""
        if self.random.random() >= self.loss:
            self.messages.append((to, deliver))

    def step(self) -> None:
        random = self.random
        kind = random.random()
        broker = random.choice(self.brokers)
        if kind < 0.12:
            self.now += 1
            self.etcd.expire(self.now)
        elif kind < 0.55:
            self.deliver()
        elif kind < 0.993:
            if not broker.is_paused:
                random.choice((broker.act, broker.act, broker.append, broker.fetch, broker.fetch, broker.acknowledge))()
        else:
            self.fault(broker)
        self.check()

    def deliver(self) -> None:
        """Deliver one of the oldest messages, or any other one now and then."""
        if not self.messages:
            return
        some = len(self.messages) if self.random.random() < 0.02 else min(6, len(self.messages))
        to, deliver = self.messages.pop(self.random.randrange(some))
        if to is None:
            if not self.is_etcd_away:
                deliver()
        elif to.is_paused:
            self.messages.append((to, deliver))
        else:
            deliver()

    def fault(self, broker: SimulatedBroker) -> None:
        kind = self.random.choices(range(7), [weight + 0.01 for weight in self.weights])[0]
        if kind == 0:
            broker.is_paused = not broker.is_paused
        elif kind == 1:
            self.is_etcd_away = not self.is_etcd_away
        elif kind == 2:
            broker.start(broker.log_incarnation)  # kill -9: the log is in the memory of the machine
        elif kind == 3:
            if broker.log:  # a power cut
                del broker.log[self.random.randrange(len(broker.log)) :]
            broker.start(self.unique())
        elif kind == 4:
            if self.random.random() < 0.5:
                broker.has_failed = True
            else:
                broker.election.hand_over()
        elif kind == 5:
            self.etcd.lose_data()
            self.has_lost_data = True
        else:
            for each in self.brokers:
                each.is_paused = False
            self.is_etcd_away = False

    # What must hold.

    def check(self) -> None:
        holders = [
            broker.member
            for broker in self.brokers
            if broker.office is not None and broker.election.right_until_s(broker.now) > broker.now
        ]
        if len(holders) > 1:
            raise Broken(f"at {self.now}: {holders} may acknowledge at the same time")
        state = self.etcd.state
        if state is not None:
            for member in state.in_sync:
                broker = self.brokers[member - 1]
                # After a power cut it is no candidate, as it may have lost entries.
                if broker.is_entitled() and (missing := self.acknowledged.keys() - set(broker.log)):
                    raise Broken(f"at {self.now}: {member} may be elected in {state} and lacks {missing}")

    def check_heir(self, broker: SimulatedBroker) -> None:
        self.elections += 1
        if broker.member in self.never_elected:
            raise Broken(f"at {self.now}: {broker.member} is elected with priority 0")
        if broker.election.right_until_s(broker.now) > broker.now and (
            missing := self.acknowledged.keys() - set(broker.log)
        ):
            raise Broken(f"at {self.now}: {broker.member} takes office and lacks {missing}")

    def acknowledged_by(self, broker: SimulatedBroker, index: int) -> None:
        entry = broker.log[index]
        if entry in self.acknowledged:
            return
        epoch = entry[0]
        if epoch < self.last_epoch or self.masters.setdefault(epoch, broker.member) != broker.member:
            raise Broken(f"at {self.now}: {broker.member} acknowledges in epoch {epoch} after {self.last_epoch}")
        self.last_epoch = epoch
        self.acknowledged[entry] = index
