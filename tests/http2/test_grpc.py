"""GrpcServer with the client of grpcio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rucola.http2 import frames
from rucola.http2 import grpc as served
from rucola.http2.frames import PREFACE, WORD, frame, header_block, settings_frame
from rucola.http2.grpc import Call, Failed, MessageReceiver, Status, spawned, unary
from rucola.http2.server import GrpcServer
from rucola.remoting.budget import ConnectionLimits, ServerBudget
from support.certificates import Certificates

LARGE = 4 << 20


@dataclass
class Service:
    """Methods to call, and what became of the calls."""

    calls: list[Call] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0

    def methods(self) -> dict[str, served.Method]:
        return {
            "/T/Echo": unary(self.echo),
            "/T/Wait": spawned(self.wait),
            "/T/Many": spawned(self.many),
            "/T/Fail": unary(self.fail),
            "/T/Break": unary(self.broken),
            "/T/Refuse": self.refuse,
            "/T/Chat": self.chat,
        }

    def echo(self, call: Call, message: bytes) -> None:
        self.calls.append(call)
        call.reply(message)

    async def wait(self, call: Call, message: bytes) -> None:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        call.reply(message)

    async def many(self, call: Call, message: bytes) -> None:
        count, size = map(int, message.split())
        for number in range(count):
            await call.drain()
            call.send(bytes([number % 256]) * size)
            self.sent += 1
            self.started.set()
        call.finish()

    def fail(self, call: Call, message: bytes) -> None:
        call.fail(Status.NOT_FOUND, message.decode())

    def broken(self, call: Call, message: bytes) -> None:
        raise ZeroDivisionError

    def refuse(self, call: Call) -> MessageReceiver:
        raise Failed(Status.UNAUTHENTICATED, "who are you?")

    def chat(self, call: Call) -> MessageReceiver:
        return Chat(self, call)


@dataclass
class Chat:
    service: Service
    call: Call

    def message(self, message: bytes) -> None:
        self.call.send(message.upper())

    def ended(self) -> None:
        self.call.finish()

    def cancelled(self) -> None:
        self.service.cancelled.set()


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def server(service: Service) -> AsyncIterator[GrpcServer]:
    server = GrpcServer("127.0.0.1", 0, service.methods())
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=unlimited) as channel:
        yield channel


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 100_000, LARGE])
async def test_messages_of_any_size(channel: grpc.aio.Channel, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert await channel.unary_unary("/T/Echo")(body) == body


async def test_many_calls_at_once(channel: grpc.aio.Channel) -> None:
    echo = channel.unary_unary("/T/Echo")
    bodies = [b"%d" % number * 300 for number in range(500)]
    assert await asyncio.gather(*map(echo, bodies)) == bodies


async def test_metadata_and_deadline(channel: grpc.aio.Channel, service: Service) -> None:
    metadata = (("x-mq-client-id", "c@1"), ("trace-bin", b"\x00\xff"))
    await channel.unary_unary("/T/Echo")(b"", metadata=metadata, timeout=30)
    (call,) = service.calls
    assert (call.metadata["x-mq-client-id"], call.metadata["trace-bin"]) == ("c@1", b"\x00\xff")
    assert call.deadline_s is not None
    assert 0 < call.deadline_s - asyncio.get_running_loop().time() < 31


async def test_compressed_requests(channel: grpc.aio.Channel) -> None:
    body = b"compressible " * 10_000
    assert await channel.unary_unary("/T/Echo")(body, compression=grpc.Compression.Gzip) == body
    code, _ = await failure(channel.unary_unary("/T/Echo")(body, compression=grpc.Compression.Deflate))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    bomb = bytes(LARGE * 2)
    code, _ = await failure(channel.unary_unary("/T/Echo")(bomb, compression=grpc.Compression.Gzip))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_above_the_limit_fails_its_call_only(channel: grpc.aio.Channel) -> None:
    echo = channel.unary_unary("/T/Echo")
    (code, _), small = await asyncio.gather(failure(echo(bytes(LARGE * 2))), echo(b"small"))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert small == b"small"


async def test_failures(channel: grpc.aio.Channel) -> None:
    text = "größer als 100 %\n"
    assert await failure(channel.unary_unary("/T/Fail")(text.encode())) == (grpc.StatusCode.NOT_FOUND, text)
    for path, code in (
        ("/T/Nothing", grpc.StatusCode.UNIMPLEMENTED),
        ("/T/Break", grpc.StatusCode.INTERNAL),
        ("/T/Refuse", grpc.StatusCode.UNAUTHENTICATED),
    ):
        assert (await failure(channel.unary_unary(path)(b"x")))[0] is code, path
    assert await channel.unary_unary("/T/Echo")(b"still") == b"still"


async def test_a_stream_of_responses_waits_for_its_reader(channel: grpc.aio.Channel, service: Service) -> None:
    call = channel.unary_stream("/T/Many")(b"200 200000")
    await asyncio.wait_for(service.started.wait(), 10)
    received = [await call.read()]
    before = service.sent
    assert before < 200
    while (message := await call.read()) is not grpc.aio.EOF:
        received.append(message)
    assert received == [bytes([number]) * 200_000 for number in range(200)]


async def test_both_sides_stream(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream("/T/Chat")()
    for word in (b"one", b"two"):
        await call.write(word)
        assert await call.read() == word.upper()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_cancelled_call_is_cancelled_here(channel: grpc.aio.Channel, service: Service) -> None:
    call = channel.unary_unary("/T/Wait")(b"x")
    await asyncio.wait_for(service.started.wait(), 10)
    call.cancel()
    await asyncio.wait_for(service.cancelled.wait(), 10)


async def test_a_deadline_cancels(channel: grpc.aio.Channel, service: Service) -> None:
    while not service.started.is_set():  # the deadline may pass on the way
        code, _ = await failure(channel.unary_unary("/T/Wait")(b"x", timeout=0.2))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(service.cancelled.wait(), 10)


async def test_a_lost_connection_cancels(server: GrpcServer, service: Service) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.stream_stream("/T/Chat")()
        await call.write(b"x")
        assert await call.read() == b"X"
    await asyncio.wait_for(service.cancelled.wait(), 10)


async def test_stopping_lets_calls_finish(service: Service) -> None:
    server = GrpcServer("127.0.0.1", 0, service.methods())
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/T/Wait")(b"done")
        await asyncio.wait_for(service.started.wait(), 10)
        stop = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        service.go.set()
        assert await call == b"done"
        await stop
    assert not server.connections


async def test_tls(service: Service, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    server = GrpcServer("127.0.0.1", 0, service.methods(), tls=certificates.server())
    await server.start()
    trusted = grpc.ssl_channel_credentials((certificates.directory / "ca.pem").read_bytes())
    async with grpc.aio.secure_channel(f"localhost:{server.port}", trusted) as channel:
        assert await channel.unary_unary("/T/Echo")(b"x") == b"x"
    own = [(certificates.directory / f"client.{kind}").read_bytes() for kind in ("key", "pem")]
    with_certificate = grpc.ssl_channel_credentials((certificates.directory / "ca.pem").read_bytes(), *own)
    async with grpc.aio.secure_channel(f"localhost:{server.port}", with_certificate) as channel:
        assert await channel.unary_unary("/T/Echo")(bytes(100_000)) == bytes(100_000)
    await server.stop()
    assert [call.caller.certificate for call in service.calls] == ["", ""]  # the server asked for none


# -- by hand ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def raw_request(server: GrpcServer, *fields: tuple[bytes, bytes], data: bytes = b"") -> AsyncIterator[bytes]:
    """What the server sends for one request until it closes the stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(PREFACE + settings_frame(()))
    writer.write(frame(frames.HEADERS, frames.END_HEADERS, 1, header_block(fields)))
    writer.write(frame(frames.DATA, frames.END_STREAM, 1, data))
    writer.write(frame(frames.PING, 0, 0, b"finished"))
    try:
        yield await asyncio.wait_for(reader.readuntil(frame(frames.PING, frames.ACK, 0, b"finished")), 10)
    finally:
        writer.close()
        await writer.wait_closed()


