"""Election of a group's master, as seen by one of its brokers.

It is a state machine without I/O, event loop or clock. The coordinator tells it what it has found, always with the
time, and carries out what it decides. Times are seconds of `write_lease.boot_time_s`, of this machine alone: no time is
ever compared with that of another machine.

**The right to acknowledge.** A master acknowledges messages until a deadline, and has two ways to move it:

1.  Its lease in etcd is renewed: until `ttl` after the renewal was *sent*, less a margin for the rates of clocks. etcd
    counts the same time from a later moment, and only then deletes the key `leader`.
2.  etcd does not answer: every other member of the in-sync set promises not to be a candidate within `ttl`. The
    master continues until `ttl` after it *asked*, less the margin; a member counts from a later moment. Only members of
    the in-sync set can be elected, and only the master changes the set; so with all promises in hand there can be no
    other master. One member that does not answer suffices for the right to end, and it does: that member may have
    reached etcd.

**No acknowledged message is lost** with SYNC_MASTER, whatever the clocks do: a message is acknowledged when all members
of `required` have it, which contains every set that etcd may hold. A new member is in `required` before its membership
is sent, and has all that was acknowledged by then (`_barriers`); a member that is removed stays in `required` until
etcd has accepted that. A change whose outcome is not known counts as both, until the state has another revision.

**Election.** Without the key `leader`, members of the in-sync set announce the ends of their logs. The best by (epoch,
end, priority) stands: one transaction, on the condition that there is no leader and that the state is unchanged,
writes `leader` and the next epoch. A broker that has just started does not know what it promised, and waits for `ttl`.

A log that is compared does not grow any more. A member announces its end after its last promise has passed and its
replication connection is closed, and promises nothing from then on, until there is a leader. The announcement has the
revision of the state, which it was written after; whatever writes `leader` writes the state as well, so an
announcement from before the last mastership, or from before its lease was lost and reclaimed, has another revision and
does not count.

A log that may lack what it confirmed, after a power cut or on an empty disk, has another incarnation than the one in
the in-sync set; its broker does not stand, unless all members are there and the best of them is chosen. If all of them
have lost something, brokers outside the set stand as well, since one of them may have the most. One on an empty disk
does not, because its mastership would set the logs of all others aside.

A member with priority 0 is never elected, but its log counts: it announces the end like a candidate, and a log that may
lack what it confirmed is not chosen while such a member has more. An entitled one is, since it has all that was
acknowledged.

**A failed store** takes no messages until it is opened again. A master with one gives up if another member can follow.

**A handover.** The master has stopped accepting messages, and the member that is to follow has all of them. That one
announces the highest priority, so that it is the first of equal logs, and the master gives up. It stands again only if
no one has followed it for twice `ttl`.

**A member that leaves**, since it stops in order, says so before its connections end. The master takes it out of the
in-sync set at once, so that no send waits for it.

Deliberate difference to Patroni, whose bounds these are: no promise is given in advance, so that with etcd a failover
does not wait for the end of promises.
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
    Stand,
    TakeOffice,
    Unfollow,
    Wait,
)
from rucola.coordination.group_keys import NOT_STANDING, ElectedState, MemberRecord, View
from rucola.errors import ConfigError

PREFERRED = (1 << 31) - 1
"""Priority of a broker to which the mastership is handed over."""
MARGIN = 0.05
"""Part of `ttl` by which a master's right ends earlier: clocks may differ in rate by less than that."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times in seconds, the same for all members of a group."""

    ttl_s: float
    loop_wait_s: float
    retry_timeout_s: float
    in_sync_timeout_s: float

    @property
    def right_s(self) -> float:
        """How long a master may acknowledge after it sent a renewal, or asked for promises."""
        return self.ttl_s * (1 - MARGIN)

    def check(self) -> None:
        """Raise ConfigError if the bounds endanger a master's right.

        The right must not end while etcd and all members respond in time.
        """
        if self.loop_wait_s + 2 * self.retry_timeout_s > self.right_s:
            raise ConfigError(
                f"etcdLoopWait + 2 * etcdRetryTimeout = {self.loop_wait_s + 2 * self.retry_timeout_s:g} s must not "
                f"exceed 95 % of etcdTtl, {self.right_s:g} s: a renewal may fail, and promises be asked for, before "
                "the right of the master ends"
            )


class Role(Enum):
    """Role of this broker, as decided."""

    SLAVE = auto()
    MASTER = auto()


@dataclass(frozen=True, slots=True)
class Own:
    """Facts about the own broker."""

    epoch: int
    """Last epoch of the log."""
    end: int
    """End of the log."""
    confirmed: Mapping[int, int]
    """As master: the physical offset below which each connected slave has everything, by member."""
    has_failed: bool = False
    """Whether the store takes no messages until it is opened again."""
    may_grow: bool = False
    """As slave: whether a master may still send to this log."""


