"""InFlightRequests: the calls of a producer that have not ended yet, and the requests that they wait for.

A producer that closes must not leave sends behind: they would connect anew, and store messages after `close` returned.
So closing has three steps:

    1. calls that run may end, and new ones are refused by the producer;
    2. after a grace, or when `close` is cancelled, what still waits for a broker fails with a clear error;
    3. from then on nothing is posted: a call between two tries fails with the same error.

A request that was on its way in step 2 may still be stored; its error says so.
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
    """A request on its way, and the future of its answer. `posted_at` is a time of the event loop."""

    connection: Connection
    command: RemotingCommand
    answer: asyncio.Future[RemotingCommand]
    deadline: Deadline
    posted_at: float


class InFlightRequests:
    """The calls and requests of one producer. A context manager around each call counts it."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._calls = 0
        self._futures: set[asyncio.Future[Any]] = set()
        self._is_closed = False
        self._changed = asyncio.Event()

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls -= 1
        self._changed.set()

    def must_be_open(self) -> None:
        """RemotingError once closed."""
        if self._is_closed:
            raise RemotingError(f"{self._owner} was closed: nothing was sent")

    def post(self, connection: Connection, command: RemotingCommand, deadline: Deadline) -> InFlightRequest:
        """Send a request; its answer is to be fetched with `answer`, or the request given up with `forget`.

        RemotingError once closed, RemotingTimeout if the deadline has passed: nothing is sent then.
        """
        self.must_be_open()
        posted_at = asyncio.get_running_loop().time()
        if posted_at >= deadline.at:
            raise RemotingTimeout(
                f"{connection.peer}: {deadline.timeout_ms:.0f} ms were over before the message was sent"
            )
        answer = connection.post(command)
        self._futures.add(answer)
        return InFlightRequest(connection, command, answer, deadline, posted_at)

    async def answer(self, posted: InFlightRequest) -> RemotingCommand:
        """Wait for an answer until the deadline. RemotingConnectError, RemotingTimeout; RemotingError if closed."""
        answer, connection = posted.answer, posted.connection
        try:
            if not answer.done():
                async with posted.deadline.scope():
                    await answer
            return answer.result()
        except TimeoutError:
            waited_ms = (asyncio.get_running_loop().time() - posted.posted_at) * 1000
            connection.give_up(posted.command, waited_ms)
            raise RemotingTimeout(
                f"{connection.peer} gave no answer to {name_of(posted.command.code)} within {waited_ms:.0f} ms"
            ) from None
        finally:
            self.forget(posted)

    def forget(self, posted: InFlightRequest) -> None:
        """Wait for the answer no longer."""
        posted.connection.forget(posted.command)
        self._futures.discard(posted.answer)
        if posted.answer.done() and not posted.answer.cancelled():
            posted.answer.exception()  # marks it as retrieved

    async def wait(self, future: asyncio.Future[Any], deadline: Deadline) -> Any:
        """Wait for something else that a call needs from outside. TimeoutError; RemotingError if closed."""
        self._futures.add(future)
        try:
            async with deadline.scope():
                return await future
        finally:
            self._futures.discard(future)

    def open(self) -> None:
        """Allow requests again after `close`."""
        self._is_closed = False

    async def close(self, grace_ms: float) -> None:
        """Let calls end for `grace_ms`, then fail what is left. Cancellation ends the grace at once."""
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
            self._is_closed = True
            for future in self._futures:
                if not future.done():
                    future.set_exception(
                        RemotingError(f"{self._owner} was closed before an answer came: the message may be stored")
                    )