def fields(**changes: str) -> Iterator[tuple[bytes, bytes]]:
    if "path" in changes:
        changes[":path"] = changes.pop("path")
    base = {":method": "POST", ":scheme": "http", ":path": "/T/Echo", "content-type": "application/grpc"}
    for name, value in (base | {name.replace("_", "-"): value for name, value in changes.items()}).items():
        yield name.encode(), value.encode()


async def test_requests_that_are_no_calls(server: GrpcServer) -> None:
    message = b"\0\0\0\0\x02hi"
    get = ((b":method", b"GET"), *list(fields())[1:])
    async with raw_request(server, *get) as answer:
        assert header_block(((b":status", b"405"),)) in answer
    async with raw_request(server, *fields(content_type="text/html"), data=message) as answer:
        assert header_block(((b":status", b"415"),)) in answer
    for data, status in ((message, 0), (message[:-1], 13), (b"", 13), (message * 2, 13), (b"\1" + message[1:], 13)):
        async with raw_request(server, *fields(), data=data) as answer:
            assert header_block(((b"grpc-status", b"%d" % status),)) in answer, data
    for timeout in ("1", "S", "123456789S", "1x", "-1S"):
        async with raw_request(server, *fields(grpc_timeout=timeout), data=message) as answer:
            assert header_block(((b"grpc-status", b"13"),)) in answer, timeout


@pytest.mark.parametrize(
    ("text", "seconds"), [("2H", 7200), ("3M", 180), ("4S", 4), ("5m", 5e-3), ("6u", 6e-6), ("7n", 7e-9)]
)
def test_timeouts_in_all_units(text: str, seconds: float) -> None:
    assert served.parse_timeout(text) == pytest.approx(seconds)


