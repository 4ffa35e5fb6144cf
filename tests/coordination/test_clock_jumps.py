"""Wall clocks that jump: elections and guarantees do not depend on them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from rucola.client import Producer
from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.faketime import WallClock
from support.kernel_clock import IS_SUPPORTED, KernelClock
from support.send_ledger import SendLedger
from support.waiting import until

pytestmark = pytest.mark.slow

HOUR_S = 3600
RENEWALS_S = 5.0
"""A right to acknowledge that began before a jump has ended so much later."""
SETTLE_S = 120.0


async def goes_on(ledger: SendLedger, producer: Producer) -> None:
    """Send until a message is acknowledged by a right that began after now."""
    end_s = asyncio.get_running_loop().time() + RENEWALS_S
    while ledger.acknowledged[-1].begin_s < end_s:
        await ledger.send(producer)
        await asyncio.sleep(0.01)


async def takes_over(group: ElectedGroup, slave: int, ledger: SendLedger, producer: Producer) -> None:
    """Wait until a slave of two is master, start the other one again, and compare ledger and logs after both ended."""
    (first,) = group.brokers.keys() - {slave}

    async def is_slave_master() -> bool:
        return await group.master() == slave

    await until(is_slave_master, SETTLE_S)
    await asyncio.to_thread(group.start, first)
    await until(group.all_in_sync, SETTLE_S)
    await ledger.until_ok(producer, SETTLE_S)
    await ledger.check(group.namesrv)
    await group.stop()


async def test_jumps_of_a_brokers_clock_change_no_role_and_lose_nothing(tmp_path: Path, own_etcd: EtcdServer) -> None:
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
                await goes_on(ledger, producer)
                assert await group.master() == first
            assert "elected master" not in group.log(slave)
            # An hour apart from each other, the slave takes over, and the old master follows.
            clocks[first].jump(HOUR_S)
            await asyncio.to_thread(group.kill, first)
            await takes_over(group, slave, ledger, producer)


@pytest.mark.skipif(not IS_SUPPORTED, reason="the clock of etcd is changed by machine code for Linux on x86-64")
async def test_jumps_of_the_clock_of_etcd_change_no_role_and_lose_nothing(tmp_path: Path, own_etcd: EtcdServer) -> None:
    """libfaketime has no effect on it, as a program in Go."""
    with ExitStack() as stack:
        group = await asyncio.to_thread(lambda: ElectedGroup(tmp_path, stack, own_etcd))
        clock = await asyncio.to_thread(KernelClock, own_etcd.process)
        await group.create_topic()
        await until(group.all_in_sync, SETTLE_S)
        first = await group.master()
        (slave,) = group.brokers.keys() - {first}
        ledger = SendLedger()
        async with Producer("p", group.namesrv, retry_times=0) as producer:
            await ledger.until_ok(producer, SETTLE_S)
            for seconds in (HOUR_S, -HOUR_S, HOUR_S):
                clock.jump(seconds)
                await goes_on(ledger, producer)
                assert await group.master() == first
            assert "elected master" not in group.log(slave)
            # An etcd before 3.5 counts the end of a lease by the wall clock as well (etcd-io/etcd#12291): after a jump
            # back, that of a master that is gone ends when the clock is there again.
            await asyncio.to_thread(group.kill, first)
            clock.jump(0)
            clock.jump(HOUR_S)
            await takes_over(group, slave, ledger, producer)
        # That was its clock: the last line of its log is of an hour ago.
        clock.jump(-HOUR_S)
        own_etcd.signal(signal.SIGTERM)
        await asyncio.to_thread(own_etcd.process.wait)
        last = json.loads((own_etcd.directory / "log").read_text().splitlines()[-1])
        stamp_s = datetime.fromisoformat(last["ts"]).timestamp()
        assert abs(time.time() - HOUR_S - stamp_s) < HOUR_S / 2
