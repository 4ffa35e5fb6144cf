"""Members of a group of three that are cut off from everything: the majority goes on, and the others fall behind.

    cut off                                  effect
    one slave                                it leaves the in-sync set, and messages are acknowledged again
    both slaves                              messages are stored, and not acknowledged
    the master                               a slave takes over, with the other one
    one slave, and then the master dies      the other slave is elected, and not the one that lags

The network is described in `support.cables`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from support.cables import Cables, cables_of
from support.elected_group import ElectedGroup
from support.election_trial import Trial
from support.etcd import EtcdServer
from support.partitioned_group import FAST

pytestmark = pytest.mark.slow


class UnpluggedTrial(Trial):
    """Faults of the cables of a group of three. Each ends with all of them plugged."""

    cables: Cables

    def unplug(self, *numbers: int) -> None:
        for number in numbers:
            self.cables.unplug(number, self.group.brokers[number])

    def plug(self, *numbers: int) -> None:
        for number in numbers:
            self.cables.plug(number, self.group.brokers[number])

    async def roles(self) -> tuple[int, int, int]:
        """The master, and the slaves."""
        first = await self.group.master()
        second, third = sorted(self.group.ports.keys() - {first})
        return first, second, third

    async def one_slave_is_unplugged(self) -> None:
        first, second, third = await self.roles()
        self.unplug(third)
        await self.in_sync_are(first, second)
        await self.acknowledges(self.now_s())
        self.plug(third)
        assert await self.group.master() == first

    async def both_slaves_are_unplugged(self) -> None:
        first, *slaves = await self.roles()
        self.unplug(*slaves)
        since_s = self.now_s()
        await self.in_sync_are(first)
        await self.is_stored_by(first)
        assert not self.acknowledged_since(since_s)
        self.plug(*slaves)
        assert await self.group.master() == first

    async def master_is_unplugged(self) -> None:
        first, *slaves = await self.roles()
        self.unplug(first)
        await self.in_sync_are(*slaves)
        await self.acknowledges(self.now_s())
        assert await self.group.master() in slaves
        self.plug(first)

    async def master_is_killed_while_a_slave_is_unplugged(self) -> None:
        first, second, third = await self.roles()
        self.unplug(third)
        await self.in_sync_are(first, second)
        await self.acknowledges(self.now_s())
        await asyncio.to_thread(self.group.kill, first)
        self.plug(third)
        await self.is_stored_by(second)
        await asyncio.to_thread(self.group.start, first)


async def test_the_majority_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        network = stack.enter_context(ExitStack())
        cables = await asyncio.to_thread(cables_of, network, (1, 2, 3))
        etcd = await asyncio.to_thread(EtcdServer, tmp_path / "etcd", cables.host)
        stack.callback(etcd.stop)
        processes = stack.enter_context(ExitStack())
        group = await asyncio.to_thread(
            lambda: ElectedGroup(tmp_path, processes, etcd, 3, host=cables.host, is_started=False, **FAST)
        )
        for number in group.ports:
            group.settings_of[number], group.programs[number] = cables.settings(number), cables.program(number)
            await asyncio.to_thread(group.start, number)
        trial = await stack.enter_async_context(UnpluggedTrial.of(group))
        trial.cables = cables
        await trial.undergo(
            trial.one_slave_is_unplugged,
            trial.both_slaves_are_unplugged,
            trial.master_is_unplugged,
            trial.master_is_killed_while_a_slave_is_unplugged,
        )