async def test_responses_wait_for_a_client_that_does_not_read(server: GrpcServer, service: Service) -> None:
    """Its windows are as large as can be, so only the full socket stops the server."""
    request = b"1000 200000"
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(
        PREFACE
        + settings_frame([(frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW)])
        + frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(frames.MAX_WINDOW - frames.DEFAULT_WINDOW))
        + frame(frames.HEADERS, frames.END_HEADERS, 1, header_block(fields(path="/T/Many")))
        + frame(frames.DATA, frames.END_STREAM, 1, b"\0" + WORD.pack(len(request)) + request)
    )
    await asyncio.wait_for(service.started.wait(), 10)
    (connection,) = server.connections
    while not any(stream.buffered for stream in connection.http2.streams.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert service.sent < 1000
    client.close()


# -- the budget -------------------------------------------------------------------------------------------------------


def begin_call(path: str, stream_id: int, data: bytes) -> bytes:
    """A call whose request goes on; its first DATA frames."""
    head = frame(frames.HEADERS, frames.END_HEADERS, stream_id, header_block(fields(path=path)))
    parts = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
    return head + b"".join(frame(frames.DATA, 0, stream_id, part) for part in parts)


@asynccontextmanager
async def connected(server: GrpcServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    writer.write(PREFACE + settings_frame(()))
    yield reader, writer
    writer.close()
    await writer.wait_closed()


async def pinged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What the server sent until it has read everything."""
    writer.write(frame(frames.PING, 0, 0, b"finished"))
    return await asyncio.wait_for(reader.readuntil(frame(frames.PING, frames.ACK, 0, b"finished")), 10)


async def test_incomplete_messages_count(server: GrpcServer) -> None:
    message = b"\0" + WORD.pack(60_000) + bytes(range(256)) * 200
    async with connected(server) as (reader, writer):
        writer.write(begin_call("/T/Echo", 1, message) + begin_call("/T/Echo", 3, message[:50]))
        await pinged(reader, writer)
        assert server.budget.bytes_in == len(message) + 50
        rest = bytes(60_005 - len(message))
        for byte in rest[:-1]:  # as many frames
            writer.write(frame(frames.DATA, 0, 1, bytes((byte,))))
        writer.write(frame(frames.DATA, frames.END_STREAM, 1, rest[-1:]))
        answer = await pinged(reader, writer)
        assert header_block(((b"grpc-status", b"0"),)) in answer
        assert server.budget.bytes_in == 50
        writer.write(frame(frames.RST_STREAM, 0, 3, WORD.pack(8)))
        await pinged(reader, writer)
        assert server.budget.bytes_in == 0


async def test_incomplete_messages_wait_for_others(service: Service) -> None:
    budget = ServerBudget(ConnectionLimits(max_partial_frame_bytes=100_000))
    server = GrpcServer("127.0.0.1", 0, service.methods(), budget=budget)
    await server.start()
    message = b"\0" + WORD.pack(90_000) + bytes(90_000)
    async with connected(server) as first, connected(server) as second:
        for _, writer in (first, second):
            writer.write(begin_call("/T/Fail", 1, message[:-1]))
        for _, writer in (first, second):
            writer.write(frame(frames.DATA, frames.END_STREAM, 1, message[-1:]))
        failed = header_block(((b"grpc-status", b"5"),))
        assert [failed in answer for answer in await asyncio.gather(pinged(*first), pinged(*second))] == [True, True]
        assert budget.bytes_in == 0
    await server.stop()


async def test_who_returns_no_windows_gets_no_more_calls(service: Service) -> None:
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=200_000))
    server = GrpcServer("127.0.0.1", 0, service.methods(), budget=budget)
    await server.start()
    async with connected(server) as (reader, writer):
        ask = b"\0" + WORD.pack(8) + b"1 300000"
        writer.write(begin_call("/T/Many", 1, ask) + frame(frames.DATA, frames.END_STREAM, 1))
        await pinged(reader, writer)
        assert budget.bytes_out >= 300_005 - frames.DEFAULT_WINDOW
        writer.write(begin_call("/T/Echo", 3, b"\0\0\0\0\0") + frame(frames.DATA, frames.END_STREAM, 3))
        refused = frame(frames.RST_STREAM, 0, 3, WORD.pack(frames.ErrorCode.REFUSED_STREAM))
        assert refused in await pinged(reader, writer)
        for stream_id in (0, 1):
            writer.write(frame(frames.WINDOW_UPDATE, 0, stream_id, WORD.pack(1 << 20)))
        await pinged(reader, writer)
        assert budget.bytes_out == 0
        writer.write(begin_call("/T/Echo", 5, b"\0\0\0\0\0") + frame(frames.DATA, frames.END_STREAM, 5))
        assert header_block(((b"grpc-status", b"0"),)) in await pinged(reader, writer)
    await server.stop()


async def test_connections_beyond_the_limit_are_not_accepted(service: Service) -> None:
    budget = ServerBudget(ConnectionLimits(max_connections=1))
    server = GrpcServer("127.0.0.1", 0, service.methods(), budget=budget)
    await server.start()
    async with connected(server) as first:
        await pinged(*first)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await pinged(*first)
    await server.stop()
    assert budget.closed == {"maxConnections": 1}
