"""Faults of the processes beside the master: the slave, the name server and etcd die, hang, or have a wrong clock.

    fault                                     effect
    the slave is killed, or hangs             it leaves the in-sync set, and messages are stored again
    the name server is killed, or hangs       none for clients that know the route
    its clock jumps                           none: it counts what it has seen by a clock that does not
    etcd hangs for longer than the lease      none: the slave promises; if it hangs as well, sends are refused

The master is the same all the time. A clock of etcd cannot be faked: its runtime asks the kernel, and no library.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import pytest

from support.elected_group import ElectedGroup
from support.election_trial import SETTLE_S, Trial
from support.etcd import EtcdServer
from support.faketime import WallClock
from support.partitioned_group import FAST, LONGER_S
from support.waiting import until

pytestmark = pytest.mark.slow

HOUR_S = 3600


class CompanionTrial(Trial):
    """Faults of a group of two. Each ends with every process running."""

    clock: WallClock
    """That of the name server."""

    async def slave_is_killed(self, first: int) -> None:
        slave = await self.other(first)
        await asyncio.to_thread(self.group.kill, slave)
        await self.in_sync_are(first)
        await self.is_stored_by(first)
        await asyncio.to_thread(self.group.start, slave)

    async def slave_hangs(self, first: int) -> None:
        slave = await self.other(first)
        self.group.signal(slave, signal.SIGSTOP)
        await self.in_sync_are(first)
        await self.is_stored_by(first)
        self.group.signal(slave, signal.SIGCONT)

    async def name_server_is_killed(self, first: int) -> None:
        server = self.group.machines.name_server
        server.process.kill()
        await asyncio.to_thread(server.process.wait)
        await self.acknowledges(self.now_s() + LONGER_S)
        await asyncio.to_thread(self.group.machines.start_name_server)
        assert await self.group.master() == first  # it has registered again, with its topics

    async def name_server_hangs(self, first: int) -> None:
        server = self.group.machines.name_server
        server.process.send_signal(signal.SIGSTOP)
        await self.acknowledges(self.now_s() + LONGER_S)
        server.process.send_signal(signal.SIGCONT)
        # It finds connections closed, forgets their brokers, and knows them again by their next registration.
        await self.acknowledges(self.now_s() + LONGER_S)
        assert await self.group.master() == first

    async def clock_of_name_server_jumps(self, first: int) -> None:
        for seconds in (HOUR_S, -HOUR_S):
            self.clock.jump(seconds)
            await self.acknowledges(self.now_s() + LONGER_S)
            assert await self.group.master() == first

    async def etcd_hangs(self, first: int) -> None:
        """Without the promise of the slave as well, the master accepts nothing."""
        slave = await self.other(first)
        self.group.etcd.signal(signal.SIGSTOP)
        await self.acknowledges(self.now_s() + LONGER_S)
        self.group.signal(slave, signal.SIGSTOP)
        await until(lambda: any("etcd does not answer" in why for _, why in self.ledger.others), SETTLE_S)
        self.group.signal(slave, signal.SIGCONT)
        await self.acknowledges(self.now_s())
        self.group.etcd.signal(signal.SIGCONT)
        await until(lambda: "coordination by etcd: works again" in self.group.log(first), SETTLE_S)


async def test_no_other_process_takes_a_message_with_it(tmp_path: Path, own_etcd: EtcdServer) -> None:
    clock = WallClock(tmp_path / "clock")
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        group = await asyncio.to_thread(
            lambda: ElectedGroup(tmp_path, processes, own_etcd, namesrv_environment=clock.environment, **FAST)
        )
        trial = await stack.enter_async_context(CompanionTrial.of(group))
        trial.clock = clock
        first = await group.master()
        for fault in (
            trial.slave_is_killed,
            trial.slave_hangs,
            trial.name_server_is_killed,
            trial.name_server_hangs,
            trial.clock_of_name_server_jumps,
            trial.etcd_hangs,
        ):
            await trial.undergo(partial(fault, first))
            state = (await group.view()).state
            assert state is not None
            assert (await group.master(), state.epoch) == (first, 1), "no election (apache/rocketmq#8380)"
