"""Coordinator of one broker: reads etcd, lets `Election` decide, and carries the decisions out.

Three tasks run until `stop`:

    renewal    renews the lease every `etcdLoopWait`; while that fails, the rounds have no pauses
    watch      wakes the rounds when a key of the group changes
    rounds     reads the keys of the group, decides, and carries the decision out, one after the other

While etcd is unreachable, no role changes. The master requests promises from all other members of the in-sync set, and
continues while all of them promise.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeAlias

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
from rucola.coordination.election import Bounds, Election, Own, Role
from rucola.coordination.etcd import EtcdClient, LeaseNotFound
from rucola.coordination.group_keys import GroupKeys, LeaderRecord, MemberRecord, StateRecord, Transaction, View
from rucola.coordination.write_lease import WriteLease, boot_time_s
from rucola.errors import MQError, StoreError
from rucola.outages import Outages

logger = logging.getLogger(__name__)

JOINING_WAIT_S: Final = 0.05
"""Pause between rounds while a slave joins the in-sync set."""
HANDOVER_POLL_S: Final = 0.01
LEAVING_WAIT_S: Final = 0.25
"""Time from the change of the in-sync set in etcd to the end of the connection to the master."""
VACANT_WAIT_S: Final = 0.1
WATCH_ROUNDS: Final = 6
"""Rounds, as multiples of their longest pause, until a silent watch, maybe half-open, is renewed."""
ETCD: Final = "coordination by etcd"


class EndOfLog(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def end(self) -> int: ...


class BrokerRoles(Protocol):
    """A broker as used by its coordinator. Methods may raise MQError during a change."""

    def position(self) -> EndOfLog: ...

    def has_failed(self) -> bool: ...

    def may_grow(self) -> bool: ...

    def in_sync(self) -> Mapping[int, int]: ...

    async def become_master(self, epoch: int, in_sync: frozenset[int]) -> None: ...

    async def become_slave(self, epoch: int, master_id: int, ha_address: str, address: str = "") -> None: ...

    async def stop_following(self) -> None: ...

    def set_in_sync(self, members: frozenset[int]) -> None: ...

    def disconnect_slave(self, member: int) -> None: ...


class PromiseResponse(NamedTuple):
    has_promised: bool
    epoch: int
    """The member's highest epoch."""


AskMember: TypeAlias = Callable[[str, int], Awaitable[PromiseResponse]]
"""(address, epoch) -> response to a request for a promise. MQError after `Bounds.retry_timeout_s`."""


class CoordinationFigures(NamedTuple):
    role: Role
    epoch: int
    in_sync: frozenset[int]
    members: frozenset[int]
    """The running members in etcd's last response."""
    is_etcd_away: bool
    etcd_failures: int
    right_s: float
    """Seconds for which this broker may acknowledge; 0 on a slave."""
    is_promised: bool
    """Whether the right of this master is the promises of the members, since etcd does not answer."""
    present: frozenset[int]
    """The members of the in-sync set that are connected to this master, itself included; on a slave, those that run."""


