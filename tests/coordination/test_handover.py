"""Planned handovers and rolling restarts of a group whose master is elected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.admin import AdminClient, roles
from rucola.client import Producer, SendStatus
from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.send_ledger import SendLedger
from support.servers import run
from support.waiting import until

pytestmark = pytest.mark.slow

SETTLE_S = 120.0
PATIENT = {"etcdTtl": "8000", "etcdRetryTimeout": "3000"}
"""A busy machine may keep a member from an answer for longer than the default times."""


@pytest.fixture
async def group(tmp_path: Path, own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ElectedGroup]:
    monkeypatch.setattr(roles, "WAIT_S", SETTLE_S)
    with ExitStack() as stack:
        group = ElectedGroup(tmp_path, stack, own_etcd, 3, **PATIENT)
        await group.create_topic()
        yield group


async def send_on(ledger: SendLedger, producer: Producer) -> None:
    while True:
        await ledger.send(producer)
        await asyncio.sleep(0)


async def test_a_handover_answers_every_send(group: ElectedGroup) -> None:
    """Also if the slave that takes over has just started, and if it has promised not to stand a moment ago."""
    ledger = SendLedger()
    async with Producer("p", group.namesrv) as producer, AdminClient(group.namesrv) as admin:
        await until(group.all_in_sync, SETTLE_S)
        await ledger.until_ok(producer)
        before = len(ledger.others)

        sending = asyncio.create_task(send_on(ledger, producer))
        for epoch in (2, 3, 4):
            master = await group.master()
            target = min(group.brokers.keys() - {master})
            assert await asyncio.to_thread(group.brokers[target].stop) == 0
            await asyncio.to_thread(group.start, target)
            await until(group.all_in_sync, SETTLE_S)
            found, pause_ms = await admin.roles.switch_over(group.address(target))
            assert found == epoch
            assert pause_ms > 0
            assert await group.master() == target
            count = len(ledger.acknowledged) + 50
            await until(lambda count=count: len(ledger.acknowledged) >= count, SETTLE_S)
            await until(group.all_in_sync, SETTLE_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        refused = [each for each in ledger.others[before:] if each[1] not in SendStatus.__members__]
        assert refused == []
        await ledger.check(group.namesrv)
    await group.stop()


async def test_a_rolling_restart_by_the_book(group: ElectedGroup) -> None:
    """Each broker is stopped when the command says so, and its master hands over first; nothing else changes a role."""
    ledger = SendLedger()
    async with Producer("p", group.namesrv) as producer, AdminClient(group.namesrv) as admin:
        await until(group.all_in_sync, SETTLE_S)
        await ledger.until_ok(producer)
        first = await group.master()
        before = len(ledger.others)
        for command in (("promote",), ("promote", "--force"), ("demote", "--force")):
            address = group.address(min(group.brokers.keys() - {first}))
            refused = await asyncio.to_thread(run, "admin", *command, "-n", group.namesrv, "-b", address, "--yes")
            assert refused.returncode != 0
            assert re.findall("rucola admin [a-z]+", refused.stderr) == ["rucola admin switchover"], "one that works"

        async def is_safe(number: int) -> bool:
            return not await admin.roles.stop_risks(group.address(number))

        sending = asyncio.create_task(send_on(ledger, producer))
        slaves = sorted(group.brokers.keys() - {first})
        for number in (*slaves, first):
            await until(group.all_in_sync, SETTLE_S)
            if number == first:
                unsafe = len(ledger.others) - before
                assert not await is_safe(first), "it is the master"
                assert (await admin.roles.switch_over(group.address(slaves[0])))[1] > 0
                assert await group.master() == slaves[0], "the one that was named, and not only one of the set"
                await until(group.all_in_sync, SETTLE_S)
            await until(lambda number=number: is_safe(number), SETTLE_S)
            assert await asyncio.to_thread(group.brokers[number].stop) == 0
            count = len(ledger.acknowledged) + 50
            await until(lambda count=count: len(ledger.acknowledged) >= count, SETTLE_S)
            assert not await is_safe(slaves[0] if number != slaves[0] else slaves[1]), "another one is away"
            await asyncio.to_thread(group.start, number)
        await until(group.all_in_sync, SETTLE_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await ledger.check(group.namesrv)
        refused = [each for each in ledger.others[before:] if each[1] not in SendStatus.__members__]
        assert refused == []
        assert unsafe == 0, f"the restarts of slaves cost no guarantee: {ledger.others[before:][:unsafe]}"
        assert len(await admin.roles.stop_risks(group.address(await group.master()))) == 1
    await group.stop()
