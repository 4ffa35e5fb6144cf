"""Half-open connections: what a client does with one whose peer is gone silently, and with one that is only slow."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rucola.errors import RemotingConnectError, RemotingTimeout
from rucola.protocol.command import RemotingCommand
from rucola.remoting import idle_times
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline
from rucola.remoting.server import RemotingServer
from support.errors import raises
from support.proxy import Proxy
from support.remoting_peers import full_backlog

ECHO, HOLD = 1, 2


def request(code: int) -> RemotingCommand:
    return RemotingCommand.request(code)


@asynccontextmanager
async def behind_a_proxy() -> AsyncIterator[tuple[Proxy, RemotingServer, RemotingClient]]:
    """A server that echoes or holds requests for ever, a proxy in front of it, and a client."""
    server = RemotingServer("127.0.0.1", 0, {ECHO: lambda _, c: c.response(0, body=c.body), HOLD: lambda _, c: None})
    await server.start()
    client = RemotingClient()
    try:
        async with Proxy(f"127.0.0.1:{server.port}") as proxy:
            yield proxy, server, client
            await client.close()
    finally:
        await server.stop()


async def test_a_silent_connection_is_closed_and_its_requests_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 20)

    async with behind_a_proxy() as (proxy, _, client):
        connection = await client.connect(proxy.address)
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0
        held = asyncio.ensure_future(client.invoke(proxy.address, request(HOLD), timeout_ms=3_600_000))
        await asyncio.sleep(0)
        proxy.half_open()
        with pytest.raises(RemotingTimeout):
            await client.invoke(proxy.address, request(ECHO), timeout_ms=50)
        with pytest.raises(RemotingConnectError):
            await held
        assert not connection.is_open
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0, "a new connection is made"


async def test_posted_requests_detect_a_half_open_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 20)

    async with behind_a_proxy() as (proxy, _, client):
        connection = await client.connect(proxy.address)
        proxy.half_open()
        command = request(ECHO)
        answer = connection.post(command)
        await asyncio.wait([answer], timeout=0.05)
        connection.timed_out(command, 50)
        assert answer.cancelled()
        await connection.closed.wait()


async def test_short_timeouts_add_up_to_the_silence_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout shorter than `MIN_SILENCE_MS` proves nothing by itself: a broker may pause for a moment."""
    monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 3_600_000)

    async with behind_a_proxy() as (proxy, _, client):
        connection = await client.connect(proxy.address)
        proxy.half_open()
        with pytest.raises(RemotingTimeout):
            await client.invoke(proxy.address, request(ECHO), timeout_ms=50)
        assert connection.is_open
        monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 200)
        while connection.is_open:
            with pytest.raises(RemotingTimeout):
                await client.invoke(proxy.address, request(ECHO), timeout_ms=50)
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0


async def test_a_connection_with_other_responses_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 10_000)

    async with behind_a_proxy() as (proxy, server, client):
        connection, command = await client.connect(proxy.address), request(HOLD)
        answer = connection.post(command)
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0
        connection.timed_out(command, 20_000)
        assert answer.cancelled()
        assert connection.is_open
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0
        assert proxy.accepted == len(server.connections) == 1


async def test_a_server_keeps_a_client_that_leaves_its_request_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_times, "MIN_SILENCE_MS", 20)

    opened: asyncio.Queue[Connection] = asyncio.Queue()
    server = RemotingServer("127.0.0.1", 0, {}, on_open=opened.put_nowait)
    await server.start()
    client = RemotingClient({HOLD: lambda _, command: None})
    await client.connect(f"127.0.0.1:{server.port}")
    accepted = await opened.get()
    with pytest.raises(RemotingTimeout):
        await accepted.request(request(HOLD), Deadline(50))
    assert accepted.is_open
    await client.close()
    await server.stop()


async def test_the_kernel_probes_idle_connections_and_gives_up_on_unacknowledged_data() -> None:
    opened: asyncio.Queue[Connection] = asyncio.Queue()
    server = RemotingServer("127.0.0.1", 0, {}, on_open=opened.put_nowait)
    await server.start()
    client = RemotingClient()
    ours = await client.connect(f"127.0.0.1:{server.port}")
    for connection in (ours, await opened.get()):
        assert connection._transport is not None
        sock: socket.socket = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 60
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 5
        limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert (0 < limit_ms <= 60_000) == (connection is ours), "a server waits for slow readers"
    await client.close()
    await server.stop()


async def test_a_timeout_covers_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt itself goes on for others."""
    with full_backlog() as address:
        client = RemotingClient()
        patient = asyncio.ensure_future(client.connect(address))
        with raises(RemotingConnectError, subject=address):
            await client.invoke(address, request(ECHO), timeout_ms=50)
        assert not patient.done()
        await client.close()
        with pytest.raises(RemotingConnectError):
            await patient


async def test_a_closed_client_makes_no_connection() -> None:
    async with behind_a_proxy() as (proxy, _, client):
        await client.invoke(proxy.address, request(ECHO))
        await client.close()
        with raises(RemotingConnectError, subject=proxy.address):
            await client.invoke(proxy.address, request(ECHO))
        assert proxy.accepted == 1
        client.open()
        assert (await client.invoke(proxy.address, request(ECHO))).code == 0
