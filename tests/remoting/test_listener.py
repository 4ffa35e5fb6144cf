"""Listener: a port is registered before the server accepts connections."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rucola.errors import RemotingError
from rucola.remoting.listener import Listener
from support.ports import HOST, free_port


def test_two_servers_cannot_take_one_port_that_was_chosen_because_it_is_free() -> None:
    """Both would be told that it is theirs, and the second to listen would fail."""
    first = Listener(HOST, 0)
    first.bind()
    try:
        with pytest.raises(RemotingError):
            Listener(HOST, first.port).bind(exclusive=True)
    finally:
        first.unbind()
    chosen = Listener(HOST, 0)
    chosen.bind(exclusive=True)
    try:
        with pytest.raises(RemotingError):
            Listener(HOST, chosen.port).bind()
    finally:
        chosen.unbind()


async def test_a_server_restarts_at_a_port_that_connections_of_the_last_one_still_have() -> None:
    port = free_port()
    first = Listener(HOST, port)
    first.bind(exclusive=True)
    first.share()
    closed = asyncio.get_running_loop().create_future()
    await first.start(lambda: _Closing(closed))
    with socket.create_connection((HOST, port)) as client:
        await closed
        await first.stop()
        second = Listener(HOST, port)
        second.bind()
        await second.start(asyncio.Protocol)
        await second.stop()
        client.shutdown(socket.SHUT_RDWR)


class _Closing(asyncio.Protocol):
    """Closes first, as a stopping server does: the connection lingers on its side."""

    def __init__(self, closed: asyncio.Future[None]) -> None:
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set_result(None)
