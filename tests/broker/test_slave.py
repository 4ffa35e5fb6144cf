"""What a slave has beside the log, and how it is read: its master's tables, and pulls by Apache's rules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rucola import fastjson
from rucola.broker.broker import Broker
from rucola.broker.config import from_properties
from rucola.broker.replication import table_sync
from rucola.client import Producer, PullConsumer
from rucola.domain.route import TopicRouteData
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.errors import ConfigError, TopicNotFound
from rucola.message import Message
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.protocol.route import GetRouteInfoRequestHeader
from support.cluster import HOST, Cluster, cluster
from support.errors import raises
from support.peer import Peer
from support.replication import caught_up, pair, send
from support.waiting import until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sync, "SYNC_INTERVAL_MS", 50)
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 5)


async def topics_of(running: Cluster, broker: Broker) -> dict[str, Any]:
    answer = await running.peer(broker).ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    return decode_body(TopicConfigSerializeWrapper, answer.body).topic_config_table


async def pulled(
    running: Cluster, broker: Broker, queue_offset: int, wait_ms: int = 0, **fields: Any
) -> RemotingCommand:
    sys_flag = pull.SUBSCRIPTION | (pull.SUSPEND if wait_ms else 0) | fields.pop("sys_flag", 0)
    return await running.peer(broker).pull(
        queue_offset=queue_offset, sys_flag=sys_flag, suspend_timeout_millis=wait_ms, **fields
    )


async def places(answer: RemotingCommand) -> tuple[int, int, int]:
    header = answer.decode_header(PullMessageResponseHeader)
    return answer.code, header.suggest_which_broker_id, header.next_begin_offset


@pytest.mark.slow
async def test_a_slave_copies_the_masters_tables(tmp_path: Path) -> None:
    async def is_committed_again(slave: Peer) -> bool:
        """What is committed at the slave is taken, until the master's comes in its place."""
        await slave.commit(5)
        assert await slave.committed() in (5, 17)

        async def is_master_s() -> bool:
            return await slave.committed() == 17

        await until(is_master_s)
        return True

    async with pair(tmp_path) as (running, master, slave):
        copy = running.peer(slave)
        await running.create_topic(master, "Later", queues=3)
        assert (await running.peer(master).alter_group(retry_max_times=7)).code == 0
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"soon", properties={"DELAY": "1"}))
            await producer.send(Message("T", b"now"))
        async with PullConsumer("g", running.namesrv) as consumer:
            (queue, *_) = await consumer.queues("T")
            await consumer.commit(queue, 17)

        async def has_all() -> bool:
            config = tmp_path / "slave" / "config"
            groups = await copy.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            return (
                await topics_of(running, slave) == await topics_of(running, master)
                and b'"retryMaxTimes":7' in groups.body
                and await copy.committed() == 17
                and "Later" in (config / "topics.json").read_text()
                and (config / "delayOffset.json").exists()
                and fastjson.loads((config / "delayOffset.json").read_bytes())["offsetTable"] == {1: 1}
            )

        await until(has_all)
        answer = await running.remoting.invoke_ok(
            running.namesrv,
            RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="Later")),
        )
        (route,) = decode_body(TopicRouteData, answer.body).broker_datas
        assert route.broker_addrs == {0: master.address, 1: slave.address}

        await until(lambda: is_committed_again(copy))
        await slave.stop()
        await master.stop()
        slave = await running.start_slave()
        assert await running.peer(slave).committed() == 17, "though its queue ends before that"


async def test_a_send_without_a_master_raises_topic_not_found(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"x"))
        await caught_up(running, master, slave)
        await until(lambda: knows(running, slave, "T"))
        await master.stop()
        async with Producer("p", running.namesrv) as producer:
            with pytest.raises(TopicNotFound):
                await producer.send(Message("T", b"x"))


@pytest.mark.slow
async def test_a_slave_delivers_no_delayed_messages(tmp_path: Path) -> None:
    """Delayed and half messages are in its log, and wait for the master to see to them."""

    async with pair(tmp_path) as (running, master, slave):
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"soon", properties={"DELAY": "1"}))
        await caught_up(running, master, slave)

        async def is_delivered() -> bool:
            found = [await pulled(running, slave, 0, queue_id=queue_id) for queue_id in range(4)]
            return any(answer.code == ResponseCode.SUCCESS for answer in found)

        await until(is_delivered)
        await caught_up(running, master, slave)


@pytest.mark.slow
async def test_a_promoted_slave_delivers_nothing_twice(tmp_path: Path) -> None:
    """What waits is delivered by it, and what was delivered, but not noted there, is found by its unique key."""

    levels = {"message_delay_level": "0s 2s 3s"}
    async with pair(tmp_path, levels, levels) as (running, master, slave):
        await running.create_topic(master, "One", queues=1)
        async with Producer("p", running.namesrv) as producer:
            for wait in ({"DELAY": "1"}, {"TIMER_DELAY_MS": "100"}, {"DELAY": "2"}):
                await producer.send(Message("One", b"%d" % len(wait), properties=wait))

        async def are_delivered() -> bool:
            return len(decode_many((await pulled(running, master, 0, topic="One")).body)) == 2

        await until(are_delivered)
        await caught_up(running, master, slave)
        await until(lambda: knows(running, slave, "One"))
    (tmp_path / "slave" / "config" / "delayOffset.json").unlink(missing_ok=True)
    async with cluster(tmp_path) as running:
        master = await running.start_broker(store=levels, directory="slave")
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("One", b"last", properties={"DELAY": "3"}))

        async def is_all_there() -> bool:
            messages = decode_many((await pulled(running, master, 0, topic="One")).body)
            return bool(messages) and messages[-1].body == b"last"

        await until(is_all_there)
        messages = decode_many((await pulled(running, master, 0, topic="One")).body)
        assert len({message.unique_key for message in messages}) == len(messages) == 4


