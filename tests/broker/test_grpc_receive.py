"""Consumers of RocketMQ 5: receive, acknowledge, and what follows, with the client of grpcio."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rucola.broker.assembly import serving
from rucola.broker.grpc.receive import RENEWED_MS
from rucola.http2.frames import ErrorCode
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.grpc.definition_pb2 import (
    Code,
    DigestType,
    FilterExpression,
    FilterType,
    Language,
    Message,
    MessageQueue,
    MessageType,
    Resource,
    Settings,
    SystemProperties,
)
from rucola.protocol.grpc.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    ForwardMessageToDeadLetterQueueRequest,
    NotifyClientTerminationRequest,
    QueryAssignmentRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from rucola.protocol.pop import PollingInfoRequestHeader
from rucola.store.config import FlushDiskType
from support.access import guarded_cluster
from support.broker_peer import broker_peer
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message, receive_and_reset
from support.own_deliveries import Clock
from support.peer import Peer
from support.pop import pop
from support.waiting import until

GROUP, TOPIC = Resource(name="g"), Resource(name="T")


class Consumer(GrpcPeer):
    async def receive(
        self,
        *,
        wait_ms: int = 0,
        invisible_ms: int = 60_000,
        expression: FilterExpression | None = None,
        request: ReceiveMessageRequest | None = None,
        **more: Any,
    ) -> tuple[int, list[Message]]:
        """The code, and the messages."""
        if request is None:
            request = ReceiveMessageRequest(group=GROUP, batch_size=10, filter_expression=expression, **more)
        request.message_queue.topic.name = "T"
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        if not request.auto_renew:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        call = self.channel.unary_stream(
            f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString
        )(request.SerializeToString(), metadata=self.metadata, timeout=30)  # fmt: skip
        answers = [answer async for answer in call]
        assert answers[0].HasField("status")
        found = [answer.message for answer in answers if answer.HasField("message")]
        assert answers[-1].HasField("delivery_timestamp") == bool(found)
        assert all(map(handle_of, found))
        return answers[0].status.code, found

    async def ack(self, *handles: str) -> Any:
        entries = [AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles]
        return await self.ask("AckMessage", AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))

    async def change(self, handle: str, duration_ms: int, *, suspend: bool = False) -> Any:
        request = ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle, suspend=suspend)
        request.invisible_duration.FromMilliseconds(duration_ms)
        return await self.ask("ChangeInvisibleDuration", request)


@asynccontextmanager
async def both(path: Path, order: bool = False, **settings: Any) -> AsyncIterator[tuple[Peer, Consumer]]:
    settings = {"enable_property_filter": True} | settings
    async with broker_peer(path, **settings) as peer, grpc_peer(peer.broker.grpc_endpoint) as client:
        await peer.alter_topic("T", order=order)
        yield peer, Consumer(client.channel)


@pytest.fixture
async def consumer(tmp_path: Path) -> AsyncIterator[Consumer]:
    async with both(tmp_path) as (_, consumer):
        yield consumer


def handle_of(one: Message) -> str:
    return one.system_properties.receipt_handle


def bodies(messages: list[Message]) -> list[bytes]:
    return [one.body for one in messages]


async def test_a_message_is_received_and_acknowledged(consumer: Consumer) -> None:
    sent = message(lambda system: system.MergeFrom(SystemProperties(tag="a", keys=["k"])), user_properties={"x": "y"})
    await consumer.send(sent)
    code, (found,) = await consumer.receive()
    system = found.system_properties
    assert (code, found.topic.name, found.body, dict(found.user_properties)) == (Code.OK, "T", b"body", {"x": "y"})
    assert (system.message_id, system.tag, list(system.keys)) == (sent.system_properties.message_id, "a", ["k"])
    assert (system.delivery_attempt, system.message_type) == (1, MessageType.NORMAL)
    digest = hashlib.md5(b"body").hexdigest().upper()
    assert (system.body_digest.type, system.body_digest.checksum) == (DigestType.MD5, digest)
    assert system.invisible_duration.ToMilliseconds() == 60_000
    assert await consumer.receive() == (Code.MESSAGE_NOT_FOUND, [])  # it is invisible
    acked = await consumer.ack(handle_of(found))
    assert (acked.status.code, acked.entries[0].status.code) == (Code.OK, Code.OK)
    mixed = await consumer.ack(handle_of(found), "no handle")
    assert mixed.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in mixed.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    assert (await consumer.ack()).status.code == Code.BAD_REQUEST


async def test_messages_acknowledged_together_have_one_record(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, consumer):
        for _ in range(5):
            await consumer.send(message())
        found: list[Message] = []
        while len(found) < 5:
            found += (await consumer.receive())[1]
        stale = (await consumer.change(handle_of(found[0]), 20_000)).receipt_handle
        await consumer.change(stale, 20_000)
        store = peer.broker.parts.storage.store
        before = store.max_offset("rmq_sys_pop_log", 0)
        acked = await consumer.ack(stale, *map(handle_of, found[1:]), handle_of(found[1]), "no handle")
        illegal = Code.INVALID_RECEIPT_HANDLE
        assert [entry.status.code for entry in acked.entries] == [illegal, *[Code.OK] * 5, illegal]
        assert store.max_offset("rmq_sys_pop_log", 0) == before + 1


async def test_a_change_makes_a_new_handle(consumer: Consumer) -> None:
    await consumer.send(message())
    _, (found,) = await consumer.receive()
    changed = await consumer.change(handle_of(found), 20_000)
    assert changed.status.code == Code.OK
    stale = await consumer.ack(handle_of(found))
    assert stale.status.code == Code.INVALID_RECEIPT_HANDLE
    suspended = await consumer.change(changed.receipt_handle, 0, suspend=True)
    assert suspended.status.code == Code.OK
    _, (found,) = await consumer.receive(wait_ms=10_000)
    assert found.system_properties.delivery_attempt == 1
    at_once = await consumer.change(handle_of(found), 0)
    assert at_once.status.code == Code.OK
    _, (again,) = await consumer.receive(wait_ms=10_000)
    assert again.system_properties.delivery_attempt == 2
    assert (again.topic.name, again.system_properties.message_id) == ("T", found.system_properties.message_id)
    assert (await consumer.ack(handle_of(again))).status.code == Code.OK
    for duration_ms in (-1, 13 * 3_600_000):
        assert (await consumer.change(handle_of(again), duration_ms)).status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert (await consumer.change("x", 0)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_receive_waits_for_a_message(consumer: Consumer) -> None:
    assert await consumer.receive(wait_ms=1) == (Code.MESSAGE_NOT_FOUND, [])
    waiting = asyncio.create_task(consumer.receive(wait_ms=20_000))
    await asyncio.sleep(0)
    await consumer.send(message(body=b"late"))
    code, found = await waiting
    assert (code, bodies(found)) == (Code.OK, [b"late"])


async def test_a_connection_holds_a_bounded_number_of_receives(tmp_path: Path) -> None:
    async with both(tmp_path, max_held_pulls_per_connection=1) as (peer, consumer):
        waiting = [asyncio.ensure_future(consumer.receive(wait_ms=20_000)) for _ in range(2)]
        done, held = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [(Code.TOO_MANY_REQUESTS, [])]
        assert (await pop(peer, poll_time=1)).code == ResponseCode.POLLING_TIMEOUT, "another connection"
        await consumer.send(message())
        code, found = await held.pop()
        assert (code, len(found)) == (Code.OK, 1)
        assert await consumer.receive(wait_ms=1) == (Code.MESSAGE_NOT_FOUND, []), "none is held any more"


async def test_filters(consumer: Consumer) -> None:
    for tag, colour in (("a", "red"), ("b", "green")):
        await consumer.send(
            message(
                lambda system, tag=tag: setattr(system, "tag", tag), body=tag.encode(), user_properties={"c": colour}
            )
        )
    sql = FilterExpression(type=FilterType.SQL, expression="c = 'green'")
    assert bodies((await consumer.receive(expression=sql))[1]) == [b"b"]
    for wrong in (FilterExpression(type=FilterType.SQL, expression="c = ="), FilterExpression(type=9)):
        assert (await consumer.receive(expression=wrong))[0] == Code.ILLEGAL_FILTER_EXPRESSION


async def test_tags(consumer: Consumer) -> None:
    for tag in ("a", "b", "c"):
        await consumer.send(message(lambda system, tag=tag: setattr(system, "tag", tag), body=tag.encode()))
    tags = FilterExpression(type=FilterType.TAG, expression="a || c")
    assert sorted(bodies((await consumer.receive(expression=tags))[1])) == [b"a", b"c"]


@pytest.mark.parametrize("born_ms", [1 << 62, -1 << 62])
async def test_a_message_of_4x_with_any_time_is_received(tmp_path: Path, born_ms: int) -> None:
    async with both(tmp_path) as (peer, consumer):
        assert (await peer.send(b"body", topic="T", born_timestamp=born_ms)).code == ResponseCode.SUCCESS
        (found,) = (await consumer.receive())[1]
        assert (found.body, found.system_properties.delivery_attempt) == (b"body", 1)


async def test_wrong_receives(consumer: Consumer) -> None:
    for invisible_ms in (0, 9_999, 12 * 3_600_000 + 1):
        assert (await consumer.receive(invisible_ms=invisible_ms))[0] == Code.ILLEGAL_INVISIBLE_TIME
    endless = ReceiveMessageRequest(group=GROUP)
    endless.message_queue.topic.name, endless.invisible_duration.seconds = "T", 1 << 62
    assert (await consumer.ask("ReceiveMessage", endless)).status.code == Code.ILLEGAL_INVISIBLE_TIME
    request = ReceiveMessageRequest(group=GROUP)
    for topic, code in (("", Code.ILLEGAL_TOPIC), ("New", Code.TOPIC_NOT_FOUND)):
        request.message_queue.topic.name = topic
        assert (await consumer.ask("ReceiveMessage", request)).status.code == code
    request.group.name = "a/b"
    assert (await consumer.ask("ReceiveMessage", request)).status.code == Code.ILLEGAL_CONSUMER_GROUP


# Faults that others had.


async def test_a_failed_acknowledgement_leaves_the_handle(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, consumer):
        await consumer.send(message(), message())
        _, (first, second) = await consumer.receive()
        assert peer.broker.parts is not None
        store = peer.broker.parts.storage.store
        store.write_state.set_stalled("no descriptor")
        assert (await consumer.ack(handle_of(first))).status.code == Code.INTERNAL_SERVER_ERROR
        assert (await consumer.change(handle_of(second), 0)).status.code == Code.INTERNAL_SERVER_ERROR
        store.write_state.set_stalled(None)
        for _ in range(2):  # the second time as if the answer were lost
            assert (await consumer.ack(handle_of(first), handle_of(second))).status.code == Code.OK
        assert await consumer.receive() == (Code.MESSAGE_NOT_FOUND, [])


async def test_any_connection_acknowledges_at_once(tmp_path: Path) -> None:
    """Also one that has sent neither settings nor a heartbeat, and after a restart."""
    async with both(tmp_path) as (_, consumer):
        await consumer.send(message(), message())
        _, (first, second) = await consumer.receive(auto_renew=True)
        changed = await consumer.change(handle_of(second), 60_000)
    async with both(tmp_path) as (peer, _), grpc_peer(peer.broker.grpc_endpoint, client_id="another") as client:
        other = Consumer(client.channel, "another")
        assert (await other.ack(handle_of(second))).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await other.ack(handle_of(first), changed.receipt_handle)).status.code == Code.OK
        assert await peer.committed() == 2


async def test_a_cancelled_receive_takes_no_message(tmp_path: Path) -> None:
    async with both(tmp_path) as (peer, consumer):
        header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=-1)

        async def held() -> int:
            return int((await peer.ask(RequestCode.POLLING_INFO, header)).ext_fields["pollingNum"])

        async def is_held() -> bool:
            return await held() == 1

        async def is_forgotten() -> bool:
            return await held() == 0

        waiting = asyncio.create_task(consumer.receive(wait_ms=20_000))
        await until(is_held)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(is_forgotten)
        await consumer.send(message())
        assert len((await consumer.receive())[1]) == 1


async def test_messages_that_a_client_does_not_take_are_visible_at_once(tmp_path: Path) -> None:
    async with both(tmp_path, store={"mapped_file_size_commit_log": 16 << 20}) as (peer, consumer):
        await consumer.send(message(body=bytes(4 << 20)))
        window = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(peer.broker.grpc_endpoint, options=window) as channel:
            request = ReceiveMessageRequest(group=GROUP, batch_size=10)
            request.message_queue.topic.name = "T"
            call = channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)(
                request.SerializeToString(), metadata=consumer.metadata
            )
            assert (await call.read()).status.code == Code.OK
            assert await consumer.receive() == (Code.MESSAGE_NOT_FOUND, [])
            call.cancel()
            code, found = await consumer.receive(wait_ms=20_000)
        assert (code, {one.system_properties.delivery_attempt for one in found}) == (Code.OK, {2})


@pytest.mark.parametrize(("code", "attempts"), [(ErrorCode.CANCEL, [2]), (ErrorCode.NO_ERROR, [])])
async def test_messages_of_a_response_that_crosses_its_cancellation_are_visible_at_once(
    tmp_path: Path, code: ErrorCode, attempts: list[int]
) -> None:
    """A client that has seen the end of a response does not cancel its call."""
    async with both(tmp_path) as (peer, consumer):
        await consumer.send(message())
        request = ReceiveMessageRequest(group=GROUP, batch_size=10)
        request.message_queue.topic.name = "T"
        await receive_and_reset(peer.broker.grpc_endpoint, request, code)
        _, found = await consumer.receive(wait_ms=20_000 if attempts else 0)
        assert [one.system_properties.delivery_attempt for one in found] == attempts


@pytest.mark.parametrize("queue_id", [-1, 0, 3])
async def test_any_queue_is_received_whichever_is_named(tmp_path: Path, queue_id: int) -> None:
    async with both(tmp_path) as (peer, consumer):
        await peer.alter_topic("T", 4)
        await consumer.send(*[message(body=b"%d" % number) for number in range(8)])
        request = ReceiveMessageRequest(group=GROUP, batch_size=32)
        request.message_queue.MergeFrom(MessageQueue(topic=TOPIC, id=queue_id))
        assert sorted(bodies((await consumer.receive(request=request))[1])) == [b"%d" % number for number in range(8)]


# Order, and what follows.


async def test_message_groups_keep_their_order(tmp_path: Path) -> None:
    async with both(tmp_path, order=True) as (_, consumer):
        for group, body in (("g1", b"1"), ("g2", b"2"), ("g1", b"3")):
            fifo = SystemProperties(message_type=MessageType.FIFO, message_group=group)
            await consumer.send(message(lambda system, fifo=fifo: system.MergeFrom(fifo), body=body))
        _, first = await consumer.receive(attempt_id="a")
        assert bodies(first) == [b"1", b"2", b"3"]
        _, same = await consumer.receive(attempt_id="a")
        assert bodies(same) == bodies(first)
        assert same[0].system_properties.message_group == "g1"
        await consumer.ack(handle_of(same[0]), handle_of(same[2]))
        await consumer.send(message(lambda system: system.MergeFrom(fifo), body=b"4"))
        assert bodies((await consumer.receive())[1]) == [b"4"]  # group g2 waits
        queues = await consumer.ask("QueryAssignment", QueryAssignmentRequest(topic=TOPIC, group=GROUP))
        assert [one.message_queue.id for one in queues.assignments] == [0]


async def test_assignments(consumer: Consumer) -> None:
    answer = await consumer.ask("QueryAssignment", QueryAssignmentRequest(topic=TOPIC, group=GROUP))
    assert [one.message_queue.id for one in answer.assignments] == [-1]
    assert answer.assignments[0].message_queue.broker.name == "broker-a"
    illegal = QueryAssignmentRequest(topic=TOPIC, group=Resource(name="a/b"))
    assert (await consumer.ask("QueryAssignment", illegal)).status.code == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_message_is_forwarded_to_the_dead_letters(tmp_path: Path) -> None:
    async with both(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as (peer, consumer):
        await consumer.send(message())
        _, (found,) = await consumer.receive()
        request = ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=handle_of(found))
        for _ in range(2):  # the second one as if the answer were lost
            assert (await consumer.ask("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
        dead = await peer.pull(topic="%DLQ%g", queue_offset=0)
        assert b"body" in dead.body
        assert dead.ext_fields["maxOffset"] == "1"
        assert (await consumer.receive()) == (Code.MESSAGE_NOT_FOUND, [])


async def test_a_stale_handle_forwards_nothing(tmp_path: Path) -> None:
    async with both(tmp_path, order=True) as (peer, consumer):
        fifo = SystemProperties(message_type=MessageType.FIFO, message_group="one")
        await consumer.send(message(lambda system: system.MergeFrom(fifo)))
        _, (found,) = await consumer.receive()
        changed = await consumer.change(handle_of(found), 0)
        _, (again,) = await consumer.receive(wait_ms=10_000)
        for handle in (handle_of(found), changed.receipt_handle):
            request = ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=handle)
            answer = await consumer.ask("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await peer.pull(topic="%DLQ%g")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await consumer.ack(handle_of(again))).status.code == Code.OK


def consumer_settings() -> Settings:
    settings = Settings()
    settings.subscription.group.name = "g"
    settings.subscription.subscriptions.add().topic.name = "T"
    return settings


async def test_a_client_for_node_gets_the_backoff_that_it_knows(consumer: Consumer) -> None:
    settings = consumer_settings()
    settings.user_agent.language = Language.NODE_JS
    async with consumer.telemetry(settings) as stream:
        policy = (await stream.read()).settings.backoff_policy
    backoff = policy.exponential_backoff
    assert (policy.max_attempts, backoff.initial.seconds, backoff.max.seconds, backoff.multiplier) == (17, 10, 7200, 2)


async def test_a_client_that_leaves_holds_nothing(consumer: Consumer) -> None:
    async with consumer.telemetry(consumer_settings()) as stream:
        answer = (await stream.read()).settings
        assert (answer.subscription.fifo, answer.subscription.receive_batch_size) == (False, 32)
        assert answer.subscription.long_polling_timeout.seconds == 20
        policy = answer.backoff_policy
        assert (policy.max_attempts, policy.customized_backoff.next[0].seconds) == (17, 10)
        await consumer.send(message())
        _, (found,) = await consumer.receive(auto_renew=True)
        assert found.system_properties.invisible_duration.ToMilliseconds() == RENEWED_MS
        left = await consumer.ask("NotifyClientTermination", NotifyClientTerminationRequest(group=GROUP))
        assert left.status.code == Code.OK
    _, (again,) = await consumer.receive(wait_ms=10_000)
    assert again.system_properties.delivery_attempt == 2


async def test_a_client_that_is_lost_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "RELEASE_LOST_INTERVAL_MS", 20)
    clock, again = Clock(), list[Message]()
    async with both(tmp_path, clock=clock) as (peer, returning), grpc_peer(peer.broker.grpc_endpoint, "lost") as other:
        held = []
        for client in (returning, lost := Consumer(other.channel, "lost")):
            async with client.telemetry(consumer_settings()) as stream:
                await stream.read()
                await client.send(message())
                held += (await client.receive(auto_renew=True))[1]

        async def others_receive() -> bool:
            again.extend((await lost.receive())[1])
            if not again:
                clock.ahead_ms += 2_000
            return bool(again)

        async with returning.telemetry(consumer_settings()) as stream:
            await stream.read()
            await until(others_receive)
            (found,) = again
            assert clock.ahead_ms >= 60_000
            assert found.system_properties.message_id == held[1].system_properties.message_id
            assert found.system_properties.delivery_attempt == 2
            assert (await returning.ack(handle_of(held[0]))).status.code == Code.OK


async def test_policies_decide_who_receives(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        request = ReceiveMessageRequest(group=Resource(name="readers"))
        request.message_queue.topic.name = "Orders"
        for keys, code in (
            (("reader1", "secret of the reader"), Code.TOPIC_NOT_FOUND),
            (("writer1", "secret of the writer"), Code.FORBIDDEN),
        ):
            async with grpc_peer(broker.grpc_endpoint, keys=keys) as client:
                assert (await client.ask("ReceiveMessage", request)).status.code == code
