"""Disks that are full, gone or replaced while a group is elected: nothing that was acknowledged is lost with them.

    fault                                           effect
    the disk of the slave is full                   it leaves the in-sync set, and follows again when there is space
    the disk of the master is full                  sends are refused, its role stays
    the disk of the master breaks                   it hands over to the slave, and ends
    a member comes back with an empty directory     it is not elected before it has everything
    ... the only member of the in-sync set does     a broker outside the set is elected, which has more
    ... or without its log, which had another disk  the same, also if it was stopped in order
    etcd comes back with an empty directory         the master writes the state again
    ... while there is no master                    none is elected until an operator names the founder

Ledgers and polls are compared after each fault (`support.election_trial`).
"""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from support.election_trial import SETTLE_S, Trial
from support.etcd import EtcdServer
from support.partitioned_group import LONGER_S, Ways, partitioned_group
from support.waiting import until

pytestmark = pytest.mark.slow

LESS_THAN_A_FILE = 60_000
"""Bytes to which the files of a full disk are limited: fewer than those of the log have."""


class DiskTrial(Trial):
    """Faults of the disks of a group of two."""

    ways: Ways
    etcd: EtcdServer

    @contextmanager
    def full_disk(self, number: int) -> Iterator[None]:
        """Let a broker make no further file of the log."""
        pid = self.group.brokers[number].process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (LESS_THAN_A_FILE, before[1]))
        yield
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    async def disk_of_the_slave_is_full(self) -> None:
        first = await self.group.master()
        with self.full_disk(await self.other(first)):
            await self.in_sync_are(first)
            since_s = self.now_s()
            await self.is_stored_by(first)
            assert not self.acknowledged_since(since_s)
        assert await self.group.master() == first

    async def disk_of_the_master_is_full(self) -> None:
        first = await self.group.master()
        with self.full_disk(first):
            await until(self._is_full, SETTLE_S)
            refused = len(self.ledger.others)
            await until(lambda: len(self.ledger.others) > refused + 50, SETTLE_S)
            assert await self.group.master() == first

    def _is_full(self) -> bool:
        return any("the disk has no room" in why for _, why in self.ledger.others)

    async def disk_of_the_master_breaks(self) -> None:
        """No file can be opened where the log was: it hands over, and ends, since it cannot serve as slave either."""
        first = await self.group.master()
        log = self.group.directory(first) / "commitlog"
        shutil.rmtree(log)
        log.touch()
        await self.is_stored_by(await self.other(first))
        assert await asyncio.to_thread(self.group.brokers[first].process.wait, SETTLE_S) != 0
        shutil.rmtree(self.group.directory(first))
        await asyncio.to_thread(self.group.start, first)

    async def slave_comes_back_with_nothing(self) -> None:
        """It cannot copy the log, and is the only one: it waits for the master."""
        first = await self.group.master()
        second = await self.other(first)
        self.ways.replication[first].swallow()
        await self.wipe(second)
        await asyncio.to_thread(self.group.start, second)
        await asyncio.to_thread(self.group.kill, first)
        await until(lambda: "this broker is no candidate" in self.group.log(second) or self._lacks(second), SETTLE_S)
        assert "elected master" not in self.group.log(second)
        await asyncio.to_thread(self.group.start, first)
        await self.is_stored_by(first)
        assert "elected master" not in self.group.log(second)
        self.ways.heal()

    def _lacks(self, number: int) -> bool:
        return "and another one may have messages" in self.group.log(number)

    async def master_comes_back_with_nothing(self) -> None:
        first = await self.group.master()
        await self.wipe(first)
        await asyncio.to_thread(self.group.start, first)
        await self.is_stored_by(await self.other(first))

    async def master_that_was_alone_comes_back_with_nothing(self) -> None:
        """The slave had left the set, and what it has was acknowledged before."""
        first = await self.group.master()
        second = await self.other(first)
        await asyncio.to_thread(self.group.kill, second)
        await self.in_sync_are(first)
        await self.wipe(first)
        await asyncio.to_thread(self.group.start, first)
        await until(lambda: self._lacks(first), SETTLE_S)
        await asyncio.to_thread(self.group.start, second)
        await self.is_stored_by(second)

    async def master_that_was_alone_comes_back_without_its_log(self, *, is_stopped: bool) -> None:
        """What is on other disks is still there: the epochs, and the number that entitled it."""
        first = await self.group.master()
        second = await self.other(first)
        await asyncio.to_thread(self.group.kill, second)
        await self.in_sync_are(first)
        await asyncio.to_thread(self.group.brokers[first].stop if is_stopped else lambda: self.group.kill(first))
        for lost in ("commitlog", "consumequeue", "index"):  # as recovery advises for an empty store
            shutil.rmtree(self.group.directory(first) / lost)
        await asyncio.to_thread(self.group.start, first)
        await until(lambda: self._lacks(first), SETTLE_S)
        await asyncio.to_thread(self.group.start, second)
        await self.is_stored_by(second)

    async def wipe(self, number: int) -> None:
        """Kill a broker, and remove its store."""
        await asyncio.to_thread(self.group.kill, number)
        shutil.rmtree(self.group.directory(number))

    async def etcd_comes_back_with_nothing(self) -> None:
        first = await self.group.master()
        await self.lose_data_of_etcd()
        await asyncio.to_thread(self.etcd.start)
        await self.acknowledges(self.now_s() + LONGER_S)
        assert await self.group.master() == first

    async def etcd_is_replaced_by_an_empty_one(self, other: EtcdServer) -> None:
        """No request fails: it answers all the time, and knows nothing."""
        first = await self.group.master()
        for proxy in self.ways.etcd.values():
            proxy.target = other.endpoint.removeprefix("http://")
            proxy.cut()
        self.group.etcd = self.etcd = other
        await self.acknowledges(self.now_s() + LONGER_S)
        assert await self.group.master() == first

    async def etcd_comes_back_with_nothing_and_without_a_master(self) -> None:
        first = await self.group.master()
        second = await self.other(first)
        await self.lose_data_of_etcd()
        await asyncio.to_thread(self.group.kill, first)
        await asyncio.to_thread(self.etcd.start)
        await until(lambda: "its master restores it, or an operator" in self.group.log(second), SETTLE_S)
        # Neither takes over by a start: both have a log.
        await asyncio.to_thread(self.group.start, first)
        await until(lambda: "set etcdFounder=true on the broker whose log" in self.group.log(first), SETTLE_S)
        assert (await self.group.view()).state is None
        self.group.settings_of[second]["etcdFounder"] = "true"
        await asyncio.to_thread(self.group.brokers[second].stop)
        await asyncio.to_thread(self.group.start, second)
        await self.is_stored_by(second)

    async def lose_data_of_etcd(self) -> None:
        await asyncio.to_thread(self.etcd.kill)
        shutil.rmtree(self.etcd.directory / "data")


