"""Clients of servers that flood them, never read, or send what no honest server sends: work and memory stay bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.admin.queries import PAGE
from rucola.admin.queue_reader import read_queue
from rucola.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from rucola.client.consumer import assignment, decoding, fetcher
from rucola.client.producer import sender, transaction
from rucola.client.route import MAX_ADDRESSES, topic_route
from rucola.domain.role import SWITCHOVER
from rucola.domain.route import BrokerData, TopicRouteData
from rucola.errors import RemoteProtocolError, RemotingConnectError, RemotingError, RemotingTimeout, SendFailed
from rucola.message import MessageInner, properties
from rucola.message.compression import CompressionType, compress
from rucola.message.record import decode, encode
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE, FrameDecoder
from rucola.protocol.offset import OffsetResponseHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.query import QueryMessageResponseHeader
from rucola.protocol.transaction import CheckTransactionStateRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.remoting.server_requests import MAX_PENDING, MAX_UNSENT
from support.cluster import HOST, Tally, cluster
from support.consumers import ScriptedBroker
from support.errors import raises
from support.waiting import until

ADDRESS = bytes([127, 0, 0, 1, 0, 0, 0, 1])
QUESTION, ASK = 1, 2
"""Codes of a client's request and of a server's."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[str]:
    """A server that writes bytes as it likes; yields its address."""
    connected: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)
        await serve(reader, writer)  # type: ignore[misc]

    server = await asyncio.start_server(accept, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{HOST}:{port}"
    finally:
        server.close()
        for writer in connected:
            writer.transport.abort()


def record(queue_offset: int, body: bytes, sys_flag: int = 0, keys: str | None = None) -> bytes:
    joined = properties.join({properties.KEYS: keys} if keys else {})
    message = MessageInner("T", 0, body, joined, 0, sys_flag, 0, ADDRESS)
    return encode(message, queue_offset, 1000 * queue_offset, 1, ADDRESS)


# Pulls.


def answering(records: list[bytes]) -> Callable[[Connection, RemotingCommand], Reply]:
    """A broker that answers a pull with all of these records from the requested offset on, however many."""

    def pull(connection: Connection, command: RemotingCommand) -> Reply:
        begin = int(command.ext_fields["queueOffset"])
        end = len(records)
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=end, min_offset=0, max_offset=end
        )
        return command.response(ResponseCode.SUCCESS, header, b"".join(records[begin:]))

    return pull


async def test_a_pull_of_bombs_is_decompressed_in_parts_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response of 16 MB could otherwise expand to a terabyte, each body within its own limit."""
    monkeypatch.setattr(decoding, "MAX_PULLED_SIZE", 3_000_000)
    bomb = compress(bytes(1_000_000), CompressionType.ZSTD)
    records = [record(number, bomb, CompressionType.ZSTD.sys_flag) for number in range(8)]
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await running.scripted_broker("broker-a", "T", {RequestCode.PULL_MESSAGE: answering(records)})
        (queue,) = await consumer.queues("T")
        offset, parts = 0, []
        while offset < len(records):
            result = await consumer.pull(queue, offset)
            parts.append([message.queue_offset for message in result.messages])
            offset = result.next_begin_offset
        assert parts == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_no_more_messages_are_taken_than_were_asked_for(tmp_path: Path) -> None:
    records = [record(number, b"") for number in range(100)]
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await running.scripted_broker("broker-a", "T", {RequestCode.PULL_MESSAGE: answering(records)})
        (queue,) = await consumer.queues("T")
        result = await consumer.pull(queue, 7, 10)
        assert [message.queue_offset for message in result.messages] == [*range(7, 17)]
        assert result.next_begin_offset == 17


async def test_a_broker_that_contradicts_its_offsets_causes_no_busy_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names another offset each time, and each is outside the queue again."""
    monkeypatch.setattr(fetcher, "PULL_ERROR_PAUSE_MS", 3_600_000)
    pulled: Tally[int] = Tally()

    def pull(connection: Connection, command: RemotingCommand) -> Reply:
        offset = command.decode_header(PullMessageRequestHeader).queue_offset
        pulled.add(offset)
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=offset + 5, min_offset=0, max_offset=1 << 40
        )
        return command.response(ResponseCode.PULL_OFFSET_MOVED, header)

    broker = ScriptedBroker()
    broker.processors[RequestCode.PULL_MESSAGE] = pull
    async with cluster(tmp_path) as running:
        await broker.start(running)
        async with PushConsumer("g", running.namesrv) as consumer:
            consumer.subscribe("T")
            consumer.listen(lambda message: None)
            await pulled.reach(2)
            await until(lambda: len([offset for offset in broker.updates if offset]) >= 2)
            for _ in range(20):  # as many requests on the same connection as would let a busy loop pull again
                await consumer.instance.send_heartbeats()
            assert pulled.items == [0, 5]


