"""GrpcChannel with the server of grpcio, and with servers by hand for what that one does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rucola.errors import RemotingConnectError
from rucola.http2 import frames
from rucola.http2.client import MAX_RESPONSE_SIZE, ClientCall, GrpcChannel, NotProcessed
from rucola.http2.connection import STREAM_WINDOW
from rucola.http2.frames import HEAD, PREFACE, WORD, ErrorCode, frame, header_block, settings_frame
from rucola.http2.grpc import MAX_CALL_BUFFER, Call, Failed, Status, unary
from rucola.http2.server import GrpcServer
from support.certificates import Certificates
from support.errors import raises

HOST = "127.0.0.1"
LARGE = 4 << 20
Handler = Callable[[bytes, Any], Awaitable[bytes]]


@dataclass
class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Methods that the server of grpcio serves."""

    started: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return {
            "/T/Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "/T/Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "/T/Many": grpc.unary_stream_rpc_method_handler(self.many),
            "/T/Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "/T/Chat": grpc.stream_stream_rpc_method_handler(self.chat),
        }.get(details.method)

    async def echo(self, message: bytes, context: Any) -> bytes:
        self.metadata, self.seconds = dict(context.invocation_metadata()), context.time_remaining() or 0
        return message

    async def wait(self, message: bytes, context: Any) -> bytes:
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return message

    async def many(self, message: bytes, context: Any) -> AsyncIterator[bytes]:
        count, size = map(int, message.split())
        for number in range(count):
            self.sent = number
            yield bytes([number]) * size

    async def fail(self, message: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message.decode())

    async def chat(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message.upper()


@asynccontextmanager
async def serving(service: Service, *options: tuple[str, int], tls: Any = None) -> AsyncIterator[tuple[Any, int]]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(handlers=[service], options=[*unlimited, *options])
    port = server.add_insecure_port(f"{HOST}:0") if tls is None else server.add_secure_port(f"{HOST}:0", tls)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(service: Service, *options: tuple[str, int]) -> AsyncIterator[GrpcChannel]:
    async with serving(service, *options) as (_, port):
        channel = GrpcChannel(HOST, port)
        yield channel
        await channel.close()


async def begin(channel: GrpcChannel, path: str, message: bytes = b"", **options: Any) -> ClientCall:
    call = await channel.call(path, options.pop("fields", ()), **options)
    call.send(message)
    call.finish()
    return call


async def rest(call: ClientCall) -> list[bytes]:
    received = []
    while (message := await call.read()) is not None:
        received.append(message)
    return received


async def ask(channel: GrpcChannel, path: str, message: bytes, **options: Any) -> bytes:
    call = await begin(channel, path, message, **options)
    answer = await call.read()
    assert answer is not None
    assert await call.read() is None
    return answer


async def test_messages_of_any_size_and_number() -> None:
    async with connected(Service()) as channel:
        for size in (0, 1, 16_379, 16_384, 100_000, LARGE):
            body = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await ask(channel, "/T/Echo", body) == body
        bodies = [b"%d" % number * 300 for number in range(300)]
        assert await asyncio.gather(*(ask(channel, "/T/Echo", body) for body in bodies)) == bodies


async def test_metadata_deadline_and_status() -> None:
    service = Service()
    async with connected(service) as channel:
        await ask(channel, "/T/Echo", b"", fields=[(b"x-mq-client-id", b"c@1"), (b"a-bin", b"AP8")], timeout_s=30)
        assert (service.metadata["x-mq-client-id"], service.metadata["a-bin"]) == ("c@1", b"\x00\xff")
        assert 0 < service.seconds <= 30
        for path, status, text in (
            ("/T/Fail", Status.FAILED_PRECONDITION, "größer als 100 %\n"),
            ("/T/Nothing", Status.UNIMPLEMENTED, None),
        ):
            with pytest.raises(Failed) as failed:
                await ask(channel, path, (text or "").encode())
            assert failed.value.status is status
            assert text is None or str(failed.value) == text
        call = await begin(channel, "/T/Wait", timeout_s=0.01)
        with pytest.raises(Failed) as failed:
            await call.read()
        assert failed.value.status in (Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE)


async def test_both_sides_stream() -> None:
    async with connected(Service()) as channel:
        call = await channel.call("/T/Chat", ())
        for word in (b"one", b"two"):
            call.send(word)
            assert await call.read() == word.upper()
        call.finish()
        assert await call.read() is None


async def test_a_cancelled_call_is_cancelled_there() -> None:
    service = Service()
    async with connected(service) as channel:
        call = await begin(channel, "/T/Wait")
        while not service.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait_for(service.cancelled.wait(), 10)
        assert await ask(channel, "/T/Echo", b"still") == b"still"


async def test_responses_that_nobody_reads_wait_at_the_server() -> None:
    service = Service()
    async with connected(service) as channel:
        slow = await begin(channel, "/T/Many", b"100 400000")
        first = await slow.read()
        other = [await ask(channel, "/T/Echo", bytes(LARGE)) for _ in range(8)]  # their windows go on
        assert other == [bytes(LARGE)] * 8
        assert service.sent * 400_000 <= STREAM_WINDOW + 2 * MAX_CALL_BUFFER + (1 << 22)
        assert [first, *await rest(slow)] == [bytes([number]) * 400_000 for number in range(100)]


async def test_more_calls_than_a_connection_takes() -> None:
    service = Service()
    async with connected(service, ("grpc.max_concurrent_streams", 3)) as channel:
        await ask(channel, "/T/Echo", b"the settings have come")
        calls = [await begin(channel, "/T/Wait", b"%d" % number) for number in range(3)]
        while service.started < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await ask(channel, "/T/Echo", b"more") == b"more"
        service.go.set()
        assert [await call.read() for call in calls] == [b"0", b"1", b"2"]


async def test_many_cancelled_calls_leave_others_alone() -> None:
    """The server ends a connection with too many resets."""
    held: list[Call] = []
    server = GrpcServer(HOST, 0, {"/T/Wait": unary(lambda call, data: held.append(call))})
    await server.start()
    channel = GrpcChannel(HOST, server.port)
    call = await begin(channel, "/T/Wait")
    for _ in range(1500):
        (await begin(channel, "/T/Wait")).cancel()
        await asyncio.sleep(0)
    while not held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    held[0].reply(b"still")
    assert await rest(call) == [b"still"]
    await channel.close()
    await server.stop()


async def test_a_server_that_stops_finishes_calls() -> None:
    service = Service()
    async with serving(service) as (server, port):
        channel = GrpcChannel(HOST, port)
        call = await begin(channel, "/T/Wait", b"done")
        while not service.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stop = asyncio.create_task(server.stop(30))
        with suppress(RemotingConnectError, Failed):
            while True:  # until the GOAWAY has come
                await ask(channel, "/T/Echo", b"")
        service.go.set()
        assert await call.read() == b"done"
        await stop
        await channel.close()


async def test_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    key, chain = ((certificates.directory / f"server.{kind}").read_bytes() for kind in ("key", "pem"))
    async with serving(Service(), tls=grpc.ssl_server_credentials([(key, chain)])) as (_, port):
        channel = GrpcChannel("localhost", port, certificates.client().follow())
        assert await ask(channel, "/T/Echo", bytes(100_000)) == bytes(100_000)
        await channel.close()
        stranger = Certificates(tmp_path / "others")
        with raises(RemotingConnectError, subject=f"localhost:{port}"):
            await GrpcChannel("localhost", port, stranger.client().follow()).connect()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_port_of_something_else(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        host, port = server.sockets[0].getsockname()
        with raises(RemotingConnectError, subject=f"{host}:{port}"):
            await GrpcChannel(host, port).connect()


async def test_nobody_listens() -> None:
    async with serving(Service()) as (_, port):
        pass
    with raises(RemotingConnectError, subject=f"{HOST}:{port}"):
        await ask(GrpcChannel(HOST, port), "/T/Echo", b"")


# -- by hand ----------------------------------------------------------------------------------------------------------

OK = header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
END = header_block(((b"grpc-status", b"0"),))


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[GrpcChannel]:
    """A channel to a server that sends frames once it has read a request, of stream 1."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREFACE))
        writer.write(settings_frame(()))
        kind = flags = 0
        while not (kind == frames.DATA and flags & frames.END_STREAM):
            high, low, kind, flags, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
            await reader.readexactly(high << 8 | low)
        writer.write(b"".join(parts))
        with suppress(asyncio.CancelledError):
            while await reader.read(65_536):
                pass
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    channel = GrpcChannel(HOST, server.sockets[0].getsockname()[1])
    yield channel
    await channel.close()
    server.close()


def go_away(last_id: int) -> bytes:
    return frame(frames.GOAWAY, 0, 0, WORD.pack(last_id) + WORD.pack(0))


def data(stream_id: int, message: bytes, size: int | None = None) -> bytes:
    return frame(frames.DATA, 0, stream_id, b"\0" + WORD.pack(len(message) if size is None else size) + message)


HEADERS = frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
TRAILERS = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, END)


async def test_a_whole_response() -> None:
    async with answering(HEADERS, data(1, b"yes"), go_away(1), TRAILERS) as channel:
        assert await ask(channel, "/T/Echo", b"") == b"yes"


@pytest.mark.parametrize(
    "parts",
    [[go_away(0)], [frame(frames.RST_STREAM, 0, 1, WORD.pack(ErrorCode.REFUSED_STREAM))]],
)
async def test_calls_that_were_not_processed(parts: list[bytes]) -> None:
    async with answering(*parts) as channel:
        with pytest.raises(NotProcessed) as failed:
            await ask(channel, "/T/Echo", b"")
        assert failed.value.status is Status.UNAVAILABLE


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([HEADERS, data(1, b"yes"), frame(frames.RST_STREAM, 0, 1, WORD.pack(ErrorCode.CANCEL))], Status.UNAVAILABLE),
        ([HEADERS, data(1, b"yes", 4), TRAILERS], Status.INTERNAL),
        ([HEADERS, data(1, b"", MAX_RESPONSE_SIZE + 1)], Status.RESOURCE_EXHAUSTED),
        ([HEADERS, frame(frames.DATA, frames.END_STREAM, 1)], Status.UNKNOWN),
        ([data(1, b"yes"), TRAILERS], Status.UNAVAILABLE),
        ([HEADERS, HEADERS], Status.UNAVAILABLE),
        ([frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 3, OK)], Status.UNAVAILABLE),
        ([frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, WORD.pack(2) + OK)], Status.UNAVAILABLE),
        (
            [frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, header_block(((b":status", b"503"),)))],
            Status.UNAVAILABLE,
        ),
    ],
)
async def test_responses_that_are_none(parts: list[bytes], status: Status) -> None:
    async with answering(*parts) as channel:
        call = await begin(channel, "/T/Echo")
        with pytest.raises(Failed) as failed:
            await rest(call)
        assert (type(failed.value), failed.value.status) == (Failed, status)
