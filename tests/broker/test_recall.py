"""Recall of timer messages that are not due yet, by both protocols."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.message.properties import TIMER_DEL_UNIQKEY
from rucola.message.recall import RecallHandle, parse_recall_handle
from rucola.message.record import decode_many
from rucola.message.topics import TIMER_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.grpc.definition_pb2 import Code, MessageType, Resource, SystemProperties
from rucola.protocol.grpc.service_pb2 import RecallMessageRequest, RecallMessageResponse
from rucola.protocol.send import RecallMessageRequestHeader
from rucola.store.config import BrokerRole, FlushDiskType
from support.access import guarded_cluster
from support.broker_peer import broker_peer, next_messages
from support.grpc_peer import GrpcPeer, grpc_peer, message
from support.peer import Peer
from support.waiting import until

NOW_MS = 1_800_000_000_000
DUE_MS = NOW_MS + 3_600_000


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Client(GrpcPeer):
    async def send_delayed(self, body: bytes, due_ms: int = DUE_MS, topic: str = "T") -> Any:
        """The entry of the response."""

        def delayed(system: SystemProperties) -> None:
            system.message_id = body.hex()
            system.message_type = MessageType.DELAY
            system.delivery_timestamp.FromMilliseconds(due_ms)

        (entry,) = (await self.send(message(delayed, body=body, topic=Resource(name=topic)))).entries
        return entry

    async def recall(self, handle: str, topic: str = "T") -> RecallMessageResponse:
        request = RecallMessageRequest(topic=Resource(name=topic), recall_handle=handle)
        answer = await self.ask("RecallMessage", request)
        assert isinstance(answer, RecallMessageResponse)
        return answer


@asynccontextmanager
async def both(path: Path, clock: Clock, **settings: Any) -> AsyncIterator[tuple[Peer, Client]]:
    async with broker_peer(path, clock=clock, **settings) as peer, grpc_peer(peer.broker.grpc_endpoint) as client:
        await peer.alter_topic("T")
        yield peer, Client(client.channel)


async def recall_4x(peer: Peer, handle: str, topic: str = "T") -> RemotingCommand:
    return await peer.ask(RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader(topic=topic, recall_handle=handle))


async def test_recalled_messages_are_not_delivered(tmp_path: Path) -> None:
    clock = Clock()
    async with both(tmp_path, clock) as (peer, client):
        first, second, _ = [await client.send_delayed(body) for body in (b"first", b"second", b"last")]
        handle = parse_recall_handle(first.recall_handle)
        assert handle == RecallHandle("T", "broker-a", DUE_MS, b"first".hex())
        for _ in range(2):  # the second one as if the answer were lost
            answer = await client.recall(first.recall_handle)
            assert (answer.status.code, answer.message_id) == (Code.OK, first.message_id)
        recalled = await recall_4x(peer, second.recall_handle)
        assert (recalled.code, recalled.ext_fields["msgId"]) == (ResponseCode.SUCCESS, second.message_id)
        properties = f"TIMER_DELIVER_MS\x01{DUE_MS}\x02UNIQ_KEY\x01K\x02"
        sent = await peer.send(b"sent by 4.x", properties=properties)
        assert (await client.recall(sent.ext_fields["recallHandle"])).status.code == Code.OK
        # A time that is past is no delay.
        assert (await client.send_delayed(b"at once", NOW_MS - 1)).recall_handle == ""
    clock.now_ms = DUE_MS
    async with both(tmp_path, clock) as (peer, _):
        assert [one.body for one in await next_messages(peer, queue_offset=1)] == [b"last"]
        assert (await peer.pull(queue_offset=0)).ext_fields["maxOffset"] == "2"


async def test_what_cannot_be_recalled_says_why(tmp_path: Path) -> None:
    clock = Clock()
    async with both(tmp_path, clock) as (peer, client):
        await peer.alter_topic("U")
        entry = await client.send_delayed(b"body")
        good = RecallHandle("T", "broker-a", DUE_MS, entry.message_id)
        for handle, topic, code in (
            ("", "T", Code.BAD_REQUEST),
            ("no handle", "T", Code.BAD_REQUEST),
            ("ünicode", "T", Code.BAD_REQUEST),
            (urlsafe_b64encode(b"v2 T broker-a 1 k").decode(), "T", Code.BAD_REQUEST),
            (urlsafe_b64encode(b"v1 T broker-a \xff").decode(), "T", Code.BAD_REQUEST),
            (str(good), "U", Code.BAD_REQUEST),
            (str(good), "", Code.ILLEGAL_TOPIC),
            (str(good._replace(broker_name="broker-b")), "T", Code.BAD_REQUEST),
            (str(good._replace(unique_key="another")), "T", Code.NOT_FOUND),
            (str(good._replace(due_ms=DUE_MS + 1)), "T", Code.NOT_FOUND),
            (str(good._replace(due_ms=NOW_MS)), "T", Code.PRECONDITION_FAILED),
        ):
            assert (await client.recall(handle, topic)).status.code == code, (handle, topic)
            if topic:
                assert (await recall_4x(peer, handle, topic)).code == ResponseCode.ILLEGAL_OPERATION
        # Nothing was stored for them.
        assert (await peer.pull(topic=TIMER_TOPIC)).ext_fields["maxOffset"] == "1"


async def test_a_broker_without_index_recalls_nothing(tmp_path: Path) -> None:
    async with both(tmp_path, Clock(), store={"message_index_enable": False}) as (peer, client):
        entry = await client.send_delayed(b"body")
        assert (await client.recall(entry.recall_handle)).status.code == Code.INTERNAL_SERVER_ERROR
        assert (await recall_4x(peer, entry.recall_handle)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("store", "grpc_code", "code"),
    [
        ({"flush_disk_type": FlushDiskType.SYNC_FLUSH}, Code.OK, ResponseCode.SUCCESS),
        ({"broker_role": BrokerRole.SYNC_MASTER}, Code.HA_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_a_recall_is_as_durable_as_a_message(
    tmp_path: Path, store: dict[str, Any], grpc_code: int, code: ResponseCode
) -> None:
    async with both(tmp_path, Clock(), store=store) as (peer, client):
        entry = await client.send_delayed(b"body")
        assert (await client.recall(entry.recall_handle)).status.code == grpc_code
        assert (await recall_4x(peer, entry.recall_handle)).code == code


async def test_a_recall_just_before_the_message_is_due(tmp_path: Path) -> None:
    clock = Clock()
    async with both(tmp_path, clock) as (peer, client):
        entry = await client.send_delayed(b"recalled")
        await client.send_delayed(b"other")
        clock.now_ms = DUE_MS - 1
        assert (await client.recall(entry.recall_handle)).status.code == Code.OK
        clock.now_ms = DUE_MS
        await client.send_delayed(b"wakes the timer", DUE_MS + 1)
        clock.now_ms = DUE_MS + 1

        async def are_delivered() -> bool:
            return len(decode_many((await peer.pull()).body)) >= 2

        await client.send_delayed(b"wakes it again", DUE_MS + 2)
        await until(are_delivered)
        assert [one.body for one in decode_many((await peer.pull()).body)] == [b"other", b"wakes the timer"]


async def test_a_client_cannot_recall_by_a_property(tmp_path: Path) -> None:
    async with both(tmp_path, Clock()) as (_, client):
        answer = await client.send(message(user_properties={TIMER_DEL_UNIQKEY: "K"}))
        assert answer.status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_only_who_may_publish_recalls(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        broker = await cluster.start_broker()
        writer, reader = ("writer1", "secret of the writer"), ("reader1", "secret of the reader")
        async with (
            grpc_peer(broker.grpc_endpoint, keys=writer) as one,
            grpc_peer(broker.grpc_endpoint, keys=reader) as two,
        ):
            producer, stranger = Client(one.channel, keys=writer), Client(two.channel, keys=reader)
            entry = await producer.send_delayed(b"body", 4_000_000_000_000, "Orders")
            assert (await stranger.recall(entry.recall_handle, "Orders")).status.code == Code.FORBIDDEN
            assert (await producer.recall(entry.recall_handle, "Orders")).status.code == Code.OK
