"""AdminClient against real servers: a broker on the golden store, and brokers on stores that the tests fill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rucola.admin import AdminClient, TopicConfig
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, ConfigError, InvalidMessage, RemotingConnectError, TopicNotFound
from rucola.message.host import encode_host
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import ResponseCode
from support.cluster import HOST
from support.errors import raises
from support.prepared_stores import NOW_MS, cluster_of_stores, fill_store


@pytest.fixture
def golden_store(golden: Path, tmp_path: Path) -> Path:
    """A directory with the store of one broker, written by Apache's broker."""
    shutil.copytree(golden / "g1-clean" / "store-after-restart", tmp_path / "broker-a")
    return tmp_path


async def test_key_queries_find_the_messages_that_apache_finds(golden: Path, golden_store: Path) -> None:
    """Results are Apache's, without messages whose keys only have the same hash; for keys and unique keys."""
    expected = json.loads((golden / "g1-clean" / "expected_queries.json").read_text())["keyQueries"]
    messages = {}
    for line in (golden / "g1-clean" / "after-expected.jsonl").open():
        message = json.loads(line)
        messages[message["commitLogOffset"]] = message["properties"]

    async with cluster_of_stores(golden_store) as (admin, _, _):
        known = set(await admin.topics.names())
        for query in expected:
            topic, key = query["topic"], query["key"]
            if topic not in known:
                continue
            exact = query.get("exact", [])
            by_key = await admin.messages.query_by_key(topic, key)
            found = [message.physical_offset for message in by_key.messages]
            assert sorted(found) == [at for at in exact if key in messages[at].get("KEYS", "").split(" ")]
            assert found == sorted(found, reverse=True), "newest first"
            assert not by_key.is_cut
            by_unique_key = await admin.messages.query_by_unique_key(topic, key)
            found = [message.physical_offset for message in by_unique_key.messages]
            assert found == [at for at in exact if messages[at].get("UNIQ_KEY") == key]


async def test_a_message_by_its_offset_msg_id(tmp_path: Path) -> None:
    fill_store(tmp_path, [("a", "U1", NOW_MS), ("b", "U2", NOW_MS)])

    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        address = encode_host(brokers[0].address).hex().upper()
        found = (await admin.messages.query_by_key("Orders", "b")).messages[0]
        message = await admin.messages.get(f"{address}{found.physical_offset:016X}")
        assert message == found
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await admin.messages.get(f"{address}{1:016X}")
        with pytest.raises(InvalidMessage):
            await admin.messages.get("4711")


async def test_an_id_that_names_no_broker_may_be_a_unique_key(tmp_path: Path) -> None:
    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        port = brokers[0].config.listen_port
        await brokers[0].stop()
        with pytest.raises(RemotingConnectError):
            await admin.messages.get(encode_host(f"{HOST}:{port}").hex() + 16 * "0")


async def test_every_master_of_the_route_is_asked(tmp_path: Path) -> None:
    fill_store(tmp_path, [("k", "A", NOW_MS), ("k", "C", NOW_MS + 2000)], "broker-a")
    fill_store(tmp_path, [("k", "B", NOW_MS + 1000)], "broker-b")

    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        result = await admin.messages.query_by_key("Orders", "k")
        assert [message.unique_key for message in result.messages] == ["C", "B", "A"]
        stats = await admin.topics.stats("Orders")
        assert {queue: (at.min_offset, at.max_offset, at.last_update_timestamp) for queue, at in stats.items()} == {
            MessageQueue("Orders", "broker-a", 0): (0, 2, NOW_MS + 2000),
            MessageQueue("Orders", "broker-b", 0): (0, 1, NOW_MS + 1000),
        }
        assert await admin.cluster.masters("DefaultCluster") == {
            "broker-a": brokers[0].address,
            "broker-b": brokers[1].address,
        }
        assert await admin.cluster.broker_name(brokers[1].address) == "broker-b"
        with raises(ConfigError, subject="Elsewhere"):
            await admin.cluster.masters("Elsewhere")


async def test_consume_stats_match_the_golden_groups(golden_store: Path) -> None:
    async with cluster_of_stores(golden_store) as (admin, _, _):
        stats = await admin.groups.consume_stats("G_g_tag", "GA")
        assert {queue.queue_id: (at.broker_offset, at.consumer_offset) for queue, at in stats.offset_table.items()} == {
            0: (32, 22),
            1: (32, 25),
            2: (34, 25),
            3: (34, 19),
        }
        topics = {queue.topic for queue in (await admin.groups.consume_stats("G_g_tag")).offset_table}
        assert topics == {"GA", "%RETRY%G_g_tag"}
        assert (await admin.groups.consume_stats("nobody")).offset_table == {}
        groups = await admin.groups.names()
        assert "G_g_tag" in groups
        assert "CID_RMQ_SYS_TRANS" not in groups, "it has no retry topic"
        stats = await admin.groups.consume_stats("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC")
        assert [at.consumer_offset for at in stats.offset_table.values()] == [20]


async def test_topics_are_created_changed_and_ordered(tmp_path: Path) -> None:
    async with cluster_of_stores(tmp_path) as (admin, brokers, _):
        with raises(TopicNotFound, subject="New"):
            await admin.topics.route("New")
        config = TopicConfig(topic_name="New", read_queue_nums=3, write_queue_nums=2, perm=6)
        await admin.topics.create_or_update(brokers[0].address, config)
        (queues,) = (await admin.topics.route("New")).queue_datas
        assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("broker-a", 3, 2)
        assert list(await admin.topics.stats("New")) == [MessageQueue("New", "broker-a", n) for n in range(2)]
        assert await admin.name_servers.order_conf("New") == {}
        await admin.name_servers.put_order_conf("New", {"broker-a": 2})
        assert await admin.name_servers.order_conf("New") == {"broker-a": 2}
        with pytest.raises(InvalidMessage):
            await admin.topics.create_or_update(brokers[0].address, TopicConfig(topic_name="not a name"))


async def test_a_silent_broker_is_reported_and_the_others_answer(tmp_path: Path) -> None:
    """The name server has a route to a broker that nobody reaches; what the other broker holds is found."""
    fill_store(tmp_path, [("k", "A", NOW_MS)])

    async with cluster_of_stores(tmp_path) as (admin, brokers, running):
        silent = await running.scripted_broker("silent", "Orders", {})
        await silent.stop()
        nobody = f"{HOST}:{silent.port}"

        result = await admin.messages.query_by_key("Orders", "k")
        assert [message.unique_key for message in result.messages] == ["A"]
        assert list(result.failures) == [nobody]
        with raises(RemotingConnectError, subject=nobody):
            await admin.topics.stats("Orders")
        await brokers[0].stop()
        with pytest.raises(RemotingConnectError):
            await admin.messages.query_by_key("Orders", "k")


async def test_a_client_without_a_reachable_name_server_raises(tmp_path: Path) -> None:
    async with Namesrv(HOST, 0) as namesrv:
        address = f"{HOST}:{namesrv.port}"
    async with AdminClient(address) as admin:
        with pytest.raises(RemotingConnectError):
            await admin.topics.names()
    with pytest.raises(ConfigError):
        AdminClient(" ; ")