@asynccontextmanager
async def disk_trial(path: Path, etcd: EtcdServer) -> AsyncIterator[DiskTrial]:
    async with (
        partitioned_group(path, etcd, etcdMasterRole="SYNC_MASTER") as (group, ways),
        DiskTrial.of(group) as trial,
    ):
        trial.ways, trial.etcd = ways, etcd
        yield trial


async def test_full_and_lost_disks_lose_nothing(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async with disk_trial(tmp_path, own_etcd) as trial:
        await trial.undergo(
            trial.disk_of_the_slave_is_full,
            trial.disk_of_the_master_is_full,
            trial.disk_of_the_master_breaks,
        )


async def test_an_empty_log_is_never_that_of_the_master(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async with disk_trial(tmp_path, own_etcd) as trial:
        await trial.undergo(trial.slave_comes_back_with_nothing, trial.master_comes_back_with_nothing)
        # While it was alone, messages that it did not acknowledge could be polled, and are lost with its disk.
        await trial.undergo(
            trial.master_that_was_alone_comes_back_with_nothing,
            lambda: trial.master_that_was_alone_comes_back_without_its_log(is_stopped=True),
            lambda: trial.master_that_was_alone_comes_back_without_its_log(is_stopped=False),
            may_lose=True,
        )


async def test_an_etcd_without_data_changes_no_role(
    tmp_path: Path, own_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = EtcdServer(tmp_path_factory.mktemp("other-etcd"))
    try:
        async with disk_trial(tmp_path, own_etcd) as trial:
            await trial.undergo(
                trial.etcd_comes_back_with_nothing,
                trial.etcd_comes_back_with_nothing_and_without_a_master,
                lambda: trial.etcd_is_replaced_by_an_empty_one(other),
            )
    finally:
        other.stop()
