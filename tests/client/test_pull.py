"""Pulling: where to read from, what comes, and how far the group has come."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, get_ident

import pytest

from rucola.client import MessageQueue, PullConsumer, PullStatus
from rucola.client.consumer import decoding, pull_consumer
from rucola.errors import BrokerError, InvalidMessage, RemotingConnectError, RemotingTimeout, TopicNotFound
from rucola.message import Message, MessageInner
from rucola.message.compression import CompressionType, read_body
from rucola.message.record import encode
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.remoting.connection import Connection, Reply
from support.cluster import cluster
from support.errors import raises
from support.queue_clients import queue_clients

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


async def test_a_queue_is_read_from_beginning_to_end(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 0)
        await producer.send_batch(Message("T", f"{i}".encode()) for i in range(70))
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 70)
        bodies, offset = [], 0
        while (result := await consumer.pull(queue, offset, 32)).status is PullStatus.FOUND:
            assert len(result.messages) <= 32
            assert (result.min_offset, result.max_offset) == (0, 70)
            bodies += [message.body for message in result.messages]
            offset = result.next_begin_offset
        assert result.status is PullStatus.NO_NEW_MSG
        assert offset == 70
        assert bodies == [f"{i}".encode() for i in range(70)]


async def test_masters_are_listed_while_they_are_registered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        assert await consumer.registered_masters() == set()
        await running.start_broker()
        other = await running.start_broker("broker-b")
        await running.start_slave()
        assert await consumer.registered_masters() == {"broker-a", "broker-b"}
        await other.stop()
        assert await consumer.registered_masters() == {"broker-a"}


async def test_offsets_outside_the_queue_are_corrected(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        await producer.send_batch(Message("T", b"x") for _ in range(5))
        beyond = await consumer.pull(queue, 99)
        assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
        assert beyond.messages == []


async def test_a_pull_selects_by_tags(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        # "Aa" and "BB" have one hash, so that the broker cannot tell them apart.
        await producer.send_batch(Message("T", tag.encode(), tags=tag) for tag in ("Aa", "BB", "C", "Aa", "D"))
        found = await consumer.pull(queue, 0, subscription="Aa || D")
        assert [message.tags for message in found.messages] == ["Aa", "Aa", "D"]
        assert found.next_begin_offset == 5
        nothing = await consumer.pull(queue, 0, subscription="E")
        assert (nothing.status, nothing.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 5)
        with pytest.raises(InvalidMessage):
            await consumer.pull(queue, 0, subscription="||")


async def test_a_held_pull_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        held = asyncio.create_task(consumer.pull(queue, 0, suspend_ms=15_000))
        await producer.send(Message("T", b"late"))
        assert [message.body for message in (await held).messages] == [b"late"]
        ended = await consumer.pull(queue, 1, suspend_ms=20)
        assert (ended.status, ended.next_begin_offset) == (PullStatus.NO_NEW_MSG, 1)


async def test_offsets_are_committed_alone_and_with_a_pull(tmp_path: Path) -> None:
    async with (
        queue_clients(tmp_path) as (running, producer, consumer, queue),
        PullConsumer("other", running.namesrv) as other,
    ):
        await producer.send_batch(Message("T", b"x") for _ in range(5))
        await consumer.commit(queue, 3)
        assert await consumer.committed(queue) == 3
        await consumer.pull(queue, 3, commit_offset=4)
        assert await consumer.committed(queue) == 4
        assert await other.committed(queue) == 0  # a young queue: the broker says so of every new group


async def test_search_offset_finds_an_offset_by_time(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        for _ in range(5):
            await producer.send(Message("T", b"x"))
        messages = (await consumer.pull(queue, 0)).messages
        first, last = messages[0].store_timestamp, messages[-1].store_timestamp
        assert await consumer.search_offset(queue, first - 1000) == 0
        found = await consumer.search_offset(queue, last)
        assert messages[found].store_timestamp == last
        assert await consumer.search_offset(queue, time.time_ns() // 1_000_000 + 60_000) >= 4


async def test_errors_name_a_missing_topic_queue_or_message(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", queues=1)
        with raises(TopicNotFound, subject="Missing"):
            await consumer.queues("Missing")
        with pytest.raises(RemotingConnectError):
            await consumer.pull(MessageQueue("T", "broker-z", 0), 0)
        (queue,) = await consumer.queues("T")
        with pytest.raises(BrokerError) as caught:
            await consumer.pull(MessageQueue("T", queue.broker_name, 9), 0)
        assert caught.value.address == broker.address


async def test_a_body_that_cannot_be_decompressed_is_returned_as_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One producer's broken message takes none of its neighbours with it."""
    broken = CompressionType.ZLIB.sys_flag
    records = b"".join(
        encode(MessageInner("T", 0, body, b"", 0, sys_flag, 0, HOST), queue_offset, 0, 0, HOST)
        for queue_offset, (body, sys_flag) in enumerate([(b"first", 0), (b"no zlib", broken), (b"last", 0)])
    )

    def pull(connection: Connection, command: RemotingCommand) -> Reply:
        header = PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=3, min_offset=0, max_offset=3)
        return command.response(ResponseCode.SUCCESS, header, records)

    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await running.scripted_broker("broker-a", "T", {RequestCode.PULL_MESSAGE: pull})
        (queue,) = await consumer.queues("T")
        messages = (await consumer.pull(queue, 0)).messages
        assert [message.body for message in messages] == [b"first", b"no zlib", b"last"]
        assert [message.body_error is not None for message in messages] == [False, True, False]
        assert "offset 1" in caplog.text


async def test_bodies_are_decompressed_beside_the_loop_within_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def read(body: bytes, sys_flag: int) -> tuple[bytes, str | None]:
        threads.append(get_ident())
        return read_body(body, sys_flag)

    monkeypatch.setattr(decoding, "read_body", read)
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        for body in (b"small", bytes(100_000)):
            await producer.send(Message("T", body))
        assert [message.body for message in (await consumer.pull(queue, 0)).messages] == [b"small", bytes(100_000)]
        assert len(threads) == 1
        assert threads[0] != get_ident()
        is_free, loop = Event(), asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, is_free.wait)
        try:
            with monkeypatch.context() as hurried:
                hurried.setattr(pull_consumer, "PULL_TIMEOUT_MS", 500)
                with pytest.raises(RemotingTimeout):
                    await consumer.pull(queue, 0)
            assert [message.body for message in (await consumer.pull(queue, 0, 1)).messages] == [b"small"]
        finally:
            is_free.set()
            await busy
