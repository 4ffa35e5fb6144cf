"""Roles: a broker becomes master or slave while it runs, and a returning master gives up what was never replicated."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.role import NO_SWITCH, SwitchReason
from rucola.client import Producer, PullConsumer, PullStatus, SendStatus
from rucola.errors import StoreCorrupt, StoreError
from rucola.message import Message
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from rucola.store.epoch_file import EPOCH_FILE, read_epochs
from rucola.store.tools.check import check
from support.cluster import HOST, Cluster
from support.replication import follows, pair, send, sound_cluster
from support.waiting import until

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}


async def replace_master(running: Cluster, first: Broker, second: Broker) -> None:
    """Start the stopped slave as master, then the stopped master as its slave."""
    await second.start()
    await second.role.become_master(2, None)
    await send(running, 20)
    await first.start()
    await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}")
    await follows(second, first)


async def test_roles_are_exchanged_while_both_run(tmp_path: Path) -> None:
    async with pair(tmp_path, SYNC, messages=5) as (running, first, second):
        end = first.role.position().end
        await second.role.become_master(2, None)
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}")
        await follows(second, first)
        assert (first.store_config.broker_role, first.config.broker_id) == (BrokerRole.SLAVE, 1)
        assert (second.store_config.broker_role, second.config.broker_id) == (BrokerRole.SYNC_MASTER, 0)
        assert set(await send(running, 5)) == {SendStatus.SEND_OK}
        await follows(second, first)
        assert read_epochs(tmp_path / "broker-a") == ((1, 0), (2, end))


async def test_what_was_never_replicated_is_cut_off_and_kept_aside(tmp_path: Path) -> None:
    async with pair(tmp_path, messages=5) as (running, first, second):
        shared = first.role.position().end
        await second.stop()
        async with Producer("p", running.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("T", b"only here %d" % number))
        alone = first.role.position().end
        await first.stop()
        await replace_master(running, first, second)
        kept = tmp_path / "broker-a" / "diverged" / f"{shared:020d}-{alone:020d}"
        with StoreReader(kept) as reader:
            assert [message.body for message in reader.walk()] == [b"only here 0", b"only here 1", b"only here 2"]
    assert check(tmp_path / "broker-a") == []


async def test_a_log_that_diverges_from_its_first_message_on_is_kept_aside_whole(tmp_path: Path) -> None:
    """The first master ends before its slave has any message: nothing of its log is left, and yet it follows."""
    async with pair(tmp_path) as (running, first, second):
        await second.stop()
        await send(running, 3)
        alone = first.role.position().end
        await first.stop()
        await replace_master(running, first, second)
        with StoreReader(tmp_path / "broker-a" / "diverged" / f"{0:020d}-{alone:020d}") as reader:
            assert len(list(reader.walk())) == 3
    assert check(tmp_path / "broker-a") == []


async def test_an_old_master_that_returns_with_its_old_file_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The slave was promoted by its configuration, and the old master knows nothing of it."""
    async with pair(tmp_path, messages=5) as (running, first, second):
        await first.stop()
        await second.stop()
        promoted = await running.start_broker(directory="slave")
        assert promoted.role.position().epoch == 2
        assert set(await send(running, 5)) == {SendStatus.SEND_OK}
        await first.start()
        assert f"{promoted.address} is master in epoch 2" in caplog.text
        assert masters(running) == {0: promoted.address}
        # It takes no message, not even of a client that has not heard of the promotion.
        refusal = await refused_send(running, first)
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "is master in epoch 2: it accepts no messages, and serves reads" in str(refusal.remark)
        assert set(await send(running, 5)) == {SendStatus.SEND_OK}
        assert read_epochs(tmp_path / "broker-a") == ((1, 0),)
        # It follows when it is told to.
        await first.role.become_slave(2, 1, "")
        await follows(promoted, first)


