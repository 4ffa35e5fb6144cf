"""Sending: every way of it, to real brokers, and what happens when they cannot take it."""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, get_ident

import pytest

from rucola.client import Producer, PullConsumer, SendResult, SendStatus
from rucola.client.producer.producer import LARGE_BODY
from rucola.client.producer.send_request import compressed_body
from rucola.domain.client import HeartbeatData
from rucola.errors import (
    BrokerError,
    ConfigError,
    InvalidMessage,
    MQError,
    RemotingError,
    RemotingTimeout,
    SendFailed,
    TopicNotFound,
)
from rucola.message import Message, MessageExt, sysflag
from rucola.message.ids import parse_offset_msg_id
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import UnregisterClientRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply
from support.cluster import Cluster, Tally, cluster
from support.errors import raises
from support.queue_clients import queue_clients


async def sent(producer: Producer, messages: Iterable[Message], **options: float) -> list[SendResult]:
    """The results of a stream."""
    return await producer.send_many(messages, **options)  # type: ignore[arg-type]


async def stored(running: Cluster, topic: str) -> list[MessageExt]:
    """Everything that the topic holds, queue by queue."""
    messages: list[MessageExt] = []
    async with PullConsumer("reader", running.namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while offset < await consumer.max_offset(queue):
                result = await consumer.pull(queue, offset)
                messages += result.messages
                offset = result.next_begin_offset
    return messages


async def test_a_message_is_stored_with_all_its_fields(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        broker = await running.start_broker()
        message = Message("T", "Käse".encode(), tags="A", keys=["k1", "k2"], properties={"colour": "grün"}, flag=7)
        result = await producer.send(message)
        assert result.status is SendStatus.SEND_OK
        assert result.msg_id == message.unique_key
        assert result.queue.topic == "T"
        assert result.queue.broker_name == "broker-a"
        assert result.queue_offset == 0
        (read,) = await stored(running, "T")
        assert (read.body, read.tags, read.keys, read.flag) == (message.body, "A", "k1 k2", 7)
        assert read.properties["colour"] == "grün"
        assert read.unique_key == result.msg_id
        assert read.offset_msg_id == result.offset_msg_id
        assert parse_offset_msg_id(result.offset_msg_id) == (broker.address, read.physical_offset)
        assert (read.queue_id, read.queue_offset) == (result.queue.queue_id, 0)


async def test_queues_rotate_and_a_chosen_queue_is_kept(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=3)
        used = Counter([(await producer.send(Message("T", b"x"))).queue.queue_id for _ in range(9)])
        assert used == {0: 3, 1: 3, 2: 3}
        queue = (await producer.queues("T"))[1]
        results = [await producer.send(Message("T", b"x"), queue) for _ in range(3)]
        assert [result.queue for result in results] == [queue] * 3
        assert [result.queue_offset for result in results] == [3, 4, 5]
        with pytest.raises(InvalidMessage):
            await producer.send(Message("U", b"x"), queue)


async def test_a_oneway_message_is_stored_without_a_response(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        waiting = asyncio.create_task(consumer.pull(queue, 0, suspend_ms=15_000))
        await producer.send_oneway(Message("T", b"gone"))
        assert [message.body for message in (await waiting).messages] == [b"gone"]


async def test_a_batch_is_contiguous_with_one_result_per_message(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.start_broker()
        messages = [Message("T", f"{i}".encode(), tags=f"tag{i % 3}", keys=f"key{i}") for i in range(100)]
        results = await producer.send_batch(messages)
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(100))
        assert [result.msg_id for result in results] == [message.unique_key for message in messages]
        assert len({result.msg_id for result in results}) == 100
        read = await stored(running, "T")
        assert [m.offset_msg_id for m in read] == [result.offset_msg_id for result in results]
        assert [(m.body, m.tags, m.keys, m.unique_key) for m in read] == [
            (m.body, m.tags, m.keys, m.unique_key) for m in messages
        ]
        assert await producer.send_batch([]) == []


async def test_a_batch_above_the_limit_is_split(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, max_message_size=1000) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=4)
        messages = [Message("T", bytes([i]) * 200) for i in range(20)]
        results = await producer.send_batch(messages)
        assert len({result.queue for result in results}) == 4  # each request goes to the next queue
        by_id = {m.unique_key: m for m in await stored(running, "T")}
        for message, result in zip(messages, results, strict=True):
            read = by_id[message.unique_key]
            assert (read.body, read.queue_offset, read.offset_msg_id) == (
                message.body, result.queue_offset, result.offset_msg_id,
            )  # fmt: skip


@pytest.mark.parametrize("in_flight", [1, 7, 64])
async def test_a_stream_gives_its_results_in_order(tmp_path: Path, in_flight: int) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.start_broker()
        messages = [Message("T", f"{i}".encode()) for i in range(300)]
        results = await sent(producer, messages, in_flight=in_flight)
        assert [result.msg_id for result in results] == [message.unique_key for message in messages]
        by_place = {(m.queue_id, m.queue_offset): m.body for m in await stored(running, "T")}
        assert len(by_place) == 300
        for message, result in zip(messages, results, strict=True):
            assert by_place[result.queue.queue_id, result.queue_offset] == message.body


async def test_send_many_reads_no_further_than_its_window_and_can_be_abandoned(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.start_broker()
        taken = 0

        async def endless() -> AsyncIterator[Message]:
            nonlocal taken
            while True:
                taken += 1
                yield Message("T", b"x")

        results: list[SendResult] = []
        async for result in producer.send_many(endless(), in_flight=10):
            results.append(result)
            assert taken - len(results) <= 10
            if len(results) == 50:
                break
        assert len(await stored(running, "T")) >= 50


async def test_send_many_used_as_a_statement_warns_that_it_sent_nothing(tmp_path: Path) -> None:
    async with queue_clients(tmp_path) as (_, producer, consumer, queue):
        with pytest.warns(RuntimeWarning) as warned:
            producer.send_many([Message("T", b"unsent")])
        assert warned[0].filename == __file__
        assert await consumer.max_offset(queue) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = producer.send_many([Message("T", b"%d" % number) for number in range(5)], in_flight=2)
            assert [result.queue_offset for result in await results] == list(range(5))
            with pytest.raises(RuntimeError):  # not an empty list, as if nothing had been sent
                await results
            async for result in producer.send_many([Message("T", b"x")] * 3):
                assert result.queue_offset == 5
                break
            with raises(ConfigError, subject="in_flight"):
                producer.send_many([Message("T", b"x")], in_flight=0)


async def test_large_bodies_are_compressed_in_transit_only(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=1)
        bodies = [b"a" * 4095, b"b" * 4096, b"c" * 100_000]
        for body in bodies:
            message = Message("T", body)
            await producer.send(message)
            assert message.body == body
        small, threshold, large = await stored(running, "T")
        assert [small.body, threshold.body, large.body] == bodies
        assert not small.sys_flag & sysflag.COMPRESSED
        assert threshold.sys_flag & sysflag.COMPRESSED
        assert large.stored_size < 1000


async def test_bodies_that_do_not_shrink_are_sent_as_they_are(tmp_path: Path) -> None:
    random = Random(1)
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=1)
        large = LARGE_BODY + 5
        bodies = [random.randbytes(5000), random.randbytes(large), b"z" * large, bytes(large - 1) + random.randbytes(1)]
        assert all(result.is_ok for result in await asyncio.gather(*(producer.send(Message("T", b)) for b in bodies)))
        await producer.send_many([Message("T", body) for body in bodies])
        messages = await stored(running, "T")
        assert sorted(message.body for message in messages) == sorted(2 * bodies)
        assert [message.body for message in messages][-4:] == bodies
        for message in messages:
            assert bool(message.sys_flag & sysflag.COMPRESSED) == (message.body in bodies[2:])


async def test_a_large_body_is_compressed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def compress(body: bytes) -> bytes:
        threads.append(get_ident())
        return compressed_body(body)

    monkeypatch.setattr("rucola.client.producer.producer.compressed_body", compress)
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=1)
        for body in (bytes(LARGE_BODY), bytes(LARGE_BODY - 1)):
            await producer.send(Message("T", body))
        with raises(InvalidMessage):
            await producer.send(Message("T", bytes(producer.options.max_message_size + 1)))
    assert len(threads) == 1
    assert threads[0] != get_ident()


async def test_the_wait_for_a_thread_ends_with_the_timeout(tmp_path: Path) -> None:
    is_free = Event()
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T", queues=1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, is_free.wait)
        try:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(RemotingTimeout):
                    await send(Message("T", bytes(LARGE_BODY)), timeout_ms=20)
        finally:
            is_free.set()
            await busy
        assert await stored(running, "T") == []
        assert (await producer.send(Message("T", bytes(LARGE_BODY)))).queue_offset == 0


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", bytes(1001)),
        Message("T", "text"),  # type: ignore[arg-type]
        Message("no topic", b"x"),
        Message("", b"x"),
        Message("t" * 128, b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("T", b"x", properties={"na\x01me": "v"}),
        Message("T", b"x", properties={"name": "v" * 40_000}),
    ],
)
async def test_a_message_that_no_broker_accepts_is_not_sent(tmp_path: Path, message: Message) -> None:
    async with cluster(tmp_path) as running:
        await running.start_broker()
        async with Producer("g", running.namesrv, max_message_size=1000) as producer:
            with pytest.raises(InvalidMessage):
                await producer.send(message)
            with pytest.raises(InvalidMessage):
                await producer.send_oneway(message)
            with pytest.raises(InvalidMessage):
                await producer.send_batch([message])
            with pytest.raises(InvalidMessage):
                await sent(producer, [message])


