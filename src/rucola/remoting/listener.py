"""Listener: a listening socket of a server, in plain text or with TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

from rucola.remoting.exposure import cannot_listen
from rucola.remoting.tls import ServerTls
from rucola.remoting.tls_acceptor import TlsAcceptor, connect_to

BACKLOG: Final = 1024
ACCEPTS_PER_ITERATION: Final = 2
"""Each takes a tenth of a millisecond."""

ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol | asyncio.BufferedProtocol]


class Listener:
    """An address on which connections are accepted, each with a new protocol. Port 0 becomes a free one.

    `listening` is a bound socket that several processes share, in place of the address.
    """

    def __init__(
        self, host: str, port: int, tls: ServerTls | None = None, listening: socket.socket | None = None
    ) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        self._socket = listening
        self._server: asyncio.Server | None = None
        self._acceptor: TlsAcceptor | None = None

    def bind(self, exclusive: bool = False) -> None:
        """Bind without listening, to register the port before serving; 0 lets the system choose. RemotingError.

        With SO_REUSEADDR a server can restart at its port, but another can bind the port as well until one of the two
        listens. `exclusive` is for a port that is chosen because it is free; `share` it then.
        """
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            if not exclusive:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            bound.close()
            raise cannot_listen(self.host, self.port, error) from None
        self.port = bound.getsockname()[1]
        self._socket = bound

    def share(self) -> None:
        """Let `HeldPorts` hold the port of an exclusive `bind`, and a server restart at it."""
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def listen_shared(self) -> socket.socket:
        """Bind and listen, but accept nothing: return the socket, for `listening` of others. RemotingError."""
        self.bind()
        assert self._socket is not None
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            self.unbind()
            raise cannot_listen(self.host, self.port, error) from None
        shared, self._socket = self._socket, None
        return shared

    def unbind(self) -> None:
        """Release the address of `bind`. Only before `start`."""
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()

    async def start(self, factory: ProtocolFactory) -> None:
        """Bind unless `bind` did, and listen. RemotingError if the address is in use."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        try:
            if self._tls is None:
                # asyncio accepts up to `backlog` connections in one iteration.
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(
                    factory, sock=self._socket, backlog=ACCEPTS_PER_ITERATION, start_serving=False
                )
                await self._server.start_serving()  # separately, so that `stop` closes the server if this is cancelled
                self._socket.listen(BACKLOG)
            else:
                self._socket.listen(BACKLOG)
                self._acceptor = TlsAcceptor(self._socket, self._tls, connect_to(factory))
        except OSError as error:
            self._server = None
            self._socket.close()
            self._socket = None
            raise cannot_listen(self.host, self.port, error) from None

    async def stop(self) -> None:
        """Stop accepting connections; idempotent."""
        server, self._server = self._server, None
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            self._socket = None  # closed by the acceptor
            await acceptor.stop()
        elif server is not None:
            self._socket = None  # closed by the server
            server.close()
        else:
            self.unbind()