async def test_a_queue_that_has_lost_its_end_goes_on_with_the_first_incomplete_message(tmp_path: Path) -> None:
    """A crash takes the last two of four messages that were pulled, while the first one is consumed."""
    pulled: Tally[int] = Tally()
    end, may_go_on, delivered = 4, asyncio.Event(), Tally[int]()

    def pull(connection: Connection, command: RemotingCommand) -> Reply:
        nonlocal end
        offset = command.decode_header(PullMessageRequestHeader).queue_offset
        pulled.add(offset)
        records = b"".join(record(number, b"%d" % number) for number in range(offset, end))
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND
        if offset == 4:
            code, end = ResponseCode.PULL_OFFSET_MOVED, 2
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=end, min_offset=0, max_offset=end
        )
        return command.response(code, header, records)

    async def listener(message: MessageExt) -> None:
        delivered.add(message.queue_offset)
        await may_go_on.wait()

    broker = ScriptedBroker()
    broker.processors[RequestCode.PULL_MESSAGE] = pull
    async with cluster(tmp_path) as running:
        await broker.start(running)
        async with PushConsumer("g", running.namesrv, concurrency=1) as consumer:
            consumer.subscribe("T")
            consumer.listen(listener)
            await pulled.reach(3)
            may_go_on.set()
            await delivered.reach(3)
    assert pulled.items[:3] == [0, 4, 0]
    assert delivered.items == [0, 0, 1]


@asynccontextmanager
async def consumed(
    path: Path, pull: Callable[[int, int], tuple[ResponseCode, int, bytes]]
) -> AsyncIterator[tuple[Tally[int], PushConsumer]]:
    """A consumer, and the offsets it pulled. Its broker answers the nth pull of an offset with a code, the next offset
    and records."""
    pulled: Tally[int] = Tally()

    def answer(connection: Connection, command: RemotingCommand) -> Reply:
        offset = command.decode_header(PullMessageRequestHeader).queue_offset
        pulled.add(offset)
        code, next_offset, records = pull(offset, pulled.items.count(offset))
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=1 << 40
        )
        return command.response(code, header, records)

    broker = ScriptedBroker()
    broker.processors[RequestCode.PULL_MESSAGE] = answer
    async with cluster(path) as running:
        await broker.start(running)
        consumer = PushConsumer("g", running.namesrv)
        consumer.subscribe("T")
        consumer.listen(lambda message: None)
        async with consumer:
            yield pulled, consumer


FOUND, RETRY = ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY
NOT_FOUND, MOVED = ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
REPEATING: dict[str, tuple[Callable[[int, int], tuple[ResponseCode, int, bytes]], list[int]]] = {
    # A slave without its master answers so, and a broker that does not hold pulls. The second is not delayed.
    "retry at once": (lambda offset, _: (RETRY, offset, b""), [0, 0]),
    "not found at once": (lambda offset, _: (NOT_FOUND, offset, b""), [0, 0]),
    "progress in between": (
        lambda offset, times: (RETRY, offset + 1 if times == 2 and offset < 2 else offset, b""),
        [0, 0, 1, 1, 2, 2],
    ),
    "retry there and back": (lambda offset, _: (MOVED, 0, b"") if offset else (RETRY, 5, b""), [0, 5, 0, 5]),
    "found again": (lambda offset, _: (FOUND, 0, record(0, b"x")), [0]),
    "negative": (lambda offset, _: (RETRY, -7, b""), [0]),
    "backward": (lambda offset, _: (FOUND, 5, record(0, b"x")) if not offset else (NOT_FOUND, 4, b""), [0, 5]),
    "moved to nowhere": (lambda offset, _: (MOVED, -7, b""), [0]),
}


@pytest.mark.parametrize("repeating", REPEATING)
async def test_an_answer_that_repeats_a_pull_is_followed_by_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeating: str
) -> None:
    for pause in ("PULL_ERROR_PAUSE_MS", "FLOW_CONTROL_PAUSE_MS"):
        monkeypatch.setattr(fetcher, pause, 3_600_000)
    pull, expected = REPEATING[repeating]
    async with consumed(tmp_path, pull) as (pulled, consumer):
        await pulled.reach(len(expected))
        for _ in range(20):  # as many requests on the same connection as would let a busy loop pull again
            await consumer.instance.send_heartbeats()
        assert pulled.items == expected


