"""Situations in which Apache RocketMQ 5 lost messages or stopped replicating, without a coordinator.

Those of elected groups are in `tests/coordination/test_partitions.py` and `test_companions.py`.
"""

from __future__ import annotations

from pathlib import Path

from rucola.broker.broker import Broker
from rucola.client import PullConsumer, SendStatus
from rucola.protocol.codes import RequestCode
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from rucola.store.epoch_file import read_epochs
from support.cluster import HOST, SMALL_FILES, Cluster
from support.proxy import Proxy
from support.replication import follows, lone_master, pair, send
from support.waiting import until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}
SLAVE = {"broker_role": BrokerRole.SLAVE}


async def polled(running: Cluster) -> list[bytes]:
    """What a consumer that follows the route gets of the queue."""
    async with PullConsumer("g", running.namesrv) as consumer:
        (queue,) = await consumer.queues("T")
        result = await consumer.pull(queue, 0)
        assert result.max_offset == len(result.messages), "the queue ends there for clients"
        return [message.body for message in result.messages]


async def test_a_master_cut_off_with_a_slave_shows_no_message_that_only_both_have(tmp_path: Path) -> None:
    """apache/rocketmq#6662: an in-sync member without a connection did not count for the confirmOffset.

    Consumers of the isolated master moved forward to messages that the elected third broker did not have, and
    committed offsets under which that one then stored others.
    """
    async with lone_master(tmp_path, SYNC) as (running, first):
        second = await running.start_slave()
        async with Proxy(f"{HOST}:{first.config.ha_listen_port}") as way:
            third = await running.start_broker(
                store=SLAVE, directory="third", broker_id=2, ha_master_address=way.address
            )
            await until(lambda: first.role.in_sync().keys() == {1, 2})
            first.role.set_in_sync(frozenset({1, 2}))
            assert set(await send(running, 3)) == {SendStatus.SEND_OK}
            shared = await polled(running)
            assert len(shared) == 3
            way.refuse()
            await until(lambda: first.role.in_sync().keys() == {1})
            assert set(await send(running, 2, size=300)) == {SendStatus.SLAVE_NOT_AVAILABLE}
            await until(lambda: second.role.position() == first.role.position())
            assert await polled(running) == shared
            # The third one is elected on its side. What the others have alone is set aside when they are back.
            await third.role.become_master(2, frozenset({2}))
            assert await polled(running) == shared
            assert set(await send(running, 4)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        address = f"{HOST}:{third.config.ha_listen_port}"
        await first.role.become_slave(2, 2, address)
        await second.role.become_slave(2, 1, address)
        end = third.role.position().end
        await until(lambda: third.role.in_sync() == {1: end, 2: end})
        later = await polled(running)
        assert (later[:3], len(later)) == (shared, 7)
    for name in ("broker-a", "slave"):
        (kept,) = (tmp_path / name / "diverged").iterdir()
        with StoreReader(kept) as reader:
            assert len(list(reader.walk())) == 2


async def test_a_new_epoch_of_the_same_master_interrupts_no_replication(tmp_path: Path) -> None:
    """apache/rocketmq#9689: connections stayed in the epoch before, and ended for good when that was forgotten."""
    async with pair(tmp_path, SYNC) as (running, master, slave):
        begins = []
        for epoch in (2, 3, 4):
            assert set(await send(running, 4)) == {SendStatus.SEND_OK}
            await follows(master, slave)
            begins.append((epoch, master.role.position().end))
            await master.role.become_master(epoch, None)
            await follows(master, slave)
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        await follows(master, slave)
        assert read_epochs(tmp_path / "broker-a") == read_epochs(tmp_path / "slave") == ((1, 0), *begins)


async def test_a_slave_follows_a_master_that_has_forgotten_its_first_epochs(tmp_path: Path) -> None:
    """apache/rocketmq#9689: the files of the log from these epochs were deleted while the slave was connected."""
    expiring = {"file_reserved_time": 0, "clean_resource_interval": 50, "delete_commit_log_files_interval": 1}
    async with lone_master(tmp_path, SYNC | expiring) as (running, master):
        slave = await running.start_slave()
        for epoch in (2, 3):
            await until(lambda: master.role.in_sync().keys() == {1})
            assert set(await send(running, 15, 100_000)) == {SendStatus.SEND_OK}
            await follows(master, slave)
            await master.role.become_master(epoch, None)
        await follows(master, slave)
        await until(lambda: has_deleted(running, master))
        await master.role.become_master(4, None)
        await follows(master, slave)
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        await follows(master, slave)
        kept, copied = read_epochs(tmp_path / "broker-a"), read_epochs(tmp_path / "slave")
        assert kept == copied
        assert kept[0].number == 2


async def has_deleted(running: Cluster, master: Broker) -> bool:
    """Have files deleted; whether the first epoch is gone."""
    await running.peer(master).ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert master.parts is not None
    return master.parts.storage.store.min_physical_offset > SMALL_FILES["mapped_file_size_commit_log"]
