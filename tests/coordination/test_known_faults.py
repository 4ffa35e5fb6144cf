"""Situations in which elected groups of Apache RocketMQ 5 lost messages, or elected without need.

Those without a coordinator are in `tests/broker/test_known_faults.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from support.elected_group import ElectedGroup
from support.election_trial import SETTLE_S, Trial
from support.etcd import EtcdServer
from support.partitioned_group import FAST, partitioned_group
from support.waiting import until

pytestmark = pytest.mark.slow


async def test_an_isolated_master_loses_nothing_of_the_clients_beside_it(tmp_path: Path, own_etcd: EtcdServer) -> None:
    """apache/rocketmq#7017: the master is cut off with its clients, and two slaves, which elect one of them.

    Both accepted messages then, and those of the old master were lost when it followed the new one. Here it
    acknowledges none of them.
    """
    async with (
        partitioned_group(tmp_path, own_etcd, 3, etcdMasterRole="SYNC_MASTER") as (group, ways),
        Trial.of(group) as trial,
    ):
        first = await group.master()
        others = group.ports.keys() - {first}

        async def master_is_isolated() -> None:
            begin_s = asyncio.get_running_loop().time()
            for way in (
                ways.etcd[first], ways.namesrv[first], ways.replication[first],
                *(ways.clients[number] for number in others),
            ):  # fmt: skip
                way.swallow()
            await until(
                lambda: any(each.begin_s > begin_s for one in others for each in trial.direct[one].acknowledged),
                SETTLE_S,
            )
            acknowledged, refused = len(trial.direct[first].acknowledged), len(trial.direct[first].others)
            await until(lambda: len(trial.direct[first].others) >= refused + 20, SETTLE_S)
            assert len(trial.direct[first].acknowledged) == acknowledged, "it is not the master any more"
            ways.heal()

        await trial.undergo(master_is_isolated)
        assert await group.master() in others


async def test_lost_slaves_cause_no_election(tmp_path: Path, own_etcd: EtcdServer) -> None:
    """apache/rocketmq#8380: a slave without a heartbeat had the controller elect, although the master was alive."""
    with ExitStack() as stack:
        group = await asyncio.to_thread(lambda: ElectedGroup(tmp_path, stack, own_etcd, 3, **FAST))
        async with Trial.of(group) as trial, AdminClient(group.namesrv) as admin:
            first = await group.master()
            address = group.address(first)
            before = await admin.roles.status(address)
            remaining = {*group.ports}

            async def is_forgotten() -> bool:
                view = await group.view()
                assert view.state is not None
                return view.members.keys() == view.state.in_sync.keys() == remaining

            async def slaves_are_killed() -> None:
                for slave in sorted(remaining - {first}):
                    await asyncio.to_thread(group.kill, slave)
                    remaining.discard(slave)
                    await until(is_forgotten, SETTLE_S)
                    await trial.is_stored_by(first)
                for slave in group.ports.keys() - {first}:
                    await asyncio.to_thread(group.start, slave)

            await trial.undergo(slaves_are_killed)
            after = await admin.roles.status(address)
            assert (after.is_accepting, after.epoch) == (True, before.epoch)
            assert (after.switched_ms, after.role_since_ms) == (before.switched_ms, before.role_since_ms)