@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND])
async def test_a_queue_that_a_tool_cannot_read_to_its_end_is_an_error(tmp_path: Path, code: ResponseCode) -> None:
    """As at a slave without its master, or that lags: what was read before is not the whole queue."""

    def pull(connection: Connection, command: RemotingCommand) -> Reply:
        header = PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=0, min_offset=0, max_offset=0)
        return command.response(code, header)

    processors: dict[int, Processor] = {RequestCode.PULL_MESSAGE: pull}
    for code, offset in ((RequestCode.GET_MIN_OFFSET, 0), (RequestCode.GET_MAX_OFFSET, 5)):
        processors[code] = lambda _, command, offset=offset: command.response(0, OffsetResponseHeader(offset=offset))
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await running.scripted_broker("broker-a", "T", processors)
        (queue,) = await consumer.queues("T")
        with pytest.raises(RemotingError):
            _ = [message async for message in read_queue(consumer, queue)]


@pytest.mark.parametrize("broker", ["Apache's", "Rucola's"])
async def test_a_key_query_ends_with_an_error_if_its_page_is_repeated(tmp_path: Path, broker: str) -> None:
    page = b"".join(record(number, b"x", keys="k") for number in range(PAGE))
    names = ("index_begin_timestamp", "index_end_timestamp") if broker == "Rucola's" else ()
    header = QueryMessageResponseHeader(
        index_last_update_timestamp=0, index_last_update_phyoffset=0, **dict.fromkeys(names, 1)
    )

    def query(connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, header, page)

    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        server = await running.scripted_broker("broker-a", "T", {RequestCode.QUERY_MESSAGE: query})
        result = await asyncio.wait_for(admin.messages.query_by_key("T", "k", max_count=10 * PAGE), 20)
        assert isinstance(result.failures[f"{HOST}:{server.port}"], RemoteProtocolError)
        assert len(result.messages) == PAGE


