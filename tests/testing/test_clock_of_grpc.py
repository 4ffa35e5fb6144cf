"""`advance` of the fixture, for clients of RocketMQ 5: invisible durations, backoff and checks of transactions."""

from __future__ import annotations

import asyncio

from rucola.protocol.grpc.definition_pb2 import Message, MessageType, Resource, TransactionResolution
from rucola.protocol.grpc.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    EndTransactionRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from rucola.testing.rocketmq import RocketMQ
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message, producer_settings

GROUP = Resource(name="g")


async def receive(client: GrpcPeer, topic: str, invisible_s: int) -> list[Message]:
    """Receive without waiting for messages."""
    request = ReceiveMessageRequest(group=GROUP, batch_size=8)
    request.message_queue.topic.name = topic
    request.invisible_duration.FromSeconds(invisible_s)
    request.long_polling_timeout.FromSeconds(0)
    method = client.channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)
    call = method(request.SerializeToString(), metadata=client.metadata, timeout=30)
    return [answer.message async for answer in call if answer.HasField("message")]


async def test_a_message_that_is_not_acknowledged_becomes_visible(rocketmq: RocketMQ) -> None:
    topic = rocketmq.unique("T")
    await asyncio.to_thread(rocketmq.send, topic, b"pizza")
    async with grpc_peer(rocketmq.grpc_endpoint) as client:
        for attempt in (1, 2, 3):
            (held,) = await receive(client, topic, 300)
            assert held.system_properties.delivery_attempt == attempt
            assert await receive(client, topic, 300) == []
            await asyncio.to_thread(rocketmq.advance, 301)
        (held,) = await receive(client, topic, 300)
        entry = AckMessageEntry(message_id="m", receipt_handle=held.system_properties.receipt_handle)
        await client.ask("AckMessage", AckMessageRequest(group=GROUP, topic=held.topic, entries=[entry]))
        await asyncio.to_thread(rocketmq.advance, 301)
        assert await receive(client, topic, 300) == []


async def test_a_producer_is_asked_about_its_transaction(rocketmq: RocketMQ) -> None:
    topic = rocketmq.unique("T")
    await asyncio.to_thread(rocketmq.create_topic, topic)
    async with grpc_peer(rocketmq.grpc_endpoint) as client, client.telemetry(producer_settings(topic)) as stream:
        assert (await stream.read()).HasField("settings")
        half = message(
            lambda system: setattr(system, "message_type", MessageType.TRANSACTION), topic=Resource(name=topic)
        )
        await client.send(half)
        await asyncio.to_thread(rocketmq.advance, 600)
        command = await asyncio.wait_for(stream.read(), 30)
        orphan = command.recover_orphaned_transaction_command
        assert orphan.message.system_properties.message_id == half.system_properties.message_id
        end = EndTransactionRequest(topic=half.topic, transaction_id=orphan.transaction_id)
        end.resolution = TransactionResolution.COMMIT
        await client.ask("EndTransaction", end)
        (committed,) = await asyncio.to_thread(rocketmq.wait_for_messages, topic)
        assert committed.body == half.body
