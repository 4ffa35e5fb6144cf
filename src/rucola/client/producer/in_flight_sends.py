"""InFlightRequests: the unfinished calls of a producer and the requests that they wait for.

After `close` returns, a producer must not open connections or store messages. It therefore closes in three steps:

1. The producer refuses new calls. Running calls get a grace period, which a cancellation ends.
2. Every pending request fails with RemotingError. Its message may nevertheless be stored, as the error says.
3. From then on `post` raises RemotingError, so that a call that pauses between two attempts fails as well.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import msgspec

from rucola.errors import RemotingError, RemotingTimeout
from rucola.protocol.codes import name_of
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline


class InFlightRequest(msgspec.Struct, frozen=True):
    """A request that was sent, and its response. `posted_at` is a time of the event loop."""

    connection: Connection
    command: RemotingCommand
    response: asyncio.Future[RemotingCommand]
    deadline: Deadline
    posted_at: float


class InFlightRequests:
    """Calls and requests of one producer; as a context manager it counts a call."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._calls = 0
        self._futures: set[asyncio.Future[Any]] = set()
        self._is_closed = False
        self._changed = asyncio.Event()
        """Set when a call or a future ends; `close` waits for it."""

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls -= 1
        self._changed.set()

    def check_open(self) -> None:
        """Raise RemotingError after `close`."""
        if self._is_closed:
            raise RemotingError(f"{self._owner} was closed: nothing was sent")

    def post(self, connection: Connection, command: RemotingCommand, deadline: Deadline) -> InFlightRequest:
        """Send a request without waiting. RemotingError after `close`, RemotingTimeout after the deadline.

        Pass the result to `wait_for_response` or `forget`.
        """
        self.check_open()
        posted_at = asyncio.get_running_loop().time()
        if posted_at >= deadline.at:
            raise RemotingTimeout(
                f"{connection.peer}: the timeout of {deadline.timeout_ms:.0f} ms ended before the message was sent"
            )
        response = connection.post(command)
        self._futures.add(response)
        return InFlightRequest(connection, command, response, deadline, posted_at)

    async def wait_for_response(self, request: InFlightRequest) -> RemotingCommand:
        """Return the response. RemotingTimeout at the deadline, RemotingConnectError, RemotingError after `close`."""
        response, connection = request.response, request.connection
        try:
            # A response that has arrived costs no timer.
            if not response.done():
                async with request.deadline.scope():
                    await response
            return response.result()
        except TimeoutError:
            waited_ms = (asyncio.get_running_loop().time() - request.posted_at) * 1000
            connection.timed_out(request.command, waited_ms)
            raise RemotingTimeout(
                f"{connection.peer} sent no response to {name_of(request.command.code)} within {waited_ms:.0f} ms"
            ) from None
        finally:
            self.forget(request)

    def forget(self, request: InFlightRequest) -> None:
        """Stop waiting for the response; one that still arrives is discarded."""
        request.connection.forget(request.command)
        self._futures.discard(request.response)
        if request.response.done() and not request.response.cancelled():
            request.response.exception()  # marks it as retrieved, or asyncio would log it

    async def wait_for(self, future: asyncio.Future[Any], deadline: Deadline) -> Any:
        """Wait for another future within a call. TimeoutError at the deadline, RemotingError after `close`."""
        self._futures.add(future)
        try:
            async with deadline.scope():
                return await future
        finally:
            self._futures.discard(future)

    def open(self) -> None:
        """Permit requests, even after `close`."""
        self._is_closed, self._changed = False, asyncio.Event()

    async def close(self, grace_ms: float) -> None:
        """Give calls `grace_ms` to end (a cancellation ends it), then fail the pending requests."""
        # Calls report their end by `__exit__`, abandoned futures of `send_many` by this callback.
        for future in self._futures:
            future.add_done_callback(lambda _: self._changed.set())
        try:
            async with asyncio.timeout(grace_ms / 1000):
                while self._calls or not all(future.done() for future in self._futures):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            # Even if this is cancelled.
            self._is_closed = True
            for future in self._futures:
                if not future.done():
                    future.set_exception(
                        RemotingError(f"{self._owner} was closed before an answer came: the message may be stored")
                    )