async def test_a_send_that_every_broker_hands_over_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers that send it to each other: such attempts do not count as retries."""
    monkeypatch.setattr(sender, "RETRY_PAUSE_MS", 3_600_000)

    def refuse(connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"{SWITCHOVER} to the other")

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        for name in ("broker-a", "broker-b"):
            await running.scripted_broker(name, "T", {RequestCode.SEND_MESSAGE_V2: refuse})
        await producer.queues("T")
        await producer.instance.send_heartbeats()  # the time of the send is not for connections
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("T", b"x"), timeout_ms=3000)
        # One at each broker at once; the pause lasts until the deadline, after which a last one may fit.
        attempts = [queue for queue, _ in raised.value.attempts]
        assert len(set(attempts[:2])) == 2
        assert len(attempts) <= 3


@pytest.mark.parametrize("query", ["max_offset", "search_offset", "min_offset"])
async def test_an_offset_below_0_is_refused(tmp_path: Path, query: str) -> None:
    answered = [-2]

    def offset(connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=answered[0]))

    codes = (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MIN_OFFSET)
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await running.scripted_broker("broker-a", "T", dict.fromkeys(codes, offset))
        (queue,) = await consumer.queues("T")
        asked = getattr(consumer, query), *((queue, 1) if query == "search_offset" else (queue,))
        with pytest.raises(RemoteProtocolError):
            await asked[0](*asked[1:])
        answered[0] = -1
        if query == "min_offset":  # as Apache's broker says it of a queue without a file
            assert await consumer.min_offset(queue) == 0


async def test_a_flood_of_notifications_rebalances_only_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "REQUEST_PAUSE_MS", 3_600_000)
    async with consumed(tmp_path, lambda offset, _: (NOT_FOUND, offset + 1, b"")) as (_, consumer):
        rebalanced = asyncio.ensure_future(consumer.rebalanced())
        await asyncio.sleep(0)
        consumer.members_changed()
        await asyncio.wait_for(rebalanced, 20)  # the first follows at once
        again = asyncio.ensure_future(consumer.rebalanced())
        for _ in range(20):
            consumer.members_changed()
            await consumer.instance.send_heartbeats()
        assert not again.done()
        again.cancel()


# Routes.


def test_a_route_with_too_many_brokers_is_refused() -> None:
    """A client connects to every address of a route."""
    data = TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=f"b{number}", cluster="c", broker_addrs={0: f"10.0.0.1:{number}"})
            for number in range(MAX_ADDRESSES + 1)
        ]
    )
    with pytest.raises(RemoteProtocolError):
        topic_route("T", data)


# Requests of servers.


async def test_a_flood_of_requests_is_refused_beyond_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """Each takes a client long, for example a message to consume directly."""
    ended = asyncio.Event()
    running = most = 0

    async def work(connection: Connection, command: RemotingCommand) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ended.wait()
        running -= 1
        return command.response(ResponseCode.SUCCESS)

    codes: list[int] = []
    count = 20 * MAX_PENDING

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(RemotingCommand.request(ASK).encode() for _ in range(count)))
        decoder = FrameDecoder()
        while len(codes) < count:
            codes.extend(command.code for command in decoder.receive_data(await reader.read(1 << 16)))

    client = RemotingClient({ASK: work})
    async with raw_server(serve) as address:
        await client.connect(address)
        await until(lambda: len(codes) == count - MAX_PENDING)
        assert {*codes} == {int(ResponseCode.SYSTEM_BUSY)}
        ended.set()
        await until(lambda: len(codes) == count)
        assert codes.count(ResponseCode.SUCCESS) == most == MAX_PENDING
        await client.close()


async def test_a_server_that_never_reads_gets_no_more_answers() -> None:
    """Its requests are cheap, and their answers are large."""
    large = bytes(100_000)
    answered = 0

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal answered
        answered += 1
        return command.response(ResponseCode.SUCCESS, body=large)

    sent = asyncio.Event()
    count = 5000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(count // 50):
            writer.write(b"".join(RemotingCommand.request(ASK).encode() for _ in range(50)))
            await writer.drain()
        writer.write(RemotingCommand.oneway(QUESTION).encode())  # processed behind all others, though it is congested
        await writer.drain()

    client = RemotingClient({ASK: answer, QUESTION: lambda connection, command: sent.set()})
    async with raw_server(serve) as address:
        connection = await client.connect(address)
        await sent.wait()
        assert connection.unsent_bytes < MAX_UNSENT + 64 * len(large) + 1_000_000
        assert answered < count / 2
        connection.abort()
        await client.close()


async def test_transaction_checks_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transaction, "MAX_CHECKS", 5)
    ended = asyncio.Event()
    checked: list[str] = []

    async def check(message: MessageExt) -> LocalTransactionState:
        checked.append(message.topic)
        await ended.wait()
        return LocalTransactionState.UNKNOW

    async with cluster(tmp_path) as running:
        broker = await running.scripted_broker("broker-a", "T", {})
        producer = TransactionProducer("p", running.namesrv, check=check)
        async with producer:
            connection = await producer.instance.remoting.connect(f"{HOST}:{broker.port}")
            header = CheckTransactionStateRequestHeader(tran_state_table_offset=0, commit_log_offset=0)
            for number in range(100):
                producer.check_transaction(connection, header, decode(record(number, b"")))
            await until(lambda: len(checked) == 5)
            ended.set()


# Frames.


async def respond(writer: asyncio.StreamWriter, length: int, header: bytes) -> None:
    writer.write(length.to_bytes(4, "big") + header)
    await writer.drain()


async def test_a_response_that_is_announced_and_never_completed_costs_its_bytes_only() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        await respond(writer, MAX_FRAME_SIZE, b"\0\0\0\x50" + b"x" * 1000)

    client = RemotingClient()
    async with raw_server(serve) as address:
        connection = await client.connect(address)
        with pytest.raises(RemotingTimeout):
            await client.invoke(address, RemotingCommand.request(QUESTION), 300)
        assert connection._decoder.buffered < 2000
        await client.close()


async def test_a_response_above_the_limit_ends_the_connection_before_it_arrives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        await respond(writer, MAX_FRAME_SIZE + 1, b"")

    client = RemotingClient()
    async with raw_server(serve) as address:
        with raises(RemotingConnectError, subject=address):
            await client.invoke(address, RemotingCommand.request(QUESTION), 60_000)
        assert f"the limit is {MAX_FRAME_SIZE}" in caplog.text
        await client.close()


@pytest.mark.parametrize("kind", ["a long remark", "nested", "not JSON"])
async def test_an_endless_header_fails_its_request_at_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not at its timeout, and without decoding it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (command,) = FrameDecoder().receive_data(await reader.read(1 << 16))
        filling = {"a long remark": b'"' + b"x" * MAX_HEADER_SIZE + b'"', "nested": b"[" * MAX_HEADER_SIZE}
        opaque = b'"flag":%d,"opaque":%d' % (FLAG_RESPONSE, command.opaque)
        header = b'{"code":0,' + opaque + b',"remark":' + filling.get(kind, b"\xff" * MAX_HEADER_SIZE) + b"}"
        await respond(writer, 4 + len(header), len(header).to_bytes(4, "big") + header)

    client = RemotingClient()
    async with raw_server(serve) as address:
        caplog.set_level(logging.WARNING)
        with pytest.raises(RemoteProtocolError) as raised:
            await client.invoke(address, RemotingCommand.request(QUESTION), 60_000)
        assert len(str(raised.value)) < 1000
        assert len(caplog.text) < 10_000
        await client.close()
