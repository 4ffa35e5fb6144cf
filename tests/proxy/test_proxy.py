"""The proxy before two brokers, with the client of grpcio."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rucola.broker.broker import Broker
from rucola.broker.grpc.service import NOT_IMPLEMENTED
from rucola.client.connection_options import ConnectionOptions
from rucola.errors import BrokerError, ConfigError, RemotingError
from rucola.http2.frames import ErrorCode
from rucola.http2.grpc import Call, unary
from rucola.http2.server import GrpcServer
from rucola.message.record import decode_many
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.grpc import health_pb2
from rucola.protocol.grpc.definition_pb2 import (
    AddressScheme,
    ClientType,
    Code,
    Message,
    MessageType,
    Resource,
    Settings,
    TransactionResolution,
)
from rucola.protocol.grpc.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    EndTransactionRequest,
    ForwardMessageToDeadLetterQueueRequest,
    QueryAssignmentRequest,
    QueryRouteRequest,
    RecallMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    TelemetryCommand,
)
from rucola.protocol.pop import PollingInfoRequestHeader
from rucola.proxy import brokers
from rucola.proxy.config import ProxyConfig
from rucola.proxy.server import Proxy
from rucola.remoting.connection import Connection
from rucola.remoting.metrics_config import MetricsExporterType
from support.access import ADMIN, guarded_cluster
from support.certificates import Certificates
from support.cluster import HOST, Cluster, cluster
from support.errors import raises
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message, producer_settings, receive_and_reset
from support.metrics import Samples, documented_names, families_of, names_of, sample_value, samples_of
from support.waiting import until

GROUP, TOPIC = Resource(name="g"), Resource(name="T")
WRITER, READER = ("writer1", "secret of the writer"), ("reader1", "secret of the reader")
STRANGER = ("stranger", "secret of a stranger")
BOTH = ["broker-a", "broker-b"]


class Client(GrpcPeer):
    async def route(self, topic: str = "T", **endpoints: Any) -> Any:
        request = QueryRouteRequest(topic=Resource(name=topic))
        if endpoints:
            request.endpoints.addresses.add(**endpoints)
        return await self.ask("QueryRoute", request)

    def receiving(self, broker_name: str, wait_ms: int = 0) -> Any:
        request = ReceiveMessageRequest(group=GROUP, batch_size=10)
        request.message_queue.topic.name, request.message_queue.broker.name = "T", broker_name
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        request.invisible_duration.FromMilliseconds(60_000)
        make = self.channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)
        return make(request.SerializeToString(), metadata=self.metadata, timeout=30)

    async def receive(self, broker_name: str, wait_ms: int = 0) -> tuple[int, list[Message]]:
        """The code, and the messages."""
        answers = [answer async for answer in self.receiving(broker_name, wait_ms)]
        return answers[0].status.code, [answer.message for answer in answers if answer.HasField("message")]

    async def receive_all(self) -> dict[str, list[Message]]:
        """The messages by broker."""
        return {name: (await self.receive(name))[1] for name in BOTH}

    async def ack(self, *handles: str) -> Any:
        entries = [AckMessageEntry(message_id=handle[-1:], receipt_handle=handle) for handle in handles]
        return await self.ask("AckMessage", AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))

    async def health(self) -> Any:
        answer = health_pb2.HealthCheckResponse.FromString
        return (await self.channel.unary_unary("/grpc.health.v1.Health/Check", None, answer)(b"")).status


@dataclass
class Proxied:
    """A cluster with topic T of two queues on each broker, and a proxy."""

    cluster: Cluster
    brokers: dict[str, Broker]
    proxy: Proxy
    client: Client

    @asynccontextmanager
    async def other_client(self, client_id: str) -> AsyncIterator[Client]:
        """A client of another proxy."""
        async with proxy_of(self.cluster) as proxy, grpc_peer(proxy.address, client_id) as peer:
            yield Client(peer.channel, client_id)


def proxy_of(cluster: Cluster, **config: Any) -> Proxy:
    return Proxy(ConnectionOptions(cluster.namesrv), ProxyConfig(grpc_server_port=0, **config))


@asynccontextmanager
async def proxied(path: Path, **settings: Any) -> AsyncIterator[Proxied]:
    async with cluster(path) as running:
        brokers = {name: await running.start_broker(name, grpc_server_port=0, **settings) for name in BOTH}
        for broker in brokers.values():
            await running.create_topic(broker, "T", queues=2)
        async with proxy_of(running) as proxy, grpc_peer(proxy.address) as peer:
            yield Proxied(running, brokers, proxy, Client(peer.channel))


@asynccontextmanager
async def scripted_broker(
    cluster: Cluster, method: str, handle: Callable[[Call, bytes], None]
) -> AsyncIterator[GrpcServer]:
    """The gRPC port of a peer that calls itself broker-a, and answers as the test says."""
    server = GrpcServer(HOST, 0, {f"{SERVICE}/{method}": unary(handle)})
    await server.start()

    def config(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.response(ResponseCode.SUCCESS, body=f"grpcServerPort={server.port}\n".encode())

    await cluster.scripted_broker("broker-a", "T", {RequestCode.GET_BROKER_CONFIG: config})
    yield server
    await server.stop()


async def failure(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code()


def handles(messages: list[Message]) -> list[str]:
    return [one.system_properties.receipt_handle for one in messages]


# -- routes -----------------------------------------------------------------------------------------------------------


async def test_a_route_has_the_queues_of_all_brokers_and_one_address(tmp_path: Path) -> None:
    async with proxied(tmp_path, auto_create_topic_enable=False) as found:
        await found.cluster.create_topic(found.brokers["broker-b"], "OnlyB", queues=1)
        for topic, expected in (
            ("T", [(name, number) for name in BOTH for number in range(2)]),
            ("OnlyB", [("broker-b", 0)]),
        ):
            answer = await found.client.route(topic, host="proxy.example", port=443)
            assert answer.status.code == Code.OK
            assert [(queue.broker.name, queue.id) for queue in answer.message_queues] == expected
            addresses = {
                (one.host, one.port) for queue in answer.message_queues for one in queue.broker.endpoints.addresses
            }
            assert addresses == {("proxy.example", 443)}
        (queue, *_) = (await found.client.route()).message_queues
        assert queue.broker.endpoints.scheme == AddressScheme.IPv4
        assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [(HOST, found.proxy.server.port)]
        request = QueryAssignmentRequest(topic=TOPIC, group=GROUP)
        assignments = (await found.client.ask("QueryAssignment", request)).assignments
        assert [(one.message_queue.broker.name, one.message_queue.id) for one in assignments] == [(n, -1) for n in BOTH]
        assert (await found.client.route("Nobody")).status.code == Code.TOPIC_NOT_FOUND
        assert (await found.client.route("il legal")).status.code == Code.ILLEGAL_TOPIC


async def test_a_missing_topic_is_created_where_the_first_message_goes(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        assert len((await found.client.route("New")).message_queues) == 8
        assert (await found.client.send(message(topic=Resource(name="New")))).status.code == Code.OK

        async def is_registered() -> bool:
            return len((await found.client.route("New")).message_queues) == 4

        await until(is_registered)


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_messages_take_turns_and_groups_stay_together(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        for number in range(8):
            answer = await found.client.send(message(body=b"%d" % number))
            assert answer.status.code == Code.OK
        received = await found.client.receive_all()
        assert [len(messages) for messages in received.values()] == [4, 4]
        groups = [f"group-{number}" for number in range(12)]
        async with found.other_client("another@1") as other:
            for client in (found.client, other):
                for group in groups:

                    def grouped(system: Any, group: str = group) -> None:
                        system.message_type, system.message_group = MessageType.FIFO, group

                    two = [message(grouped), message(grouped)]
                    assert [entry.status.code for entry in (await client.send(*two)).entries] == [Code.OK] * 2
        places = Counter(
            (one.system_properties.message_group, name, one.system_properties.queue_id)
            for name, messages in (await found.client.receive_all()).items()
            for one in messages
        )
        for _ in range(10):  # ten at a time
            for name, messages in (await found.client.receive_all()).items():
                places.update(
                    (one.system_properties.message_group, name, one.system_properties.queue_id) for one in messages
                )
        assert sorted(group for group, _, _ in places) == sorted(groups)
        assert set(places.values()) == {4}
        assert {place[1:] for place in places} == {(name, number) for name in BOTH for number in range(2)}


async def test_large_messages_pass(tmp_path: Path) -> None:
    async with proxied(tmp_path, store={"mapped_file_size_commit_log": 32 << 20}) as found:
        bodies = [bytes([number]) * (4 << 20) for number in range(4)]
        await asyncio.gather(*(found.client.send(message(body=body)) for body in bodies))
        received: list[bytes] = []
        while len(received) < len(bodies):  # one at a time
            received += [one.body for messages in (await found.client.receive_all()).values() for one in messages]
        assert sorted(received) == bodies
        assert (
            await found.client.send(message(body=b"x" * ((4 << 20) + 1)))
        ).status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_a_busy_broker_is_asked_again(tmp_path: Path) -> None:
    """It refuses calls while responses wait on the connection, which all clients of the proxy share."""
    async with (
        cluster(tmp_path) as running,
        scripted_broker(running, "RecallMessage", lambda call, data: call.reply(data)) as busy,
        proxy_of(running) as proxy,
        grpc_peer(proxy.address) as client,
    ):
        (connection,) = busy.connections
        connection.http2.is_refusing = True
        asyncio.get_running_loop().call_later(0.02, setattr, connection.http2, "is_refusing", False)
        await client.ask("RecallMessage")


async def test_a_broker_that_is_gone_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        for _ in range(4):
            await found.client.send(message())
        await found.brokers["broker-a"].stop()
        for _ in range(4):
            assert (await found.client.send(message())).status.code == Code.OK
        assert {queue.broker.name for queue in (await found.client.route()).message_queues} == {"broker-b"}
        assert len((await found.client.receive("broker-b"))[1]) == 6
        assert await failure(found.client.receive("broker-a")) is grpc.StatusCode.UNAVAILABLE
        assert await found.client.health() == health_pb2.HealthCheckResponse.SERVING
        await found.brokers["broker-b"].stop()
        await until(lambda: found.proxy.brokers.connected == [])
        assert await found.client.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        for call in (found.client.send(message()), found.client.route(), found.client.ack("1")):
            assert await failure(call) is grpc.StatusCode.UNAVAILABLE
        await found.cluster.start_broker("broker-a", grpc_server_port=0)  # on other ports
        await until(lambda: found.proxy.brokers.connected == ["broker-a"])
        assert (await found.client.send(message())).status.code == Code.OK
        assert len((await found.client.receive("broker-a"))[1]) == 3


async def test_the_next_master_is_followed(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        master = found.brokers["broker-a"]
        slave = await found.cluster.start_slave(grpc_server_port=0)
        for _ in BOTH:
            await found.client.send(message(body=b"before"))
        await until(lambda: slave.role.position().end == master.role.position().end)
        await master.stop()
        await found.proxy.brokers.admin.roles.promote(slave.address, force=True)
        await until(lambda: found.proxy.brokers.connected == BOTH)
        for _ in BOTH:
            await found.client.send(message(body=b"after"))
        received = await found.client.receive_all()
        for messages in received.values():
            assert {one.body for one in messages} == {b"before", b"after"}


async def test_the_next_master_of_one_that_hangs_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "REFRESH_INTERVAL_S", 3600.0)
    began = asyncio.Event()
    async with (
        cluster(tmp_path) as running,
        scripted_broker(running, "SendMessage", lambda call, data: began.set()),
        proxy_of(running) as proxy,
        grpc_peer(proxy.address) as client,
    ):
        hanging = asyncio.ensure_future(client.send(message()))
        await began.wait()
        master = await running.start_broker("broker-a", grpc_server_port=0)
        hanging.cancel()
        await until(lambda: [broker.address for broker in proxy.brokers] == [master.address])
        await until(lambda: proxy.brokers.connected == ["broker-a"])
        assert (await client.send(message())).status.code == Code.OK


async def test_receipt_handles_lead_to_their_broker(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        for _ in range(8):
            await found.client.send(message())
        async with found.other_client("another@1") as client:
            received = await client.receive_all()
            (a1, a2, a3, a4), (b1, b2, b3, b4) = (handles(received[name]) for name in BOTH)
            mixed = [b1, a1, "no handle", b2, a2, a3.replace("broker-a", "broker-x")]
            answer = await client.ack(*mixed)
            assert answer.status.code == Code.MULTIPLE_RESULTS
            assert [entry.receipt_handle for entry in answer.entries] == mixed
            assert [entry.status.code for entry in answer.entries] == [
                Code.OK, Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.OK, Code.OK, Code.INTERNAL_SERVER_ERROR,
            ]  # fmt: skip
            assert (await client.ack(a3, b3)).status.code == Code.OK
            assert (await client.ack("no handle")).status.code == Code.INVALID_RECEIPT_HANDLE
            change = ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=a4)
            changed = await client.ask("ChangeInvisibleDuration", change)
            assert changed.status.code == Code.OK
            (again,) = (await client.receive("broker-a", wait_ms=10_000))[1]
            assert again.system_properties.message_id == received["broker-a"][3].system_properties.message_id
            forward = ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=b4)
            assert (await client.ask("ForwardMessageToDeadLetterQueue", forward)).status.code == Code.OK
        peer = found.cluster.peer(found.brokers["broker-b"])
        (dead,) = decode_many((await peer.pull(topic="%DLQ%g", queue_offset=0)).body)
        assert dead.body == b"body"


# -- calls ------------------------------------------------------------------------------------------------------------


async def held_receives(found: Proxied, name: str) -> int:
    header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=-1)
    answer = await found.cluster.peer(found.brokers[name]).ask(RequestCode.POLLING_INFO, header)
    return int(answer.ext_fields["pollingNum"])


async def test_a_cancelled_receive_ends_at_the_broker(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:

        async def is_held() -> bool:
            return await held_receives(found, "broker-b") == 1

        call = found.client.receiving("broker-b", wait_ms=20_000)
        reading = asyncio.ensure_future(call.read())
        await until(is_held)
        call.cancel()
        for _ in BOTH:
            await found.client.send(message(body=b"now"))
        code, messages = await found.client.receive("broker-b")
        assert (code, [one.body for one in messages]) == (Code.OK, [b"now"])
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_messages_of_a_response_that_crosses_its_cancellation_are_visible_at_once(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        for _ in BOTH:
            await found.client.send(message())
        request = ReceiveMessageRequest(group=GROUP, batch_size=10)
        request.message_queue.topic.name, request.message_queue.broker.name = "T", "broker-b"
        await receive_and_reset(found.proxy.address, request, ErrorCode.CANCEL)
        code, messages = await found.client.receive("broker-b", wait_ms=20_000)
        assert (code, [one.system_properties.delivery_attempt for one in messages]) == (Code.OK, [2])


async def test_messages_that_a_client_does_not_take_are_visible_at_once(tmp_path: Path) -> None:
    """The broker's response is complete, so the proxy returns them by ChangeInvisibleDuration."""
    async with proxied(tmp_path) as found:
        for _ in BOTH:
            await found.client.send(message(body=bytes(300_000)))
        window = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(found.proxy.address, options=window) as channel:
            call = Client(channel).receiving("broker-b")
            assert (await call.read()).status.code == Code.OK
            assert await found.client.receive("broker-b") == (Code.MESSAGE_NOT_FOUND, [])
            call.cancel()
            code, messages = await found.client.receive("broker-b", wait_ms=20_000)
        assert (code, [one.system_properties.delivery_attempt for one in messages]) == (Code.OK, [2])


