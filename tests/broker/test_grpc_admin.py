"""The Admin service of RocketMQ 5, with the client of grpcio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola import refusals
from rucola.access import Refused
from rucola.broker.grpc.admin import NOT_IMPLEMENTED
from rucola.client import MessageExt, PushConsumer
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode
from rucola.protocol.grpc import admin_pb2
from rucola.protocol.grpc.admin_pb2 import (
    AdminSendMessageRequest,
    DescribeGroupAccumulationRequest,
    DescribeTopicStatusRequest,
    ListConsumerConnectionRequest,
    ListMessageRequest,
    QueryTimeSpanRequest,
    ResetGroupOffsetRequest,
)
from rucola.protocol.grpc.definition_pb2 import Code, MessageType, Resource, Settings
from rucola.protocol.grpc.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse, TelemetryCommand
from support.access import guarded_cluster
from support.broker_peer import broker_peer, heartbeat
from support.cluster import cluster
from support.errors import raises
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message
from support.peer import Peer
from support.waiting import until

GROUP, TOPIC = Resource(name="g"), Resource(name="T")


@asynccontextmanager
async def both(path: Path) -> AsyncIterator[tuple[Peer, GrpcPeer]]:
    async with broker_peer(path) as peer, grpc_peer(peer.broker.grpc_endpoint, client_id="") as client:
        await peer.alter_topic("T")
        yield peer, client


def request_of(method: str, **fields: Any) -> Any:
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    return getattr(admin_pb2, service.methods_by_name[method].input_type.name)(**fields)


METHODS = set(admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name) - {"ChangeLogLevel"}
"""ChangeLogLevel has no status to answer with, and is UNIMPLEMENTED."""


async def test_every_method_passes_the_gate(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        for keys in (None, ("stranger", "secret of a stranger")):
            async with grpc_peer(broker.grpc_endpoint, keys=keys) as client:
                for method in sorted(METHODS):
                    answer = await client.ask_admin(method, request_of(method))
                    assert answer.status.code == Code.UNAUTHORIZED, method
        async with grpc_peer(broker.grpc_endpoint, keys=("reader1", "secret of the reader")) as reader:
            reset = ResetGroupOffsetRequest(topic=Resource(name="Orders"), group=GROUP)
            assert (await reader.ask_admin("ResetGroupOffset", reset)).status.code == Code.FORBIDDEN


@pytest.mark.parametrize("method", NOT_IMPLEMENTED)
async def test_other_methods_are_not_implemented(method: str, tmp_path: Path) -> None:
    async with both(tmp_path) as (_, client):
        assert (await client.ask_admin(method, request_of(method))).status.code == Code.NOT_IMPLEMENTED


async def test_a_topic_is_described(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        await peer.alter_topic("InOrder", 3, order=True)
        found = await client.ask_admin(
            "DescribeTopicStatus", DescribeTopicStatusRequest(topic=Resource(name="InOrder"))
        )
        assert (found.status.code, found.topic_message_type) == (Code.OK, MessageType.FIFO)
        assert found.tags["writeQueueNums"] == "3"
        missing = await client.ask_admin("DescribeTopicStatus", DescribeTopicStatusRequest(topic=Resource(name="No")))
        assert missing.status.code == Code.TOPIC_NOT_FOUND


async def test_the_accumulation_of_a_group(tmp_path: Path) -> None:
    """Of a group that pulls, all that follows its offset is ready; by POP, what it holds is in flight."""
    async with both(tmp_path) as (peer, client):
        for _ in range(5):
            await peer.send()
        await peer.commit(2)

        async def counts(group: str) -> list[tuple[int, int, int]]:
            request = DescribeGroupAccumulationRequest(group=Resource(name=group), topics=[TOPIC, Resource(name="No")])
            found = await client.ask_admin("DescribeGroupAccumulation", request)
            totals = found.accumulation, found.topic_accumulation["T"], found.topic_accumulation["No"]
            return [(one.inflight_messages, one.ready_messages, one.accumulation) for one in totals]

        assert await counts("g") == [(0, 3, 3), (0, 3, 3), (0, 0, 0)]
        assert await counts("other") == [(0, 0, 0)] * 3
        await receive(peer, 2)
        assert await counts("popping") == [(2, 3, 5), (2, 3, 5), (0, 0, 0)]


async def receive(peer: Peer, count: int, group: str = "popping") -> list[bytes]:
    """Receive by POP in another client; return the bodies."""
    async with grpc_peer(peer.broker.grpc_endpoint) as client:
        request = ReceiveMessageRequest(group=Resource(name=group), batch_size=count)
        request.message_queue.topic.name = "T"
        request.invisible_duration.FromMilliseconds(60_000)
        request.long_polling_timeout.FromMilliseconds(0)
        method = client.channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)
        call = method(request.SerializeToString(), metadata=client.metadata, timeout=30)
        return [answer.message.body async for answer in call if answer.HasField("message")]


async def test_messages_are_sent_and_found(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        sent = AdminSendMessageRequest(topic=TOPIC, body=b"x", tag="a", key="k1 k2", user_properties={"p": "q"})
        answer = await client.ask_admin("AdminSendMessage", sent)
        assert answer.status.code == Code.OK
        (stored,) = decode_many((await peer.pull(topic="T", queue_offset=0)).body)
        assert (stored.body, stored.tags, stored.keys, stored.properties["p"]) == (b"x", "a", "k1 k2", "q")
        for search in ({"message_id": answer.message_id}, {"message_key": "k2"}):
            found = await client.ask_admin(
                "QueryMessage", ListMessageRequest(topic=TOPIC, max_message_nums=9, **search)
            )
            assert [one.system_properties.message_id for one in found.messages] == [answer.message_id]
        none = await client.ask_admin("QueryMessage", ListMessageRequest(topic=TOPIC, message_key="k3"))
        assert (none.status.code, len(none.messages)) == (Code.OK, 0)
        scan = await client.ask_admin("QueryMessage", ListMessageRequest(topic=TOPIC, subscription="*"))
        assert scan.status.code == Code.NOT_IMPLEMENTED
        empty = await client.ask_admin("AdminSendMessage", AdminSendMessageRequest(topic=TOPIC))
        assert empty.status.code == Code.MESSAGE_BODY_EMPTY


async def test_a_group_that_consumes_by_pop_is_reset(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        async with grpc_peer(peer.broker.grpc_endpoint) as sender:
            await sender.send(message())
        assert await receive(peer, 1) == [b"body"]
        assert await receive(peer, 1) == []
        request = ResetGroupOffsetRequest(topic=TOPIC, group=Resource(name="popping"))
        assert (await client.ask_admin("ResetGroupOffset", request)).status.code == Code.BAD_REQUEST
        request.reset_timestamp.FromMilliseconds(0)
        assert (await client.ask_admin("ResetGroupOffset", request)).status.code == Code.OK
        assert await receive(peer, 1) == [b"body"]


async def test_consumers_are_asked(tmp_path: Path) -> None:
    """A consumer of 4.x answers itself; one by gRPC has told its subscription, and reports nothing else."""
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(grpc_server_port=0)
        await running.create_topic(broker, "T", queues=2)
        got: list[bytes] = []

        def listen(one: MessageExt) -> None:
            if one.body == b"bad":
                raise RuntimeError("not this one")
            got.append(one.body)

        consumer = PushConsumer("g", running.namesrv)
        consumer.subscribe("T", "a || b")
        consumer.listen(listen)
        settings = Settings()
        settings.subscription.group.name = "g"
        settings.subscription.subscriptions.add(topic=TOPIC).expression.expression = "a || b"
        async with (
            consumer,
            grpc_peer(broker.grpc_endpoint, client_id="") as client,
            grpc_peer(broker.grpc_endpoint, client_id="other@1") as other,
            other.telemetry(settings) as stream,
        ):
            await stream.read()

            async def ask(method: str, **fields: Any) -> Any:
                return await client.ask_admin(method, request_of(method, group=GROUP, **fields))

            ids = {consumer.instance.client_id, "other@1"}
            for fields in ({}, {"topic": TOPIC}):
                described = (await ask("DescribeSubscription", **fields)).client_subscription_info
                assert {one.client_info.client_id for one in described} == ids
                assert {one.subscription_info.expression.expression for one in described} == {"a || b"}
                (listed,) = (await ask("ListSubscription", **fields)).subscription_info
                found = listed.topic.name, listed.group.name, listed.online, listed.subscription_consistency
                assert found == ("T", "g", True, True)
            (of_topic,) = (
                await client.ask_admin("ListSubscription", request_of("ListSubscription", topic=TOPIC))
            ).subscription_info
            assert of_topic == listed
            settings.subscription.subscriptions[0].expression.expression = "c"
            await stream.write(TelemetryCommand(settings=settings))
            await stream.read()
            (listed,) = (await ask("ListSubscription")).subscription_info
            assert not listed.subscription_consistency
            assert len((await ask("DescribeSubscription", topic=Resource(name="No"))).client_subscription_info) == 0

            own = {"client_id": consumer.instance.client_id}
            info = (await ask("GetConsumerRunningInfo", **own)).consumer_running_info
            assert info.subscriptions["T"].expression == "a || b"
            queues = {(one.message_queue.topic.name, one.message_queue.id) for one in info.message_queue_table}
            assert queues >= {("T", 0), ("T", 1)}
            assert (await ask("PrintThreadStackTrace", **own)).status.code == Code.NOT_IMPLEMENTED
            for method in ("GetConsumerRunningInfo", "PrintThreadStackTrace"):
                assert (await ask(method, client_id="other@1")).status.code == Code.INTERNAL_SERVER_ERROR
                assert (await ask(method, client_id="nobody")).status.code == Code.NOT_FOUND

            for body, code in ((b"good", Code.OK), (b"bad", Code.FAILED_TO_CONSUME_MESSAGE)):
                sent = AdminSendMessageRequest(topic=TOPIC, body=body, tag="z")
                message_id = (await client.ask_admin("AdminSendMessage", sent)).message_id
                verified = await ask("VerifyMessage", topic=TOPIC, message_id=message_id, **own)
                assert verified.status.code == code
            assert got == [b"good"]
            missing = await ask("VerifyMessage", topic=TOPIC, message_id="none", **own)
            assert missing.status.code == Code.MESSAGE_NOT_FOUND


async def test_a_route_is_that_of_the_name_servers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker(grpc_server_port=0)
        await running.create_topic(broker, "T", queues=3)
        async with grpc_peer(broker.grpc_endpoint, client_id="") as client:
            found = await client.ask_admin("GetTopicRoute", request_of("GetTopicRoute", topic=TOPIC))
            (queues,) = json.loads(found.topic_route_data)["queueDatas"]
            assert (queues["brokerName"], queues["writeQueueNums"]) == ("broker-a", 3)
            none = await client.ask_admin("GetTopicRoute", request_of("GetTopicRoute", topic=Resource(name="No")))
            assert none.status.code == Code.TOPIC_NOT_FOUND


async def test_connections_and_times_of_a_group(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        offline = await client.ask_admin("ListConsumerConnection", ListConsumerConnectionRequest(group=GROUP))
        assert offline.status.code != Code.OK
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        found = await client.ask_admin("ListConsumerConnection", ListConsumerConnectionRequest(group=GROUP))
        assert [(one.client_id, one.egress_ip, one.language) for one in found.client_info] == [
            ("c", "127.0.0.1", "PYTHON")
        ]
        settings = Settings()
        settings.subscription.group.name = "g"
        settings.subscription.subscriptions.add(topic=TOPIC).expression.expression = "a || b"
        async with (
            grpc_peer(peer.broker.grpc_endpoint, client_id="consumer@1") as consumer,
            consumer.telemetry(settings) as stream,
        ):
            await stream.read()
            found = await client.ask_admin("ListConsumerConnection", ListConsumerConnectionRequest(group=GROUP))
            assert [one.client_id for one in found.client_info] == ["c", "consumer@1"]
            assert peer.broker.parts is not None
            ids = peer.broker.parts.services.clients.consumer_ids("g")
            assert ids == ["c"], "one that pulls takes all queues"
            with raises(Refused, refusal=refusals.CONSUMER_BY_GRPC):
                peer.broker.parts.services.inspection.consumer("g", "consumer@1")
            alone = Settings()
            alone.CopyFrom(settings)
            alone.subscription.group.name = "other"
            async with grpc_peer(peer.broker.grpc_endpoint) as other, other.telemetry(alone) as second:
                await second.read()
                connections = peer.broker.parts.services.inspection.consumer_connections("other")
                assert connections.subscription_table["T"].sub_string == "a || b"
        await until(lambda: not peer.broker.parts.services.clients._state.clients.receivers)
        await peer.send()
        spans = await client.ask_admin("QueryTimeSpan", QueryTimeSpanRequest(group=GROUP, topics=[TOPIC]))
        (span,) = spans.queue_time_span_list
        assert (span.message_queue.id, span.message_queue.topic.name) == (0, "T")
        assert span.min_timestamp == span.max_timestamp > 0
