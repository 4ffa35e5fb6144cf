"""RemotingClient: one connection per address, on demand. Corresponds to Apache's `NettyRemotingClient`."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rucola.acl.challenge import MIN_LENGTH, Challenge
from rucola.acl.credentials import Credentials
from rucola.errors import BrokerError, RemotingConnectError
from rucola.protocol.codes import RequestCode, ResponseCode, misdirected
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.connection import CLOSE_TIMEOUT_S, Connection, Processor, receive_buffer
from rucola.remoting.deadline import Deadline
from rucola.remoting.server_requests import ServerRequests
from rucola.remoting.single_flight import SingleFlight
from rucola.remoting.tls import ClientTls, why_refused

CONNECT_TIMEOUT_MS = 3000
REQUEST_TIMEOUT_MS = 3000
"""Connecting included."""


class RemotingClient:
    """Sends commands to "host:port". Belongs to one event loop.

    `processors` answer the peers' requests. `on_close` is called with each closed connection. Timeouts cover
    connecting, too. Without `tls` it connects in plain text; ConfigError if its files cannot be used.
    """

    def __init__(
        self,
        processors: Mapping[int, Processor] | None = None,
        *,
        on_close: Callable[[Connection], None] | None = None,
        max_frame_size: int = MAX_FRAME_SIZE,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._requests = ServerRequests(processors or {})
        self._on_close = on_close
        self._max_frame_size = max_frame_size
        self.tls = tls
        self._followed = None if tls is None else tls.follow()
        self._buffer = receive_buffer()
        self._connections: dict[str, Connection] = {}
        self._connecting: SingleFlight[str, Connection] = SingleFlight()
        self._is_closed = False

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> RemotingCommand:
        """Send a request and return its response, with any code. RemotingConnectError, RemotingTimeout."""
        return (await self.invoke_all(address, [command], timeout_ms))[0]

    async def invoke_all(
        self, address: str, commands: Sequence[RemotingCommand], timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> list[RemotingCommand]:
        """`invoke` for requests that are sent in one write, within one timeout."""
        deadline = Deadline(timeout_ms)
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = await self.connect(address, timeout_ms)
        answers = await connection.request_all(commands, deadline)
        for command, answer in zip(commands, answers, strict=True):
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                answer.remark = misdirected(command.code, address) or answer.remark
        return answers

    async def invoke_ok(
        self, address: str, command: RemotingCommand, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> RemotingCommand:
        """`invoke`, with BrokerError unless the response has code SUCCESS."""
        answer = await self.invoke(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        return answer

    async def connect(self, address: str, timeout_ms: float = CONNECT_TIMEOUT_MS) -> Connection:
        """Return the open connection, or open one; concurrent callers share an attempt. RemotingConnectError."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        purpose = f"cannot connect to {address}"
        if self._is_closed:
            raise RemotingConnectError(f"{purpose}: this client was closed", subject=address)
        try:
            return await self._connecting.run(address, lambda: self._open(address), Deadline(timeout_ms), purpose)
        except TimeoutError:
            raise RemotingConnectError(f"{purpose}: no response in {timeout_ms:.0f} ms", subject=address) from None

    def open_connection(self, address: str) -> Connection | None:
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    def silent_addresses(self, limit_ms: float) -> list[str]:
        """Return addresses with requests in flight that have received nothing for `limit_ms`."""
        return [address for address, connection in self._connections.items() if connection.silent_ms >= limit_ms]

    def open(self) -> None:
        """Allow connections again after `close`. A new client is open."""
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections, wait for that, and refuse to open others."""
        self._is_closed = True
        self._connecting.close()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed.wait()

    async def _open(self, address: str) -> Connection:
        host, port = host_and_port(address)
        last = self._connections.get(address)
        secured: dict[str, Any] = {}
        if self._followed is not None:
            secured = {
                "ssl": self._followed.current(),
                "server_hostname": host,
                "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
            }
        with connect_errors(address):
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(
                        self._requests.processor_of,
                        self._buffer,
                        self._max_frame_size,
                        None,
                        None,
                        self._on_close,
                        self._credentials,
                        has_answered=last is not None and last.has_answered,
                    ),
                    host,
                    port,
                    **secured,
                )
                if self._credentials is not None and self._credentials.signature_version == 2:
                    await _ask_for_challenge(connection, address)
        self._connections[address] = connection
        return connection


async def _ask_for_challenge(connection: Connection, address: str) -> None:
    """Request a challenge, against replayed requests; closes the connection on an error."""
    try:
        request = RemotingCommand.request(RequestCode.GET_CHALLENGE)
        answer = await connection.request(request, Deadline(CONNECT_TIMEOUT_MS))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RemotingConnectError(
                f"cannot connect to {address}: it does not know signatureVersion 2, which is Rucola's own",
                subject=address,
            )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        challenge = answer.ext_fields.get("challenge", "")
        if len(challenge) < MIN_LENGTH:  # otherwise requests could be signed for other connections, too
            raise RemotingConnectError(
                f"cannot connect to {address}: its challenge has {len(challenge)} characters, and {MIN_LENGTH} are "
                "needed; this is no server of Rucola's, so check the address and use TLS"
            )
        connection.challenge = Challenge(challenge)
    except BaseException:
        connection.abort()
        raise


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` or `[host]:port`. RemotingConnectError for any other form."""
    host, _, port = address.rpartition(":")
    if "/" in address:  # as in a URL
        raise RemotingConnectError(
            f"{address!r} is no address: write host:port, as in {_without_scheme(address)}", subject=address
        )
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise RemotingConnectError(f"{address!r} is no address: write host:port", subject=address)
    return host.strip("[]"), int(port)


@contextmanager
def connect_errors(address: str) -> Iterator[None]:
    """Raise RemotingConnectError for what goes wrong while a connection to an address is opened."""
    try:
        yield
    except TimeoutError:
        raise RemotingConnectError(
            f"cannot connect to {address}: no response in {CONNECT_TIMEOUT_MS} ms", subject=address
        ) from None
    except ssl.SSLError as error:  # before ValueError, a base class of certificate errors
        raise RemotingConnectError(f"cannot connect to {address}: {why_refused(error)}", subject=address) from None
    except ValueError:  # an invalid name, for example longer than 63 characters
        raise RemotingConnectError(f"{address!r} is no address: write host:port", subject=address) from None
    except OSError as error:
        raise RemotingConnectError(f"cannot connect to {address}: {_why(error)}", subject=address) from None


def _without_scheme(address: str) -> str:
    authority = address.rpartition("//")[2].partition("/")[0]
    return authority if ":" in authority else f"{authority or 'localhost'}:9876"


def _why(error: OSError) -> str:
    # asyncio joins the errors of several addresses, such as localhost's, as text without a number.
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused: no server listens there"
    return error.strerror or str(error)