async def test_a_master_is_fenced_when_another_one_was_promoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both run; the first one hears of it when it registers the next time."""
    async with pair(tmp_path, register_name_server_period=200, messages=5) as (running, first, second):
        await second.role.become_master(2, None)
        await until(lambda: "fenced: this broker was master in epoch 1" in caplog.text)
        assert (await refused_send(running, first)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert masters(running) == {0: second.address}
        await first.role.become_slave(2, 1, "")
        await follows(second, first)


async def test_a_master_is_fenced_by_a_slave_that_has_followed_a_newer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, messages=5) as (running, first, second):
        await second.role.become_master(2, None)
        await send(running, 1)
        await second.role.become_slave(2, 1, f"{HOST}:{first.config.ha_listen_port}")

        async def is_fenced() -> bool:
            texts = ("has followed is master in epoch 2", "it is master in epoch 1 only")
            return all(text in caplog.text for text in texts)

        await until(is_fenced)
        assert (await refused_send(running, first)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await second.role.become_master(3, None)
        await first.role.become_slave(3, 1, "")
        await follows(second, first)


@pytest.mark.slow
async def test_a_slave_keeps_what_its_master_has_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a slave has replicated may be acknowledged: only an operator may set it aside."""
    async with sound_cluster(tmp_path) as running:
        master = await running.start_broker()
        port = master.config.listen_port
        await running.create_topic(master, "T", queues=1)
        await send(running, 5)
        await master.stop()
        shutil.copytree(tmp_path / "broker-a", tmp_path / "backup")
        master = await running.start_broker(port=port)
        slave = await running.start_slave()
        await send(running, 5)
        await follows(master, slave)
        end = slave.role.position().end
        await master.stop()
        shutil.rmtree(tmp_path / "broker-a")
        shutil.copytree(tmp_path / "backup", tmp_path / "broker-a")
        lost = await running.start_broker(port=port)
        assert lost.role.position().epoch == 3
        await send(running, 10)
        await until(lambda: "That master has lost messages that this slave has" in caplog.text)
        assert slave.role.position() == (2, end)
        assert lost.role.in_sync() == {}
        await slave.role.become_slave(3, 0, "")
        await follows(lost, slave)
        (kept,) = (tmp_path / "slave" / "diverged").iterdir()
        with StoreReader(kept) as reader:
            assert len(list(reader.walk())) == 5


def masters(running: Cluster) -> dict[int, str]:
    """The brokers in the route of T."""
    route = running.first_namesrv.routes.route("T")
    assert route is not None
    (broker,) = route.broker_datas
    return broker.broker_addrs


async def refused_send(running: Cluster, broker: Broker) -> RemotingCommand:
    """Send to one broker, whatever the route is; return the refusal."""
    answer = await running.peer(broker).send()
    assert answer.code != ResponseCode.SUCCESS
    return answer


