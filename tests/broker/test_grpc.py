"""The methods for clients of RocketMQ 5, with the client of grpcio."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.config import BrokerConfig
from rucola.broker.grpc import messages, send
from rucola.broker.grpc.codes import NOT_DURABLE
from rucola.broker.grpc.service import NOT_IMPLEMENTED
from rucola.errors import RemotingError
from rucola.message import MessageExt, properties
from rucola.message.record import decode_many
from rucola.protocol.codes import ResponseCode
from rucola.protocol.grpc import health_pb2, reflection_pb2, service_pb2
from rucola.protocol.grpc.definition_pb2 import (
    AddressScheme,
    Code,
    Digest,
    DigestType,
    Encoding,
    Language,
    Message,
    MessageType,
    Permission,
    Resource,
    Settings,
    SystemProperties,
    TransactionResolution,
)
from rucola.protocol.grpc.service_pb2 import EndTransactionRequest, QueryRouteRequest
from rucola.store.config import BrokerRole, FlushDiskType, PutMessageStatus, StoreConfig
from support.access import guarded_cluster
from support.broker_peer import broker_peer
from support.certificates import Certificates
from support.cluster import HOST, SMALL_FILES
from support.errors import raises
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message, metadata_of, producer_settings
from support.peer import Peer
from support.waiting import until

WRITER, READER = ("writer1", "secret of the writer"), ("reader1", "secret of the reader")
STRANGER = ("stranger", "secret of a stranger")
METHODS = set(service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name)


@asynccontextmanager
async def both(path: Path, **settings: Any) -> AsyncIterator[tuple[Peer, GrpcPeer]]:
    """A broker with topic T of one queue, and a client of each protocol."""
    async with broker_peer(path, **settings) as peer, grpc_peer(peer.broker.grpc_endpoint) as client:
        await peer.alter_topic("T")
        yield peer, client


async def stored(peer: Peer, topic: str = "T") -> list[MessageExt]:
    """The messages of queue 0."""
    answer = await peer.pull(topic=topic, queue_offset=0)
    return decode_many(answer.body) if answer.code == ResponseCode.SUCCESS else []


# -- all methods ------------------------------------------------------------------------------------------------------


async def test_every_method_passes_the_gate(tmp_path: Path) -> None:
    """One without a signature, with a wrong one, or without an account is refused before anything else is looked at."""
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        async with grpc_peer(broker.grpc_endpoint) as client:
            wrong = dict(metadata_of("c", WRITER)) | {"x-mq-date-time": "20260301T101501Z"}
            for name in sorted(METHODS):
                for metadata in (metadata_of("c"), metadata_of("c", STRANGER), tuple(wrong.items())):
                    client.metadata = metadata
                    if name == "Telemetry":
                        async with client.telemetry(producer_settings("Orders")) as stream:
                            answer = await stream.read()
                    else:
                        answer = await client.ask(name)
                    assert answer.status.code == Code.UNAUTHORIZED, name
        denied = tmp_path / "store" / "audit" / "audit.jsonl"
        await until(lambda: '"request":"AckMessage"' in denied.read_text())


async def test_policies_decide(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        order = message(topic=Resource(name="Orders"))
        for keys, topic, code in (
            (WRITER, "Orders", Code.OK), (WRITER, "T", Code.FORBIDDEN), (READER, "Orders", Code.FORBIDDEN),
        ):  # fmt: skip
            async with grpc_peer(broker.grpc_endpoint, keys=keys) as client:
                order.topic.name = topic
                assert (await client.send(order)).status.code == code, (keys, topic)
        async with grpc_peer(broker.grpc_endpoint, keys=WRITER) as writer:
            half = message(kind(MessageType.TRANSACTION), topic=Resource(name="Orders"))
            (entry,) = (await writer.send(half)).entries
        end = EndTransactionRequest(
            topic=half.topic, message_id=entry.message_id, transaction_id=entry.transaction_id,
            resolution=TransactionResolution.COMMIT,
        )  # fmt: skip
        for keys, code in ((READER, Code.FORBIDDEN), (WRITER, Code.OK)):
            async with grpc_peer(broker.grpc_endpoint, keys=keys) as client:
                assert (await client.ask("EndTransaction", end)).status.code == code


async def test_a_call_needs_a_client_id_and_a_message(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, client):
        for name in METHODS - {"Telemetry"}:
            answer = await client.ask(name, metadata=())
            assert answer.status.code == Code.CLIENT_ID_REQUIRED, name
        damaged = client.channel.unary_unary(f"{SERVICE}/SendMessage")(b"\xff\xff", metadata=client.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await damaged
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_not_there_says_so(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, client):
        for name in NOT_IMPLEMENTED:
            assert (await client.ask(name)).status.code == Code.NOT_IMPLEMENTED, name
    assert set(NOT_IMPLEMENTED) <= METHODS


# -- routes -----------------------------------------------------------------------------------------------------------


async def test_a_route_has_the_queues_and_this_port(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        await peer.alter_topic("More", 1, read_queue_nums=3, write_queue_nums=2)
        await peer.alter_topic("Read", 1, perm=4)
        for topic, permissions in (
            ("T", [Permission.READ_WRITE]),
            ("More", [Permission.READ_WRITE, Permission.READ_WRITE, Permission.READ]),
            ("Read", [Permission.READ]),
            ("New", [Permission.READ_WRITE] * 4),
        ):
            answer = await client.ask("QueryRoute", QueryRouteRequest(topic=Resource(name=topic)))
            queues = answer.message_queues
            assert answer.status.code == Code.OK
            assert [(queue.id, queue.permission) for queue in queues] == list(enumerate(permissions))
            endpoints = queues[0].broker.endpoints
            assert (queues[0].broker.name, queues[0].broker.id, queues[0].topic.name) == ("broker-a", 0, topic)
            assert endpoints.scheme == AddressScheme.IPv4
            assert [f"{a.host}:{a.port}" for a in endpoints.addresses] == [peer.broker.grpc_endpoint]
            assert list(queues[0].accept_message_types) == [1, 2, 3, 4]
        namespaced = Resource(resource_namespace="shop", name="T")
        sent = await client.send(message(topic=namespaced))
        assert sent.status.code == Code.OK
        assert peer.broker.parts is not None
        assert peer.broker.parts.services.topics.expected("shop%T") is not None


async def test_topics_that_no_message_creates_have_no_route(tmp_path: Path) -> None:
    async with both(tmp_path, auto_create_topic_enable=False) as (_, client):
        for topic, code in (("New", Code.TOPIC_NOT_FOUND), ("", Code.ILLEGAL_TOPIC), ("a/b", Code.ILLEGAL_TOPIC)):
            answer = await client.ask("QueryRoute", QueryRouteRequest(topic=Resource(name=topic)))
            assert answer.status.code == code
        assert (await client.send(message(topic=Resource(name="New")))).status.code == Code.TOPIC_NOT_FOUND


# -- messages ---------------------------------------------------------------------------------------------------------


def kind(value: MessageType) -> Callable[[SystemProperties], object]:
    return lambda system: setattr(system, "message_type", value)


def set_of(**fields: Any) -> Callable[[SystemProperties], object]:
    return lambda system: system.MergeFrom(SystemProperties(**fields))


async def test_a_message_is_stored_as_4x_clients_read_it(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        sent = message(set_of(tag="a", keys=["k1", "k2"]), user_properties={"x": "y"})
        answer = await client.send(sent)
        assert (answer.status.code, len(answer.entries)) == (Code.OK, 1)
        (entry,) = answer.entries
        assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, sent.system_properties.message_id, 0)
        assert (entry.transaction_id, entry.recall_handle) == ("", "")
        (found,) = await stored(peer)
        assert (found.body, found.tags, found.keys, found.msg_id) == (b"body", "a", "k1 k2", entry.message_id)
        assert (found.properties["x"], found.born_timestamp) == ("y", 1_767_225_600_123)


async def test_order_that_consumers_will_not_see_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with both(tmp_path) as (peer, client):
        await peer.alter_topic("Q", order=True)
        for topic in ("T", "Q", "T"):
            fifo = set_of(message_type=MessageType.FIFO, message_group="g")
            assert (await client.send(message(fifo, topic=Resource(name=topic)))).status.code == Code.OK
    assert [one.args for one in caplog.records if one.name == send.__name__] == [("T",)]


async def test_messages_of_a_group_share_a_queue(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, client):
        await peer.alter_topic("Q", 4)
        grouped = [
            message(set_of(message_type=MessageType.FIFO, message_group=f"g{n}"), topic=Resource(name="Q"))
            for n in (1, 2, 1, 2, 1)
        ]
        answer = await client.send(*grouped)
        assert {entry.status.code for entry in answer.entries} == {Code.OK}
        usual = [message(topic=Resource(name="Q")) for _ in range(8)]
        await client.send(*usual)
        queues: dict[str, set[int]] = {}
        for queue_id in range(4):
            pulled = await peer.pull(topic="Q", queue_id=queue_id, queue_offset=0)
            for one in decode_many(pulled.body):
                queues.setdefault(one.properties.get(properties.SHARDING_KEY, ""), set()).add(queue_id)
        assert len(queues["g1"]) == len(queues["g2"]) == 1
        assert queues[""] == {0, 1, 2, 3}


async def test_delayed_messages(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared

    def due(after_ms: int) -> Callable[[SystemProperties], object]:
        def change(system: SystemProperties) -> None:
            system.message_type = MessageType.DELAY
            system.delivery_timestamp.FromMilliseconds(wall_clock_ms() + after_ms)

        return change

    answer = await client.send(message(due(500)), message(due(3_600_000)), message(due(-60_000), body=b"past"))
    assert answer.status.code == Code.OK

    async def are_delivered() -> bool:
        return [found.body for found in await stored(peer)] == [b"past", b"body"]

    await until(are_delivered)
    (late,) = (await client.send(message(due(200 * 365 * 86_400_000)))).entries
    assert late.status.code == Code.ILLEGAL_DELIVERY_TIME


def impossible(field: str, kind: MessageType = MessageType.NORMAL) -> Callable[[SystemProperties], object]:
    def change(system: SystemProperties) -> None:
        system.message_type = kind
        getattr(system, field).seconds = 1 << 61

    return change


BIG = {f"p{number}": "x" for number in range(messages.MAX_USER_PROPERTIES + 1)}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (message(topic=Resource(name="")), Code.ILLEGAL_TOPIC),
        (message(topic=Resource(name="SCHEDULE_TOPIC_XXXX")), Code.FORBIDDEN),
        (message(body=b""), Code.MESSAGE_BODY_EMPTY),
        (message(body=bytes((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(lambda system: system.ClearField("message_id")), Code.ILLEGAL_MESSAGE_ID),
        (message(set_of(tag=" ")), Code.ILLEGAL_MESSAGE_TAG),
        (message(set_of(tag="a|b")), Code.ILLEGAL_MESSAGE_TAG),
        (message(set_of(keys=["a", ""])), Code.ILLEGAL_MESSAGE_KEY),
        (message(set_of(keys=["a\x01"])), Code.ILLEGAL_MESSAGE_KEY),
        (message(set_of(keys=[f"{number}" for number in range(3000)])), Code.ILLEGAL_MESSAGE_KEY),
        (message(set_of(message_type=MessageType.FIFO, message_group=" ")), Code.ILLEGAL_MESSAGE_GROUP),
        (message(set_of(message_type=MessageType.FIFO, message_group="g" * 65)), Code.ILLEGAL_MESSAGE_GROUP),
        (message(user_properties={"UNIQ_KEY": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"TIMER_DELIVER_MS": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"x": ""}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"x": "a\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties=BIG), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(user_properties={"x": "y" * 17_000}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(set_of(keys=["k" * 40_000])), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(kind(MessageType.FIFO)), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(kind(MessageType.DELAY)), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(set_of(message_group="g")), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(set_of(message_type=MessageType.TRANSACTION, message_group="g")), 40014),
        (message(kind(MessageType.PRIORITY)), Code.NOT_IMPLEMENTED),
        (message(set_of(lite_topic="l")), Code.NOT_IMPLEMENTED),
        (message(impossible("delivery_timestamp", MessageType.DELAY)), Code.ILLEGAL_DELIVERY_TIME),
        (message(impossible("born_timestamp")), Code.BAD_REQUEST),
        (message(set_of(body_encoding=Encoding.GZIP)), Code.MESSAGE_CORRUPTED),
        (message(set_of(body_encoding=Encoding.GZIP), body=gzip.compress(b"x" * 99)[:-9]), Code.MESSAGE_CORRUPTED),
        (message(set_of(body_encoding=Encoding.GZIP), body=gzip.compress(bytes(5 << 20))), Code.MESSAGE_BODY_TOO_LARGE),
        (message(set_of(body_encoding=3)), Code.BAD_REQUEST),
        (message(set_of(body_digest=Digest(type=DigestType.MD5, checksum="00"))), Code.MESSAGE_CORRUPTED),
        (message(set_of(body_digest=Digest(type=DigestType.CRC32))), Code.MESSAGE_CORRUPTED),
        (message(set_of(body_digest=Digest(type=4, checksum="00"))), Code.BAD_REQUEST),
        (message(set_of(body_digest=Digest(checksum="00"))), Code.BAD_REQUEST),
        (message(set_of(trace_context="a\x01b")), Code.BAD_REQUEST),
        (message(kind(99)), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
    ids=range(37),
)  # fmt: skip
async def test_a_wrong_message_is_refused_by_its_fault(
    shared: tuple[Peer, GrpcPeer], wrong: Message, code: int
) -> None:
    peer, client = shared
    before = len(await stored(peer))
    answer = await client.send(wrong)
    assert (answer.status.code, [entry.status.code for entry in answer.entries]) in ((code, [code]), (code, []))
    mixed = await client.send(wrong, message())
    if len(mixed.entries) == 2:
        assert mixed.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in mixed.entries] == [code, Code.OK]
        assert len(await stored(peer)) == before + 1


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[tuple[Peer, GrpcPeer]]:
    async with both(tmp_path) as peers:
        yield peers


async def test_a_digest_of_the_body_as_it_is_sent_may_be_given(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared
    packed = gzip.compress(b"plain")
    sums = {
        DigestType.CRC32: f"{zlib.crc32(packed):08X}",
        DigestType.MD5: hashlib.md5(packed).hexdigest(),
        DigestType.SHA1: hashlib.sha1(packed).hexdigest().upper(),
        DigestType.DIGEST_TYPE_UNSPECIFIED: "",
    }
    for kind_of, checksum in sums.items():
        digest = Digest(type=kind_of, checksum=checksum)
        answer = await client.send(message(set_of(body_encoding=Encoding.GZIP, body_digest=digest), body=packed))
        assert answer.status.code == Code.OK, kind_of
    assert [found.body for found in await stored(peer)] == [b"plain"] * len(sums)


async def test_compressed_bodies_are_stored_plain(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared
    for pack in (gzip.compress, zlib.compress):
        packed = message(set_of(body_encoding=Encoding.GZIP), body=pack(b"plain" * 100))
        assert (await client.send(packed)).status.code == Code.OK
    assert [found.body for found in await stored(peer)] == [b"plain" * 100] * 2
    for count in (0, 16_385):
        assert (await client.send(*[Message()] * count)).status.code == Code.BAD_REQUEST


async def test_the_largest_body(tmp_path: Path) -> None:
    async with both(tmp_path, store={"mapped_file_size_commit_log": 16 << 20}) as (_, client):
        assert (await client.send(message(body=bytes(4 << 20)))).status.code == Code.OK


async def test_messages_that_are_not_durable(tmp_path: Path) -> None:
    store = {"broker_role": BrokerRole.SYNC_MASTER}
    async with both(tmp_path / "slave", store=store) as (_, client):
        assert (await client.send(message())).status.code == Code.HA_NOT_AVAILABLE
    async with both(tmp_path / "disk", store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as (peer, client):
        answer = await client.send(message(), message())
        assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.OK]
        assert len(await stored(peer)) == 2
    assert NOT_DURABLE.keys() == {
        PutMessageStatus.FLUSH_DISK_TIMEOUT, PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }  # fmt: skip


# -- clients and transactions -----------------------------------------------------------------------------------------


async def test_settings_are_answered_with_the_servers(shared: tuple[Peer, GrpcPeer]) -> None:
    _, client = shared
    for has_metric in (False, True):
        settings = producer_settings("T")
        settings.user_agent.language = Language.GOLANG
        settings.access_point.scheme = AddressScheme.IPv4
        if has_metric:
            settings.metric.on = True
        async with client.telemetry(settings) as stream:
            for _ in range(2):
                answer = await stream.read()
                assert answer.status.code == Code.OK
                found = answer.settings
                assert [topic.name for topic in found.publishing.topics] == ["T"]
                assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (4 << 20, True)
                assert found.backoff_policy.max_attempts == 3
                assert found.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
                assert found.access_point.scheme == AddressScheme.IPv4
                assert found.HasField("metric")
                assert not found.metric.on
                await stream.write(service_pb2.TelemetryCommand(settings=settings))


async def test_a_client_is_known_while_its_stream_is_open(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared
    assert (await client.ask("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert (await client.ask("NotifyClientTermination")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    registry = peer.broker.parts.services.clients._state.clients  # type: ignore[union-attr]
    async with client.telemetry(producer_settings("T", "U")) as stream:
        await stream.read()
        assert (await client.ask("Heartbeat")).status.code == Code.OK
        assert registry.producers.keys() == {"T", "U"}
        assert (await client.ask("NotifyClientTermination")).status.code == Code.OK
        assert await stream.read() is grpc.aio.EOF
        assert (await client.ask("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        assert not registry.producers
    async with client.telemetry(producer_settings("T")) as stream:
        await stream.read()
    await until(lambda: not registry.producers)
    async with client.telemetry(producer_settings(*map(str, range(257)))) as stream:
        assert (await stream.read()).status.code == Code.BAD_REQUEST
    async with client.telemetry(Settings()) as stream:
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_transactions(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared
    ends = []
    for body in (b"committed", b"rolled back", b"undecided"):
        half = message(kind(MessageType.TRANSACTION), body=body)
        half.system_properties.message_id = f"{len(ends):034X}"
        (entry,) = (await client.send(half)).entries
        assert entry.status.code == Code.OK
        ends.append(
            EndTransactionRequest(
                topic=half.topic, message_id=entry.message_id, transaction_id=entry.transaction_id,
                resolution=(TransactionResolution.COMMIT, TransactionResolution.ROLLBACK, 0)[len(ends)],
            )
        )  # fmt: skip
    assert await stored(peer) == []
    for end in (*ends, *ends):  # a repeated end counts once
        assert (await client.ask("EndTransaction", end)).status.code == Code.OK
    assert [found.body for found in await stored(peer)] == [b"committed"]
    right, ends[0].topic.name = ends[0].transaction_id, "Other"
    assert (await client.ask("EndTransaction", ends[0])).status.code == Code.INVALID_TRANSACTION_ID
    ends[0].topic.name, ends[0].resolution = "T", 3
    assert (await client.ask("EndTransaction", ends[0])).status.code == Code.BAD_REQUEST
    ends[0].resolution = TransactionResolution.COMMIT
    other_offset = f"{7:016X}{right[16:]}"
    for wrong in ("", "x", "0" * 31, f"{0:016X}{1 << 40:016X}", f"{0:016X}{1:016X}", other_offset):
        ends[0].transaction_id = wrong
        assert (await client.ask("EndTransaction", ends[0])).status.code == Code.INVALID_TRANSACTION_ID


async def test_a_producer_of_the_topic_is_asked_about_orphans(tmp_path: Path) -> None:
    eager = {"transaction_time_out": 0, "transaction_check_interval": 10, "transaction_check_max": 1 << 30}
    async with both(tmp_path, **eager) as (peer, client):
        half = message(set_of(message_type=MessageType.TRANSACTION, tag="a"), user_properties={"x": "y"})
        (entry,) = (await client.send(half)).entries
        async with client.telemetry(producer_settings("T")) as stream:
            assert (await stream.read()).HasField("settings")
            command = await asyncio.wait_for(stream.read(), 20)
            orphan = command.recover_orphaned_transaction_command
            system = orphan.message.system_properties
            assert (orphan.message.topic.name, orphan.message.body) == ("T", b"body")
            assert (system.message_id, system.tag, dict(orphan.message.user_properties)) == (
                entry.message_id, "a", {"x": "y"},
            )  # fmt: skip
            assert system.message_type == MessageType.TRANSACTION
            assert system.body_digest.type == DigestType.MD5
            assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
            end = EndTransactionRequest(
                topic=half.topic, message_id=system.message_id, transaction_id=orphan.transaction_id,
                resolution=TransactionResolution.COMMIT,
            )  # fmt: skip
            assert (await client.ask("EndTransaction", end)).status.code == Code.OK
        assert [found.body for found in await stored(peer)] == [b"body"]


# -- the port ---------------------------------------------------------------------------------------------------------


async def test_health_and_reflection(shared: tuple[Peer, GrpcPeer]) -> None:
    channel = shared[1].channel
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "apache.rocketmq.v2.MessagingService"):
        answer = await check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await check(health_pb2.HealthCheckRequest(service="x"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    request = reflection_pb2.ServerReflectionRequest
    for version in ("v1", "v1alpha"):
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(request(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert "apache.rocketmq.v2.MessagingService" in [one.name for one in listed]
        await call.write(request(file_containing_symbol="apache.rocketmq.v2.MessagingService"))
        assert len((await call.read()).file_descriptor_response.file_descriptor_proto) == 4  # and what it imports
        await call.write(request(file_by_filename="none.proto"))
        assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_tls_is_that_of_the_other_port(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    async with broker_peer(tmp_path / "store", tls=certificates.config()) as peer:
        trusted = grpc.ssl_channel_credentials((certificates.directory / "ca.pem").read_bytes())
        async with grpc.aio.secure_channel(peer.broker.grpc_endpoint, trusted) as channel:
            assert (await GrpcPeer(channel).send(message())).status.code == Code.OK


async def test_the_port(tmp_path: Path) -> None:
    assert BrokerConfig().grpc_server_port == 8081
    assert BrokerConfig(listen_port=0).grpc_server_port == 0
    assert BrokerConfig(listen_port=10921).grpc_server_port == 0
    assert BrokerConfig(listen_port=0, grpc_server_port=9000).grpc_server_port == 9000
    async with broker_peer(tmp_path / "a") as peer:
        port = peer.broker.config.grpc_server_port
        assert peer.broker.grpc_endpoint == f"{HOST}:{port}"
        with raises(RemotingError, subject="grpcServerPort"):
            async with broker_peer(tmp_path / "b", grpc_server_port=port):
                pass
        async with broker_peer(tmp_path / "c", grpc_server_port=port, grpc_server_enabled=False) as other:
            assert other.broker.grpc_endpoint == ""
        store = StoreConfig(store_path_root_dir=tmp_path / "d", broker_role=BrokerRole.SLAVE, **SMALL_FILES)
        config = BrokerConfig(bind_address=HOST, listen_port=0, broker_id=1, grpc_server_port=port)
        async with Broker(config, store) as slave:  # it would take the port as master
            assert slave.grpc_endpoint == ""


async def test_a_client_of_grpc_is_seen_by_operators(shared: tuple[Peer, GrpcPeer]) -> None:
    peer, client = shared
    async with client.telemetry(producer_settings("T")) as stream:
        await stream.read()
        assert peer.broker.parts is not None
        found = peer.broker.parts.services.inspection.producer_connections("T").connection_set
        assert [(one.client_id, one.language) for one in found] == [("client@1", "OTHER")]