class Coordinator:
    """Keeps one broker in its role. `start` it after the broker, `stop` it before. Belongs to one event loop."""

    def __init__(
        self,
        keys: GroupKeys,
        record: MemberRecord,
        bounds: Bounds,
        etcd: EtcdClient,
        broker: BrokerRoles,
        ask: AskMember,
        lease: WriteLease,
        *,
        may_found: bool = False,
    ) -> None:
        self.lease = lease
        self._keys = keys
        self._own_addresses = LeaderRecord(record.member, record.address, record.ha_address)
        self._me = record.member
        self._bounds = bounds
        self._etcd = etcd
        self._broker = broker
        self._ask = ask
        self._election = Election(record, bounds, boot_time_s(), may_found=may_found)
        self._members: dict[int, MemberRecord] = {}
        """The last known records, for their addresses."""
        self._running: frozenset[int] = frozenset()
        self._following: tuple[int, LeaderRecord] | None = None
        self._wake = asyncio.Event()
        self._renewed_s = 0.0
        self._asked_s = 0.0
        self._failures = 0
        self._is_away = False
        self._logged = ""
        self._outages = Outages(logger)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(run()) for run in (self._renew, self._watch, self._rounds)]

    async def stop(self) -> None:
        """Leave the group: a master once in-sync slaves have caught up, a slave once no send waits for it."""
        was_master = self._election.role is Role.MASTER
        self._election.leave()  # before the tasks, which apply the right once more at their end
        self._apply_right()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._tasks or not self._election.lease:
            return
        self._tasks = []
        with suppress(MQError, TimeoutError):
            async with asyncio.timeout(2 * self._bounds.retry_timeout_s):
                if was_master:
                    await self._wait_replicated()
                else:
                    await self._leave_in_sync_set()
                await self._etcd.revoke(self._election.lease)

    async def _wait_replicated(self) -> None:
        end, others = self._broker.position().end, self._election.must_ask
        deadline_s = boot_time_s() + self._bounds.retry_timeout_s
        while min([self._broker.in_sync().get(each, 0) for each in others], default=end) < end:
            if boot_time_s() >= deadline_s:
                return
            await asyncio.sleep(JOINING_WAIT_S)  # reports of slaves arrive on other tasks

    async def _leave_in_sync_set(self) -> None:
        """Have the master remove this slave from the in-sync set, while it still replicates."""
        await self._transact(self._keys.announcing(self._election.record, self._election.lease))
        while True:
            view = self._keys.view(await self._etcd.range(self._keys.prefix))
            if view.leader is None or view.state is None or self._me not in view.state.in_sync:
                await asyncio.sleep(LEAVING_WAIT_S)  # the master receives the response to its change a moment later
                return
            await asyncio.sleep(JOINING_WAIT_S)

    # A handover.

    async def prefer(self) -> None:
        """Announce that this slave is to be the next master. MQError if etcd refuses, or it is never elected."""
        self._election.prefer()
        if (lease := self._election.lease) == 0 or await self._transact(
            self._keys.announcing(self._election.record, lease)
        ) is None:
            raise StoreError("etcd does not know this broker")

    async def hand_over(self, timeout_s: float) -> bool:
        """Resign; return False if that took too long, and this broker remains master."""
        self._election.hand_over()
        self._wake.set()
        deadline_s = boot_time_s() + timeout_s
        while self._election.role is Role.MASTER:
            if boot_time_s() >= deadline_s:
                self._election.hand_over(wanted=False)
                return False
            await asyncio.sleep(HANDOVER_POLL_S)
        return True

    def promise(self, epoch: int, master: LeaderRecord) -> PromiseResponse:
        """Respond to a master's request for a promise; without another master, follow it."""
        has_promised = self._election.promise(boot_time_s(), epoch)
        if has_promised and self._following is None:
            self._promised_master = (epoch, master)
            self._wake.set()
        return PromiseResponse(has_promised, self._election.epoch)

    def figures(self) -> CoordinationFigures:
        election, now_s = self._election, boot_time_s()
        return CoordinationFigures(
            election.role,
            election.epoch,
            election.in_sync,
            self._running,
            self._is_away,
            self._failures,
            max(0.0, self.lease.until_s - now_s),
            election.role is Role.MASTER and self._is_away and self.lease.until_s > now_s,
            election.in_sync & self._present(),
        )

    def _present(self) -> frozenset[int]:
        with suppress(MQError):  # during a change of the role
            if self._election.role is Role.MASTER:
                return frozenset(self._broker.in_sync()) | {self._me}
        return self._running

    # The lease.

    async def _renew(self) -> None:
        while True:
            sent_s = boot_time_s()
            try:
                lease = self._election.lease
                if lease:
                    await self._etcd.keep_alive(lease)
                else:
                    lease, _ = await self._etcd.grant(math.ceil(self._bounds.ttl_s))
                self._election.renewed(lease, sent_s)
                self._renewed_s = sent_s
                if self._is_away:
                    self._wake.set()
            except LeaseNotFound:
                self._election.lease_lost()
                self._wake.set()
                continue
            except MQError as error:
                self._note_failure(error)
                self._wake.set()
            finally:
                self._apply_right()
            await asyncio.sleep(max(0.0, sent_s + self._bounds.loop_wait_s - boot_time_s()))

    async def _watch(self) -> None:
        while True:
            try:
                async for _ in self._etcd.watch(self._keys.prefix, WATCH_ROUNDS * self._bounds.loop_wait_s):
                    self._wake.set()
            except MQError:
                await asyncio.sleep(self._bounds.loop_wait_s)

    # The rounds.

    async def _rounds(self) -> None:
        while True:
            try:
                wait_s = await self._round()
            # Of the broker, during a change of its role, of its disk, or a key of another program.
            except (MQError, OSError) as error:
                self._outages.failed("coordination of this broker", error)
                wait_s = VACANT_WAIT_S
            except Exception:
                logger.exception("a round of the coordination failed")
                wait_s = self._bounds.loop_wait_s
            finally:
                self._apply_right()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _round(self) -> float:
        """Do one round; return the pause before the next one in seconds."""
        begin_s = boot_time_s()
        is_late = begin_s - self._renewed_s >= self._bounds.loop_wait_s * 1.5
        # An etcd that lost its data renews a lease, but not the mastership's.
        if self._election.role is Role.MASTER and (is_late or not self._election.holds_lease):
            await self._ask_members()  # an unreachable member uses the whole timeout
        asked_s = boot_time_s()
        try:
            view = self._keys.view(await self._etcd.range(self._keys.prefix))
        except MQError as error:
            self._note_failure(error)
            return await self._round_without_etcd()
        if boot_time_s() - asked_s >= self._bounds.retry_timeout_s:
            return 0.0  # this process was stopped: its view may be outdated
        self._note_success()
        self._members |= view.members
        self._running = frozenset(view.members)
        broker = self._broker
        position = broker.position()
        own = Own(position.epoch, position.end, broker.in_sync(), broker.has_failed(), broker.may_grow())
        decision = self._election.decide(boot_time_s(), view, own)
        self._apply_right()
        self._apply_required()
        return await self._carry_out(decision, view)

    async def _round_without_etcd(self) -> float:
        if self._election.role is Role.MASTER:
            await self._ask_members()
        elif self._following is None and self._promised_master is not None:
            epoch, master = self._promised_master
            self._promised_master = None
            await self._follow(Follow(epoch, master))
        return self._bounds.loop_wait_s

    _promised_master: tuple[int, LeaderRecord] | None = None
    """The master that requested a promise, if this broker has no other."""

    async def _carry_out(self, decision: Decision, view: View) -> float:
        keys, lease, bounds = self._keys, self._election.lease, self._bounds
        match decision:
            case Wait(reason):
                self._log(reason)
                if self._election.is_joining:
                    return JOINING_WAIT_S
                return VACANT_WAIT_S if view.leader is None else bounds.loop_wait_s
            case Follow():
                await self._follow(decision)
                return bounds.loop_wait_s
            case TakeOffice():
                await self._take_office(decision)
            case Unfollow():
                self._following = self._promised_master = None
                await self._broker.stop_following()
            case Disconnect(member):
                self._broker.disconnect_slave(member)
            case Release(old):
                await self._etcd.revoke(old)
            case Resign():
                state = StateRecord(decision.epoch, self._me, dict(decision.in_sync), resigned=True)
                await self._transact(keys.changing(state, decision.revision, decision.leader_revision))
                await self._etcd.revoke(decision.lease)
            case _ if not lease:
                return VACANT_WAIT_S
            case Announce(record):
                await self._transact(keys.announcing(record, lease))
            case Reclaim():
                await self._lead(decision, lease)
            case Stand():
                if await self._lead(decision, lease):
                    logger.info(
                        "elected master of %s in epoch %d, in sync: %s",
                        keys.broker, decision.epoch, sorted(decision.in_sync),
                    )  # fmt: skip
            case ChangeInSync():
                await self._change_in_sync(decision)
        return 0.0

    async def _transact(self, transaction: Transaction) -> int | None:
        try:
            return await self._etcd.transact(*transaction)
        except LeaseNotFound:
            self._election.lease_lost()
            return None

    async def _lead(self, decision: Stand | Reclaim, lease: int) -> bool:
        """Write the keys `leader` and `state`; return whether the conditions held."""
        state = StateRecord(decision.epoch, self._me, dict(decision.in_sync))
        leading = self._keys.leading(self._own_addresses, lease, decision.revision, state)
        return await self._transact(leading) is not None

    async def _take_office(self, office: TakeOffice) -> None:
        self._following = None
        try:
            await self._broker.become_master(office.epoch, office.in_sync - {self._me})
        except (MQError, OSError):
            # Another member may be able to.
            await self._etcd.revoke(self._election.lease)
            self._election.lease_lost()
            raise
        self._election.took_office(boot_time_s())
        self._apply_required()
        self._apply_right()

    async def _change_in_sync(self, change: ChangeInSync) -> None:
        state = StateRecord(change.epoch, self._me, dict(change.in_sync))
        revision = await self._transact(self._keys.changing(state, change.revision, change.leader_revision))
        self._election.changed(change, revision)
        self._apply_required()
        if revision is not None:
            logger.info("in-sync set of epoch %d: %s", change.epoch, sorted(change.in_sync))

    async def _follow(self, follow: Follow) -> None:
        if self._following == (follow.epoch, follow.master):
            return
        self._log("")
        master = follow.master
        await self._broker.become_slave(follow.epoch, master.member, master.ha_address, master.address)
        self._following = (follow.epoch, follow.master)

    # Promises.

    async def _ask_members(self) -> None:
        asked_s, epoch = boot_time_s(), self._election.epoch
        members = sorted(self._election.must_ask)
        asked = [self._ask_one(member, epoch) for member in members]
        answers = await asyncio.gather(*asked)
        for answer in answers:
            if answer is not None and not answer.has_promised:
                self._election.deposed(answer.epoch)
        promised = frozenset(
            member
            for member, answer in zip(members, answers, strict=True)
            if answer is not None and answer.has_promised
        )
        if not self._election.promised(asked_s, promised):
            self._outages.failed(
                "promises of the in-sync members",
                f"{sorted(set(members) - promised)} did not promise; without etcd and them this master accepts nothing",
            )
        else:
            self._outages.succeeded("promises of the in-sync members")
        self._apply_right()

    async def _ask_one(self, member: int, epoch: int) -> PromiseResponse | None:
        record = self._members.get(member)
        if record is None:
            return None
        try:
            # Only its own timeout closes a half-open connection.
            return await self._ask(record.address, epoch)
        except MQError:
            return None

    # The rights of the broker.

    def _apply_right(self) -> None:
        self.lease.set(self._election.right_until_s(boot_time_s()))

    def _apply_required(self) -> None:
        if self._election.role is Role.MASTER:
            self._broker.set_in_sync(self._election.required - {self._me})

    def _note_failure(self, error: MQError) -> None:
        self._failures += 1
        self._is_away = True
        self._outages.failed(ETCD, error)

    def _note_success(self) -> None:
        self._is_away = False
        self._outages.succeeded(ETCD)
        self._outages.succeeded("coordination of this broker")

    def _log(self, reason: str) -> None:
        if reason and reason != self._logged:
            logger.warning("coordination: %s", reason)
        self._logged = reason