async def test_an_in_sync_set_is_what_senders_and_consumers_wait_for(tmp_path: Path) -> None:
    """A member that is away stops both: a message that not all members have is not acknowledged, and not seen."""
    async with (
        pair(tmp_path, SYNC, messages=4) as (running, first, second),
        PullConsumer("g", running.namesrv) as consumer,
    ):
        queue, *_ = await consumer.queues("T")
        end = (await consumer.pull(queue, 0)).max_offset
        first.role.set_in_sync(frozenset({0, 1}))  # 0 is the master itself
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        await follows(first, second)
        assert (await consumer.pull(queue, 0)).max_offset == end + 1
        # The other member is away: as if no message had come, also for a pull that waits.
        await second.stop()
        assert set(await send(running, 4)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        seen = await consumer.pull(queue, 0)
        assert (len(seen.messages), seen.max_offset) == (end + 1, end + 1)
        waiting = asyncio.create_task(consumer.pull(queue, end + 1, suspend_ms=20_000))
        beyond = asyncio.create_task(consumer.pull(queue, end + 2, suspend_ms=20_000))
        assert (await consumer.pull(queue, end + 1)).status is PullStatus.NO_NEW_MSG
        assert not waiting.done()
        # It is back: both waits end.
        await second.start()
        found = await waiting
        assert [message.queue_offset for message in found.messages] == [end + 1]
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        assert [message.queue_offset for message in (await beyond).messages] == [end + 2]
        await follows(first, second)
        # Without members nothing is hidden, and nothing is acknowledged: there is no second copy.
        first.role.set_in_sync(frozenset({0}))
        await second.stop()
        assert set(await send(running, 4)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        assert [message.queue_offset for message in (await consumer.pull(queue, end + 3)).messages] == [end + 3]
        await second.start()
        await follows(first, second)


async def test_all_members_of_an_in_sync_set_must_have_a_message(tmp_path: Path) -> None:
    """Not any one of them, and no slave beside the set."""
    async with pair(tmp_path, SYNC) as (running, first, second):
        third = await running.start_broker(store={"broker_role": BrokerRole.SLAVE}, directory="third", broker_id=2)
        await until(lambda: first.role.in_sync().keys() == {1, 2})
        first.role.set_in_sync(frozenset({1, 2}))
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        await third.stop()
        assert set(await send(running, 4)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        first.role.set_in_sync(frozenset({1}))
        assert set(await send(running, 4)) == {SendStatus.SEND_OK}
        await third.start()
        await until(lambda: first.role.in_sync() == {1: first.role.position().end, 2: first.role.position().end})
        await second.stop()
        assert set(await send(running, 4)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        await second.start()
        await until(lambda: first.role.in_sync() == {1: first.role.position().end, 2: first.role.position().end})
    assert check(tmp_path / "third") == []


async def test_becoming_what_it_is_changes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path, messages=4) as (_, first, second):
        since_ms = first.role.role_since_ms, second.role.role_since_ms
        await first.role.become_master(1, None)
        await second.role.become_slave(1, 0, f"{HOST}:{first.config.ha_listen_port}")
        await second.role.become_slave(1, 0, f"{HOST}:{first.config.ha_listen_port}")
        await follows(first, second)
        assert (first.role.role_since_ms, second.role.role_since_ms) == since_ms
        with pytest.raises(StoreError):
            await second.role.become_master(1, None)


async def test_a_change_of_role_that_fails_stops_the_broker_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sound_cluster(tmp_path) as running:
        broker = await running.start_broker()
        failed = asyncio.create_task(broker.wait_failed())
        epochs = tmp_path / "broker-a" / EPOCH_FILE
        whole = epochs.read_bytes()
        epochs.write_bytes(b"damaged")
        broker.role.in_background(broker.role.become_slave(1, 1, ""))
        with pytest.raises(StoreCorrupt):
            await failed
        with pytest.raises(StoreError):
            broker.role.position()
        epochs.write_bytes(whole)
    assert "the role cannot be changed" in caplog.text


async def test_the_last_switch_outlives_the_process(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, first, second):
        assert first.role.last_switch == second.role.last_switch == NO_SWITCH
        await send(running, 3)
        await follows(first, second)
        began_ms = wall_clock_ms()
        await second.role.become_master(2, None, reason=SwitchReason.PROMOTE)
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}", reason=SwitchReason.DEMOTE)
        await follows(second, first)
        switch = second.role.last_switch
        assert (switch.reason, switch.at_ms >= began_ms) == ("promote", True)
        assert first.role.last_switch.reason == "demote"
        await second.stop()
        again = await running.start_broker(store={"broker_role": BrokerRole.SLAVE}, directory="slave", broker_id=1)
        assert again.role.last_switch == switch
        assert again.role.switches == {}, "of this process"


async def test_a_start_in_another_role_is_a_switch(tmp_path: Path) -> None:
    async with pair(tmp_path, messages=3) as (running, first, second):
        await first.stop()
        await second.stop()
        promoted = await running.start_broker(directory="slave")
        assert (promoted.role.last_switch.reason, promoted.role.switches) == ("start", {"start": 1})
        await first.start()
        await first.role.become_slave(2, 1, "")
        await follows(promoted, first)
