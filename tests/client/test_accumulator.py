"""Producers with `linger_ms`: concurrent sends in one request, with one result each and in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from rucola.client import Producer, SendResult
from rucola.errors import BrokerError, ConfigError, InvalidMessage, SendFailed
from rucola.message import Message
from rucola.message.batch import decode_batch
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rucola.remoting.connection import Connection, Reply
from support.cluster import cluster
from support.errors import raises
from support.queue_clients import queue_clients

FOR_EVER_MS = 3_600_000.0


class Requests:
    """The processor of a broker without a store, which refuses the body `bad`."""

    def __init__(self) -> None:
        self.bodies: list[list[bytes]] = []
        """Of each request."""

    def __call__(self, connection: Connection, command: RemotingCommand) -> Reply:
        is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE
        bodies = decode_batch(command.body)[1] if is_batch else [command.body]
        self.bodies.append(bodies)
        if b"bad" in bodies:
            return command.response(ResponseCode.MESSAGE_ILLEGAL)
        queue_id = command.decode_header(SendMessageRequestHeaderV2).queue_id
        ids = ",".join(["0" * 32] * len(bodies))
        return command.response(
            ResponseCode.SUCCESS, SendMessageResponseHeader(msg_id=ids, queue_id=queue_id, queue_offset=0)
        )

    def table(self) -> dict[int, Requests]:
        return dict.fromkeys((RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2), self)


@pytest.mark.parametrize("as_stream", [False, True])
async def test_concurrent_sends_share_requests_in_order(tmp_path: Path, as_stream: bool) -> None:
    requests = Requests()
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, linger_ms=0) as producer:
        await running.scripted_broker("broker-a", "T", requests.table())
        bodies = [b"%d" % number for number in range(300)]
        messages = [Message("T", body) for body in bodies]
        if as_stream:
            results = await producer.send_many(messages, in_flight=300)
        else:
            results = await asyncio.gather(*map(producer.send, messages))
        assert [result.msg_id for result in results] == [message.unique_key for message in messages]
        assert [body for request in requests.bodies for body in request] == bodies
        assert [len(request) for request in requests.bodies] == [128, 128, 44]


async def test_every_message_has_its_own_result_and_place(tmp_path: Path) -> None:
    async with (
        queue_clients(tmp_path) as (running, _, consumer, queue),
        Producer("lingering", running.namesrv, linger_ms=0) as producer,
    ):
        messages = [Message("T", b"%d" % number, tags=f"t{number}") for number in range(20)]
        # A message that is sent alone overtakes none before it, and none after it overtakes that one.
        messages[10] = Message("T", b"x" * 5000)
        messages[15].properties["WAIT"] = "true"
        sends = (producer.send(message, queue) for message in messages)
        results: list[SendResult] = await asyncio.gather(*sends)
        assert [result.queue_offset for result in results] == list(range(20))
        read = (await consumer.pull(queue, 0)).messages
        assert [message.body for message in read] == [message.body for message in messages]
        assert [message.offset_msg_id for message in read] == [result.offset_msg_id for result in results]
        stats = producer.stats()["T"]
        assert (stats.sent, stats.failed, stats.in_flight) == (20, 0, 0)


async def test_a_refused_batch_is_refused_by_message(tmp_path: Path) -> None:
    requests = Requests()
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, linger_ms=0) as producer:
        await running.scripted_broker("broker-a", "T", requests.table())
        bodies = (b"good", b"bad", b"better")
        sends = (producer.send(Message("T", body)) for body in (*bodies, b""))
        good, bad, better, empty = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(bad, BrokerError)
        assert bad.code == ResponseCode.MESSAGE_ILLEGAL
        assert isinstance(empty, InvalidMessage)
        assert isinstance(good, SendResult)
        assert isinstance(better, SendResult)
        assert Counter(body for request in requests.bodies for body in request) == dict.fromkeys(bodies, 2)


async def test_a_batch_that_fails_fails_each_of_its_messages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, linger_ms=0) as producer:
        await running.scripted_broker("broker-a", "T", {RequestCode.SEND_BATCH_MESSAGE: lambda *_: None})
        sends = (producer.send(Message("T", b"x"), timeout_ms=50) for _ in range(3))
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in errors] == [SendFailed] * 3
        assert producer.stats()["T"].failed == 3


async def test_closing_sends_what_waits_but_for_cancelled_messages(tmp_path: Path) -> None:
    requests = Requests()
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, linger_ms=FOR_EVER_MS) as producer:
        await running.scripted_broker("broker-a", "T", requests.table())
        sends = [asyncio.create_task(producer.send(Message("T", b"%d" % number))) for number in range(3)]
        stream = asyncio.ensure_future(producer.send_many([Message("T", b"3")]))
        await asyncio.sleep(0)  # all have begun
        sends[1].cancel()
        await producer.close()
        assert requests.bodies == [[b"0", b"2", b"3"]]
        assert (await sends[2]).is_ok
        assert [result.is_ok for result in await stream] == [True]
        assert sends[1].cancelled()


async def test_a_message_that_no_batch_has_room_for_is_sent_alone(tmp_path: Path) -> None:
    requests = Requests()
    async with (
        cluster(tmp_path) as running,
        Producer("g", running.namesrv, linger_ms=FOR_EVER_MS, max_message_size=1000) as producer,
    ):
        await running.scripted_broker("broker-a", "T", requests.table())
        bodies = [b"1", b"2" * 990, b"3" * 600, b"4" * 600, b"5"]
        sends = (producer.send(Message("T", body), timeout_ms=4000) for body in bodies)
        results = await asyncio.gather(*sends)
        assert all(result.is_ok for result in results)
        assert requests.bodies == [bodies[:1], bodies[1:2], bodies[2:3], bodies[3:]]


async def test_a_negative_linger_is_refused() -> None:
    with raises(ConfigError, subject="linger_ms"):
        Producer("g", "127.0.0.1:9876", linger_ms=-1)
