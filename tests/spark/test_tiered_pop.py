"""Messages that have left the log are received by POP, over remoting and gRPC, and delivered again, from the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rucola.broker.delivery.pop_log import PopLog
from rucola.domain.pop import PopStatus
from rucola.message.record import decode, decode_many
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.grpc.definition_pb2 import Code, Resource
from rucola.protocol.grpc.service_pb2 import (
    ForwardMessageToDeadLetterQueueRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from rucola.protocol.pop import PopStatusRequestHeader
from support.broker_peer import max_offset
from support.grpc_peer import SERVICE, grpc_peer
from support.peer import Peer
from support.pop import Received, ack, ack_all, pop, receive
from support.stores import inner
from support.tiered import TIME_MS, delete_archived, opened_store, run_archive, tiered_broker
from support.waiting import until

COUNT, OLD = 9, 4
"""Messages of the queue, and how many of them at least have left the log."""
MINUTE_MS = 60_000


def fill(path: Path, properties: bytes = b"") -> list[tuple[int, bytes, str]]:
    """Store and archive messages; return what identifies each."""
    found = []
    with opened_store(path) as store:
        for number in range(COUNT):
            pairs = b"UNIQ_KEY\x01U%d\x02" % number + properties
            message = inner(body=(b"%d" % number).ljust(30_000), unique_key=f"U{number}", properties=pairs)
            put = store.put(message, TIME_MS + number)
            original = decode(store.record_at(put.physical_offset) or b"")
            found.append((original.queue_offset, original.body.strip(), original.offset_msg_id))
        store.checkpoint()
    run_archive(path)
    return found


def received_bodies(messages: list[Received]) -> list[bytes]:
    return [message.body.strip() for message in messages]


async def receive_all(peer: Peer, count: int, **fields: Any) -> list[Received]:
    found: list[Received] = []

    async def is_complete() -> bool:
        found.extend(await receive(peer, **fields))
        return len(found) >= count

    await until(is_complete)
    return found


async def test_a_group_goes_from_the_lake_to_the_log_and_its_unacked_messages_come_again(tmp_path: Path) -> None:
    originals = fill(tmp_path, properties=b"n\x011")
    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await peer.alter_group(retry_max_times=1)
        await delete_archived(peer, world, OLD)
        (first,) = await receive(peer, max_msg_nums=1)
        assert first.queue_offset == 0, "it begins with the lake's first message"
        found = [first, *await receive_all(peer, COUNT - 1)]
        assert [(one.queue_offset, one.body.strip()) for one in found] == [one[:2] for one in originals]
        assert [one.properties["UNIQ_KEY"] for one in found] == [f"U{number}" for number in range(COUNT)]
        assert {(one.attempt, one.properties["n"]) for one in found} == {(1, "1")}
        assert (await ack_all(peer, found[2:])).code == ResponseCode.SUCCESS

        world.now_ms += 2 * MINUTE_MS
        again = await receive_all(peer, 2)
        assert sorted((one.attempt, one.properties["ORIGIN_MESSAGE_ID"], one.body.strip()) for one in again) == [
            (2, origin, body) for _, body, origin in originals[:2]
        ]
        assert (await ack(peer, again[0])).code == ResponseCode.SUCCESS

        world.now_ms += 2 * MINUTE_MS
        await until(lambda: is_dead(peer, again[1].body))
        assert await peer.committed() == COUNT


async def is_dead(peer: Peer, body: bytes) -> bool:
    await receive(peer)
    return [one.body for one in decode_many((await peer.pull(topic="%DLQ%g")).body)] == [body]


async def test_a_lake_that_is_away_delays_only_what_it_has(tmp_path: Path) -> None:
    originals = fill(tmp_path)
    async with tiered_broker(tmp_path, tiered_read_timeout=50) as (peer, world):
        await peer.alter_topic()
        await peer.alter_topic("U")
        await receive_all(peer, COUNT)
        await delete_archived(peer, world, OLD)
        begin = peer.broker.parts.storage.store.min_offset("T", 0)

    # The broker starts again without what it had read, and without the lake.
    (tmp_path / "lake").rename(tmp_path / "away")
    async with tiered_broker(tmp_path, tiered_read_timeout=50) as (peer, world):
        world.now_ms += 2 * MINUTE_MS
        assert await receive(peer, consumer_group="new") == [], "its messages may be in the lake"
        status_of = PopStatusRequestHeader(consumer_group="g", topic="T")

        assert received_bodies(await receive_all(peer, COUNT - begin)) == [body for _, body, _ in originals[begin:]]
        status = decode_body(PopStatus, (await peer.ask(RequestCode.GET_POP_STATUS, status_of)).body)
        (queue,) = [one for one in status.queues if one.topic == "T"]
        assert (queue.committed_offset, queue.in_flight) == (0, begin)
        assert queue.blocked
        assert (await peer.send(b"new", topic="U")).code == ResponseCode.SUCCESS
        assert received_bodies(await receive(peer, topic="U")) == [b"new"]
        (tmp_path / "away").rename(tmp_path / "lake")
        old = await receive_all(peer, begin)
        assert sorted(received_bodies(old)) == [body for _, body, _ in originals[:begin]]
        new = await receive_all(peer, COUNT, consumer_group="new")
        assert received_bodies(new) == [body for _, body, _ in originals]


async def test_a_copy_without_a_record_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals = fill(tmp_path)
    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await receive_all(peer, COUNT)
        await delete_archived(peer, world, OLD)
        with monkeypatch.context() as failing:
            failing.setattr(PopLog, "put", lambda *_: "no room")
            world.now_ms += 2 * MINUTE_MS

            async def are_copied() -> bool:
                await pop(peer)
                return await max_offset(peer, "%RETRY%g_T", 0) == COUNT

            await until(are_copied)
    async with tiered_broker(tmp_path) as (peer, world):
        world.now_ms += 2 * MINUTE_MS
        found = await receive_all(peer, COUNT)
        assert sorted(received_bodies(found)) == [body for _, body, _ in originals]
        await until(lambda: is_committed(peer, COUNT))
        assert await max_offset(peer, "%RETRY%g_T", 0) == COUNT


async def is_committed(peer: Peer, offset: int) -> bool:
    assert await receive(peer) == []
    return await peer.committed() == offset


async def test_messages_in_order_wait_for_the_lake_in_their_place(tmp_path: Path) -> None:
    originals = fill(tmp_path, properties=b"__SHARDINGKEY\x01k")
    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, OLD)
        for attempt in (1, 2):
            (found,) = await receive(peer, order="true", max_msg_nums=1)
            assert (found.queue_offset, found.attempt) == (0, attempt)
            world.now_ms += 2 * MINUTE_MS
        peer.broker.parts.storage.tiered.remove_queue("T", 0)  # as if others had displaced it
        offsets: list[int] = []

        async def is_complete() -> bool:
            for message in await receive(peer, order="true"):
                offsets.append(message.queue_offset)
                await ack(peer, message)
            return len(offsets) >= COUNT

        await until(is_complete)
        assert offsets == [offset for offset, *_ in originals]


async def test_clients_of_grpc_receive_and_forward_messages_of_the_lake(tmp_path: Path) -> None:
    originals = fill(tmp_path)
    async with (
        tiered_broker(tmp_path, grpc_server_port=0) as (peer, world),
        grpc_peer(peer.broker.grpc_endpoint) as client,
    ):
        await peer.alter_topic()
        await delete_archived(peer, world, OLD)
        request = ReceiveMessageRequest(group=Resource(name="g"), batch_size=32)
        request.message_queue.topic.name = "T"
        request.long_polling_timeout.FromMilliseconds(0)
        request.invisible_duration.FromMilliseconds(MINUTE_MS)
        found = []

        async def is_complete() -> bool:
            call = client.channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)
            answers = call(request.SerializeToString(), metadata=client.metadata, timeout=30)
            found.extend([answer.message async for answer in answers if answer.HasField("message")])
            return len(found) == COUNT

        await until(is_complete)
        system = [one.system_properties for one in found]
        assert [(one.system_properties.queue_offset, one.body.strip()) for one in found] == [
            one[:2] for one in originals
        ]
        assert [one.message_id for one in system] == [f"U{number}" for number in range(COUNT)]
        assert [one.store_timestamp.ToMilliseconds() for one in system] == [TIME_MS + number for number in range(COUNT)]
        peer.broker.parts.storage.tiered.remove_queue("T", 0)
        forward = ForwardMessageToDeadLetterQueueRequest(
            group=Resource(name="g"), topic=Resource(name="T"), receipt_handle=system[1].receipt_handle
        )
        assert (await client.ask("ForwardMessageToDeadLetterQueue", forward)).status.code == Code.OK
        assert await is_dead(peer, found[1].body)
