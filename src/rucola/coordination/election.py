"""Election of a group's master, as seen by one of its brokers.

A state machine without I/O, event loop or clock. The coordinator passes observations, with the time, and carries
decisions out. Times are seconds of `write_lease.boot_time_s`, never compared with another machine's.

**The right to acknowledge.** A master acknowledges messages until a deadline, which moves in two ways:

1. Its lease in etcd is renewed: until `ttl` after the renewal was *sent*, less a margin for the rates of clocks. etcd
   (below, a member) counts from a later moment, and only then deletes the key `leader`.
2. etcd is unreachable: every other member of the in-sync set promises not to be a candidate within `ttl`, which moves
   the deadline to `ttl` after the *request*, less the margin. Only members of the set can be elected, and only the
   master changes it, so no other master can exist. One missing promise ends the right: that member may reach etcd.

**No acknowledged message is lost** with SYNC_MASTER, regardless of clocks: a message is acknowledged when all members
of `required` have it, which contains every set that etcd may hold. A new member is in `required` before its membership
is sent, and has all messages acknowledged by then (`_barriers`); a removed one stays until etcd has accepted that. A
change with an unknown outcome counts as both, until the state has another revision.

**Election.** Without the key `leader`, members of the in-sync set announce the ends of their logs. The best by (epoch,
end, priority) writes `leader` and the next epoch in one transaction, if there is no leader and the state is unchanged.
A compared log does not grow: a member announces its end after its last promise has expired and its replication
connection is closed, and promises nothing until there is a leader. A restarted broker has forgotten its promises, and
waits for `ttl`. An announcement has the revision of the state, which each write of `leader` changes.

A log that may lack confirmed messages has another incarnation than in the in-sync set, and is eligible only if all
members are candidates. If all of them have lost something, brokers outside the set with a log are eligible as well. A
member with priority 0 is never elected, but a log that may lack messages is not chosen while such a member has more.

**Resignation.** A master whose store has failed, or that hands over, resigns if another member can follow: it has no
right from then on, and is not master in that epoch again. The state contains this before the key `leader` ends, which
voids promises to that master; earlier masters' have expired, since it was elected after them. In a handover the
successor has all messages and announces the highest priority; the other members wait for it for `ttl`, after which etcd
has ended its lease if it does not run, and the old master is a candidate after twice `ttl`.

**Leaving.** A member that stops in order announces it before its connections end. The master removes it from the
in-sync set at once, so that no send waits for it.

Deliberate difference to Patroni, whose bounds these are: no promise is given in advance, so that with etcd a failover
does not wait for promises to expire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from msgspec import structs

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
    Wait,
)
from rucola.coordination.group_keys import NOT_STANDING, ElectedState, Leader, MemberRecord, View
from rucola.errors import ConfigError, StoreError

PREFERRED = (1 << 31) - 1
"""Priority of a broker during a handover."""
MARGIN = 0.05
"""Part of `ttl` by which a master's right ends earlier; clocks may differ in rate by less."""


@dataclass(frozen=True, slots=True)
class Bounds:
    ttl_s: float
    loop_wait_s: float
    retry_timeout_s: float
    in_sync_timeout_s: float

    @property
    def right_s(self) -> float:
        """The right of a master after it sent a renewal, or requested promises."""
        return self.ttl_s * (1 - MARGIN)

    def check(self) -> None:
        """Raise ConfigError if a right could end while etcd and all members respond in time."""
        if self.loop_wait_s + 2 * self.retry_timeout_s > self.right_s:
            raise ConfigError(
                f"etcdLoopWait + 2 * etcdRetryTimeout = {self.loop_wait_s + 2 * self.retry_timeout_s:g} s must not "
                f"exceed 95 % of etcdTtl, {self.right_s:g} s: a renewal may fail, and promises be asked for, before "
                "the right of the master ends",
                subject="etcdTtl",
            )


class Role(Enum):
    SLAVE = auto()
    MASTER = auto()


@dataclass(frozen=True, slots=True)
class Own:
    epoch: int
    end: int
    confirmed: Mapping[int, int]
    """As master: end of the log at each connected slave."""
    has_failed: bool = False
    """Whether the store accepts no messages until it is opened again."""
    may_grow: bool = False
    """As slave: whether a master may still send to this log."""


@dataclass(slots=True)
class _Barrier:
    """To join, a member must have this end, which was read after it was required."""

    since_s: float
    end: int = -1


