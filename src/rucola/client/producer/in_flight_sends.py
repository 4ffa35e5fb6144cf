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

_TIMER_INTERVAL_S = 0.005
"""How much earlier than its deadline a request may time out, so that one call of the timer serves many."""


class InFlightRequest(msgspec.Struct, frozen=True):
    """A request that was sent, and its response. `posted_at` is a time of the event loop."""

    connection: Connection
    command: RemotingCommand
    response: asyncio.Future[RemotingCommand]
    deadline: Deadline
    posted_at: float


class InFlightRequests:
    """Calls and requests of one producer; as a context manager it counts a call. One timer serves all deadlines."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._calls = 0
        self._pending: dict[asyncio.Future[Any], InFlightRequest | None] = {}
        """The futures that calls wait for, with the request if the future is its response."""
        self._is_closed = False
        self._changed = asyncio.Event()
        """Set when a call or a future ends; `close` waits for it."""
        self._timer: asyncio.TimerHandle | None = None
        """For the earliest deadline of a request, and perhaps earlier."""

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
        request = InFlightRequest(connection, command, connection.post(command), deadline, posted_at)
        self._pending[request.response] = request
        if self._timer is None or deadline.at < self._timer.when():
            self._expire_at(deadline.at)
        return request

    async def wait_for_response(self, request: InFlightRequest) -> RemotingCommand:
        """Return the response. RemotingTimeout at the deadline, RemotingConnectError, RemotingError after `close`."""
        try:
            response = await request.response
        except BaseException:
            self.forget(request)
            raise
        self._pending.pop(request.response, None)
        return response

    def forget(self, request: InFlightRequest) -> None:
        """Stop waiting for the response; one that still arrives is discarded."""
        request.connection.forget(request.command)
        self._pending.pop(request.response, None)
        retrieve_error(request.response)

    async def wait_for(self, future: asyncio.Future[Any], deadline: Deadline) -> Any:
        """Wait for another future within a call. TimeoutError at the deadline, RemotingError after `close`."""
        self._pending[future] = None
        try:
            async with deadline.scope():
                return await future
        finally:
            self._pending.pop(future, None)

    def open(self) -> None:
        """Permit requests, even after `close`."""
        self._is_closed, self._changed, self._timer = False, asyncio.Event(), None

    async def close(self, grace_ms: float) -> None:
        """Give calls `grace_ms` to end (a cancellation ends it), then fail the pending requests."""
        # Calls report their end by `__exit__`, abandoned futures of `send_many` by this callback.
        for future in self._pending:
            future.add_done_callback(lambda _: self._changed.set())
        try:
            async with asyncio.timeout(grace_ms / 1000):
                while self._calls or not all(future.done() for future in self._pending):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            # Even if this is cancelled.
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            for future in self._pending:
                if not future.done():
                    future.set_exception(
                        RemotingError(f"{self._owner} was closed before an answer came: the message may be stored")
                    )

    def _expire_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        """Fail the requests whose deadline has passed."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        due_at = now + _TIMER_INTERVAL_S
        requests = [request for request in self._pending.values() if request and not request.response.done()]
        for request in requests:
            if request.deadline.at <= due_at:
                connection, waited_ms = request.connection, (now - request.posted_at) * 1000
                request.response.set_exception(
                    RemotingTimeout(
                        f"{connection.peer} sent no response to {name_of(request.command.code)} "
                        f"within {waited_ms:.0f} ms"
                    )
                )
                connection.timed_out(request.command, waited_ms)
        if left := [request.deadline.at for request in requests if request.deadline.at > due_at]:
            self._expire_at(min(left))


def retrieve_error(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future that nobody awaits as retrieved, or asyncio would log it."""
    if future.done() and not future.cancelled():
        future.exception()
