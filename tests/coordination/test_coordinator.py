"""The coordinator with a real etcd whose answers are late: when a right to acknowledge begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from rucola.broker.role import LogPosition
from rucola.coordination.coordinator import Coordinator, PromiseResponse
from rucola.coordination.election import Bounds
from rucola.coordination.etcd import EtcdAccess, EtcdClient
from rucola.coordination.group_keys import GroupKeys, LeaderRecord, MemberRecord, StateRecord
from rucola.coordination.write_lease import WriteLease, boot_time_s
from rucola.errors import RemotingError
from support.etcd import EtcdServer
from support.proxy import Proxy
from support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

BOUNDS = Bounds(ttl_s=6, loop_wait_s=0.3, retry_timeout_s=2.5, in_sync_timeout_s=60)
LATE_S = 0.3
"""How late answers are, at least."""
FIRST = MemberRecord(1, "a:1", "a:2", 100, 10)
SECOND = MemberRecord(2, "b:1", "b:2", 100, 20)
STATE = StateRecord(3, 1, {1: 10, 2: 20})


class EmptyBroker:
    """A broker without messages, with slave 2 connected; it takes every role at once."""

    def position(self) -> LogPosition:
        return LogPosition(3, 0)

    def has_failed(self) -> bool:
        return False

    def may_grow(self) -> bool:
        return False

    def in_sync(self) -> Mapping[int, int]:
        return {2: 0}

    async def become_master(self, epoch: int, in_sync: frozenset[int]) -> None:
        pass

    async def become_slave(self, epoch: int, master_id: int, ha_address: str, address: str = "") -> None:
        pass

    async def stop_following(self) -> None:
        pass

    def set_in_sync(self, members: frozenset[int]) -> None:
        pass

    def disconnect_slave(self, member: int) -> None:
        pass


async def late_promise(address: str, epoch: int) -> PromiseResponse:
    await asyncio.sleep(LATE_S)  # the time that the answer takes is what is tested
    return PromiseResponse(address == SECOND.address, epoch)


async def extensions(lease: WriteLease, count: int) -> None:
    """Watch a right while it is extended so often: each time, it ends no later than the request allows."""
    before_s = lease.until_s

    def is_extended() -> bool:
        return lease.until_s > before_s

    for _ in range(count):
        await until(is_extended, DEADLINE_S)
        before_s = lease.until_s
        assert before_s <= boot_time_s() - LATE_S + BOUNDS.right_s


@dataclass
class Leading:
    """A coordinator that leads its group; etcd by its proxy, and by a client of the test."""

    keys: GroupKeys
    right: WriteLease
    proxy: Proxy
    client: EtcdClient
    lease: int
    """The lease of the members that the test has announced."""
    coordinator: Coordinator


@asynccontextmanager
async def leading(
    etcd: EtcdServer,
    name: str,
    members: Sequence[MemberRecord],
    broker: EmptyBroker,
    ask: Callable[[str, int], Awaitable[PromiseResponse]],
) -> AsyncIterator[Leading]:
    """Let broker 1 lead a group whose leader, itself, has just ended."""
    keys, right = GroupKeys("c", name), WriteLease()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(etcd.endpoint.removeprefix("http://")))
        client = await stack.enter_async_context(EtcdClient(EtcdAccess((etcd.endpoint,)), 20))
        lease, _ = await client.grant(60)
        for member in members:
            await client.transact(*keys.announcing(member, lease))
        ended, _ = await client.grant(60)
        await client.transact(*keys.leading(LeaderRecord(1, "a:1", "a:2"), ended, 0, STATE))
        await client.revoke(ended)
        access = EtcdAccess((f"http://{proxy.address}",))
        own = await stack.enter_async_context(EtcdClient(access, BOUNDS.retry_timeout_s))
        coordinator = Coordinator(keys, FIRST, BOUNDS, own, broker, ask, right)
        coordinator.start()
        stack.push_async_callback(coordinator.stop)
        await until(right.is_held, DEADLINE_S)
        yield Leading(keys, right, proxy, client, lease, coordinator)


async def test_a_right_counts_from_the_request_and_ends_before_the_lease(shared_etcd: EtcdServer) -> None:
    async with leading(shared_etcd, "late", (SECOND, FIRST), EmptyBroker(), late_promise) as group:
        keys, lease, proxy, client, coordinator = (
            group.keys, group.right, group.proxy, group.client, group.coordinator,
        )  # fmt: skip
        assert coordinator.figures().in_sync == {1, 2}
        proxy.delay_ms = LATE_S * 1000 / 2  # in each direction
        await until(
            lambda: lease.until_s < boot_time_s() - LATE_S + BOUNDS.right_s, DEADLINE_S
        )  # the last one that was not late
        await extensions(lease, 4)
        proxy.freeze()
        await until(lambda: coordinator.figures().is_promised, DEADLINE_S)
        await extensions(lease, 3)
        proxy.thaw()
        proxy.delay_ms = 0
        await until(lambda: not coordinator.figures().is_promised, DEADLINE_S)

        async def is_leader() -> bool:
            return keys.view(await client.range(keys.prefix)).leader is not None

        # A stop ends the right before etcd elects another one.
        await until(
            is_leader, DEADLINE_S
        )  # its lease may have ended while etcd was out of reach, and is reclaimed then
        assert lease.is_held()
        proxy.freeze()
        stopping = asyncio.create_task(coordinator.stop())
        await asyncio.sleep(0)
        assert not lease.is_held()
        assert await is_leader()
        proxy.thaw()
        await stopping
        assert not lease.is_held()
        assert keys.view(await client.range(keys.prefix)).leader is None


class AloneBroker(EmptyBroker):
    """The same without its slave."""

    def in_sync(self) -> Mapping[int, int]:
        return {}


async def no_promise(address: str, epoch: int) -> PromiseResponse:
    await asyncio.sleep(BOUNDS.retry_timeout_s)  # a machine that is off answers nothing
    raise RemotingError(f"{address} does not answer")


async def test_a_master_leads_again_after_etcd_was_away_longer_than_its_lease_and_the_slave_is_gone(
    shared_etcd: EtcdServer,
) -> None:
    async with leading(shared_etcd, "alone", (SECOND,), AloneBroker(), no_promise) as group:

        async def has_no_leader() -> bool:
            return group.keys.view(await group.client.range(group.keys.prefix)).leader is None

        await group.client.revoke(group.lease)
        group.proxy.swallow()
        await until(has_no_leader, DEADLINE_S)
        await until(lambda: not group.right.is_held(), DEADLINE_S)
        group.proxy.heal()
        await until(group.right.is_held, DEADLINE_S)
