"""Topics as operators and clients make them: what is refused, what is kept, and what name servers tell of units."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.topic import TopicConfigSerializeWrapper
from rucola.message import sysflag
from rucola.message.ids import parse_offset_msg_id
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.route import TopicList
from rucola.protocol.topic import TopicRequestHeader
from support.broker_peer import broker_peer
from support.replication import sound_cluster
from support.waiting import until


@pytest.mark.parametrize("topic", ["C", "broker-a", "C_REPLY_TOPIC", "MyTraces", "TBW102", "rmq_sys_any"])
async def test_topics_of_the_system_and_of_the_broker_cannot_be_changed_or_deleted(tmp_path: Path, topic: str) -> None:
    settings = {"broker_cluster_name": "C", "trace_topic_enable": True, "msg_trace_topic_name": "MyTraces"}
    async with broker_peer(tmp_path, **settings) as peer:
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic))
        for answer in (await peer.alter_topic(topic), deleted):
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{topic}] is conflict with system topic.",
            )
        if topic != "rmq_sys_any":
            listed = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            assert topic in decode_body(TopicList, listed.body).topic_list


async def test_the_timer_topic_is_listed_from_its_first_message_on(tmp_path: Path) -> None:
    """Tools of Apache 4.9 do not know it for a system topic, so a broker without timer messages must not have it."""

    async with broker_peer(tmp_path) as peer:

        async def listed() -> set[str]:
            answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            return set(decode_body(TopicConfigSerializeWrapper, answer.body).topic_config_table)

        assert {SCHEDULE_TOPIC, TRANS_HALF_TOPIC} <= await listed()
        await peer.send(b"now", properties="TAGS\x01A\x02")
        assert TIMER_TOPIC not in await listed()
        await peer.send(b"later", properties="TIMER_DELAY_MS\x01600000\x02")
        assert TIMER_TOPIC in await listed()


async def test_the_list_of_system_topics_has_every_topic_that_no_user_made(tmp_path: Path) -> None:
    """topicList hides none, as that of mqadmin: consoles tell them apart by the lists of name server and broker."""

    async with sound_cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        broker = await running.start_broker()
        await running.create_topic(broker, "T")
        for properties, sys_flag in (
            ("DELAY\x013\x02", 0),
            ("TIMER_DELAY_MS\x01600000\x02", 0),
            ("TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02", sysflag.TRANSACTION_PREPARED),
        ):
            sent = await running.peer(broker).send(properties=properties, sys_flag=sys_flag)
            assert sent.code == ResponseCode.SUCCESS

        async def listed() -> bool:
            return {SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC} <= {*await admin.topics.names()}

        await until(listed)
        system = set[str]()
        for address, code in (
            (running.namesrv, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),
            (broker.address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
        ):
            answer = await running.remoting.invoke_ok(address, RemotingCommand.request(code))
            system |= {*decode_body(TopicList, answer.body).topic_list}
        assert {*await admin.topics.names()} - system == {"T"}


async def test_a_commit_of_a_timer_message_creates_the_timer_topic(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        pairs = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x01600000\x02"
        half = await peer.send(b"later", properties=pairs, sys_flag=sysflag.TRANSACTION_PREPARED)
        assert half.code == ResponseCode.SUCCESS, half.remark
        _, physical_offset = parse_offset_msg_id(half.ext_fields["msgId"])
        queue_offset = int(half.ext_fields["queueOffset"])
        answer = await peer.end_transaction(queue_offset, physical_offset, sysflag.TRANSACTION_COMMIT)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        listed = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert TIMER_TOPIC in decode_body(TopicConfigSerializeWrapper, listed.body).topic_config_table


@pytest.mark.parametrize("kind", ["FOO", "", "single_tag"])
async def test_an_unknown_filter_type_is_refused(tmp_path: Path, kind: str) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.alter_topic(topic_filter_type=kind)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"topicFilterType is {kind!r}; SINGLE_TAG or MULTI_TAG is expected"
        assert (await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="T"))).code == 17


async def test_name_servers_list_the_topics_of_units(tmp_path: Path) -> None:
    """Topics made by a producer of a unit, and the retry topics of groups in one, by a heartbeat or by a send."""

    async with sound_cluster(tmp_path) as running:
        peer = running.peer(await running.start_broker())
        for topic in ("Unit", "%RETRY%sent"):
            await peer.send(topic=topic, unit_mode="true")
        for topic in ("Plain", "%RETRY%plain"):
            await peer.send(topic=topic)
        groups = [ConsumerData(group_name="beat", unit_mode=True), ConsumerData(group_name="other")]
        await peer.ask(RequestCode.HEART_BEAT, body=encode_body(HeartbeatData(client_id="c", consumer_data_set=groups)))
        await peer.alter_topic("Both", topic_sys_flag=3)

        async def listed(code: RequestCode) -> list[str]:
            answer = await running.remoting.invoke_ok(running.namesrv, RemotingCommand.request(code))
            return sorted(decode_body(TopicList, answer.body).topic_list)

        retries = ["%RETRY%beat", "%RETRY%sent"]
        assert await listed(RequestCode.GET_UNIT_TOPIC_LIST) == ["Both", "Unit"]
        assert await listed(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == [*retries, "Both"]
        assert await listed(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == retries


async def test_query_consume_queue_returns_units(tmp_path: Path) -> None:
    """As many as are asked for and there; none for a count of 0 or less; no body where no unit begins."""

    async with broker_peer(tmp_path) as peer:
        for _ in range(3):
            await peer.send(properties="TAGS\x01a\x02")

        async def units(index: int, count: int) -> list[int] | None:
            header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=index, count=count)
            answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header)
            assert answer.code == ResponseCode.SUCCESS
            if not answer.body:
                assert answer.remark == f"Index {index} of 0@T is not exist!"
                return None
            body = decode_body(QueryConsumeQueueResponseBody, answer.body)
            assert (body.min_queue_index, body.max_queue_index) == (0, 3)
            assert all(unit.physic_size > 0 for unit in body.queue_data)
            return [unit.tags_code for unit in body.queue_data]

        assert await units(0, 10) == [97, 97, 97]
        assert await units(2, 10) == [97]
        assert await units(1, 1) == [97]
        for count in (0, -1, -5, -(2**31)):
            assert await units(0, count) == []
        for index in (-1, 3, 2**62):
            assert await units(index, 1) is None
