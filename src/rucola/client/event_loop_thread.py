"""EventLoopThread: an asyncio event loop in its own thread, for blocking calls from other threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from rucola.errors import MQError

T = TypeVar("T")


class EventLoopThread:
    """A running event loop, a new one unless given; `stop` ends and closes it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.new_event_loop()
        self._lock = threading.RLock()
        """Held to submit work. Reentrant: garbage collection within `_submit` may post."""
        self._process_id = os.getpid()
        self._is_stopping = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result. MQError on the loop's own thread, and after `stop`."""
        future = self._submit(work)
        try:
            return future.result()
        except CancelledError:
            if self._is_stopping:
                raise MQError("the client was closed before this call had ended") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def post(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` on the loop without waiting, from any thread. No effect after `stop`."""
        try:
            self._submit(work, waits=False)
        except MQError:
            pass

    def stop(self) -> None:
        """Cancel all tasks, then end the loop and its thread. No effect in a fork of the process."""
        if self.is_inherited:
            return
        # Refuse further work, so that the tasks below are all there will be.
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._loop.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one with the thread."""
        return os.getpid() != self._process_id

    def check_caller(self) -> None:
        """Raise MQError where a blocking call would never return: on the loop's thread, and in a fork."""
        if self.is_inherited:
            raise MQError(
                f"the client was opened in process {self._process_id}, of which this process is a fork: its thread and "
                "its connections belong to the parent; make a new client here"
            )
        if threading.current_thread() is self._thread:
            raise MQError(
                "a blocking call on the event loop's own thread would wait for itself: await the asyncio client"
            )

    def _submit(self, work: Coroutine[Any, Any, T], *, waits: bool = True) -> Future[T]:
        try:
            if waits or self.is_inherited:
                self.check_caller()
            with self._lock:
                if self._is_stopping:
                    raise MQError("the client is closed")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except MQError:
            work.close()
            raise

    async def _finish(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        # This starts a thread, which Python refuses at the end of the program.
        with suppress(RuntimeError):
            await self._loop.shutdown_default_executor()

    def _end(self) -> None:
        self._has_ended = True
        self._loop.stop()

    def _run_loop(self) -> None:
        """Run the loop until `stop`; it survives a task's SystemExit or KeyboardInterrupt, which its caller gets."""
        while not self._has_ended:
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