async def test_a_slave_holds_pulls(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        await running.create_topic(master, "One", queues=1)
        await until(lambda: knows(running, slave, "One"))
        waiting = asyncio.create_task(pulled(running, slave, 0, 30_000, topic="One"))
        await pulled(running, slave, 0, topic="One")  # behind it on the same connection
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("One", b"x"))
        answer = await waiting
        assert await places(answer) == (ResponseCode.SUCCESS, 0, 1)


async def knows(running: Cluster, slave: Broker, topic: str) -> bool:
    return topic in await topics_of(running, slave)


async def test_a_slave_stores_messages_above_its_own_limit(tmp_path: Path) -> None:
    async with pair(tmp_path, slave={"max_message_size": 10}) as (running, master, slave):
        await send(running, 3, size=1000)
        await send(running, 1, size=1000, properties={"DELAY": "18"})
        await caught_up(running, master, slave)


@pytest.mark.parametrize("is_checked", [False, True])
async def test_a_slave_answers_offsets_beyond_its_log(
    tmp_path: Path, is_checked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, slave={"offset_check_in_slave": is_checked}) as (running, master, slave):
        await running.create_topic(master, "T", queues=1)
        await send(running, 3)
        await caught_up(running, master, slave)
        await until(lambda: knows(running, slave, "T"))
        moved, again = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY
        assert await places(await pulled(running, master, 9)) == (moved, 0, 3)
        await caught_up(running, master, slave)  # the master has noted that
        assert await places(await pulled(running, slave, 9)) == ((moved, 0, 3) if is_checked else (again, 0, 9))
        assert "failed and is retried" not in caplog.text, "a slave puts nothing"
        if is_checked:
            return
        assert await places(await pulled(running, slave, 9, topic="T", queue_id=0, wait_ms=50)) == (again, 0, 9)
        header = {"sys_flag": pull.COMMIT_OFFSET, "commit_offset": 2}
        await pulled(running, slave, 0, **header)
        assert await running.peer(slave).committed() == 0
        await pulled(running, master, 0, **header)
        assert await running.peer(master).committed() == 2


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_pull_response_suggests_a_broker(tmp_path: Path, is_read: bool) -> None:
    far = {"access_message_in_memory_max_ratio": 0}
    async with pair(tmp_path, far, far, slave_read_enable=is_read) as (running, master, slave):
        await running.create_topic(master, "T", queues=1)
        await running.peer(master).alter_group(broker_id=2, which_broker_when_consume_slowly=3)
        await send(running, 3)
        await caught_up(running, master, slave)

        async def suggested(broker: Broker, queue_offset: int) -> int:
            return (await places(await pulled(running, broker, queue_offset)))[1]

        async def agrees() -> bool:
            return [await suggested(slave, 0), await suggested(slave, 3)] == ([3, 2] if is_read else [0, 0])

        assert [await suggested(master, 0), await suggested(master, 3)] == ([3, 2] if is_read else [0, 0])
        await until(agrees)


@pytest.mark.slow
async def test_a_slave_starts_before_its_master(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        slave = await running.start_slave()
        master = await running.start_broker()
        await running.create_topic(master, "T")
        await send(running, 3)
        await caught_up(running, master, slave)
        await until(lambda: knows(running, slave, "T"))


def test_settings_of_a_role_are_derived_and_checked() -> None:
    slave, _, unused = from_properties(
        {"brokerRole": "SLAVE", "brokerId": "1", "listenPort": "20911", "haMasterAddress": f"{HOST}:1"}
    )
    assert (slave.broker_id, slave.ha_listen_port, unused) == (1, 20912, [])
    master, _, _ = from_properties({"brokerRole": "SYNC_MASTER", "brokerId": "1", "haListenPort": "77"})
    assert (master.broker_id, master.ha_listen_port) == (0, 77)
    with raises(ConfigError, subject="brokerId"):
        from_properties({"brokerRole": "SLAVE"})
    with raises(ConfigError, subject="brokerId"):  # the role was forgotten
        from_properties({"brokerId": "1"})
    with raises(ConfigError, subject="mappedFileSizeCommitLog"):
        from_properties({"mappedFileSizeCommitLog": "1024"})
    assert from_properties({"brokerId": "0"})[0].broker_id == 0
    with raises(ConfigError, subject="haMasterAddress"):
        from_properties({"haMasterAddress": "nowhere"})
    with raises(ConfigError, subject="haTransferBatchSize"):
        from_properties({"haTransferBatchSize": "0"})
    with raises(ConfigError, subject="brokerRole"):
        from_properties({"brokerRole": "BOSS"})