@pytest.mark.parametrize(
    "messages",
    [
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", properties={"WAIT": "false"})],
        [Message("T", b"x", properties={"DELAY": "3"})],
        [Message("T", b"x", properties={"TIMER_DELAY_SEC": "3"})],
        [Message("%RETRY%g", b"x")],
    ],
)
async def test_messages_that_cannot_share_a_batch_are_refused(tmp_path: Path, messages: list[Message]) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send_batch(messages)


async def test_an_invalid_queue_or_window_is_refused(tmp_path: Path) -> None:
    """A selector that forgets to return would quietly spread what belongs together."""

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T")
        for choice in (lambda queues: None, 3):
            with pytest.raises(ConfigError):
                await producer.send(Message("T", b"x"), choice)  # type: ignore[arg-type]
        with raises(ConfigError, subject="in_flight"):
            await sent(producer, [Message("T", b"x")], in_flight=0)


async def test_a_send_to_an_unknown_topic_raises_topic_not_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        broker = await running.start_broker(auto_create_topic_enable=False)
        with raises(TopicNotFound, subject="Missing"):
            await producer.send(Message("Missing", b"x"))
        await running.create_topic(broker, "ReadOnly", perm=4)
        with raises(TopicNotFound, subject="ReadOnly"):
            await producer.send(Message("ReadOnly", b"x"))


