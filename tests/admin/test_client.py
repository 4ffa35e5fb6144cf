"""AdminClient against real servers: a broker on the golden store, and brokers that the tests fill themselves."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from cluster import HOST, SMALL_FILES, Cluster, cluster
from rucola.admin import PAGE, AdminClient, TopicConfig
from rucola.broker.broker import Broker
from rucola.errors import BrokerError, ConfigError, InvalidMessage, RemotingConnectError, TopicNotFound
from rucola.message import MessageInner, properties
from rucola.message.host import encode_host
from rucola.namesrv.server import Namesrv
from rucola.protocol.body import encode_body
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import TopicConfigSerializeWrapper
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore

NOW_MS = 1_800_000_000_000


def ask(path: Path, question: Callable[[AdminClient, list[Broker], Cluster], Awaitable[None]]) -> None:
    """Put a question to a cluster with one broker for each store in `path`, or with one empty broker."""

    names = sorted(store.name for store in path.iterdir()) or ["broker-a"]

    async def asking() -> None:
        async with cluster(path) as running:
            brokers = [await running.start_broker(name) for name in names]
            async with AdminClient(running.namesrv) as admin:
                await question(admin, brokers, running)

    asyncio.run(asking())


def fill(path: Path, messages: Sequence[tuple[str, str, int]], broker: str = "broker-a") -> None:
    """Make the broker's store, with messages of topic Orders given as (keys, unique key, store time)."""
    store_host, born_host = encode_host(f"{HOST}:10911"), encode_host(f"{HOST}:1")
    config = StoreConfig(store_path_root_dir=str(path / broker), store_host=store_host, **SMALL_FILES)
    with MessageStore(config) as store:
        for keys, unique_key, now_ms in messages:
            message = MessageInner(
                topic="Orders",
                queue_id=0,
                body=unique_key.encode(),
                properties=properties.join({properties.KEYS: keys, properties.UNIQ_KEY: unique_key}),
                flag=0,
                sys_flag=0,
                born_timestamp=now_ms,
                born_host=born_host,
                unique_key=unique_key,
                keys=keys,
            )
            store.put(message, now_ms)
    topics = {"Orders": TopicConfig(topic_name="Orders", read_queue_nums=1, write_queue_nums=1)}
    table = path / broker / "config" / "topics.json"
    table.parent.mkdir(exist_ok=True)
    table.write_bytes(encode_body(TopicConfigSerializeWrapper(topic_config_table=topics)))


@pytest.fixture
def golden_store(golden: Path, tmp_path: Path) -> Path:
    """A directory with the store of one broker, as Apache's left it."""
    shutil.copytree(golden / "g1-clean" / "store-after-restart", tmp_path / "broker-a")
    return tmp_path


def test_key_queries_of_the_golden_store(golden: Path, golden_store: Path) -> None:
    """Apache's answers, reduced to the messages that have the key, for KEYS and for unique keys."""
    expected = json.loads((golden / "g1-clean" / "expected_queries.json").read_text())["keyQueries"]
    messages = {}
    for line in (golden / "g1-clean" / "after-expected.jsonl").open():
        message = json.loads(line)
        messages[message["commitLogOffset"]] = message["properties"]

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        known = set(await admin.fetch_all_topic_list())
        for query in expected:
            topic, key = query["topic"], query["key"]
            if topic not in known:
                continue
            exact = query.get("exact", [])
            by_key = await admin.query_message_by_key(topic, key)
            found = [message.physical_offset for message in by_key.messages]
            assert sorted(found) == [at for at in exact if key in messages[at].get("KEYS", "").split(" ")]
            assert found == sorted(found, reverse=True), "newest first"
            assert not by_key.is_cut
            by_unique_key = await admin.query_message_by_unique_key(topic, key)
            found = [message.physical_offset for message in by_unique_key.messages]
            assert found == [at for at in exact if messages[at].get("UNIQ_KEY") == key]

    ask(golden_store, question)


