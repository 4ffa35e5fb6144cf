"""Request and reply: the asker waits for what the replier says, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rucola.client import ClientInstance, Message, MessageExt, Producer
from rucola.client.request_reply import PendingReplies, reply_message
from rucola.domain.client import HeartbeatData
from rucola.errors import InvalidMessage, RemotingTimeout, SendFailed
from rucola.message import MessageInner, properties
from rucola.message.compression import CompressionType, compress
from rucola.message.record import decode, encode
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.reply import ReplyMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.deadline import Deadline
from support.cluster import Cluster, Tally, cluster
from support.consumers import consumer_of

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


class ReplyingBroker:
    """A broker as Apache's is: it takes requests, and pushes replies to the clients that it knows by heartbeats."""

    def __init__(self) -> None:
        self.clients: dict[str, Connection] = {}
        self.requests: Tally[MessageExt] = Tally()
        self.replies = 0
        self.port = 0

    async def start(self, running: Cluster) -> None:
        processors = {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: lambda _, command: command.response(ResponseCode.SUCCESS),
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }
        self.port = (await running.scripted_broker("broker-a", "T", processors)).port
        await running.scripted_broker("broker-b", "c_REPLY_TOPIC", processors)  # another, which knows nobody

    def heart_beat(self, connection: Connection, command: RemotingCommand) -> Reply:
        self.clients[decode_body(HeartbeatData, command.body).client_id] = connection
        return command.response(ResponseCode.SUCCESS)

    def send(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(SendMessageRequestHeaderV2)
        pairs = properties.parse(header.properties) | {properties.CLUSTER: "c"}
        inner = MessageInner(header.topic, 0, command.body, properties.join(pairs), 0, 0, header.born_timestamp, HOST)
        self.requests.add(decode(encode(inner, 0, 0, 0, HOST)))
        return command.response(0, SendMessageResponseHeader(msg_id="0", queue_id=0, queue_offset=0))

    async def reply(self, connection: Connection, command: RemotingCommand) -> Answer:
        self.replies += 1
        header = command.decode_header(SendMessageRequestHeaderV2)
        asker = self.clients.get(properties.parse(header.properties)[properties.REPLY_TO_CLIENT])
        if asker is None:
            return command.response(ResponseCode.SYSTEM_ERROR, remark="channel not found")
        await asker.request(push_of(header, command.body), Deadline(5000))
        return command.response(0, SendMessageResponseHeader(msg_id="0", queue_id=0, queue_offset=0))


def push_of(header: SendMessageRequestHeaderV2, body: bytes) -> RemotingCommand:
    """What a broker sends to the asker."""
    pushed = ReplyMessageRequestHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=header.properties,
        born_host="10.0.0.1:1",
        store_host="10.0.0.2:2",
        store_timestamp=7,
    )
    return RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body)


async def answer_each(broker: ReplyingBroker, replier: Producer, count: int) -> None:
    for number in range(count):
        request = (await broker.requests.reach(number + 1))[number]
        await replier.reply(request, b"reply to " + request.body)


async def test_each_requester_gets_its_own_reply(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, AsyncExitStack() as stack:
        broker = ReplyingBroker()
        await broker.start(running)
        asker = await stack.enter_async_context(Producer("asker", running.namesrv))
        replier = await stack.enter_async_context(Producer("replier", running.namesrv))
        answering = asyncio.create_task(answer_each(broker, replier, 20))
        messages = [Message("T", b"%d" % number, keys="k") for number in range(20)]
        replies = await asyncio.gather(*(asker.request(message, timeout_ms=20_000) for message in messages))
        await answering
        assert [reply.body for reply in replies] == [b"reply to %d" % number for number in range(20)]
        request, reply = broker.requests.items[0], replies[0]
        assert request.properties[properties.REPLY_TO_CLIENT] == asker.instance.client_id
        assert request.properties[properties.TTL] == "20000"
        assert (request.keys, request.unique_key) == ("k", messages[int(request.body)].unique_key)
        assert not set(messages[0].properties) & {properties.CORRELATION_ID, properties.TTL}
        assert (reply.topic, reply.born_host, reply.store_host) == ("c_REPLY_TOPIC", "10.0.0.1:1", "10.0.0.2:2")
        assert reply.properties[properties.MSG_TYPE] == "reply"
        assert len({request.properties[properties.CORRELATION_ID] for request in broker.requests.items}) == 20


async def test_a_request_without_a_reply_names_its_queue_and_offset(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("asker", running.namesrv) as asker:
        broker = ReplyingBroker()
        await broker.start(running)
        with pytest.raises(RemotingTimeout):
            await asker.request(Message("T", b"x"), timeout_ms=100)


async def test_a_reply_without_requester_is_an_error_and_a_late_one_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as running, Producer("replier", running.namesrv) as replier:
        broker = ReplyingBroker()
        await broker.start(running)
        async with Producer("asker", running.namesrv) as asker:
            with pytest.raises(RemotingTimeout):
                await asker.request(Message("T", b"x"), timeout_ms=1000)
            await replier.reply(broker.requests.items[0], b"late")
        broker.clients.clear()
        with pytest.raises(SendFailed):
            await replier.reply(broker.requests.items[0], b"later")
    assert "no request is pending" in caplog.text


def test_a_message_that_is_no_request_cannot_be_replied_to() -> None:
    inner = MessageInner("T", 0, b"x", properties.join({properties.UNIQ_KEY: "K"}), 0, 0, 0, HOST)
    plain = decode(encode(inner, 0, 0, 0, HOST))
    with pytest.raises(InvalidMessage):
        reply_message(plain, b"")
    plain.properties |= {properties.CORRELATION_ID: "1", properties.REPLY_TO_CLIENT: "c", properties.TTL: "1"}
    with pytest.raises(InvalidMessage):
        reply_message(plain, b"")


async def test_a_compressed_reply_is_decompressed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, ClientInstance(running.namesrv) as instance:
        await running.start_broker()
        connection = await instance.remoting.connect(running.namesrv)
        body = compress(b"x" * 5000, CompressionType.ZSTD)
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic="c_REPLY_TOPIC", queue_id=0, sys_flag=CompressionType.ZSTD.sys_flag,
            born_timestamp=1, flag=0,
        )  # fmt: skip
        replies = PendingReplies()
        with replies.expect() as (correlation_id, reply):
            header.properties = properties.join({properties.CORRELATION_ID: correlation_id}).decode()
            for _ in range(2):  # a second one does no harm
                answer = replies.receive(connection, push_of(header, body))
                assert isinstance(answer, RemotingCommand)
                assert answer.code == ResponseCode.SUCCESS
            assert (await reply).body == b"x" * 5000


async def test_a_reply_goes_through_the_broker_of_its_request(tmp_path: Path) -> None:
    """Only that one knows the asker."""

    async with cluster(tmp_path) as running, AsyncExitStack() as stack:
        await running.start_broker("broker-a")
        await running.create_topic(await running.start_broker("broker-b"), "T", queues=1)
        asker = await stack.enter_async_context(Producer("asker", running.namesrv))
        replier = await stack.enter_async_context(Producer("replier", running.namesrv))

        async def listen(request: MessageExt) -> None:
            await replier.reply(request, b"yes, " + request.body)

        consumer = consumer_of(running)
        consumer.listen(listen)
        await stack.enter_async_context(consumer)
        for number in range(6):
            reply = await asker.request(Message("T", b"%d" % number), timeout_ms=20_000)
            assert reply.body == b"yes, %d" % number