async def test_a_send_is_retried_on_the_other_broker(tmp_path: Path) -> None:
    """One broker stops without the producer's knowing; then one that answers with codes worth another try."""

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        first, second = await running.start_broker("broker-a"), await running.start_broker("broker-b")
        for broker in (first, second):
            await running.create_topic(broker, "T", queues=2)
        assert {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(4)} == {
            "broker-a",
            "broker-b",
        }
        await first.stop()
        results = [await producer.send(Message("T", b"x")) for _ in range(8)]
        results += await sent(producer, (Message("T", b"x") for _ in range(40)))
        assert {result.queue.broker_name for result in results} == {"broker-b"}


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION]
)
async def test_retryable_response_codes_are_retried_on_another_broker(tmp_path: Path, code: ResponseCode) -> None:
    refused: list[int] = []

    def refuse(connection: Connection, command: RemotingCommand) -> Reply:
        refused.append(command.code)
        return command.response(code, remark="not here")

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker("broker-b"), "T", queues=1)
        await running.scripted_broker("broker-a", "T", {RequestCode.SEND_MESSAGE_V2: refuse})
        for _ in range(2):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-b"
        results = await sent(producer, [Message("T", b"x")] * 2)
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        assert refused


async def test_a_final_response_code_is_raised_at_once(tmp_path: Path) -> None:
    asked = 0

    def refuse(connection: Connection, command: RemotingCommand) -> Reply:
        nonlocal asked
        asked += 1
        return command.response(ResponseCode.MESSAGE_ILLEGAL, remark="too bad")

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.scripted_broker("broker-a", "T", {RequestCode.SEND_MESSAGE_V2: refuse})
        with raises(BrokerError, remark="too bad") as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        with raises(BrokerError, remark="too bad"):
            await sent(producer, [Message("T", b"x")])
        assert asked == 2