@dataclass(slots=True)
class _Barrier:
    """Condition for a member to join.

    The member has the log up to an end that was read after it was required.
    """

    since_s: float
    end: int = -1


class Election:
    """Knowledge and decisions of one member.

    `own_record` is what it announces, not yet as a candidate. `may_found` allows a broker with a log to be the first
    master of a group that etcd does not know.
    """

    def __init__(self, own_record: MemberRecord, bounds: Bounds, now_s: float, *, may_found: bool = False) -> None:
        self._me = own_record.member
        self._record = own_record
        self._bounds = bounds
        self._may_found = may_found
        self.role = Role.SLAVE
        self.epoch = 0
        """The highest epoch known."""
        self.in_sync: frozenset[int] = frozenset()
        """As etcd had it last."""
        self.lease = 0
        """The lease of this broker; 0 without one."""
        self._lease_right_s = 0.0
        self._office_lease = 0
        """The lease that the key `leader` is bound to, as master."""
        self._promises_right_s = 0.0
        # Promises of an earlier process of this broker are not known: as if it had promised just now.
        self._promised_until_s = now_s + bounds.ttl_s
        self._is_standing = False
        self._given_up_until_s = 0.0
        """Until when this broker, which was master, leaves the mastership to others; or until one has followed it."""
        self._hands_over = False
        self._priority = own_record.priority
        self._preferred_in = 0
        """The epoch after which this broker is the first of equal candidates; 0 if it is not."""
        self._vacant_since_s: float | None = None
        """Since when there is no state."""
        self._candidate_since_s = 0.0
        """As a candidate: when it announced the end of its log."""
        # As master:
        self._revision = 0
        """Revision of the state that `in_sync` is from."""
        self._stated: Mapping[int, int] = {}
        """The set of that state, with incarnations."""
        self._sent: list[frozenset[int]] = []
        """Sets that were sent on the condition of `_revision`, without a known outcome."""
        self._barriers: dict[int, _Barrier] = {}
        """Members about to join."""
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
        """Members that must have a message before it is acknowledged.

        These are the members of every set that etcd may hold, and joiners.
        """
        return frozenset().union({self._me}, self._electors, self._barriers)

    @property
    def _electors(self) -> frozenset[int]:
        return frozenset().union(self.in_sync, *self._sent)

    @property
    def holds_lease(self) -> bool:
        """Whether the mastership is bound to a lease that etcd has, as far as known."""
        return self._office_lease == self.lease != 0

    @property
    def must_ask(self) -> frozenset[int]:
        """The members whose promises replace the lease while etcd does not answer."""
        return self._electors - {self._me}

    def renewed(self, lease: int, sent_s: float) -> None:
        """Note that etcd made or renewed a lease by a request sent at this time."""
        if lease != self.lease:
            self.lease, self._lease_right_s = lease, 0.0
        self._lease_right_s = max(self._lease_right_s, sent_s + self._bounds.right_s)

    def lease_lost(self) -> None:
        """Note that the lease has ended. The key `leader` has ended with it."""
        self.lease, self._lease_right_s, self._office_lease = 0, 0.0, 0

    def promised(self, asked_s: float, members: frozenset[int]) -> bool:
        """Note promises; return whether all members that may be elected have promised.

        `asked_s` is before the request.
        """
        if self.role is not Role.MASTER or not self.must_ask <= members:
            return False
        self._promises_right_s = max(self._promises_right_s, asked_s + self._bounds.right_s)
        return True

    def deposed(self, epoch: int) -> None:
        """End the right at once: a member knows a later epoch."""
        if epoch > self.epoch:
            self._resign()

    def leave(self) -> None:
        """End the right for good: this broker stops."""
        self._resign()
        self._record = structs.replace(self._record, leaving=True)

    @property
    def record(self) -> MemberRecord:
        """What this broker announces."""
        return self._record

    def prefer(self) -> None:
        """Be the first of equal candidates in the election after the current epoch."""
        self._preferred_in = self.epoch
        self._record = structs.replace(self._record, priority=PREFERRED)

    def hand_over(self, *, wanted: bool = True) -> None:
        """Give the mastership up once another broker can be elected; with `wanted=False`, keep it."""
        self._hands_over = wanted

    def _resign(self) -> None:
        self._office_lease, self._promises_right_s = 0, 0.0

    # Promises to another master.

    def promise(self, now_s: float, epoch: int) -> bool:
        """Promise this epoch's master not to stand within `ttl`; return False if that is impossible."""
        is_candidate = self._is_standing or self._record.standing > 0  # 0: of a group that etcd does not know
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
        # 1. etcd does not know the group, or has lost its state.
        if state is None:
            return self._restore(now_s, view) if self.role is Role.MASTER else self._found(now_s, view, own)
        self._learn(state)
        # 2. The key `leader` of a lease that is not renewed any more: revoking that saves the wait for its end.
        if leader is not None and leader.record.member == self._me and leader.lease != self.lease:
            return Release(leader.lease)  # of an earlier process of this broker, or of an earlier lease of this one
        # 3. The duties of each role.
        if self.role is Role.MASTER:
            return self._as_master(now_s, view, state, own)
        if leader is None:
            return self._seek(now_s, view, state, own)
        if leader.record.member != self._me:
            self._given_up_until_s = 0.0
            return self._announced(view, replace_standing=False) or Follow(state.epoch, leader.record)
        if now_s < self._promised_until_s:
            return Wait("elected; another master may go on until the end of a promise")
        self._office_lease = leader.lease
        return TakeOffice(state.epoch, frozenset(state.in_sync))

    def took_office(self, now_s: float) -> None:
        """Note that this broker has become master, with `required` set in its replication."""
        self.role = Role.MASTER
        self._barriers.clear()
        self._incarnations = {self._me: self._record.incarnation}
        self._caught_up_s = dict.fromkeys(self.in_sync, now_s)
        self._last_end = 0

    def changed(self, change: ChangeInSync, revision: int | None) -> None:
        """Note that a change of the in-sync set was accepted, with its revision, or refused."""
        if revision is None:
            return
        self.in_sync, self._stated, self._revision = frozenset(change.in_sync), change.in_sync, revision
        self._sent.clear()
        for member in self.in_sync & self._barriers.keys():
            del self._barriers[member]

    # What follows is internal.

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
        """Return the due announcement, if any: of a record that changed or that etcd lacks."""
        found = view.members.get(self._me)
        if not replace_standing:
            self._record = structs.replace(self._record, standing=NOT_STANDING, epoch=0, end=0)
        return Announce(self._record) if found != self._record else None

    # Decisions of a slave.

    def _seek(self, now_s: float, view: View, state: ElectedState, own: Own) -> Decision:
        """Decide what a slave does while there is no leader."""
        eligible = _eligible(view, state)
        if self._me not in eligible or now_s < self._given_up_until_s:
            return self._announced(view, replace_standing=False) or Wait("no leader, and this broker is no candidate")
        if self._record.standing != state.revision:
            if now_s < self._promised_until_s:
                return self._announced(view, replace_standing=False) or Wait(
                    "no leader; this broker has promised not to stand yet, or has just started"
                )
            if own.may_grow:
                self._is_standing = True  # a master that got a promise now would wait for this slave in vain
                return Unfollow()
            self._record = structs.replace(self._record, standing=state.revision, epoch=own.epoch, end=own.end)
            self._candidate_since_s = now_s
        if (announce := self._announced(view, replace_standing=True)) is not None:
            return announce
        candidates = [record for record in eligible.values() if record.standing == state.revision]
        # If all of the set are candidates, the best of their logs has whatever one of them had confirmed. Otherwise
        # only logs count that are still those of the set.
        are_all = state.in_sync.keys() <= {record.member for record in candidates}
        candidates = [record for record in candidates if state.is_entitled(record) or (are_all and _has_log(record))]
        if not self._record.priority:
            return Wait("no leader; this broker is never elected, by etcdPriority=0")
        waited_s = now_s - self._candidate_since_s
        undecided = [record for record in eligible.values() if record.standing != state.revision]
        if undecided and waited_s < self._bounds.retry_timeout_s:
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
        # The best one stands itself. If it does not within this time, the others need not wait for it.
        if best.member != self._me and (are_all or waited_s < 2 * self._bounds.retry_timeout_s):
            return Wait()
        heirs = {each.member: each.incarnation for each in view.members.values() if state.is_entitled(each)}
        heirs.pop(state.master, None)  # it is away
        self._is_standing = True
        return Stand(max(state.epoch, own.epoch) + 1, heirs | {self._me: self._record.incarnation}, state.revision)

    def _found(self, now_s: float, view: View, own: Own) -> Decision:
        """Decide on the first master of a group that etcd does not know."""
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
            # A broker that does not stand, but knows an epoch, is of a group that etcd has lost.
            if any(record.end or (record.standing != 0 and record.epoch) for record in view.members.values()):
                return Wait("etcd does not know this group, and another broker of it has a log")
            if not candidates or max(candidates, key=_preference).member != self._me:
                return Wait()
            self._promised_until_s = 0.0  # there was no master to promise it to
        self._is_standing = True
        newest = max(own.epoch, *[record.epoch for record in view.members.values()])
        return Stand(newest + 1, {self._me: self._record.incarnation}, 0)

    def _known_to_have(self, epoch: int, view: View) -> Announce | None:
        """Return the announcement of the epoch of a state that etcd has lost.

        By it others learn that the group has an epoch.
        """
        self._record = structs.replace(self._record, standing=NOT_STANDING, epoch=epoch, end=0)
        return self._announced(view, replace_standing=True)

    # Decisions of a master.

    def _restore(self, now_s: float, view: View) -> Decision:
        """Decide what a master does whose state etcd has lost."""
        if view.leader is None and now_s < self._promises_right_s:
            # As it was: `_incarnations` has slaves that lag as well, and logs that may have lost something since.
            return Stand(self.epoch, self._stated, 0)
        return self._known_to_have(self.epoch, view) or Wait(
            "etcd has lost the state of this group; it is restored once all in-sync members confirm"
        )

    def _as_master(self, now_s: float, view: View, state: ElectedState, own: Own) -> Decision:
        if (own.has_failed or self._hands_over) and self._has_heir(view, state):
            self._given_up_until_s = math.inf if own.has_failed else now_s + 2 * self._bounds.ttl_s
            self.role, self._hands_over = Role.SLAVE, False
            self._resign()
            return Wait() if view.leader is None else Release(view.leader.lease)
        if view.leader is None:
            self._office_lease = 0
            return Reclaim(state.epoch, state.in_sync, state.revision)
        self._office_lease = view.leader.lease
        if (announce := self._announced(view, replace_standing=False)) is not None:
            return announce
        if (unknown := self._unknown(view)) is not None:
            return unknown
        lost = self._lost(now_s, view, state, own)
        # One that leaves is connected for a moment longer than etcd has its record.
        staying = {member: end for member, end in own.confirmed.items() if _is_staying(view, member)}
        ready = self._ready(now_s, replace(own, confirmed=staying))
        self._last_end = own.end
        members = {member: state.in_sync[member] for member in state.in_sync.keys() - lost}
        members |= {member: self._incarnations[member] for member in ready}
        if members == state.in_sync:
            return Wait()
        self._sent.append(frozenset(members))
        return ChangeInSync(self.epoch, members, state.revision, view.leader.revision)

    def _has_heir(self, view: View, state: ElectedState) -> bool:
        """Tell whether another broker could be elected now."""
        others = (record for record in view.members.values() if record.member != self._me)
        return any(state.is_entitled(record) and record.priority for record in others)

    def _unknown(self, view: View) -> Disconnect | None:
        """Return the disconnection of a member with a new log: it confirmed the old one."""
        for member, record in view.members.items():
            if member != self._me and self._incarnations.get(member) != record.incarnation:
                self._incarnations[member] = record.incarnation
                self._barriers.pop(member, None)
                return Disconnect(member)
        return None

    def _lost(self, now_s: float, view: View, state: ElectedState, own: Own) -> frozenset[int]:
        """Return members that have not caught up for too long, leave, or have another log now."""
        lost = set()
        for member in self.in_sync - {self._me}:
            # Compared with the end at the last decision: a slave is always a little behind a log that grows.
            if own.confirmed.get(member, -1) >= self._last_end:
                self._caught_up_s[member] = now_s
            late_s = now_s - self._caught_up_s.setdefault(member, now_s)
            record = view.members.get(member)
            has_left = record is not None and (record.leaving or not state.is_entitled(record))
            if late_s > self._bounds.in_sync_timeout_s or has_left:
                lost.add(member)
        return frozenset(lost)

    def _ready(self, now_s: float, own: Own) -> frozenset[int]:
        """Return the members that may join; begin to require those that have caught up.

        A member is required by one decision, the next reads the end of the log, and once it has that, it may join.
        """
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
        """Whether a member is about to join, and the next decision should come soon."""
        return bool(self._barriers)


def _is_staying(view: View, member: int) -> bool:
    record = view.members.get(member)
    return record is not None and not record.leaving


def _preference(record: MemberRecord) -> tuple[int, int, int, int]:
    """Return what the best candidate has most of; the id decides between equals."""
    return record.epoch, record.end, record.priority, -record.member


def _eligible(view: View, state: ElectedState) -> dict[int, MemberRecord]:
    """Return the records of the members whose logs are compared.

    These are the members of the in-sync set. If all of them are there, and each has another log than the set names,
    so that any of their logs may lack messages, another member may have the most.
    """
    present = view.members
    is_set_lost = state.in_sync.keys() <= view.members.keys() and not any(
        state.is_entitled(record) for record in view.members.values()
    )
    return present if is_set_lost else {member: present[member] for member in present.keys() & state.in_sync.keys()}


def _never_elected_with_more(candidates: Iterable[MemberRecord], own: MemberRecord) -> list[int]:
    """Return the members with priority 0 that have more than a log has."""
    return [each.member for each in candidates if not each.priority and (each.epoch, each.end) > (own.epoch, own.end)]


def _has_log(record: MemberRecord) -> bool:
    """Tell whether a candidate has any log: an empty disk has not even an epoch."""
    return bool(record.epoch or record.end)
