"""Promotion, switchover and demotion by an operator: refused if messages would be lost, and nothing lost otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.broker.broker import wall_clock_ms
from rucola.client import Producer, SendStatus
from rucola.errors import ConfigError
from rucola.message import Message
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from support.cluster import Cluster
from support.replication import follows, pair, send

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}


async def stored(path: Path) -> set[bytes]:
    with StoreReader(path) as reader:
        return {message.body for message in reader.walk() if message.topic == "T"}


async def send_until(running: Cluster, is_over: asyncio.Event) -> tuple[list[bytes], list[SendStatus]]:
    """Send one message after another; none may fail. The bodies, and the statuses."""
    bodies, statuses = list[bytes](), list[SendStatus]()
    async with Producer("p", running.namesrv) as producer:
        while not is_over.is_set():
            body = b"%d" % len(bodies)
            statuses.append((await producer.send(Message("T", body), timeout_ms=30_000)).status)
            bodies.append(body)
    return bodies, statuses


@pytest.mark.slow
async def test_a_planned_switchover_fails_no_send(tmp_path: Path) -> None:
    """There and back, while four producers send all the time."""
    async with pair(tmp_path, SYNC) as (running, first, second), AdminClient(running.namesrv) as admin:
        await follows(first, second)
        is_over = asyncio.Event()
        sending = [asyncio.create_task(send_until(running, is_over)) for _ in range(4)]
        for number, (old, new) in enumerate([(first, second), (second, first)], 2):
            await follows(old, new)
            began_ms = wall_clock_ms()
            epoch, pause_ms = await admin.roles.switch_over(new.address)
            assert epoch == number
            assert pause_ms > 0
            await follows(new, old)
            assert (new.config.broker_id, old.config.broker_id) == (0, 1)
            for status in (await admin.roles.group(new.address)).values():
                assert (status.switch_reason, status.switched_ms > began_ms) == ("switchover", True)
        is_over.set()
        results = await asyncio.gather(*sending)
        await follows(first, second)
        status = await admin.roles.status(first.address)
        assert (status.role, status.epoch, status.is_accepting, status.unreplicated_bytes) == (
            "SYNC_MASTER",
            3,
            True,
            0,
        )
    assert all(bodies for bodies, _ in results)
    assert {body for bodies, _ in results for body in bodies} <= await stored(tmp_path / "broker-a")


@pytest.mark.slow
async def test_a_switchover_to_a_slave_that_is_gone_leaves_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, first, second), AdminClient(running.namesrv) as admin:
        await follows(first, second)
        with pytest.raises(ConfigError, match="is no slave; name the slave"):
            await admin.roles.switch_over(first.address)
        address = second.address
        await second.stop()
        with pytest.raises(Exception, match=r"cannot connect|closed"):
            await admin.roles.switch_over(address)
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await second.start()
        await follows(first, second)


async def test_promotion_says_what_it_would_lose(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, first, second), AdminClient(running.namesrv) as admin:
        await send(running, 5)
        await follows(first, second)
        with pytest.raises(ConfigError, match=r"is master already, in epoch 1"):
            await admin.roles.promote(first.address)
        with pytest.raises(ConfigError, match=f"{first.address} is master and runs: `rucola admin switchover"):
            await admin.roles.promote(second.address)
        shared = first.role.position().end
        await second.stop()
        await send(running, 3)
        lost = first.role.position().end - shared
        address = first.address
        await first.stop()
        await second.start()
        with pytest.raises(ConfigError, match="its master was an ASYNC_MASTER, and cannot be asked"):
            await admin.roles.promote(second.address)
        assert await admin.roles.promote(second.address, force=True) == 2
        assert set(await send(running, 2)) == {SendStatus.SEND_OK}
        # The old master returns: it is fenced, and gives up what it alone has only if it is forced to.
        await first.start()
        assert (await admin.roles.status(address)).fenced_by == 2
        with pytest.raises(ConfigError, match=f"{address} has 3 messages, {lost} bytes, more than {second.address}"):
            await admin.roles.demote(address)
        await admin.roles.demote(address, force=True)
        await follows(second, first)
        (kept,) = (tmp_path / "broker-a" / "diverged").iterdir()
        assert len(await stored(kept)) == 3


@pytest.mark.slow
async def test_a_fenced_master_may_be_promoted_again(tmp_path: Path) -> None:
    """The operator decides for the old master; the other one gives way, and follows when it is told to."""
    async with pair(tmp_path) as (running, first, second), AdminClient(running.namesrv) as admin:
        await send(running, 5)
        await follows(first, second)
        await second.role.become_master(2, None)
        await first.stop()
        await first.start()
        await send(running, 2)
        with pytest.raises(ConfigError, match=r"has 2 messages, [0-9]+ bytes, more"):
            await admin.roles.promote(first.address)
        assert await admin.roles.promote(first.address, force=True) == 3
        assert set(await send(running, 2)) == {SendStatus.SEND_OK}
        await follows(first, second)
