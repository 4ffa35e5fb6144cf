"""Wall clocks that jump: elections and guarantees do not depend on them."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.client import Producer
from rucola.store.tools.check import check
from support.elected_group import ElectedGroup, logs_are_equal
from support.etcd import EtcdServer
from support.faketime import WallClock
from support.send_ledger import SendLedger
from support.waiting import until

pytestmark = pytest.mark.slow

HOUR_S = 3600
RENEWALS_S = 5.0
"""A right to acknowledge that began before a jump has ended so much later."""
SETTLE_S = 120.0


async def test_jumps_of_the_wall_clock_change_no_role_and_lose_nothing(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with ExitStack() as stack:
        clocks = {number: WallClock(tmp_path / f"clock-{number}") for number in (1, 2)}
        environments = {number: clock.environment for number, clock in clocks.items()}
        group = await asyncio.to_thread(
            lambda: ElectedGroup(tmp_path, stack, own_etcd, environments=environments)
        )  # fmt: skip
        await group.create_topic()
        await until(group.all_in_sync, SETTLE_S)
        first = await group.master()
        (slave,) = group.brokers.keys() - {first}
        ledger = SendLedger()
        async with Producer("p", group.namesrv, retry_times=0) as producer:
            await ledger.until_ok(producer, SETTLE_S)
            for number, seconds in ((first, HOUR_S), (first, -HOUR_S), (slave, HOUR_S), (slave, -HOUR_S)):
                clocks[number].jump(seconds)
                end_s = asyncio.get_running_loop().time() + RENEWALS_S
                while ledger.acknowledged[-1].begin_s < end_s:
                    await ledger.send(producer)
                    await asyncio.sleep(0.01)
                assert await group.master() == first
            assert "elected master" not in group.log(slave)
            # An hour apart from each other, the slave takes over, and the old master follows.
            clocks[first].jump(HOUR_S)
            await asyncio.to_thread(group.kill, first)

            async def is_slave_master() -> bool:
                return await group.master() == slave

            await until(is_slave_master, SETTLE_S)
            await asyncio.to_thread(group.start, first)
            await until(group.all_in_sync, SETTLE_S)
            await ledger.until_ok(producer, SETTLE_S)
            await ledger.check(group.namesrv)
        for number in (slave, first):
            assert await asyncio.to_thread(group.brokers[number].stop) == 0
        for number in group.brokers:
            assert check(group.directory(number)) == []
        assert logs_are_equal(group)
