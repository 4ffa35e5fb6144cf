"""Roles: the state of replication, and changes of the role on behalf of operators.

Planned switchover, on the master:

1. It stops accepting messages; producers of Rucola wait and send again.
2. It waits until the slave has confirmed the whole log. If that takes too long, it accepts messages again.
3. It asks the slave to become master in the next epoch, and waits until that is registered.
4. It follows the new master.

If it cannot find out whether the slave has become master, it accepts no messages until an operator promotes one of
both: two masters would be worse.

No counterpart in Apache RocketMQ 4.9.8: there a broker changes its role by a restart with another configuration.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from rucola import refusals
from rucola.access import Caller, Reason, Refused
from rucola.broker.background.registration import Registration
from rucola.broker.config import BrokerConfig
from rucola.broker.coordination import GroupRole
from rucola.broker.mastership import Mastership
from rucola.broker.replication.side import Replication
from rucola.broker.role import RoleControl, RoleSwitch, SwitchReason
from rucola.domain.role import (
    ELECTED,
    SWITCHOVER,
    ElectionStatus,
    HaStatus,
    SlaveStatus,
)
from rucola.errors import BrokerError, MQError
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, peek
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

NO_RIGHT = "this broker is elected master, and has no right to acknowledge: neither etcd nor the members confirm it"
NEVER_CONFIRMED = "no slave has connected to this master since it began"
CONFIRMED_LAST = "no slave is connected: counted from what one had confirmed last"
POLL_S = 0.02
"""Time between two requests whether the slave is master."""
MAX_COUNTED = 1_000_000
"""Maximum of messages counted for a status; it means this many or more."""
COUNTED_PER_ITERATION = 1000


class RoleChanges(RoleControl, Protocol):
    """`RoleControl` that runs changes in the background, since the service that requests a change ends with it."""

    member_id: int
    role_since_ms: int

    @property
    def slave_ids(self) -> frozenset[int]:
        """Ids of the slaves that this broker has had as master."""
        ...

    @property
    def master_role(self) -> str: ...

    @property
    def last_switch(self) -> RoleSwitch:
        """The last switch of this broker, in this process or before."""
        ...

    @property
    def switches(self) -> Mapping[SwitchReason, int]:
        """Since the start of the process, by reason."""
        ...

    def in_background(self, change: Coroutine[Any, Any, None]) -> None:
        """Run a change; a failure is logged."""
        ...


class PeerCalls(Protocol):
    """Requests of a master to the slave to which it hands over. Both methods raise RemotingError."""

    async def promote(self, address: str, epoch: int) -> None:
        """Have a slave become master in an epoch, although its master is connected."""
        ...

    async def status(self, address: str) -> HaStatus: ...


class SwitchOver(NamedTuple):
    """Hand over to the slave `target_id` and follow it, as slave `broker_id` if this broker has no id above 0."""

    target_addr: str
    target_id: int
    broker_id: int
    timeout_ms: int


class RoleService:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        mastership: Mastership,
        replication: Replication,
        registration: Registration,
        peers: PeerCalls,
        control: RoleChanges,
        clock: Callable[[], int],
        election: GroupRole | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._mastership = mastership
        self._replication = replication
        self._registration = registration
        self._peers = peers
        self._control = control
        self._clock = clock
        self._election = election

    def slaves(self) -> list[SlaveStatus]:
        """Return the connected slaves of this master, and how far each lags."""
        return [
            SlaveStatus(
                broker_id=slave.broker_id,
                address=slave.address,
                confirmed=slave.confirmed,
                lag_bytes=self._store.max_physical_offset - slave.confirmed,
                lag_seconds=self._age_s(slave.confirmed),
                in_sync=slave.in_sync,
            )
            for slave in self._replication.slaves()
        ]

    @property
    def epoch(self) -> int:
        return self._mastership.epochs.last.number

    @property
    def last_switch(self) -> RoleSwitch:
        return self._control.last_switch

    @property
    def switches(self) -> Mapping[SwitchReason, int]:
        return self._control.switches

    @property
    def is_accepting(self) -> bool:
        """Whether this broker stores and acknowledges messages, for which an elected master needs its lease."""
        if self._election is not None and ((figures := self._election.figures()) is None or not figures.right_s):
            return False
        return self._store.is_accepting

    def _is_following(self) -> bool:
        """Tell whether this slave follows its master, and knows none of a later epoch."""
        figures = None if self._election is None else self._election.figures()
        newest = 0 if figures is None else figures.epoch
        return self._replication.is_following and not 0 < self._replication.followed_epoch < newest

    def _election_status(self) -> ElectionStatus | None:
        figures = None if self._election is None else self._election.figures()
        if figures is None:
            return None
        return ElectionStatus(
            epoch=figures.epoch,
            in_sync=sorted(figures.in_sync),
            members=sorted(figures.members),
            missing=sorted(figures.in_sync - figures.present),
            is_etcd_away=figures.is_etcd_away,
            right_seconds=round(figures.right_s, 1),
        )

    async def status(self, count_from: int | None) -> HaStatus:
        store, config, mastership = self._store, self._config, self._mastership
        slaves = self.slaves()
        unreplicated_reason = ""
        if store.config.is_slave:
            replicated = store.max_physical_offset
        else:
            replicated = max([slave.confirmed for slave in slaves], default=self._replication.last_confirmed)
            if replicated < 0:
                unreplicated_reason = NEVER_CONFIRMED
            elif not slaves:
                unreplicated_reason = CONFIRMED_LAST
        return HaStatus(
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            member_id=self._control.member_id,
            slave_ids=sorted(self._control.slave_ids),
            role=store.config.broker_role.value,
            master_role=self._control.master_role,
            is_accepting=self.is_accepting,
            reason=store.write_state.reason or ("" if self.is_accepting else NO_RIGHT),
            election=self._election_status(),
            master_epoch=self._replication.followed_epoch,
            is_following=self._is_following(),
            epoch=self.epoch,
            fenced_by=mastership.fenced_by,
            begin=store.min_physical_offset,
            end=store.max_physical_offset,
            epochs=[(epoch.number, epoch.begin) for epoch in mastership.epochs.epochs],
            ha_address=f"{config.broker_ip2}:{config.ha_listen_port}",
            role_since_ms=self._control.role_since_ms,
            switched_ms=self.last_switch.at_ms,
            switch_reason=self.last_switch.reason,
            slaves=slaves,
            is_elected=config.coordination.is_enabled,
            unreplicated_bytes=None if replicated < 0 else store.max_physical_offset - replicated,
            unreplicated_messages=None if replicated < 0 else await self._count(replicated),
            unreplicated_reason=unreplicated_reason,
            messages=None if count_from is None else await self._count(count_from),
        )

    def _check_not_elected(self) -> None:
        if self._config.coordination.is_enabled:
            raise Refused(Reason.FAILED, ELECTED)

    def _check_broker_id(self, broker_id: int) -> None:
        if self._control.member_id <= 0 and broker_id <= 0:
            raise Refused(refusals.NO_BROKER_ID)

    async def promote(self, caller: Caller, epoch: int, *, force: bool, is_switchover: bool) -> int:
        """Become master in the background; return the epoch, at least `epoch`. Raises Refused.

        A connected slave refuses unless `force`, or `is_switchover`: its master hands over.
        """
        if self._election is not None and is_switchover and self._store.config.is_slave:
            await self._election.prefer()
            return self.epoch
        self._check_not_elected()
        if not self._store.config.is_slave and self._mastership.is_valid and self._store.write_state.is_writable:
            raise Refused(refusals.MASTER_ALREADY, epoch=self._mastership.epoch)
        if self._replication.is_following and not force:
            raise Refused(refusals.MASTER_CONNECTED)
        newest, _ = await self._registration.newest_master(epoch)
        epoch = max(epoch, newest + 1, self._mastership.epochs.last.number + 1, self._mastership.fenced_by + 1)
        logger.warning("%s promotes this broker to master, in epoch %d", caller.address, epoch)
        reason = SwitchReason.SWITCHOVER if is_switchover else SwitchReason.PROMOTE
        self._control.in_background(self._control.become_master(epoch, None, reason=reason))
        return epoch

    def demote(self, caller: Caller, broker_id: int) -> None:
        """Become slave of the registered master, in the background. Raises Refused without an id above 0."""
        self._check_not_elected()
        self._check_broker_id(broker_id)
        logger.warning("%s demotes this broker to slave", caller.address)
        self._mastership.pause(f"{SWITCHOVER} this broker becomes slave")
        epoch = self._mastership.epochs.last.number
        change = self._control.become_slave(epoch, broker_id, self._master_address(""), reason=SwitchReason.DEMOTE)
        self._control.in_background(change)

    async def switch_over(self, caller: Caller, target: SwitchOver) -> tuple[int, int]:
        """Hand over to a slave; return the new epoch and the pause in milliseconds. Raises Refused."""
        mastership = self._mastership
        if not mastership.is_valid:
            raise Refused(refusals.NO_MASTER)
        if target.target_id not in self._replication.confirmed():
            raise Refused(refusals.SLAVE_NOT_CONNECTED, member=target.target_id)
        self._check_broker_id(target.broker_id)
        figures = None if self._election is None else self._election.figures()
        if figures is not None and target.target_id not in figures.in_sync:
            raise Refused(refusals.SLAVE_NOT_IN_SYNC, member=target.target_id, in_sync=sorted(figures.in_sync))
        logger.warning("%s has this master hand over to %s", caller.address, target.target_addr)
        began_s = time.monotonic()
        mastership.pause(f"{SWITCHOVER} {target.target_addr} becomes master; send again in a moment")
        try:
            async with asyncio.timeout(target.timeout_ms / 1000):
                # All of the in-sync set, since senders wait for all of them.
                in_sync = frozenset() if figures is None else figures.in_sync - {self._control.member_id}
                for member in {target.target_id} | in_sync:
                    await self._replication.wait_confirmed(member, self._store.max_physical_offset)
            await self._peers.promote(target.target_addr, mastership.epoch + 1)
        except (TimeoutError, BrokerError) as error:
            mastership.resume()
            why = str(error) or f"it does not have the whole log after {target.timeout_ms} ms"
            raise Refused(refusals.SWITCHOVER_FAILED, target=target.target_addr, why=why) from None
        except MQError as error:  # it may have got the request
            logger.error("switchover: %s did not answer: %s", target.target_addr, error)
        if self._election is not None:
            # The election continues without this service, which ends; the operator sees the new master.
            if not await self._election.hand_over(target.timeout_ms / 1000):
                mastership.resume()
                raise Refused(refusals.SWITCHOVER_WITHOUT_ELECTION)
            return mastership.epoch + 1, 0
        status = await self._wait_master(target, mastership.epoch)
        pause_ms = round((time.monotonic() - began_s) * 1000)
        ha_address = self._master_address(status.ha_address)
        change = self._control.become_slave(status.epoch, target.broker_id, ha_address, reason=SwitchReason.SWITCHOVER)
        self._control.in_background(change)
        return status.epoch, pause_ms

    async def _wait_master(self, target: SwitchOver, own_epoch: int) -> HaStatus:
        deadline_s = time.monotonic() + target.timeout_ms / 1000
        while time.monotonic() < deadline_s:
            try:
                status = await self._peers.status(target.target_addr)
                if status.epoch > own_epoch and status.is_accepting:
                    return status
            except MQError:  # it restarts
                pass
            await asyncio.sleep(POLL_S)
        raise Refused(refusals.SWITCHOVER_UNKNOWN, target=target.target_addr)

    def _master_address(self, ha_address: str) -> str:
        """The HA address to follow: empty if the name servers have it."""
        return "" if self._config.namesrv_addresses else ha_address or self._config.ha_master_address

    def _age_s(self, physical_offset: int) -> float | None:
        """Return the age of the first whole message from a physical offset on, in seconds.

        It is 0 at the end of the log, and None within its last record.
        """
        store = self._store
        if physical_offset >= store.max_physical_offset:
            return 0
        record = store.record_at(store.next_record(max(physical_offset, store.min_physical_offset)))
        return None if record is None else max(0, self._clock() - peek(record).store_timestamp) / 1000

    async def _count(self, physical_offset: int) -> int:
        """Return the number of messages from a physical offset on, up to MAX_COUNTED.

        A message that begins before the offset counts as well.
        """
        count = 0
        if (held := self._store.hold_bytes(physical_offset, FRAME.size)) is not None:
            with held:
                is_blank = len(held) == FRAME.size and FRAME.unpack(held.view)[1] == BLANK_MAGIC
            begin = physical_offset if is_blank else self._store.next_record(physical_offset)
            count, physical_offset = int(begin > physical_offset), begin
        while count < MAX_COUNTED and (held := self._store.hold_bytes(physical_offset, FRAME.size)) is not None:
            with held:
                if len(held) < FRAME.size:
                    break
                size, magic = FRAME.unpack(held.view)
            if size <= 0:
                break
            count += magic == MESSAGE_MAGIC
            physical_offset += size
            if count % COUNTED_PER_ITERATION == 0:
                await asyncio.sleep(0)
        return count
