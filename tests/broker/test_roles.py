"""Roles: a broker becomes master or slave while it runs, and a returning master gives up what was never replicated."""

from __future__ import annotations

from pathlib import Path

from rucola.broker.broker import Broker
from rucola.client import Producer, SendStatus
from rucola.message import Message
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from rucola.store.epoch_file import read_epochs
from rucola.store.tools.check import check
from support.cluster import Cluster
from support.replication import pair, send
from support.waiting import until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}


async def follows(running: Cluster, master: Broker, slave: Broker) -> None:
    """Wait until a slave that knows epochs has everything."""

    async def is_so() -> bool:
        return list(master.in_sync().values()) == [master.position().end] and slave.position() == master.position()

    await until(is_so)


async def test_a_slave_has_the_epochs_of_its_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        assert set(await send(running, 5)) == {SendStatus.SEND_OK}
        await follows(running, master, slave)
        assert master.in_sync() == {1: master.position().end}
        assert slave.in_sync() == {}
        assert read_epochs(tmp_path / "broker-a") == read_epochs(tmp_path / "slave") == ((1, 0),)


async def test_roles_are_exchanged_while_both_run(tmp_path: Path) -> None:
    async with pair(tmp_path, SYNC) as (running, first, second):
        await send(running, 5)
        await follows(running, first, second)
        end = first.position().end
        await second.become_master(2, frozenset())
        await first.become_slave(2, 1, f"127.0.0.1:{second.config.ha_listen_port}")
        await follows(running, second, first)
        assert (first.store_config.broker_role, first.config.broker_id) == (BrokerRole.SLAVE, 1)
        assert (second.store_config.broker_role, second.config.broker_id) == (BrokerRole.SYNC_MASTER, 0)
        assert set(await send(running, 5)) == {SendStatus.SEND_OK}
        await follows(running, second, first)
        assert read_epochs(tmp_path / "broker-a") == ((1, 0), (2, end))


async def test_what_was_never_replicated_is_cut_off_and_kept_aside(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, first, second):
        await send(running, 5)
        await follows(running, first, second)
        shared = first.position().end
        await second.stop()
        async with Producer("p", running.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("T", b"only here %d" % number))
        alone = first.position().end
        await first.stop()
        await second.start()
        await second.become_master(2, frozenset())
        await send(running, 20)
        await first.start()
        await first.become_slave(2, 1, f"127.0.0.1:{second.config.ha_listen_port}")
        await follows(running, second, first)
        kept = tmp_path / "broker-a" / "diverged" / f"{shared:020d}-{alone:020d}"
        with StoreReader(kept) as reader:
            assert [message.body for message in reader.walk()] == [b"only here 0", b"only here 1", b"only here 2"]
    assert check(tmp_path / "broker-a") == []