def test_a_message_by_its_offset_msg_id(tmp_path: Path) -> None:
    fill(tmp_path, [("a", "U1", NOW_MS), ("b", "U2", NOW_MS)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        address = encode_host(brokers[0].address).hex().upper()
        found = (await admin.query_message_by_key("Orders", "b")).messages[0]
        message = await admin.query_message_by_id(f"{address}{found.physical_offset:016X}")
        assert message == found
        with pytest.raises(BrokerError, match="can not find message by the offset, 1"):
            await admin.query_message_by_id(f"{address}{1:016X}")
        with pytest.raises(InvalidMessage, match="no offsetMsgId"):
            await admin.query_message_by_id("4711")

    ask(tmp_path, question)


def test_an_id_that_names_no_broker_may_be_a_unique_key(tmp_path: Path) -> None:
    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        port = brokers[0].config.listen_port
        await brokers[0].stop()
        with pytest.raises(RemotingConnectError, match="is this a unique key"):
            await admin.query_message_by_id(encode_host(f"{HOST}:{port}").hex() + 16 * "0")

    ask(tmp_path, question)


def test_a_key_query_goes_on_where_a_page_is_full(tmp_path: Path) -> None:
    count = 3 * PAGE + 5
    fill(tmp_path, [("k other", f"U{number}", NOW_MS + 100 * number) for number in range(count)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        everything = await admin.query_message_by_key("Orders", "k", max_count=1000)
        assert [message.queue_offset for message in everything.messages] == list(reversed(range(count)))
        assert not everything.is_cut
        newest = await admin.query_message_by_key("Orders", "k", max_count=100)
        assert newest.messages == everything.messages[:100]
        assert newest.is_cut
        assert (await admin.query_message_by_key("Orders", "k", max_count=PAGE)).is_cut
        window = await admin.query_message_by_key("Orders", "k", 1000, NOW_MS + 1000, NOW_MS + 8000)
        assert {message.queue_offset for message in window.messages} >= set(range(20, 80))

    ask(tmp_path, question)


def test_a_second_with_more_than_a_page_is_told(tmp_path: Path) -> None:
    """The index cannot tell the messages of one second apart, so what is older is found, but the answer is cut."""
    times = [NOW_MS, *(PAGE + 10) * [NOW_MS + 5000], NOW_MS + 9000]
    fill(tmp_path, [("k", f"U{number}", time_ms) for number, time_ms in enumerate(times)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key("Orders", "k", max_count=1000)
        offsets = [message.queue_offset for message in result.messages]
        assert result.is_cut
        assert offsets[0] == len(times) - 1
        assert offsets[-1] == 0
        assert len(offsets) >= PAGE

    ask(tmp_path, question)


def test_strangers_with_the_same_hash_are_left_out(tmp_path: Path) -> None:
    """`Aa` and `BB` have one hash; a page full of strangers does not hide the message that was asked for."""
    times = [("BB", NOW_MS)] + [("Aa", NOW_MS + 1000 * number) for number in range(1, 2 * PAGE)]
    fill(tmp_path, [(key, f"U{number}", time_ms) for number, (key, time_ms) in enumerate(times)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key("Orders", "BB")
        assert [message.unique_key for message in result.messages] == ["U0"]
        assert not result.is_cut

    ask(tmp_path, question)


def test_every_master_of_the_route_is_asked(tmp_path: Path) -> None:
    fill(tmp_path, [("k", "A", NOW_MS), ("k", "C", NOW_MS + 2000)], "broker-a")
    fill(tmp_path, [("k", "B", NOW_MS + 1000)], "broker-b")

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        result = await admin.query_message_by_key("Orders", "k")
        assert [message.unique_key for message in result.messages] == ["C", "B", "A"]
        stats = await admin.examine_topic_stats("Orders")
        assert {queue: (at.min_offset, at.max_offset, at.last_update_timestamp) for queue, at in stats.items()} == {
            MessageQueue("Orders", "broker-a", 0): (0, 2, NOW_MS + 2000),
            MessageQueue("Orders", "broker-b", 0): (0, 1, NOW_MS + 1000),
        }
        assert await admin.fetch_masters_of_cluster("DefaultCluster") == {
            "broker-a": brokers[0].address,
            "broker-b": brokers[1].address,
        }
        assert await admin.fetch_broker_name(brokers[1].address) == "broker-b"
        with pytest.raises(ConfigError, match="no cluster Elsewhere; the name server knows DefaultCluster"):
            await admin.fetch_masters_of_cluster("Elsewhere")

    ask(tmp_path, question)


def test_progress_of_the_golden_groups(golden_store: Path) -> None:
    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        stats = await admin.examine_consume_stats("G_g_tag", "GA")
        assert {queue.queue_id: (at.broker_offset, at.consumer_offset) for queue, at in stats.offset_table.items()} == {
            0: (32, 22),
            1: (32, 25),
            2: (34, 25),
            3: (34, 19),
        }
        topics = {queue.topic for queue in (await admin.examine_consume_stats("G_g_tag")).offset_table}
        assert topics == {"GA", "%RETRY%G_g_tag"}
        assert (await admin.examine_consume_stats("nobody")).offset_table == {}
        groups = await admin.fetch_consumer_groups()
        assert "G_g_tag" in groups
        assert "CID_RMQ_SYS_TRANS" not in groups, "it has no retry topic"
        stats = await admin.examine_consume_stats("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC")
        assert [at.consumer_offset for at in stats.offset_table.values()] == [20]

    ask(golden_store, question)


def test_topics_are_created_changed_and_ordered(tmp_path: Path) -> None:
    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        with pytest.raises(TopicNotFound, match="New"):
            await admin.examine_topic_route("New")
        config = TopicConfig(topic_name="New", read_queue_nums=3, write_queue_nums=2, perm=6)
        await admin.create_and_update_topic_config(brokers[0].address, config)
        (queues,) = (await admin.examine_topic_route("New")).queue_datas
        assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("broker-a", 3, 2)
        assert list(await admin.examine_topic_stats("New")) == [MessageQueue("New", "broker-a", n) for n in range(2)]
        assert await admin.examine_order_conf("New") == {}
        await admin.create_or_update_order_conf("New", {"broker-a": 2})
        assert await admin.examine_order_conf("New") == {"broker-a": 2}
        with pytest.raises(InvalidMessage):
            await admin.create_and_update_topic_config(brokers[0].address, TopicConfig(topic_name="not a name"))

    ask(tmp_path, question)


def test_a_silent_broker_is_named_and_the_others_answer(tmp_path: Path) -> None:
    """The name server has a route to a broker that nobody reaches; what the other broker holds is found."""
    fill(tmp_path, [("k", "A", NOW_MS)])

    async def question(admin: AdminClient, brokers: list[Broker], running: Cluster) -> None:
        silent = await running.scripted_broker("silent", "Orders", {})
        await silent.stop()
        nobody = f"{HOST}:{silent.port}"

        result = await admin.query_message_by_key("Orders", "k")
        assert [message.unique_key for message in result.messages] == ["A"]
        assert list(result.failures) == [nobody]
        with pytest.raises(RemotingConnectError, match=nobody):
            await admin.examine_topic_stats("Orders")
        await brokers[0].stop()
        with pytest.raises(RemotingConnectError):
            await admin.query_message_by_key("Orders", "k")

    ask(tmp_path, question)


def test_no_name_server(tmp_path: Path) -> None:
    async def asking() -> None:
        async with Namesrv(HOST, 0) as namesrv:
            address = f"{HOST}:{namesrv.port}"
        async with AdminClient(address) as admin:
            with pytest.raises(RemotingConnectError, match=f"no name server answers.*{address}"):
                await admin.fetch_all_topic_list()

    asyncio.run(asking())
    with pytest.raises(ConfigError, match="no name server is named"):
        AdminClient(" ; ")