async def test_a_delayed_message_is_recalled_through_any_proxy(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found, found.other_client("another@1") as other:

        def delayed(system: Any) -> None:
            system.message_type = MessageType.DELAY
            system.delivery_timestamp.GetCurrentTime()
            system.delivery_timestamp.seconds += 3600

        for _ in BOTH:
            (entry,) = (await found.client.send(message(delayed))).entries
            for handle, code in ((entry.recall_handle, Code.OK), ("none", Code.BAD_REQUEST)):
                answer = await other.ask("RecallMessage", RecallMessageRequest(topic=TOPIC, recall_handle=handle))
                assert answer.status.code == code


async def test_a_receive_waits(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        waiting = asyncio.create_task(found.client.receive("broker-b", wait_ms=20_000))

        async def is_held() -> bool:
            return await held_receives(found, "broker-b") == 1

        await until(is_held)
        for _ in BOTH:
            await found.client.send(message(body=b"now"))
        code, messages = await waiting
        assert (code, [one.body for one in messages]) == (Code.OK, [b"now"])


async def test_other_methods_are_those_of_a_broker(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        for name in NOT_IMPLEMENTED:
            assert (await found.client.ask(name)).status.code == Code.NOT_IMPLEMENTED, name
        assert (await found.client.ask("QueryRoute", metadata=())).status.code == Code.CLIENT_ID_REQUIRED
        assert await failure(found.client.channel.unary_unary("/a/B")(b"")) is grpc.StatusCode.UNIMPLEMENTED
        damaged = found.client.channel.unary_unary(f"{SERVICE}/SendMessage")(
            b"\xff\xff", metadata=found.client.metadata
        )
        assert await failure(damaged) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await found.client.ask("SendMessage")).status.code == Code.BAD_REQUEST


async def test_accounts_are_those_of_the_brokers(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker(grpc_server_port=0)
        with raises(BrokerError, code=ResponseCode.NO_PERMISSION):
            await proxy_of(cluster).start()
        options = ConnectionOptions(cluster.namesrv, credentials=ADMIN)
        async with Proxy(options, ProxyConfig(grpc_server_port=0)) as proxy:
            for keys, topic, code in (
                (WRITER, "Orders", Code.OK), (WRITER, "T", Code.FORBIDDEN), (READER, "Orders", Code.FORBIDDEN),
                (STRANGER, "Orders", Code.UNAUTHORIZED), (None, "Orders", Code.UNAUTHORIZED),
            ):  # fmt: skip
                async with grpc_peer(proxy.address, keys=keys) as client:
                    order = message(topic=Resource(name=topic))
                    assert (await client.send(order)).status.code == code, (keys, topic)
        assert broker.config.acl_enable


# -- transactions and telemetry ---------------------------------------------------------------------------------------


def half(system: Any) -> None:
    system.message_type = MessageType.TRANSACTION


async def test_a_transaction_ends_through_any_proxy(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found, found.other_client("another@1") as other:
        for client, resolution in (
            (found.client, TransactionResolution.COMMIT), (other, TransactionResolution.COMMIT),
            (other, TransactionResolution.ROLLBACK),
        ):  # fmt: skip
            (entry,) = (await found.client.send(message(half, body=b"%d" % resolution))).entries
            end = EndTransactionRequest(
                topic=TOPIC, message_id=entry.message_id, transaction_id=entry.transaction_id, resolution=resolution
            )
            assert (await client.ask("EndTransaction", end)).status.code == Code.OK
            for wrong in ("", "x", entry.transaction_id.partition("@")[0]):
                end.transaction_id = wrong
                assert (await client.ask("EndTransaction", end)).status.code == Code.INVALID_TRANSACTION_ID
        received = await found.client.receive_all()
        assert sorted(one.body for messages in received.values() for one in messages) == [b"1", b"1"]


async def test_checks_of_transactions_reach_the_producer(tmp_path: Path) -> None:
    eager = {"transaction_time_out": 0, "transaction_check_interval": 10, "transaction_check_max": 1 << 30}
    async with proxied(tmp_path, **eager) as found:
        for number in range(2):
            await found.client.send(message(half, body=b"%d" % number))
        waiting = {b"0", b"1"}
        async with found.client.telemetry(producer_settings("T")) as stream:
            assert (await stream.read()).HasField("settings")
            while waiting:
                orphan = (await asyncio.wait_for(stream.read(), 20)).recover_orphaned_transaction_command
                end = EndTransactionRequest(
                    topic=TOPIC, message_id=orphan.message.system_properties.message_id,
                    transaction_id=orphan.transaction_id, resolution=TransactionResolution.COMMIT,
                )  # fmt: skip
                assert (await found.client.ask("EndTransaction", end)).status.code == Code.OK
                waiting.discard(orphan.message.body)
        received = await found.client.receive_all()
        assert [len(messages) for messages in received.values()] == [1, 1]


def consumer_settings(topic: str) -> Settings:
    settings = Settings(client_type=ClientType.PUSH_CONSUMER)
    settings.subscription.group.name = "g"
    settings.subscription.subscriptions.add().topic.name = topic
    return settings


async def knows(proxy: Proxy, broker: Broker) -> bool:
    """Whether a broker knows a producer of topic T."""
    return "T" in await proxy.brokers.admin.groups.producers(broker.address)


async def test_settings_are_answered_once(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        await found.cluster.peer(found.brokers["broker-b"]).alter_topic("Ordered", order=True)
        assert (await found.client.ask("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        async with found.client.telemetry(consumer_settings("Ordered")) as stream:
            await stream.write(TelemetryCommand(settings=consumer_settings("Ordered")))
            answers = [await stream.read(), await stream.read()]
            assert [(one.status.code, one.settings.subscription.fifo) for one in answers] == [(Code.OK, True)] * 2
            wrong = consumer_settings("T")
            wrong.subscription.group.name = "il legal"
            for settings, code in (
                (wrong, Code.ILLEGAL_CONSUMER_GROUP), (consumer_settings("T"), Code.OK),
                (producer_settings("T"), Code.OK),
            ):  # fmt: skip
                await stream.write(TelemetryCommand(settings=settings))
                assert (await stream.read()).status.code == code
            assert (await found.client.ask("Heartbeat")).status.code == Code.OK
            assert [await knows(found.proxy, broker) for broker in found.brokers.values()] == [True, True]
            assert (await found.client.ask("NotifyClientTermination")).status.code == Code.OK
            assert await stream.read() is grpc.aio.EOF
        assert [await knows(found.proxy, broker) for broker in found.brokers.values()] == [False, False]
        assert (await found.client.ask("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        async with found.client.telemetry(Settings()) as stream:
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_stays_while_brokers_come_and_go(tmp_path: Path) -> None:
    async with proxied(tmp_path) as found:
        async with found.client.telemetry(producer_settings("T")) as stream:
            assert (await stream.read()).status.code == Code.OK
            for name in BOTH:
                await found.brokers[name].stop()
            await until(lambda: found.proxy.brokers.connected == [])
            broker = await found.cluster.start_broker("broker-b", grpc_server_port=0)
            await until(lambda: knows(found.proxy, broker))
            await stream.write(TelemetryCommand(settings=producer_settings("T")))
            assert (await stream.read()).status.code == Code.OK
        await until_not(lambda: knows(found.proxy, broker))


async def until_not(condition: Callable[[], Awaitable[bool]]) -> None:
    async def is_false() -> bool:
        return not await condition()

    await until(is_false)


async def test_a_stream_that_begins_before_the_brokers(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as running,
        proxy_of(running) as proxy,
        grpc_peer(proxy.address) as client,
        client.telemetry(producer_settings("T")) as stream,
    ):
        answer = asyncio.ensure_future(stream.read())
        broker = await running.start_broker(grpc_server_port=0)

        async def is_found() -> bool:
            await proxy.brokers.refresh()
            return await knows(proxy, broker)

        await until(is_found)
        assert (await answer).status.code == Code.OK


# -- the start and the stop -------------------------------------------------------------------------------------------


async def test_what_keeps_a_proxy_from_starting(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        options = ConnectionOptions(running.namesrv)
        async with proxy_of(running) as first:
            taken = f"{HOST}:{first.server.port}"
            with raises(RemotingError, subject=taken):
                await Proxy(options, ProxyConfig(grpc_server_port=first.server.port)).start()
        with raises(ConfigError, subject="0.0.0.0"):
            await proxy_of(running, bind_address="0.0.0.0").start()
        async with proxy_of(running, bind_address="0.0.0.0", insecure=True):
            pass
    with pytest.raises(RemotingError):
        await Proxy(options, ProxyConfig(grpc_server_port=0)).start()


async def test_brokers_without_a_port_are_left_out(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.start_broker("broker-a", grpc_server_enabled=False)
        await running.start_broker("broker-b", grpc_server_port=0)
        async with proxy_of(running) as proxy:
            assert proxy.brokers.connected == ["broker-b"]


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_server_that_stops_answers_receives(tmp_path: Path, is_direct: bool) -> None:
    async with proxied(tmp_path) as found, grpc_peer(found.brokers["broker-b"].grpc_endpoint) as peer:
        direct = Client(peer.channel)
        client = direct if is_direct else found.client
        async with client.telemetry(producer_settings("T")) as stream:
            await stream.read()
            waiting = asyncio.create_task(client.receive("broker-b", wait_ms=20_000))

            async def is_held() -> bool:
                return await held_receives(found, "broker-b") == 1

            await until(is_held)
            await (found.brokers["broker-b"] if is_direct else found.proxy).stop()
            assert await waiting == (Code.MESSAGE_NOT_FOUND, [])
            assert await stream.read() is grpc.aio.EOF
        if not is_direct:
            await until_not(is_held)
            await direct.send(message(body=b"now"))
            assert [one.body for one in (await direct.receive("broker-b"))[1]] == [b"now"]


# -- metrics ----------------------------------------------------------------------------------------------------------


async def test_metrics(tmp_path: Path) -> None:
    settings = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
    async with proxied(tmp_path) as found, proxy_of(found.cluster, **settings) as proxy, grpc_peer(proxy.address) as it:
        client = Client(it.channel)
        for topic in ("Other", "il legal"):
            await client.send(message(topic=Resource(name=topic)))
        async with client.telemetry(producer_settings("T")) as stream:
            await stream.read()
            call = client.receiving("broker-b", wait_ms=20_000)
            reading = asyncio.ensure_future(call.read())

            async def samples() -> Samples:
                return samples_of(await families_of(proxy.metrics_port))

            async def is_held() -> bool:
                return sample_value(await samples(), "rocketmq_proxy_held_receives") == 1

            await until(is_held)
            values = await samples()
            for name, value in (("telemetry_streams", 1), ("connections", 1), ("unsent_bytes", 0)):
                assert sample_value(values, f"rocketmq_proxy_{name}") == value
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await found.brokers["broker-b"].stop()
        await until(lambda: proxy.brokers.connected == ["broker-a"])
        assert await failure(client.receive("broker-b")) is grpc.StatusCode.UNAVAILABLE
        for unknown in range(3):
            await failure(client.channel.unary_unary(f"{SERVICE}/Unknown{unknown}")(b""))
        families = await families_of(proxy.metrics_port)
        assert names_of(families) == documented_names("Proxy")
        values = samples_of(families)
        requests = {(of["method"], of["code"]): count for of, count in values["rocketmq_proxy_requests_total"]}
        assert requests == {
            ("SendMessage", "OK"): 1, ("SendMessage", "ILLEGAL_TOPIC"): 1, ("ReceiveMessage", "CANCELLED"): 1,
            ("ReceiveMessage", "UNAVAILABLE"): 1,
        }  # fmt: skip
        for name, connected in (("broker-a", 1), ("broker-b", 0)):
            assert sample_value(values, "rocketmq_proxy_broker_connected", broker=name) == connected
        failures = values["rocketmq_proxy_broker_failures_total"]
        assert failures == [({"broker": "broker-b", "status": "UNAVAILABLE"}, 1)]


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    enforcing = certificates.config().of_own_client()
    trusted = grpc.ssl_channel_credentials((certificates.directory / "ca.pem").read_bytes())
    async with Namesrv(HOST, 0, config=NamesrvConfig(tls=enforcing)) as namesrv, AsyncExitStack() as stack:
        cluster = Cluster(tmp_path, namesrv, stack)
        await cluster.start_broker(grpc_server_port=0, tls=enforcing)
        options = ConnectionOptions(cluster.namesrv, tls=certificates.client())
        config = ProxyConfig(bind_address=HOST, grpc_server_port=0, tls=enforcing)
        async with Proxy(options, config) as proxy, grpc.aio.secure_channel(proxy.address, trusted) as channel:
            assert (await GrpcPeer(channel).send(message())).status.code == Code.OK
            await proxy.reload()