async def test_a_failure_names_every_try(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, retry_times=2) as producer:
        broker = await running.start_broker()
        result = await producer.send(Message("T", b"x"))
        await broker.stop()
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("T", b"x"))
        assert len(caught.value.attempts) == 3
        assert str(caught.value).count(broker.address) >= 3
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)
        with pytest.raises(RemotingError):
            await producer.send(Message("T", b"x"), result.queue)
        with pytest.raises(SendFailed):
            await sent(producer, [Message("T", b"x")] * 3)


async def test_no_acknowledged_message_is_lost_when_the_broker_restarts(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        port = broker.config.listen_port
        acknowledged: Tally[str] = Tally()
        enough = asyncio.Event()

        async def produce(producer: Producer) -> None:
            while not enough.is_set():
                with suppress(MQError):
                    acknowledged.add((await producer.send(Message("T", b"x"))).msg_id)

        async with Producer("g", running.namesrv) as producer:
            producing = asyncio.gather(*(produce(producer) for _ in range(8)))
            await acknowledged.reach(200)
            await broker.stop()
            await running.start_broker(port=port)
            await acknowledged.reach(len(acknowledged.items) + 200)
            enough.set()
            await producing
        keys = Counter(message.unique_key for message in await stored(running, "T"))
        assert set(acknowledged.items) <= set(keys)


async def test_a_broker_that_moves_is_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", queues=1)
        await producer.send(Message("T", b"x"))
        await broker.stop()
        moved = await running.start_broker()
        result = await producer.send(Message("T", b"x"))
        assert result.queue_offset == 1
        assert parse_offset_msg_id(result.offset_msg_id)[0] == moved.address


async def test_brokers_know_the_producer_from_its_first_route_until_it_closes(tmp_path: Path) -> None:
    beats: Tally[HeartbeatData] = Tally()
    left: list[UnregisterClientRequestHeader] = []

    def heart_beat(connection: Connection, command: RemotingCommand) -> Reply:
        beats.add(decode_body(HeartbeatData, command.body))
        return command.response(ResponseCode.SUCCESS)

    def unregister(connection: Connection, command: RemotingCommand) -> Reply:
        left.append(command.decode_header(UnregisterClientRequestHeader))
        return command.response(ResponseCode.SUCCESS)

    async with cluster(tmp_path) as running:
        processors: dict[int, Processor] = {
            RequestCode.HEART_BEAT: heart_beat,
            RequestCode.UNREGISTER_CLIENT: unregister,
        }
        await running.scripted_broker("broker-a", "T", processors)
        async with Producer("g", running.namesrv) as producer:
            client_id = producer.instance.client_id
            await producer.queues("T")
            (beat, *_) = await beats.reach(1)
        assert client_id.startswith(f"127.0.0.1@{os.getpid()}#")
        assert (beat.client_id, [group.group_name for group in beat.producer_data_set]) == (client_id, ["g"])
        assert beat.consumer_data_set == []
        assert [(header.client_id, header.producer_group) for header in left] == [(client_id, "g")]
