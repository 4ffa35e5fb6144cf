"""The proxy itself: what each of its faults does to a connection."""

from __future__ import annotations

import asyncio

import pytest

from rucola.errors import RemotingConnectError, RemotingTimeout
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline
from rucola.remoting.server import RemotingServer
from support.proxy import Proxy
from support.waiting import until

ECHO = 1


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.response(0, body=command.body)


async def ask(client: RemotingClient, proxy: Proxy, timeout_ms: float = 20_000) -> bytes:
    answer = await client.invoke(proxy.address, RemotingCommand.request(ECHO, body=b"x" * 100_000), timeout_ms)
    return answer.body


async def test_every_fault_takes_effect_and_ends() -> None:
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo})
    await server.start()
    async with Proxy(f"127.0.0.1:{server.port}") as proxy:
        client = RemotingClient()
        assert await ask(client, proxy) == b"x" * 100_000
        proxy.delay_ms = 5
        assert await ask(client, proxy) == b"x" * 100_000
        proxy.delay_ms = 0

        proxy.freeze()
        asking = asyncio.ensure_future(ask(client, proxy))
        with pytest.raises(RemotingTimeout):
            await ask(client, proxy, 50)
        assert not asking.done()
        proxy.thaw()
        assert await asking == b"x" * 100_000

        for end in (proxy.reset, proxy.cut):
            connection = await client.connect(proxy.address)
            end()
            await connection.closed.wait()
            assert await ask(client, proxy) == b"x" * 100_000

        proxy.refuse()
        with pytest.raises(RemotingConnectError):
            await ask(client, proxy)
        await proxy.accept()
        assert await ask(client, proxy) == b"x" * 100_000

        silent = await client.connect(proxy.address)
        assert proxy.half_open() == 1
        with pytest.raises(RemotingTimeout):
            await silent.request(RemotingCommand.request(ECHO), Deadline(50))
        other = RemotingClient()
        assert await ask(other, proxy) == b"x" * 100_000
        assert proxy.accepted == 5
        await other.close()
        await client.close()
        await until(lambda: len(server.connections) == 1)
        assert len(server.connections) == 1  # the half-open one: its server was not told that the client has gone
    await server.stop()
