"""RoleAdmin: the roles of the brokers of one name: their state, promotion, planned switchover, demotion.

Without `force`, a change that would lose messages is refused with a ConfigError that says how many. Consumers do not
get lost messages, but they stay readable on the broker's disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.requests import AdminRequests, gather_fail_fast
from rucola.domain.role import ELECTED, HaStatus
from rucola.epochs import Epoch, divergence
from rucola.errors import ConfigError, MQError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.roles import (
    DemoteBrokerRequestHeader,
    HaStatusRequestHeader,
    PromoteBrokerRequestHeader,
    RoleChangeResponseHeader,
    SwitchOverRequestHeader,
)

POLL_S = 0.1
WAIT_S = 30
"""How long a change of the role may take; reading a large log after a crash is the slowest."""
SLAVE = "SLAVE"
MAX_LAG = 1 << 20
"""Lag in bytes up to which a slave counts as a copy, under load."""


class RoleAdmin:
    def __init__(self, requests: AdminRequests, cluster: ClusterAdmin) -> None:
        self._requests = requests
        self._cluster = cluster

    async def status(self, address: str, count_from: int | None = None) -> HaStatus:
        """Return role, epochs and replication of a broker. BrokerError if it is Apache's."""
        response = await self._requests.invoke(
            address, RequestCode.GET_HA_STATUS, HaStatusRequestHeader(count_from=count_from)
        )
        return decode_body(HaStatus, response.body)

    async def statuses(self, addresses: Sequence[str]) -> tuple[dict[str, HaStatus], dict[str, MQError]]:
        """Return the states of brokers, and the errors of those that do not respond, by address."""

        async def ask(address: str) -> HaStatus | MQError:
            try:
                return await self.status(address)
            except MQError as error:
                return error

        asked = dict(zip(addresses, await gather_fail_fast(map(ask, addresses)), strict=True))
        return (
            {address: status for address, status in asked.items() if isinstance(status, HaStatus)},
            {address: error for address, error in asked.items() if isinstance(error, MQError)},
        )

    async def group(self, address: str) -> dict[str, HaStatus]:
        """Return the state of every responding broker with the name of the one at `address`, by address."""
        return (await self._group(address))[0]

    async def _group(self, address: str) -> tuple[dict[str, HaStatus], dict[str, MQError]]:
        """Return the same, with the broker at `address` first, and the errors of those that do not respond."""
        own = await self.status(address)
        data = (await self._cluster.info()).broker_addr_table.get(own.broker_name)
        others = sorted({*data.broker_addrs.values()} - {address} if data is not None else set[str]())
        found, failures = await self.statuses(others)
        return {address: own, **found}, failures

    async def _changeable_group(
        self, address: str, *, or_elected: bool = False
    ) -> tuple[HaStatus, dict[str, HaStatus], list[str]]:
        """Return the states of a broker and its group, and missing ones. ConfigError if elected."""
        group, failures = await self._group(address)
        own = group.pop(address)
        if own.is_elected and not or_elected:
            raise ConfigError(ELECTED)
        return own, group, [*failures]

    async def promote(self, address: str, *, force: bool = False) -> int:
        """Make a slave, or a fenced master, the master; return the epoch. ConfigError if messages would be lost.

        Without `force` no other master may run, and no other slave may have more messages; with it a running master is
        demoted.
        """
        own, group, silent = await self._changeable_group(address)
        if own.role != SLAVE and own.is_accepting:
            raise ConfigError(f"{address} is master already, in epoch {own.epoch}", subject=address)
        masters = {other: status for other, status in group.items() if status.role != SLAVE and not status.fenced_by}
        reasons = [await self._excess(other, status, own) for other, status in group.items()]
        if masters:
            running = ", ".join(masters)
            reasons.append(f"{running} is master and runs: `rucola admin switchover -b {address}` loses nothing")
        elif own.is_following:
            named = f" ({', '.join(silent)} does not answer)" if silent else ""
            reasons.append(
                f"{address} is connected to its master{named}, which may go on to accept messages: end that process "
                "first"
            )
        elif own.role == SLAVE and own.master_role == "ASYNC_MASTER":
            reasons.append(
                "its master was an ASYNC_MASTER, and cannot be asked: what it had not replicated yet is set aside when "
                "it returns"
            )
        if reasons := [reason for reason in reasons if reason]:
            self._refuse("promoting", address, reasons, force=force)
        for master, free_id in zip(masters, _free_ids(own, *group.values()), strict=False):
            await self._demote(master, free_id)
        newest = max([own.epoch, own.fenced_by, *[status.epoch for status in group.values()]])
        header = PromoteBrokerRequestHeader(epoch=newest + 1, force=force)
        response = await self._requests.invoke(address, RequestCode.PROMOTE_BROKER, header)
        epoch = response.decode_header(RoleChangeResponseHeader).epoch
        await self._wait(address, lambda status: status.is_accepting and status.epoch == epoch)
        return epoch

    async def switch_over(self, address: str, *, timeout_ms: int = 10_000) -> tuple[int, int]:
        """Have the master hand over to the slave at `address`; return the epoch and the pause in milliseconds.

        If BrokerError is raised, it stays master; in an elected group, ConfigError may name another new master.
        """
        own, group, silent = await self._changeable_group(address, or_elected=True)
        if own.role != SLAVE:
            raise ConfigError(f"{address} is no slave; name the slave that shall become master", subject=address)
        masters = [other for other, status in group.items() if status.role != SLAVE and status.is_accepting]
        if len(masters) != 1:
            found = ", ".join(masters) or "none" + (f"; {', '.join(silent)} does not answer" if silent else "")
            raise ConfigError(
                f"a switchover needs one running master; found: {found}. See `rucola admin promote`", address
            )
        free_id = next(_free_ids(own, *group.values()))
        header = SwitchOverRequestHeader(
            target_addr=address, target_id=own.broker_id, broker_id=free_id, timeout_ms=timeout_ms
        )
        began_s = time.monotonic()
        response = await self._requests.invoke(masters[0], RequestCode.SWITCH_OVER, header, extra_ms=2 * timeout_ms)
        result = response.decode_header(RoleChangeResponseHeader)
        if own.is_elected:
            status = await self._wait(
                address, lambda status: status.epoch >= result.epoch and (status.is_accepting or status.is_following)
            )
            if not status.is_accepting:
                raise ConfigError(
                    f"{address} was too slow, and another broker was elected master in epoch {status.epoch}; "
                    "`rucola admin haStatus` shows which",
                    subject=address,
                )
            result.pause_ms = round((time.monotonic() - began_s) * 1000)
        await self._wait(masters[0], lambda status: status.is_following)
        return result.epoch, result.pause_ms

    async def stop_risks(self, address: str) -> list[str]:
        """Return why the broker at `address` should not be stopped now, or an empty list.

        Its group must continue to acknowledge messages, with another copy of each if it waits for copies, and no broker
        of the group may be missing or catching up.
        """
        group, failures = await self._group(address)
        risks = [f"{one} does not answer: {error}" for one, error in failures.items()]
        own = group[address]
        masters = {one: status for one, status in group.items() if status.role != SLAVE and status.is_accepting}
        if len(masters) != 1:
            return [*risks, f"the group has {len(masters)} masters that accept messages"]
        ((at, master),) = masters.items()
        if at == address:
            risks.append("it is the master: `rucola admin switchover` to one of its slaves first")
        copies = 0
        for slave in master.slaves:
            if slave.lag_bytes > MAX_LAG or slave.in_sync is False:
                risks.append(f"slave {slave.broker_id} at {slave.address} lags by {slave.lag_bytes} bytes")
            elif slave.address != address:
                copies += 1
        known = {slave.address for slave in master.slaves}
        risks += [f"{one} does not follow {at}" for one in group if one != at and one not in known]
        if not copies and at != address and master.role == "SYNC_MASTER":
            risks.append("the master has no other slave: sends are answered SLAVE_NOT_AVAILABLE until this one is back")
        if own.election is not None:
            if missing := sorted({*own.election.in_sync} - {*own.election.members}):
                risks.append(f"members {missing} of the in-sync set do not run")
            if own.election.is_etcd_away:
                risks.append("etcd does not answer, so that no other master could be elected")
        return risks

    async def demote(self, address: str, *, force: bool = False) -> None:
        """Make a broker slave of the master, detaching its excess log. ConfigError if messages would be lost."""
        own, group, _ = await self._changeable_group(address)
        if own.is_accepting:
            self._refuse("demoting", address, ["it is the master: no broker would accept messages"], force=force)
        masters = {other: status for other, status in group.items() if status.role != SLAVE and status.is_accepting}
        for other, master in masters.items():
            if excess := await self._excess(address, own, master):
                self._refuse("demoting", address, [f"{excess} than {other}; they are set aside"], force=force)
        await self._demote(address, next(_free_ids(own, *group.values())))
        if masters:
            await self._wait(address, lambda status: status.is_following)

    async def _demote(self, address: str, broker_id: int) -> None:
        header = DemoteBrokerRequestHeader(broker_id=broker_id)
        await self._requests.invoke(address, RequestCode.DEMOTE_BROKER, header)
        await self._wait(address, lambda status: status.role == SLAVE)

    async def _excess(self, address: str, status: HaStatus, other: HaStatus) -> str:
        point = divergence(_epochs(status), status.end, _epochs(other), other.end)
        if point >= status.end:
            return ""
        count = (await self.status(address, point)).messages
        return f"{address} has {count} messages, {status.end - point} bytes, more"

    def _refuse(self, doing: str, address: str, reasons: list[str], *, force: bool) -> None:
        if not force:
            raise ConfigError(
                f"{doing} {address} may lose messages: {'; '.join(reasons)}. --force does it anyway", subject=address
            )

    async def _wait(self, address: str, condition: Callable[[HaStatus], bool]) -> HaStatus:
        """Wait until a restarting broker is in a state, and return it. ConfigError after WAIT_S."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        if condition(status := await self.status(address)):
                            return status
                    except MQError:  # it restarts
                        pass
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ConfigError(f"{address} has not changed its role after {WAIT_S} s; its log says why") from None


def _free_ids(*group: HaStatus) -> Iterator[int]:
    """Return the brokerIds above 0 of no broker of the group, nor of a slave that one of them has had as master."""
    used: set[int | None] = {slave.broker_id for status in group for slave in status.slaves}
    for status in group:
        used |= {status.member_id, status.broker_id, *status.slave_ids}
    return (number for number in count(1) if number not in used)


def _epochs(status: HaStatus) -> list[Epoch]:
    return [Epoch(*epoch) for epoch in status.epochs]
