"""Lifecycle: how every client is opened and closed.

    new ── open ──> opening ──> open ── close ──> closing ──> closed ── open ──> …

- Opening and closing run in tasks of their own, one at a time. Concurrent callers await the same task, so a second
  `close` returns when the first is finished.
- A cancelled caller passes its cancellation on to the task and still waits for it. Opening then fails and closes
  everything again. Closing is not given up but expedited, see `run_close_steps`.
- A client belongs to the event loop, and the process, in which it was opened first, with its connections and tasks. On
  any other loop every use raises MQError. So does every use in a fork of the process, except `close`, which has no
  effect there: the sockets are the parent's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rucola.errors import MQError, RemotingError

logger = logging.getLogger(__name__)

EXPEDITED_STEP_TIMEOUT_MS = 1000
"""How long each step of a close may take once the close is expedited."""


class Lifecycle(ABC):
    """A client that `async with` opens and closes. `is_open` is true from the begin of opening to that of closing."""

    def __init__(self) -> None:
        self.is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_expedited = False
        """Whether a caller has passed its cancellation on to the task that opens or closes."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Start; no effect if it is open. If starting fails or is cancelled, everything is closed again.

        RemotingError if it is closed meanwhile, MQError on another event loop than the first time and in a fork.
        """
        self._must_belong_here()
        if self._closing is not None:
            await self.close()
            if self._closing is not None:
                raise RemotingError(f"{self._title} is closing, and waits for the task that would open it")
        if not self.is_open:
            self._loop, self._process_id = asyncio.get_running_loop(), os.getpid()
            self.is_open, self._is_expedited = True, False
            self._opening = self._loop.create_task(self._open(), name=f"opening of {self._title}")
            self._opening.add_done_callback(self._opened)
        if (opening := self._opening) is not None:
            try:
                await self._until_ended(opening)
            except asyncio.CancelledError:
                if self.is_open:  # it ended at the same moment
                    await self._until_ended(self._begin_closing(expedited=True))
                raise
            if opening.cancelled():
                raise RemotingError(f"{self._title} was closed before it was open")
            opening.result()

    async def close(self) -> None:
        """Stop, and close everything that is open; return when that is done, also if another task began it.

        Idempotent. A cancelled close finishes in a hurry, without graces, before CancelledError is raised. In a task
        that belongs to the client, such as a call of its listener, this returns at once, and closing continues after
        that task has ended.
        """
        if (not self.is_open and self._closing is None) or os.getpid() != self._process_id:
            return
        self._must_belong_here()
        if (opening := self._opening) is not None and not opening.done():
            opening.cancel()
            await self._until_ended(opening)
        closing = self._closing
        if closing is None and self.is_open:
            closing = self._begin_closing()
        if closing is not None and not self._runs(asyncio.current_task()):
            await self._until_ended(closing)
            closing.result()

    @property
    def was_opened(self) -> bool:
        """Whether it was ever opened; it may be closed again."""
        return self._loop is not None

    @property
    @abstractmethod
    def _title(self) -> str:
        """The client's name in errors."""

    @abstractmethod
    async def _start(self) -> None:
        """Start."""

    @abstractmethod
    async def _stop(self) -> None:
        """Stop, also after an incomplete `_start`. A first cancellation hurries this, see `run_close_steps`."""

    def _runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether `_stop` waits for a task, which may therefore not wait for `close`."""
        return False

    def _must_be_open(self) -> None:
        if not self.is_open:
            raise RemotingError(f"{self._title} is not open: use it inside `async with`")
        self._must_belong_here()

    def _must_belong_here(self) -> None:
        if self._loop is None or self._loop is asyncio._get_running_loop():
            return
        if os.getpid() != self._process_id:
            raise MQError(
                f"{self._title} was opened in process {self._process_id}, of which this one is a fork: "
                "its connections belong to that process; make a new client here"
            )
        raise MQError(
            f"{self._title} belongs to the event loop on which it was opened, which is not the running one: "
            "use it there, and make a new client for each `asyncio.run`"
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

    def _begin_closing(self, *, expedited: bool = False) -> asyncio.Task[None]:
        self.is_open, self._is_expedited = False, expedited
        closing = self._closing = asyncio.create_task(self._close(expedited), name=f"closing of {self._title}")
        closing.add_done_callback(self._closed)
        return closing

    async def _close(self, expedited: bool) -> None:
        if expedited:
            _expedite()
        with suppress(asyncio.CancelledError):
            await self._stop()

    async def _until_ended(self, task: asyncio.Task[None]) -> None:
        """Wait until the task that opens or closes has ended. If the caller is cancelled, it is, once; both end."""
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
                task.exception()  # marks it as retrieved
            raise cancellation

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            self.is_open = False

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing = None


async def run_close_steps(*steps: Callable[[], Awaitable[None]]) -> None:
    """Take the steps of a close one after the other, also if one of them fails; raise the first error at the end.

    A cancellation hurries them, and is raised at the end. The step that it interrupts is begun again, so that it skips
    its grace: steps must be repeatable. From then on each may take `EXPEDITED_STEP_TIMEOUT_MS`, so that a hanging
    broker delays no other step for long, and further cancellations change nothing.
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
        task.uncancel()  # `timeout_at` of Python before 3.11.3 expects no cancellation from before
        try:
            async with asyncio.timeout_at(deadline):
                await step()
        except asyncio.CancelledError:
            continue
        except TimeoutError:
            logger.warning(
                "closing in a hurry: a step has not ended within %d ms and is given up", EXPEDITED_STEP_TIMEOUT_MS
            )
        return


def _expedite() -> None:
    """Hurry what the current task closes next."""
    if (task := asyncio.current_task()) is not None:
        task.cancel()
