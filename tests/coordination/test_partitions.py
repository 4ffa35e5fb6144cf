"""Partitions of an elected group, one way after the other: what goes on, what stops, and what is never lost.

Every way between a broker, its slave, etcd, the name server and clients has a proxy, on which bytes vanish in one
direction or in both, are cut inside a frame, or are late. Ledgers and polls are compared after each fault
(`support.election_trial`).

    fault                                           effect
    the replication is cut, one way or both         SYNC_MASTER acknowledges nothing, and the slave leaves the set
    frames of any way end in the middle             none: they are sent again on another connection
    the master does not reach etcd, one way or both none: the slave promises
    the master reaches neither etcd nor its slave   the slave takes over; what an ASYNC_MASTER had acknowledged
                                                    meanwhile is set aside
    neither reaches etcd, and the connection for    none, but for a moment
    promises is half-open
    the slave does not reach etcd                   none
    clients do not hear from the master             their sends fail, or were stored
    the new master does not reach the name server   it serves those who know it; others wait for the route
    everything is late                              none
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.election_trial import SETTLE_S, Trial
from support.etcd import EtcdServer
from support.partitioned_group import LONGER_S, Ways, partitioned_group
from support.waiting import until

pytestmark = pytest.mark.slow

LATE_MS = 40.0


class PartitionTrial(Trial):
    """Faults on the ways of a group of two. Each leaves all ways healed."""

    ways: Ways

    async def replication_is_cut(self, *, reports: bool, log: bool, is_sync: bool) -> None:
        first, cut_s = await self.group.master(), self.now_s()
        self.ways.replication[first].swallow(requests=reports, responses=log)
        await self.in_sync_are(first)
        if is_sync:
            await self.is_stored_by(first)
            assert not self.acknowledged_since(cut_s), "no slave can have confirmed these"
        else:
            await self.acknowledges(self.now_s())
        self.ways.heal()
        assert await self.group.master() == first

    async def frames_are_cut(self) -> None:
        first = await self.group.master()
        for of_requests in (False, True):
            for way in (each[first] for each in vars(self.ways).values()):
                way.cut_inside(requests=of_requests)
                await way.has_cut()
                await self.acknowledges(self.now_s())
        assert await self.group.master() == first

    async def master_does_not_reach_etcd(self, *, requests: bool, responses: bool) -> None:
        first = await self.group.master()
        self.ways.etcd[first].swallow(requests=requests, responses=responses)
        await self.acknowledges(self.now_s() + LONGER_S)
        self.ways.heal()
        assert await self.group.master() == first

    async def connection_for_promises_is_half_open(self) -> None:
        first = await self.group.master()
        for proxy in self.ways.etcd.values():
            proxy.swallow()
        await self.acknowledges(self.now_s() + LONGER_S)
        self.ways.clients[await self.other(first)].half_open()
        await self.acknowledges(self.now_s() + LONGER_S)
        self.ways.heal()
        assert await self.group.master() == first

    async def master_is_alone(self) -> None:
        """apache/rocketmq#7017: with clients beside it, whose messages were lost when it followed the new master."""
        first = await self.group.master()
        second = await self.other(first)
        for way in (self.ways.etcd[first], self.ways.replication[first], self.ways.clients[second]):
            way.swallow()
        await self.is_stored_by(second)
        assert await self.group.master() == second
        beside = self.direct[first]
        acknowledged, refused = len(beside.acknowledged), len(beside.others)
        await until(lambda: len(beside.others) >= refused + 20, SETTLE_S)
        assert len(beside.acknowledged) == acknowledged, "it is not the master any more"
        self.ways.heal()

    async def slave_does_not_reach_etcd(self) -> None:
        first = await self.group.master()
        second = await self.other(first)
        self.ways.etcd[second].swallow()
        await self.acknowledges(self.now_s() + LONGER_S)
        await self.in_sync_are(first, second)
        self.ways.heal()
        assert await self.group.master() == first

    async def clients_do_not_hear_from_the_master(self) -> None:
        first, before = await self.group.master(), len(self.ledger.others)
        self.ways.clients[first].swallow(requests=False)
        await until(lambda: len(self.ledger.others) > before, SETTLE_S)
        self.ways.heal()
        assert await self.group.master() == first

    async def new_master_does_not_reach_the_name_server(self) -> None:
        first = await self.group.master()
        second = await self.other(first)
        self.ways.namesrv[second].swallow()
        await asyncio.to_thread(self.group.kill, first)
        killed_s = self.now_s()
        await self.is_stored_by(second)
        assert self.ledger.stored_s < killed_s, "no route has named a master since"
        self.ways.heal()
        await asyncio.to_thread(self.group.start, first)

    async def everything_is_late(self) -> None:
        first = await self.group.master()
        proxies = [proxy for each in vars(self.ways).values() for proxy in each.values()]
        for proxy in proxies:
            proxy.delay_ms = LATE_MS
        await self.acknowledges(self.now_s() + LONGER_S)
        for proxy in proxies:
            proxy.delay_ms = 0.0
        assert await self.group.master() == first


@asynccontextmanager
async def partitioned_trial(path: Path, etcd: EtcdServer, role: str) -> AsyncIterator[PartitionTrial]:
    async with (
        partitioned_group(path, etcd, etcdMasterRole=role) as (group, ways),
        PartitionTrial.of(group) as trial,
    ):
        trial.ways = ways
        yield trial


async def test_no_partition_loses_what_a_sync_master_has_acknowledged(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async with partitioned_trial(tmp_path, own_etcd, "SYNC_MASTER") as trial:
        await trial.undergo(
            lambda: trial.replication_is_cut(reports=True, log=False, is_sync=True),
            lambda: trial.replication_is_cut(reports=False, log=True, is_sync=True),
            lambda: trial.replication_is_cut(reports=True, log=True, is_sync=True),
            trial.frames_are_cut,
            trial.clients_do_not_hear_from_the_master,
            lambda: trial.master_does_not_reach_etcd(requests=True, responses=False),
            lambda: trial.master_does_not_reach_etcd(requests=False, responses=True),
            trial.connection_for_promises_is_half_open,
            trial.slave_does_not_reach_etcd,
            trial.master_is_alone,
            trial.new_master_does_not_reach_the_name_server,
            trial.everything_is_late,
        )


async def test_a_partition_loses_only_what_no_slave_of_an_async_master_had(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    async with partitioned_trial(tmp_path, own_etcd, "ASYNC_MASTER") as trial:
        await trial.undergo(
            lambda: trial.replication_is_cut(reports=True, log=True, is_sync=False),
            lambda: trial.master_does_not_reach_etcd(requests=True, responses=True),
        )
        await trial.undergo(trial.master_is_alone, may_lose=True)
