"""What operators see of an elected group: haStatus with members that are dead, cut off, or left behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.admin import AdminClient
from rucola.cli.main import main
from rucola.domain.role import ElectionStatus, HaStatus
from rucola.errors import MQError
from rucola.store.tools.check import check
from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.partitioned_group import LEASE_S, partitioned_group
from support.waiting import until

pytestmark = pytest.mark.slow

SETTLE_S = 120.0


class Watch:
    """The state of all brokers, asked for one after the other, at the addresses without proxies."""

    def __init__(self, group: ElectedGroup, admin: AdminClient) -> None:
        self._group = group
        self._admin = admin
        self.rounds: list[frozenset[int]] = []
        """The brokers that accept, round by round."""

    async def status(self, number: int) -> HaStatus:
        return await self._admin.roles.status(self._group.direct_address(number))

    async def election(self, number: int) -> ElectionStatus:
        election = (await self.status(number)).election
        assert election is not None
        return election

    def in_two_rounds(self) -> list[frozenset[int]]:
        """The brokers that accept in a round and the next one, and so between them."""
        return [before & after for before, after in zip(self.rounds, self.rounds[1:], strict=False)]

    async def run(self) -> None:
        while True:
            accepting = set()
            for number in self._group.ports:
                with suppress(MQError):
                    accepting |= {number} if (await self.status(number)).is_accepting else set()
            self.rounds.append(frozenset(accepting))
            await asyncio.sleep(0.02)


async def test_a_group_is_shown_as_it_is(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async with (
        partitioned_group(tmp_path, own_etcd, 3) as (group, ways),
        AdminClient(group.namesrv, timeout_ms=20_000) as admin,
    ):
        await until(group.all_in_sync, SETTLE_S)
        watch = Watch(group, admin)
        watching = asyncio.create_task(watch.run())
        old = await group.master()
        new, left = sorted(group.ports.keys() - {old})
        await until(lambda: shows(watch, old, missing=[]), SETTLE_S)
        found = await asyncio.to_thread(ha_status, group, old, "--json")
        shown = json.loads(found)["brokers"][group.address(old)]
        state = (await group.view()).state
        assert state is not None
        epoch = state.epoch
        right_s = shown["election"].pop("rightSeconds")
        assert 0 < right_s <= LEASE_S
        assert shown["election"] == {
            "epoch": epoch, "inSync": [1, 2, 3], "members": [1, 2, 3], "missing": [], "isEtcdAway": False,
        }  # fmt: skip
        assert (shown["isAccepting"], shown["unreplicatedBytes"], shown["unreplicatedReason"]) == (True, 0, "")
        assert (await watch.status(new)).master_epoch == epoch
        assert (await watch.election(new)).right_seconds == 0

        # A member that is dead is missed at once, and stays in the set of etcd until etcdInSyncTimeout.
        await asyncio.to_thread(group.kill, left)
        await until(lambda: shows(watch, old, missing=[left]), SETTLE_S)
        await asyncio.to_thread(group.start, left)
        await until(group.all_in_sync, SETTLE_S)

        # The master and one slave are cut off together; the other slave is elected.
        for way in (ways.etcd[old], ways.etcd[left], ways.clients[new]):
            way.swallow()
        await until(lambda: accepts(watch, new), SETTLE_S)
        status = await watch.status(old)
        assert (status.role, status.is_accepting, bool(status.reason)) == ("SYNC_MASTER", False, True)
        assert (await watch.election(old)).right_seconds == 0
        assert (await watch.election(old)).is_etcd_away
        ways.clients[new].heal()
        behind = await watch.status(left)
        assert (behind.is_following, behind.master_epoch) == (True, epoch), "the connection to the old master goes on"
        table = await asyncio.to_thread(ha_status, group, new)
        assert f"in old epoch {epoch}" in table
        assert "follows" not in table
        ways.heal()
        await until(group.all_in_sync, SETTLE_S)
        await until(lambda: shows(watch, new, missing=[]), SETTLE_S)
        await until(lambda: {old, new} <= frozenset().union(*watch.in_two_rounds()), SETTLE_S)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert max(map(len, watch.in_two_rounds())) == 1
        for number in group.ports:
            assert await asyncio.to_thread(group.brokers[number].stop) == 0
            assert check(group.directory(number)) == []
            assert "rucola admin promote" not in group.log(number), "which is refused in this group"
        assert "fenced" in group.log(old)


async def shows(watch: Watch, number: int, *, missing: list[int]) -> bool:
    with suppress(MQError):  # it changes its role
        return (await watch.election(number)).missing == missing
    return False


async def accepts(watch: Watch, number: int) -> bool:
    with suppress(MQError):
        return (await watch.status(number)).is_accepting
    return False


def ha_status(group: ElectedGroup, number: int, *options: str) -> str:
    command = ["admin", "haStatus", "-n", group.namesrv, "-b", group.address(number), *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.stderr
    return result.stdout
