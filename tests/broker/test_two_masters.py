"""Two masters of one name that no coordinator and no common name server keeps apart: what each of them does, and what
is detected once they, or the name servers, hear of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.protocol.codes import ResponseCode
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from support.cluster import HOST, Cluster
from support.replication import lone_master
from support.waiting import until

PERIOD_MS = 100


async def put(running: Cluster, broker: Broker, *bodies: bytes) -> list[int]:
    """Send to a broker, whatever the routes are; the codes of the answers."""
    return [(await running.peer(broker).send(body)).code for body in bodies]


async def slave_at(running: Cluster, master: Broker, namesrv: str, number: int) -> Broker:
    """A slave of a master, which knows one name server only."""
    known, running.namesrv = running.namesrv, namesrv
    slave = await running.start_broker(
        directory=f"slave-{number}",
        store={"broker_role": BrokerRole.SLAVE},
        broker_id=number,
        ha_master_address=f"{HOST}:{master.config.ha_listen_port}",
        register_name_server_period=PERIOD_MS,
    )
    running.namesrv = known
    await until(lambda: master.role.in_sync().get(number) == master.role.position().end)
    return slave


async def test_both_sides_of_a_partition_go_on_until_the_name_servers_know_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one with the older epoch is fenced then, and its messages are set aside when it follows."""
    async with lone_master(tmp_path, register_name_server_period=PERIOD_MS) as (running, first):
        await put(running, first, b"shared")
        await running.add_namesrv()
        second = await slave_at(running, first, running.namesrv.split(";")[1], 1)
        await second.role.become_master(2, None)
        for broker in (first, second):
            assert await put(running, broker, b"of " + broker.address.encode()) == [ResponseCode.SUCCESS]
        assert "fenced" not in caplog.text
        # The partition is over: the name server of the first one hears of the second one.
        second.config.namesrv_addr = running.namesrv

        await until(lambda: "fenced: this broker was master in epoch 1" in caplog.text)
        assert await put(running, first, b"x") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        assert await put(running, second, b"y") == [ResponseCode.SUCCESS]
        route = running.first_namesrv.routes.route("T")
        assert route is not None
        assert [each.broker_addrs for each in route.broker_datas] == [{0: second.address}]
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}")
        await until(lambda: second.role.in_sync().get(1) == second.role.position().end == first.role.position().end)
        (kept,) = (tmp_path / "broker-a" / "diverged").iterdir()
        with StoreReader(kept) as reader:
            assert [message.body for message in reader.walk()] == [b"of " + first.address.encode()]


async def test_two_slaves_that_were_promoted_to_the_same_epoch_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was promoted where the other was not known. Their epochs say that the logs are equal, and they are not."""
    async with lone_master(tmp_path, register_name_server_period=PERIOD_MS) as (running, master):
        await put(running, master, b"shared")
        await running.add_namesrv()
        namesrvs = running.namesrv.split(";")
        slaves = [await slave_at(running, master, namesrv, number) for number, namesrv in enumerate(namesrvs, 1)]
        await master.stop()
        for slave in slaves:
            await slave.role.become_master(2, None)
            assert await put(running, slave, b"of " + slave.address.encode()) == [ResponseCode.SUCCESS]
        first, second = slaves
        second.config.namesrv_addr = running.namesrv
        await until(lambda: f"{first.address} is master in epoch 2" in caplog.text)
        assert await put(running, second, b"x") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        ends = first.role.position(), second.role.position()
        await second.role.become_slave(2, 2, f"{HOST}:{first.config.ha_listen_port}")
        await until(lambda: "the master's log is another one" in caplog.text)
        assert (first.role.position(), second.role.position()) == ends
        assert first.role.in_sync().get(2, -1) < ends[0].end
    for directory in ("slave-1", "slave-2"):
        with StoreReader(tmp_path / directory) as reader:
            assert len(list(reader.walk())) == 2
