"""Streams: bytes in both directions, and errors of sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from rucola.errors import RemotingConnectError, RemotingError
from rucola.remoting.byte_stream import MAX_PENDING, Stream, StreamServer, open_stream
from support.errors import raises
from support.remoting_peers import SECURITY

pytestmark = pytest.mark.usefixtures("transport")

HOST = "127.0.0.1"
LARGE = Random(0).randbytes(8 << 20)
"""More bytes than the buffers of a socket hold."""


async def connect(address: str) -> Stream:
    return await open_stream(address, SECURITY.client and SECURITY.client.follow())


@asynccontextmanager
async def running_stream_server(serve: Callable[[Stream], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of a started server, stopped at the end or after 30 s."""
    server = StreamServer(HOST, 0, serve, SECURITY.server)
    server.start()
    try:
        async with asyncio.timeout(30):
            yield f"{HOST}:{server.port}"
    finally:
        await server.stop()


async def read_all(stream: Stream) -> bytes:
    parts = []
    while part := await stream.read(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(("head", "body"), [(b"head", LARGE), (LARGE, b"body"), (b"head", b""), (LARGE, LARGE)])
async def test_written_bytes_arrive(head: bytes, body: bytes) -> None:
    async def serve(stream: Stream) -> None:
        await stream.write(head, memoryview(body))

    async with running_stream_server(serve) as address:
        stream = await connect(address)
        assert stream.peer == address
        assert await read_all(stream) == head + body
        stream.close()


async def test_what_the_kernel_does_not_take_at_once_is_sent_by_the_next_write() -> None:
    is_full = asyncio.Event()
    sent = bytearray()

    async def serve(stream: Stream) -> None:
        is_sent = True
        while is_sent:
            is_sent = stream.write_now(b"head", memoryview(LARGE)[: 1 << 16])
            sent.extend(b"head" + LARGE[: 1 << 16])
        assert not stream.write_now(b"more")
        is_full.set()
        await stream.write(b"last")
        assert stream.write_now(b"!")

    async with running_stream_server(serve) as address:
        stream = await connect(address)
        await is_full.wait()
        assert await read_all(stream) == sent + b"morelast!"
        stream.close()


async def test_a_closed_peer_fails_a_write_and_ends_a_read() -> None:
    outcome: asyncio.Queue[str] = asyncio.Queue()

    async def serve(stream: Stream) -> None:
        assert await stream.read(1)
        try:
            while True:
                await stream.write(LARGE)
        except RemotingConnectError as error:
            outcome.put_nowait(str(error))
            raise

    async with running_stream_server(serve) as address:
        stream = await connect(address)
        await stream.write(b"x")
        await stream.read(1)
        stream.close()
        assert "broke: " in await outcome.get()


async def test_what_arrives_is_taken_until_the_peer_closes_is_silent_or_it_is_refused() -> None:
    wants_more = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await stream.write(LARGE)
        await wants_more.wait()
        await stream.write(b"!")
        while (data := await stream.read(1)) != b"x":
            await stream.write(data)

    parts: list[bytes] = []

    def take(data: bytes) -> bool:
        parts.append(data)
        return True

    def fail(data: bytes) -> bool:
        raise OSError(errno.ENOSPC, data.decode())

    async with running_stream_server(serve) as address:
        stream = await connect(address)
        with pytest.raises(TimeoutError):
            await stream.read_until(1 << 16, take, 0.2)
        assert b"".join(parts) == LARGE
        assert max(map(len, parts)) <= 1 << 16
        wants_more.set()
        with raises(OSError, errno=errno.ENOSPC, strerror="!"):  # not an error of the socket
            await stream.read_until(1 << 16, fail, 30)
        await stream.write(b"?")
        assert await stream.read_until(1 << 16, lambda _: False, 30) == b"?"
        await stream.write(b"x")
        assert await stream.read_until(1 << 16, take, 30) == b""
        assert b"".join(parts) == LARGE
        stream.close()


async def test_an_error_while_serving_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stream: Stream) -> None:
        if await stream.read(1) == b"!":
            raise ValueError("no!")
        await stream.write(b"served")

    async with running_stream_server(serve) as address:
        for sent, answer in ((b"!", b""), (b"?", b"served")):
            stream = await connect(address)
            await stream.write(sent)
            assert await read_all(stream) == answer
            stream.close()
    assert "serving this connection failed" in caplog.text


async def test_stop_ends_all_connections() -> None:
    async def serve(stream: Stream) -> None:
        await stream.write(b"wait")
        await asyncio.Event().wait()

    server = StreamServer(HOST, 0, serve, SECURITY.server)
    server.start()
    stream = await connect(f"{HOST}:{server.port}")
    assert await stream.read(4) == b"wait"
    await server.stop()
    assert await stream.read(1) == b""
    stream.close()
    with raises(RemotingConnectError, subject=f"{HOST}:{server.port}"):
        await connect(f"{HOST}:{server.port}")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "no.such.host.invalid:1"])
async def test_an_unreachable_address_is_a_connect_error(address: str) -> None:
    with pytest.raises(RemotingConnectError):
        await connect(address)


async def test_a_port_in_use_is_an_error() -> None:
    async def serve(stream: Stream) -> None: ...

    async with running_stream_server(serve) as address:
        with raises(RemotingError, subject=address):
            StreamServer(HOST, int(address.rpartition(":")[2]), serve).start()


async def test_connections_beyond_the_limit_are_closed_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(stream: Stream) -> None:
        if server.admit(stream):
            while data := await stream.read(10):
                await stream.write(data)

    server = StreamServer(HOST, 0, serve, max_streams=2, limit="maxSlaves")
    server.start()
    address = f"{HOST}:{server.port}"
    streams = [await open_stream(address) for _ in range(2)]
    for stream in streams:
        await stream.write(b"x")
        assert await stream.read(1) == b"x"
    for _ in range(3):
        refused = await open_stream(address)
        assert await refused.read(1) == b""
        refused.close()
    await streams[0].write(b"y")
    assert await streams[0].read(1) == b"y"
    for stream in streams:
        stream.close()
    await server.stop()
    assert [record.message for record in caplog.records] == [
        f"serving more connections on port {server.port} than maxSlaves=2 failed, retrying: the newest is closed"
    ]


async def test_pending_streams_end_the_oldest_of_the_address_with_most(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stream: Stream) -> None:
        await stream.write(await stream.read(1))

    server = StreamServer(HOST, 0, serve, max_streams=1, limit="maxSlaves")
    server.start()

    async def connected(source: str) -> socket.socket:
        peer = socket.socket()
        peer.setblocking(False)
        peer.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(peer, (HOST, server.port))
        return peer

    async with asyncio.timeout(30):
        slow = await connected("127.0.0.2")
        silent = [await connected("127.0.0.3") for _ in range(MAX_PENDING + 2)]
        loop = asyncio.get_running_loop()
        for closed in silent[:3]:
            assert await loop.sock_recv(closed, 1) == b""
        for waiting in (slow, silent[3], silent[-1]):
            await loop.sock_sendall(waiting, b"x")
            assert await loop.sock_recv(waiting, 1) == b"x"
    for peer in (slow, *silent):
        peer.close()
    await server.stop()
    assert [record.message for record in caplog.records] == [
        f"waiting for more than {MAX_PENDING} silent connections on port {server.port} failed, retrying: "
        f"{MAX_PENDING - 1} are from 127.0.0.3, of which the oldest is closed"
    ]
