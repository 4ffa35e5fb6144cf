"""Queues that a broker assigns to clients, and whether they pull or pop them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rucola import fastjson
from rucola.admin import AdminClient
from rucola.domain.group import MessageRequestMode, MessageRequestModes
from rucola.protocol.assignment import QueryAssignmentRequestBody, QueryAssignmentResponseBody
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.topic import TopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.config_files import config_path, read_config
from support.broker_peer import broker_peer, heartbeat
from support.cluster import cluster
from support.peer import Peer
from support.pop import receive
from support.replication import pair
from support.waiting import until


async def set_mode(peer: Peer, mode: str = "POP", **fields: Any) -> int:
    body = MessageRequestMode(**{"topic": "T", "consumer_group": "g", "mode": mode} | fields)
    return (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))).code


async def assigned(peer: Peer, client_id: str = "c1", **fields: Any) -> list[tuple[str, int, str]] | None:
    """(broker name, queue id, mode) of each assigned queue, in order."""
    body = QueryAssignmentRequestBody(**{"topic": "T", "consumer_group": "g", "client_id": client_id} | fields)
    answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
    if found is None:
        return None
    return sorted((one.message_queue.broker_name, one.message_queue.queue_id, one.mode) for one in found)


async def test_queues_are_assigned_by_the_mode_of_the_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        peers = [running.peer(await running.start_broker(name)) for name in ("a", "b")]
        first = peers[0]
        for peer in peers:
            await peer.alter_topic(queues=2)
        assert await assigned(first) is None, "no member has sent a heartbeat"
        other = Peer(first.broker, RemotingClient())
        for peer, member in ((first, "c1"), (other, "c2")):
            await peer.ask(RequestCode.HEART_BEAT, body=heartbeat(member))
        assert await assigned(first) == [("a", 0, "PULL"), ("a", 1, "PULL")]
        assert await assigned(first, "c2") == [("b", 0, "PULL"), ("b", 1, "PULL")]
        assert await assigned(first, strategy_name="AVG_BY_CIRCLE") == [("a", 0, "PULL"), ("b", 0, "PULL")]
        everything = [(name, number, "PULL") for name in "ab" for number in (0, 1)]
        assert await assigned(first, message_model="BROADCASTING") == everything
        assert await assigned(first, strategy_name="unknown") is None
        assert await assigned(first, topic="absent") is None
        assert await set_mode(first) == ResponseCode.SUCCESS
        for member in ("c1", "c2"):
            assert await assigned(first, member) == [("a", -1, "POP"), ("b", -1, "POP")]
        await other.client.close()


async def test_a_mode_survives_a_restart_and_ends_with_its_topic(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.alter_topic()
        assert await set_mode(peer, pop_share_queue_num=2) == ResponseCode.SUCCESS
        assert await set_mode(peer, "PUSH") == ResponseCode.SYSTEM_ERROR
        assert await set_mode(peer, topic="absent") == ResponseCode.TOPIC_NOT_EXIST
        assert await set_mode(peer, topic="%RETRY%g") == ResponseCode.NO_PERMISSION
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
    assert read_config(config_path(tmp_path, "messageRequestMode")) == {"messageRequestModeMap": {"T": {"g": mode}}}
    async with broker_peer(tmp_path) as peer:
        answer = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert decode_body(MessageRequestModes, answer.body).message_request_mode_map["T"]["g"].mode == "POP"
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="T"))
        answer = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert fastjson.loads(answer.body) == {"messageRequestModeMap": {}}


async def test_a_slave_has_the_modes_of_its_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        await running.peer(master).send()
        assert await set_mode(running.peer(master)) == ResponseCode.SUCCESS

        async def is_copied() -> bool:
            answer = await running.peer(slave).ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            return bool(decode_body(MessageRequestModes, answer.body).message_request_mode_map)

        await until(is_copied)


async def test_a_retry_topic_of_pop_is_listed_as_its_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as client:
        broker = await running.start_broker()
        peer = running.peer(broker)
        for topic in ("Orders", "my_Orders"):
            await peer.send(topic=topic)
            (held,) = await receive(peer, topic=topic, consumer_group="billing", invisible_time=1)
            assert held.attempt == 1
            (again,) = await receive(peer, topic=topic, consumer_group="billing", poll_time=20_000)
            assert again.attempt == 2

        async def are_registered() -> bool:
            return await client.groups.names() == ["billing"]

        await until(are_registered)
