"""AdminClient decodes the recorded responses of Apache's broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import AdminClient, KeyQueryResult
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Processor
from support.cluster import cluster
from support.errors import raises
from support.recorded_frames import Exchange, decode, exchanges

CLIENT = "192.0.2.2@W_g_tag-2860957628758"
BROKER_PORT = 10921


def apache(golden: Path) -> dict[int, Processor]:
    """Processors that return the last recorded response to each request code, preferably a success."""
    recorded: dict[int, Exchange] = {}
    for exchange in exchanges(golden):
        if exchange.serializer == "JSON" and exchange.port == BROKER_PORT and exchange.answer is not None:
            known = recorded.get(exchange.code)
            if known is None or decode(exchange.answer).code == 0:
                recorded[exchange.code] = exchange

    return {code: answering(exchange.answer) for code, exchange in recorded.items() if exchange.answer is not None}


def answering(frame: bytes | None) -> Processor:
    """Return a processor that sends this response to every request."""
    assert frame is not None

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        found = decode(frame)
        found.opaque = command.opaque
        return found

    return answer


@asynccontextmanager
async def recorded_broker(golden: Path, path: Path) -> AsyncIterator[tuple[AdminClient, str]]:
    """An AdminClient of a broker that gives the recorded answers, and that broker's address."""
    async with cluster(path) as running:
        broker = await running.scripted_broker("broker-a", "WA", apache(golden))
        async with AdminClient(running.namesrv) as admin:
            yield admin, f"127.0.0.1:{broker.port}"


async def test_recorded_connections_are_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, _):
        found = await admin.groups.consumer_connection("W_g_tag")
        assert [(one.client_id, one.language, one.version) for one in found.connection_set] == [(CLIENT, "JAVA", 409)]
        assert found.subscription_table["WA"].tags_set == ["TagA", "TagB"]
        with raises(BrokerError, code=ResponseCode.SYSTEM_ERROR):
            await admin.groups.producer_connection("W_pg", "WA")


async def test_recorded_running_info_is_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, _):
        info = await admin.groups.running_info("W_g_tag", CLIENT)
        assert info.mq_table[MessageQueue("WA", "broker-a", 0)].commit_offset == 16
        assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_8"
        assert info.status_table["WA"].consume_ok_tps == 0.65
        assert {data.topic for data in info.subscription_set} == {"WA", "%RETRY%W_g_tag"}


async def test_recorded_consume_status_and_reset_are_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, _):
        status = await admin.offsets.by_client("WA", "W_g_tag")
        assert [offset for _, offset in status[CLIENT].items()] == [16, 4, 7, 8]
        reset = await admin.offsets.reset_by_time("WA", "W_g_tag", 0)
        assert reset.online
        assert reset.offsets == {MessageQueue("WA", "broker-a", queue_id): 0 for queue_id in range(4)}


async def test_recorded_direct_consumption_is_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, at):
        address, _, port = at.partition(":")
        assert address == "127.0.0.1"
        message_id = f"7F000001{int(port):08X}{0x37D:016X}"
        result = await admin.messages.consume_directly("W_g_tag", CLIENT, message_id)
        assert (result.consume_result, result.spent_time_mills, result.auto_commit) == ("CR_SUCCESS", 1, True)


async def test_recorded_consume_stats_are_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, at):
        stats = await admin.brokers.consume_stats(at)
        assert stats.total_diff == 37
        ordered = stats.groups["W_g_order"][0].offset_table
        assert ordered[MessageQueue("WOrder", "broker-a", 0)].consumer_offset == 4
        assert stats.groups["W_g_pull"] == []
        spans = await admin.groups.consume_time_spans("WA", "W_g_tag")
        assert [span.delay_time for span in spans] == [3638, 41396, 41329, 41277]
        data = await admin.brokers.stats(at, "TOPIC_PUT_NUMS", "WA")
        assert (data.stats_minute.sum, data.stats_minute.tps, data.stats_day.sum) == (64, 1.6, 0)


async def test_recorded_broker_data_is_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, at):
        figures = await admin.brokers.runtime_stats(at)
        assert figures["putMessageTimesTotal"] == "273"
        config = await admin.brokers.config(at)
        assert (config["maxMessageSize"], config["brokerName"]) == ("100000", "broker-a")
        found = await admin.topics.consume_queue_units(at, "WA", 0, 0, 5)
        assert (found.min_queue_index, found.max_queue_index) == (0, 17)
        assert [unit.physic_size for unit in found.queue_data] == [452, 687, 850, 331, 542]
        topics = await admin.topics.configs(at)
        assert topics["WA"].write_queue_nums == 4
        groups = await admin.groups.configs(at)
        assert groups["W_g_explicit"].group_name == "W_g_explicit"


@pytest.mark.parametrize("unique", [False, True])
async def test_recorded_key_queries_return_every_match(golden: Path, tmp_path: Path, unique: bool) -> None:
    """Every recorded query that found something: the messages of the answer that have the key."""
    for exchange in exchanges(golden):
        answer = decode(exchange.answer) if exchange.answer is not None else None
        if exchange.code != RequestCode.QUERY_MESSAGE or answer is None or answer.code:
            continue
        fields = decode(exchange.request).ext_fields
        if (fields.get("_UNIQUE_KEY_QUERY") == "true") != unique:
            continue
        topic, key = fields["topic"], fields["key"]
        recorded = {RequestCode.QUERY_MESSAGE: answering(exchange.answer)}
        found = await _query(tmp_path, topic, key, recorded, unique=unique)
        assert found.messages
        assert {message.topic for message in found.messages} == {topic}
        assert len(found.messages) == len(decode_many(answer.body))
        assert (found.is_cut, found.failures, found.index_ranges) == (False, {}, {})


async def _query(path: Path, topic: str, key: str, recorded: dict[int, Processor], *, unique: bool) -> KeyQueryResult:
    async with cluster(path) as running:
        await running.scripted_broker("broker-a", topic, recorded)
        async with AdminClient(running.namesrv) as admin:
            ask = admin.messages.query_by_unique_key if unique else admin.messages.query_by_key
            return await ask(topic, key)


async def test_recorded_exports_are_decoded(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, at):
        topics, groups = await admin.export.metadata([at])
        assert topics["WA"].write_queue_nums == 4
        assert not [name for name in topics if name.startswith(("%", "TBW102", "SCHEDULE"))]
        assert "W_g_explicit" in groups
        assert "TOOLS_CONSUMER" not in groups
        configs = await admin.export.configs("c")
        assert configs["brokerConfigs"]["broker-a"]["maxMessageSize"] == "100000"
        metrics = await admin.export.metrics("c")
        quota = metrics["evaluateReport"]["broker-a"]["runtimeQuota"]
        assert quota["topicSize"] == len(topics)
        assert metrics["evaluateReport"]["broker-a"]["runtimeVersion"]["clientInfo"] == ["JAVA%V4_9_8"]


async def test_commands_with_empty_responses_succeed(golden: Path, tmp_path: Path) -> None:
    async with recorded_broker(golden, tmp_path) as (admin, at):
        await admin.brokers.update_config(at, {"flushDiskType": "ASYNC_FLUSH"})
        await admin.groups.delete(at, "W_g_cloned")
        await admin.topics.delete_on_broker(at, "WAuto")
        await admin.offsets.clone("W_g_tag", "W_g_cloned", "WA", offline=True)
        await admin.brokers.clean_expired_consume_queues(at)
        await admin.brokers.clean_unused_topics(at)
        with raises(BrokerError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            await admin.brokers.delete_expired_commit_log(at)