class Election:
    """One member's state. `may_found` allows a broker with a log to be the first master of an unknown group."""

    def __init__(self, own_record: MemberRecord, bounds: Bounds, now_s: float, *, may_found: bool = False) -> None:
        self._me = own_record.member
        self._record = own_record
        self._bounds = bounds
        self._may_found = may_found
        self.role = Role.SLAVE
        self.epoch = 0
        self.in_sync: frozenset[int] = frozenset()
        self.lease = 0
        self._lease_right_s = 0.0
        self._office_lease = 0
        """The lease of the key `leader`, as master."""
        self._promises_right_s = 0.0
        # Earlier promises are unknown: as if it had promised just now.
        self._promised_until_s = now_s + bounds.ttl_s
        self._is_standing = False
        self._resigned_until_s = 0.0
        """After its resignation: this broker is no candidate until then, or until there is another master."""
        self._resigned_epoch = 0
        self._hands_over = False
        self._priority = own_record.priority
        self._preferred_in = 0
        """The epoch after which this broker is the first of equal candidates; 0 if it is not."""
        self._vacant_since_s: float | None = None
        self._candidate_since_s = 0.0
        # As master:
        self._revision = 0
        self._stated: Mapping[int, int] = {}
        """The set of the last state, with incarnations."""
        self._sent: list[frozenset[int]] = []
        """Sets that were sent on the condition of `_revision`, without a known outcome."""
        self._barriers: dict[int, _Barrier] = {}
        self._incarnations: dict[int, int] = {}
        """Incarnations of the logs by which members have confirmed."""
        self._caught_up_s: dict[int, float] = {}
        self._last_end = 0

    # The right to acknowledge.

    def right_until_s(self, now_s: float) -> float:
        """Return the deadline until which this broker may acknowledge messages; 0 if it may not."""
        if self.role is not Role.MASTER:
            return 0.0
        by_lease = self._lease_right_s if self.holds_lease else 0.0
        until_s = max(by_lease, self._promises_right_s)
        return until_s if now_s < until_s else 0.0

    @property
    def required(self) -> frozenset[int]:
        """Members that must have a message before it is acknowledged: of every possible set in etcd, and joiners."""
        return frozenset().union({self._me}, self._electors, self._barriers)

    @property
    def _electors(self) -> frozenset[int]:
        return frozenset().union(self.in_sync, *self._sent)

    @property
    def holds_lease(self) -> bool:
        return self._office_lease == self.lease != 0

    @property
    def must_ask(self) -> frozenset[int]:
        return self._electors - {self._me}

    def renewed(self, lease: int, sent_s: float) -> None:
        """`sent_s` is before the request."""
        if lease != self.lease:
            self.lease, self._lease_right_s = lease, 0.0
        self._lease_right_s = max(self._lease_right_s, sent_s + self._bounds.right_s)

    def lease_lost(self) -> None:
        """The lease and the key `leader` have ended."""
        self.lease, self._lease_right_s, self._office_lease = 0, 0.0, 0

    def promised(self, asked_s: float, members: frozenset[int]) -> bool:
        """Return whether all eligible members have promised; `asked_s` is before the request."""
        if self.role is not Role.MASTER or not self.must_ask <= members:
            return False
        self._promises_right_s = max(self._promises_right_s, asked_s + self._bounds.right_s)
        return True

    def deposed(self, epoch: int) -> None:
        """End the right at once: a member has a later epoch."""
        if epoch > self.epoch:
            self._resign()

    def leave(self) -> None:
        """End the right for good: this broker stops."""
        self._resign()
        self._record = structs.replace(self._record, leaving=True)

    @property
    def record(self) -> MemberRecord:
        return self._record

    def prefer(self) -> None:
        """Be the first of equal candidates in the election after the current epoch. StoreError if never elected."""
        if not self._priority:
            raise StoreError(
                "this broker is never elected, by etcdPriority=0: set another in its broker.conf first",
                subject="etcdPriority",
            )
        self._preferred_in = self.epoch
        self._record = structs.replace(self._record, priority=PREFERRED)

    def hand_over(self, *, wanted: bool = True) -> None:
        """Resign once another broker can be elected; with `wanted=False`, remain master."""
        self._hands_over = wanted

    def _resign(self) -> None:
        self._office_lease, self._promises_right_s = 0, 0.0

    # Promises to another master.

    def promise(self, now_s: float, epoch: int) -> bool:
        """Promise this epoch's master not to be a candidate within `ttl`; False if impossible."""
        is_candidate = self._is_standing or self._record.standing > 0  # 0: of a group that is missing in etcd
        if self.role is Role.MASTER or is_candidate or epoch < self.epoch:
            return False
        self.epoch = epoch
        self._promised_until_s = max(self._promised_until_s, now_s + self._bounds.ttl_s)
        return True

    # Decisions.

    def decide(self, now_s: float, view: View, own: Own) -> Decision:
        """Decide on a view that was read after the last decision was carried out."""
        self._is_standing = False
        state, leader = view.state, view.leader
        if leader is not None:
            self._vacant_since_s = None
        # 1. The group is missing in etcd, or etcd has lost its state.
        if state is None:
            return self._restore(now_s, view) if self.role is Role.MASTER else self._found(now_s, view, own)
        self._learn(state)
        # 2. The key `leader` of a lease that is not renewed any more: revoking that saves the wait for its end.
        if leader is not None and leader.record.member == self._me and self._has_left(state, leader):
            return Release(leader.lease)
        # 3. The duties of each role.
        if self.role is Role.MASTER:
            return self._as_master(now_s, view, state, own)
        if leader is None:
            return self._seek(now_s, view, state, own)
        if leader.record.member != self._me:
            self._resigned_until_s = 0.0
            return self._announced(view, replace_standing=False) or Follow(state.epoch, leader.record)
        if now_s < self._promised_until_s:
            return Wait("elected; another master may go on until the end of a promise")
        self._office_lease = leader.lease
        return TakeOffice(state.epoch, frozenset(state.in_sync))

    def _has_left(self, state: ElectedState, leader: Leader) -> bool:
        """Tell whether the mastership is of an earlier process or lease, or has ended by a resignation."""
        return leader.lease != self.lease or state.epoch == self._resigned_epoch

    def took_office(self, now_s: float) -> None:
        """This broker is master, with `required` set in its replication."""
        self.role, self._hands_over = Role.MASTER, False  # a wish of an earlier mastership ended with it
        self._barriers.clear()
        # No connection is older than the office: one of the in-sync set is by the log that is in the set.
        self._incarnations = {**self._stated, self._me: self._record.incarnation}
        self._caught_up_s = dict.fromkeys(self.in_sync, now_s)
        self._last_end = 0

    def changed(self, change: ChangeInSync, revision: int | None) -> None:
        """A change was accepted, with its revision, or refused."""
        if revision is None:
            return
        self.in_sync, self._stated, self._revision = frozenset(change.in_sync), change.in_sync, revision
        self._sent.clear()
        for member in self.in_sync & self._barriers.keys():
            del self._barriers[member]

    # Internal.

    def _learn(self, state: ElectedState) -> None:
        if state.epoch >= self.epoch and state.revision != self._revision:
            self._revision, self.in_sync, self._stated = state.revision, frozenset(state.in_sync), state.in_sync
            self._sent.clear()
        if state.epoch > self.epoch or (self.role is Role.MASTER and state.master != self._me):
            self._sent.clear()
            self._barriers.clear()
            self.role = Role.SLAVE
            self._resign()
        self.epoch = max(self.epoch, state.epoch)
        if self._preferred_in and self.epoch > self._preferred_in:
            self._preferred_in = 0
            self._record = structs.replace(self._record, priority=self._priority)

    def _announced(self, view: View, *, replace_standing: bool) -> Announce | None:
        """Return the announcement of a record that changed or is missing in etcd."""
        found = view.members.get(self._me)
        if not replace_standing:
            self._record = structs.replace(self._record, standing=NOT_STANDING, epoch=0, end=0)
        return Announce(self._record) if found != self._record else None

    # Decisions of a slave.

    def _seek(self, now_s: float, view: View, state: ElectedState, own: Own) -> Decision:
        """Decide what a slave does while there is no leader."""
        if state.resigned and state.epoch == self.epoch:
            self._promised_until_s = 0.0
        eligible = _eligible(view, state)
        if self._me not in eligible or now_s < self._resigned_until_s:
            return self._announced(view, replace_standing=False) or Wait("no leader, and this broker is no candidate")
        if self._record.standing != state.revision:
            if now_s < self._promised_until_s:
                return self._announced(view, replace_standing=False) or Wait(
                    "no leader; this broker has promised not to stand yet, or has just started"
                )
            if own.may_grow:
                self._is_standing = True  # a master with a promise now would wait for this slave for nothing
                return Unfollow()
            self._record = structs.replace(self._record, standing=state.revision, epoch=own.epoch, end=own.end)
            self._candidate_since_s = now_s
        if (announce := self._announced(view, replace_standing=True)) is not None:
            return announce
        candidates = [record for record in eligible.values() if record.standing == state.revision]
        # If all of the set are candidates, the best of their logs has all confirmed messages of any. Otherwise only
        # logs count that are still those in the set.
        are_all = state.in_sync.keys() <= {record.member for record in candidates}
        candidates = [record for record in candidates if state.is_entitled(record) or (are_all and _has_log(record))]
        if not self._record.priority:
            return Wait("no leader; this broker is never elected, by etcdPriority=0")
        waited_s = now_s - self._candidate_since_s
        undecided = [
            record
            for record in eligible.values()
            if record.standing != state.revision and not (state.resigned and record.member == state.master)
        ]
        patience_s = self._patience_s(state, eligible.values())
        if undecided and waited_s < patience_s:
            return Wait()
        if self._may_found and are_all and not candidates:
            candidates = [self._record]
        if self._record not in candidates:
            return Wait(
                "no leader; the log of this broker may lack messages that it had confirmed"
                if _has_log(self._record)
                else "no leader; this broker has no log, and another one may have messages: set etcdFounder=true on "
                "one broker, once, to begin without any"
            )
        if not state.is_entitled(self._record) and (longer := _never_elected_with_more(candidates, self._record)):
            return Wait(
                f"no leader; this broker may lack messages, and {longer} with etcdPriority=0 has more: set another "
                "etcdPriority on it, at least until the others have its messages"
            )
        candidates = [record for record in candidates if record.priority]
        best = max(candidates, key=lambda record: (state.is_entitled(record), *_preference(record)))
        # The best one is the candidate. After this time, the others need not wait for it.
        if best.member != self._me and (are_all or waited_s < 2 * patience_s):
            return Wait()
        successors = {each.member: each.incarnation for each in view.members.values() if state.is_entitled(each)}
        successors.pop(state.master, None)  # it has failed
        self._is_standing = True
        return Stand(max(state.epoch, own.epoch) + 1, successors | {self._me: self._record.incarnation}, state.revision)

    def _patience_s(self, state: ElectedState, eligible: Iterable[MemberRecord]) -> float:
        """Return how long a candidate waits for undecided members; twice that for a better candidate."""
        is_successor_another = any(each.priority == PREFERRED and each.member != self._me for each in eligible)
        return self._bounds.ttl_s if state.resigned and is_successor_another else self._bounds.retry_timeout_s

    def _found(self, now_s: float, view: View, own: Own) -> Decision:
        if self.epoch:
            return self._known_to_have(self.epoch, view) or Wait(
                "etcd has lost the state of this group; its master restores it, or an operator"
            )
        if self._vacant_since_s is None:
            self._vacant_since_s = now_s
        if self._record.standing != 0:
            self._record = structs.replace(self._record, standing=0, epoch=own.epoch, end=own.end)
        if (announce := self._announced(view, replace_standing=True)) is not None:
            return announce
        if own.end and not self._may_found:
            return Wait(
                "etcd does not know this group, and this broker has a log: set etcdFounder=true on the broker whose "
                "log is to be kept, once"
            )
        if now_s - self._vacant_since_s < self._bounds.retry_timeout_s or not self._record.priority:
            return Wait()
        if not own.end:
            candidates = [record for record in view.members.values() if record.standing == 0 and record.priority]
            # A broker that is not a candidate, but has an epoch, is of a group that etcd has lost.
            if any(record.end or (record.standing != 0 and record.epoch) for record in view.members.values()):
                return Wait("etcd does not know this group, and another broker of it has a log")
            if not candidates or max(candidates, key=_preference).member != self._me:
                return Wait()
            self._promised_until_s = 0.0  # there was no master to promise it to
        self._is_standing = True
        newest = max(own.epoch, *[record.epoch for record in view.members.values()])
        return Stand(newest + 1, {self._me: self._record.incarnation}, 0)

    def _known_to_have(self, epoch: int, view: View) -> Announce | None:
        """Return the announcement of an epoch that etcd has lost, for the other members."""
        self._record = structs.replace(self._record, standing=NOT_STANDING, epoch=epoch, end=0)
        return self._announced(view, replace_standing=True)

    # Decisions of a master.

    def _restore(self, now_s: float, view: View) -> Decision:
        if view.leader is None and now_s < self._promises_right_s:
            # Unchanged: `_incarnations` has lagging slaves as well, and logs that may have lost something since.
            return Stand(self.epoch, self._stated, 0)
        return self._known_to_have(self.epoch, view) or Wait(
            "etcd has lost the state of this group; it is restored once all in-sync members confirm"
        )

    def _as_master(self, now_s: float, view: View, state: ElectedState, own: Own) -> Decision:
        if (own.has_failed or self._hands_over) and self._has_successor(view, state):
            self._resigned_until_s = math.inf if own.has_failed else now_s + 2 * self._bounds.ttl_s
            self.role, self._hands_over, self._resigned_epoch = Role.SLAVE, False, state.epoch
            self._resign()
            if view.leader is None:
                return Wait()
            return Resign(state.epoch, state.in_sync, state.revision, view.leader.revision, view.leader.lease)
        if view.leader is None:
            self._office_lease = 0
            return Reclaim(state.epoch, state.in_sync, state.revision)
        self._office_lease = view.leader.lease
        if (announce := self._announced(view, replace_standing=False)) is not None:
            return announce
        if (unknown := self._unknown(view)) is not None:
            return unknown
        lost = self._lost(now_s, view, state, own)
        # A leaving member is connected for a moment longer than its record in etcd exists.
        staying = {member: end for member, end in own.confirmed.items() if _is_staying(view, member)}
        ready = self._ready(now_s, replace(own, confirmed=staying))
        self._last_end = own.end
        members = {member: state.in_sync[member] for member in state.in_sync.keys() - lost}
        members |= {member: self._incarnations[member] for member in ready}
        if members == state.in_sync:
            return Wait()
        self._sent.append(frozenset(members))
        return ChangeInSync(self.epoch, members, state.revision, view.leader.revision)

    def _has_successor(self, view: View, state: ElectedState) -> bool:
        others = (record for record in view.members.values() if record.member != self._me)
        return any(state.is_entitled(record) and record.priority for record in others)

    def _unknown(self, view: View) -> Disconnect | None:
        """Disconnect a member with a new log: it confirmed the old one."""
        for member, record in view.members.items():
            if member != self._me and self._incarnations.get(member) != record.incarnation:
                self._incarnations[member] = record.incarnation
                self._barriers.pop(member, None)
                return Disconnect(member)
        return None

    def _lost(self, now_s: float, view: View, state: ElectedState, own: Own) -> frozenset[int]:
        """Return members that lag for too long, leave, or have another log now."""
        lost = set()
        for member in self.in_sync - {self._me}:
            # Compared with the end at the last decision: slaves always lag a little.
            if own.confirmed.get(member, -1) >= self._last_end:
                self._caught_up_s[member] = now_s
            late_s = now_s - self._caught_up_s.setdefault(member, now_s)
            record = view.members.get(member)
            has_left = record is not None and (record.leaving or not state.is_entitled(record))
            if late_s > self._bounds.in_sync_timeout_s or has_left:
                lost.add(member)
        return frozenset(lost)

    def _ready(self, now_s: float, own: Own) -> frozenset[int]:
        """Require members that have caught up; return those that have the end read after that."""
        for member in [*self._barriers]:
            if member not in own.confirmed or now_s - self._barriers[member].since_s > self._bounds.in_sync_timeout_s:
                del self._barriers[member]
        ready = set()
        for member, offset in own.confirmed.items():
            if member in self.in_sync or member not in self._incarnations:
                continue
            # One decision requires member 2, a later one reads the end of the log, say 500; it joins once it has 500.
            barrier = self._barriers.get(member)
            if barrier is None:
                if offset >= self._last_end:
                    self._barriers[member] = _Barrier(now_s)
                continue
            if barrier.end < 0:
                barrier.end = own.end
            if offset >= barrier.end:
                ready.add(member)
        return frozenset(ready)

    @property
    def is_joining(self) -> bool:
        """Whether a member joins, so that the next decision should be made soon."""
        return bool(self._barriers)


def _is_staying(view: View, member: int) -> bool:
    record = view.members.get(member)
    return record is not None and not record.leaving


def _preference(record: MemberRecord) -> tuple[int, int, int, int]:
    return record.epoch, record.end, record.priority, -record.member


def _eligible(view: View, state: ElectedState) -> dict[int, MemberRecord]:
    """Members whose logs are compared: the in-sync set, or all if each of the set announces another log."""
    present = view.members
    is_set_lost = state.in_sync.keys() <= view.members.keys() and not any(
        state.is_entitled(record) for record in view.members.values()
    )
    return present if is_set_lost else {member: present[member] for member in present.keys() & state.in_sync.keys()}


def _never_elected_with_more(candidates: Iterable[MemberRecord], own: MemberRecord) -> list[int]:
    """Return the members with priority 0 that have more than a log has."""
    return [each.member for each in candidates if not each.priority and (each.epoch, each.end) > (own.epoch, own.end)]


def _has_log(record: MemberRecord) -> bool:
    """An empty disk has not even an epoch."""
    return bool(record.epoch or record.end)
