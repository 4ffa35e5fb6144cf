"""Promotion, switchover and demotion by an operator: refused if messages would be lost, and nothing lost otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.broker.broker import wall_clock_ms
from rucola.client import Producer, SendStatus
from rucola.errors import ConfigError, MQError
from rucola.message import Message
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.check import check
from support.cluster import HOST, Cluster, cluster
from support.errors import raises
from support.replication import follows, pair, send
from support.waiting import until

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
        for number, (old, new, own_id) in enumerate([(first, second, 2), (second, first, 1)], 2):
            await follows(old, new)
            began_ms = wall_clock_ms()
            epoch, pause_ms = await admin.roles.switch_over(new.address)
            assert epoch == number
            assert pause_ms > 0
            await follows(new, old)
            assert (new.config.broker_id, old.config.broker_id) == (0, own_id)
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


async def test_no_two_slaves_ever_have_the_same_id(tmp_path: Path) -> None:
    """Not even when one of three masters after the other has become a slave, and processes have begun anew."""
    async with asyncio.timeout(120), cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        brokers = [await running.start_broker(store=SYNC)]
        await running.create_topic(brokers[0], "T")
        for number in (1, 2):
            brokers.append(
                await running.start_broker(
                    store={"broker_role": BrokerRole.SLAVE}, directory=str(number), broker_id=number
                )
            )

        async def begin_anew(number: int) -> None:
            """Start a stopped broker in another process."""
            old = brokers[number]
            brokers[number] = await running.start_broker(
                port=old.config.listen_port, broker_id=number, directory=str(number) if number else None,
                store={"broker_role": BrokerRole.SLAVE} if number else SYNC,
            )  # fmt: skip

        async def ids() -> dict[int, list[int]]:
            """The ids of the slaves that are connected to each master, whose log they have."""
            group = await admin.roles.group(brokers[0].address)
            return {
                number: sorted(slave.broker_id or 0 for slave in group[broker.address].slaves if not slave.lag_bytes)
                for number, broker in enumerate(brokers)
                if broker.address in group and group[broker.address].is_accepting
            }

        async def are(master: int, *expected: int) -> None:
            async def is_so() -> bool:
                return await ids() == {master: [*expected]}

            await until(is_so, 30)

        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await are(0, 1, 2)
        # 1. The first becomes slave of the second, and keeps its new id over a restart.
        await admin.roles.switch_over(brokers[1].address)
        await are(1, 2, 3)
        await brokers[0].stop()
        await begin_anew(0)
        assert brokers[0].config.broker_id == 3
        await are(1, 2, 3)
        # 2. The second ends, the third is promoted, and the second follows it: its own id was not given away.
        await brokers[1].stop()
        await admin.roles.promote(brokers[2].address)
        await begin_anew(1)
        await admin.roles.demote(brokers[1].address)
        await are(2, 1, 3)
        # 3. Back to the first.
        await admin.roles.switch_over(brokers[0].address)
        await are(0, 1, 2)
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await are(0, 1, 2)
    assert check(tmp_path / "broker-a") == check(tmp_path / "1") == check(tmp_path / "2") == []


async def test_the_id_of_a_slave_that_is_down_is_not_given_away(tmp_path: Path) -> None:
    """No other broker knows it, the name server has forgotten it, and the master is another process."""
    async with asyncio.timeout(60), cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        slave = {"broker_role": BrokerRole.SLAVE}
        master = await running.start_broker(store=SYNC)
        first = await running.start_broker(store=slave, directory="1", broker_id=1)
        await until(lambda: master.role.slave_ids == {1})
        await first.stop()
        await master.stop()
        master = await running.start_broker(store=SYNC, port=master.config.listen_port)
        second = await running.start_broker(store=slave, directory="2", broker_id=2)
        await until(lambda: master.role.slave_ids == {1, 2})
        await follows(master, second)
        await admin.roles.switch_over(second.address)
        assert master.config.broker_id == 3
        await running.start_broker(store=slave, directory="1", broker_id=1)

        async def are_both_there() -> bool:
            slaves = (await admin.roles.status(second.address)).slaves
            return {each.broker_id for each in slaves} == {1, 3}

        await until(are_both_there)
    assert check(tmp_path / "broker-a") == check(tmp_path / "1") == check(tmp_path / "2") == []


@pytest.mark.slow
async def test_a_switchover_to_a_slave_that_is_gone_leaves_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, first, second), AdminClient(running.namesrv) as admin:
        await follows(first, second)
        with raises(ConfigError, subject=first.address):
            await admin.roles.switch_over(first.address)
        address = second.address
        await second.stop()
        with pytest.raises(MQError):
            await admin.roles.switch_over(address)
        assert set(await send(running, 3)) == {SendStatus.SEND_OK}
        await second.start()
        await follows(first, second)


async def test_a_master_that_hangs_is_not_taken_for_one_that_could_hand_over(tmp_path: Path) -> None:
    """Its connection to the slave is open, and it answers nothing."""
    async with cluster(tmp_path) as running, AdminClient(running.namesrv, timeout_ms=4000) as admin:
        master, way = await running.start_broker_behind_proxy(store=SYNC, broker_ip2=HOST)
        slave = await running.start_slave()
        async with Producer("p", running.namesrv) as producer:
            await until(lambda: bool(master.role.in_sync()))
            await producer.send(Message("TBW102", b"m"))
        await follows(master, slave)
        way.freeze()
        for change in (admin.roles.promote, admin.roles.switch_over):
            with raises(ConfigError, subject=slave.address) as refused:
                await change(slave.address)
            assert "switchover -b" not in str(refused.value)
        assert (await admin.roles.status(slave.address)).role == "SLAVE"
        assert await admin.roles.promote(slave.address, force=True) == 2
    assert check(tmp_path / "broker-a") == check(tmp_path / "slave") == []


@pytest.mark.slow
async def test_a_fenced_master_may_be_promoted_again(tmp_path: Path) -> None:
    """The operator decides for the old master; the other one gives way, and follows when it is told to."""
    async with pair(tmp_path, messages=5) as (running, first, second), AdminClient(running.namesrv) as admin:
        await second.role.become_master(2, None)
        await first.stop()
        await first.start()
        await send(running, 2)
        with raises(ConfigError, subject=first.address):
            await admin.roles.promote(first.address)
        assert await admin.roles.promote(first.address, force=True) == 3
        assert set(await send(running, 2)) == {SendStatus.SEND_OK}
        await follows(first, second)
