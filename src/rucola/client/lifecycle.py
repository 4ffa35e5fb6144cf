"""Lifecycle: how every client is opened and closed.

    new ── open ──> opening ──> open ── close ──> closing ──> closed ── open ──> …

1. `open` runs `_start` in a task, `close` runs `_stop`; at most one runs, and all concurrent callers await it.
2. If opening fails, everything that was started is stopped, and the client is closed.
3. A cancelled caller cancels the task once and still waits for it: opening fails, closing skips grace periods.
4. While not closed, a client belongs to one event loop and process; elsewhere every use raises MQError, except `close`
   in a fork, which has no effect. A closed client may be opened on any loop: `_start` makes events and locks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Self

from rucola.errors import MQError, RemotingError

logger = logging.getLogger(__name__)

EXPEDITED_STEP_TIMEOUT_MS = 1000
"""The timeout of each step of an expedited close."""


class Lifecycle(ABC):
    """A client that `async with` opens and closes. While open, it belongs to one event loop."""

    def __init__(self) -> None:
        self.is_open = False
        """True from the start of opening to the start of closing."""
        self.was_opened = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_expedited = False
        """Whether a cancelled caller has cancelled the task."""

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is an asyncio client: write `async with`, or import it from rucola.client.sync"
        )

    def __exit__(self, *error: object) -> None:
        raise NotImplementedError  # never called; without it `with` would raise another error

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the client; no effect if it is open. If this fails or is cancelled, the client is closed.

        RemotingError if it is closed in the meantime; MQError if it is open on another event loop or process.
        """
        self._check_owner()
        # Within a task that a running close awaits, waiting for the close would be a deadlock.
        if self._closing is not None:
            await self.close()
            if self._closing is not None:
                raise RemotingError(f"{self._title} is closing, and closing waits for the task that calls open()")
        if not self.is_open:
            self._loop, self._process_id = asyncio.get_running_loop(), os.getpid()
            self.is_open, self.was_opened, self._is_expedited = True, True, False
            self._opening = self._loop.create_task(self._open(), name=f"opening of {self._title}")
            self._opening.add_done_callback(self._opening_done)
        if (opening := self._opening) is not None:
            try:
                await self._wait_for(opening)
            except asyncio.CancelledError:
                if self.is_open:  # opening succeeded at the moment of the cancellation
                    await self._wait_for(self._start_closing(expedited=True))
                raise
            if opening.cancelled():
                raise RemotingError(f"{self._title} was closed before it was open")
            opening.result()

    async def close(self) -> None:
        """Stop the client; wait until everything is released. Idempotent.

        A cancelled close skips grace periods, finishes, and then raises CancelledError. Called by the client's own task
        (a listener), it returns at once and continues after that task.
        """
        if (not self.is_open and self._closing is None) or os.getpid() != self._process_id:
            return
        self._check_owner()
        if (opening := self._opening) is not None and not opening.done():
            opening.cancel()
            await self._wait_for(opening)
        closing = self._closing
        if closing is None and self.is_open:
            closing = self._start_closing()
        if closing is not None and not self._owns_task(asyncio.current_task()):
            await self._wait_for(closing)
            closing.result()

    @property
    @abstractmethod
    def _title(self) -> str:
        """The client's name in error messages."""

    @abstractmethod
    async def _start(self) -> None:
        """Start the parts of the client."""

    @abstractmethod
    async def _stop(self) -> None:
        """Stop the parts, even after an incomplete `_start`. A cancellation expedites this, see `run_close_steps`."""

    def _owns_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `_stop` waits for this task, which therefore must not wait for `close`."""
        return False

    def _check_open(self) -> None:
        """Raise RemotingError unless open; MQError on another event loop or process."""
        if not self.is_open:
            raise RemotingError(f"{self._title} is not open: use it inside `async with`")
        self._check_owner()

    def _check_owner(self) -> None:
        """Raise MQError if the client is open on another event loop or in another process."""
        if self._loop is None or self._loop is asyncio._get_running_loop():
            return
        if os.getpid() != self._process_id:
            raise MQError(
                f"{self._title} was opened in process {self._process_id}, of which this process is a fork: "
                "its connections belong to the parent; make a new client here"
            )
        raise MQError(
            f"{self._title} belongs to the event loop on which it was opened, which is not the running one: "
            "use it there, or close it there and open it here"
        )

    async def _open(self) -> None:
        try:
            await self._start()
        except BaseException as error:
            self.is_open = False
            if isinstance(error, asyncio.CancelledError):
                _expedite()
            with suppress(asyncio.CancelledError):
                await self._stop()
            raise

    def _start_closing(self, *, expedited: bool = False) -> asyncio.Task[None]:
        self.is_open, self._is_expedited = False, expedited
        closing = self._closing = asyncio.create_task(self._close(expedited), name=f"closing of {self._title}")
        closing.add_done_callback(self._closing_done)
        return closing

    async def _close(self, expedited: bool) -> None:
        if expedited:
            _expedite()
        with suppress(asyncio.CancelledError):
            await self._stop()

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        """Wait for `task`. A cancellation of the caller is passed on once, and raised at the end."""
        cancellation: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancellation = error
                if not self._is_expedited:
                    self._is_expedited = True
                    task.cancel()
        if cancellation is not None:
            if not task.cancelled():
                task.exception()  # marks it as retrieved, or asyncio would log it
            raise cancellation

    def _opening_done(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            self.is_open, self._loop = False, None

    def _closing_done(self, closing: asyncio.Task[None]) -> None:
        self._closing = self._loop = None


async def run_close_steps(*steps: Callable[[], Awaitable[None]]) -> None:
    """Run all steps of a close in order; raise the first error at the end.

    A cancellation calls the interrupted step again (it must be repeatable, and then skips its grace period), limits it
    and each later step to EXPEDITED_STEP_TIMEOUT_MS, and is raised at the end. Further ones have no effect.
    """
    cancellation: asyncio.CancelledError | None = None
    failure: Exception | None = None
    for step in steps:
        try:
            if cancellation is not None:
                await _run_expedited(step)
                continue
            try:
                await step()
            except asyncio.CancelledError as error:
                cancellation = error
                await _run_expedited(step)
        except Exception as error:
            failure = failure or error
    if cancellation is not None:
        raise cancellation
    if failure is not None:
        raise failure


async def _run_expedited(step: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    deadline = asyncio.get_running_loop().time() + EXPEDITED_STEP_TIMEOUT_MS / 1000
    while True:
        # Before Python 3.11.3 `timeout_at` misbehaves if the task has a cancellation from before.
        task.uncancel()
        try:
            async with asyncio.timeout_at(deadline):
                await step()
        except asyncio.CancelledError:
            continue
        except TimeoutError:
            logger.warning("expedited close: a step has not ended within %d ms, skipped", EXPEDITED_STEP_TIMEOUT_MS)
        return


def _expedite() -> None:
    """Expedite the close steps that the current task runs next."""
    if (task := asyncio.current_task()) is not None:
        task.cancel()
