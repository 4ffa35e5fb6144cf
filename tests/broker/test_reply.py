"""Replies: pushed to the client that asked, stored, and the answer says how it went."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rucola.client import Message, Producer, PushConsumer
from rucola.message import properties
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import UnregisterClientRequestHeader
from rucola.protocol.reply import ReplyMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeader
from support.broker_peer import broker_peer
from support.cluster import cluster
from support.consumers import FIRST
from support.peer import Peer
from support.requester import REPLY_PROPERTIES, REPLY_TOPIC, requester, send_reply


async def stored(peer: Peer) -> list[bytes]:
    return [message.body for message in decode_many((await peer.pull(topic=REPLY_TOPIC)).body)]


async def test_a_reply_is_pushed_to_the_requester_and_stored(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        async with requester(peer, "another"), requester(peer) as asker:
            answer = await send_reply(peer, b"zipped", flag=7, sys_flag=1, born_timestamp=5, queue_id=-1)
            assert answer.code == ResponseCode.SUCCESS
            fields = answer.ext_fields
            assert (fields["queueId"], fields["queueOffset"], len(fields["msgId"])) == ("0", "0", 32)
            (pushed,) = asker.pushed
            header = pushed.decode_header(ReplyMessageRequestHeader)
            pairs = properties.parse(header.properties)
            assert int(pairs.pop(properties.PUSH_REPLY_TIME)) == header.store_timestamp
            assert pairs == properties.parse(REPLY_PROPERTIES)
            assert (pushed.body, header.topic, header.flag, header.sys_flag) == (b"zipped", REPLY_TOPIC, 7, 1)
            assert (header.born_timestamp, header.store_host) == (5, peer.broker.address)
            assert header.born_host.startswith("127.0.0.1:")
        (record,) = decode_many((await peer.pull(topic=REPLY_TOPIC)).body, decompress=False)
        assert (record.body, record.sys_flag, record.properties) == (b"zipped", 1, properties.parse(REPLY_PROPERTIES))


async def test_the_older_request_code_pushes_a_reply(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer, requester(peer) as asker:
        header = SendMessageRequestHeader(
            producer_group="p",
            topic=REPLY_TOPIC,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties=REPLY_PROPERTIES,
        )
        answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE, header, b"reply")
        assert (answer.code, len(asker.pushed)) == (ResponseCode.SUCCESS, 1)


async def test_a_reply_is_not_stored_if_storing_is_off(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, store_reply_message_enable=False) as peer:
        async with requester(peer) as asker:
            answer = await send_reply(peer)
            assert (answer.code, answer.ext_fields["msgId"], len(asker.pushed)) == (ResponseCode.SUCCESS, "0", 1)
        assert await stored(peer) == []


async def test_the_response_tells_why_a_reply_was_not_delivered(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        nobody = await send_reply(peer, b"0")
        assert nobody.remark == "push reply message fail, channel of <asker> not found."
        nameless = await send_reply(peer, b"1", properties="MSG_TYPE\x01reply")
        assert nameless.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        async with requester(peer) as asker:
            asker.code = ResponseCode.SYSTEM_ERROR
            refused = await send_reply(peer, b"2")
            assert "it responded with code 1, no" in (refused.remark or "")
            header = UnregisterClientRequestHeader(client_id="asker", producer_group="p")
            await asker.client.invoke(
                peer.broker.address, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
            )
            left = await send_reply(peer, b"3")
        assert {answer.code for answer in (nobody, nameless, refused, left)} == {ResponseCode.SYSTEM_ERROR}
        assert left.remark == nobody.remark
        assert await stored(peer) == [b"0", b"1", b"2", b"3"], "a reply is stored all the same"


@pytest.mark.parametrize(
    ("body", "fields", "code"),
    [
        (bytes(1001), {}, ResponseCode.MESSAGE_ILLEGAL),
        (b"", {"properties": "a\x01" + "x" * 32_767}, ResponseCode.MESSAGE_ILLEGAL),
        (b"", {"properties": "a\x01\x02" * 11_000}, ResponseCode.MESSAGE_ILLEGAL),
        (b"", {"topic": "New", "default_topic": "None"}, ResponseCode.TOPIC_NOT_EXIST),
        (b"", {"queue_id": 9}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_reply_is_checked_like_any_message(
    tmp_path: Path, body: bytes, fields: dict[str, Any], code: ResponseCode
) -> None:
    async with broker_peer(tmp_path, store={"max_message_size": 1000}) as peer:
        async with requester(peer) as asker:
            assert (await send_reply(peer, body, **fields)).code == code
            assert asker.pushed == []
        assert await stored(peer) == []


async def test_clients_request_and_reply_through_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, AsyncExitStack() as stack:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", 1)
        replier = await stack.enter_async_context(Producer("replier", running.namesrv))

        consumer = PushConsumer("g", running.namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        await stack.enter_async_context(consumer)

        async def answer_each() -> None:
            async for message in consumer:
                await replier.reply(message, message.body.upper())

        answering = asyncio.create_task(answer_each())
        asker = await stack.enter_async_context(Producer("asker", running.namesrv))
        replies = await asyncio.gather(
            *[asker.request(Message("T", b"question %d" % number), timeout_ms=30_000) for number in range(5)]
        )
        answering.cancel()
        assert [message.body for message in replies] == [b"QUESTION %d" % number for number in range(5)]
