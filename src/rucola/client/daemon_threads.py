"""DaemonThreads: a pool for calls of application code, which may never return.

The threads of `concurrent.futures` are joined when the program ends: one that hangs keeps the process alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Call: TypeAlias = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """At most `count` threads, which start as calls need them, even after `close`."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._reset()

    def start(self) -> None:
        """Start the first thread before a call needs it. RuntimeError if the system has no further thread.

        Python 3.12.0 and 3.12.1 start no thread once the main thread has ended, although others run.
        """
        with self._lock:
            if not self._started:
                self._start_thread()
                self._idle.release()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call a function in a thread. RuntimeError if there is none, and the system has no further thread."""
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self._count:
                try:
                    self._start_thread()
                except RuntimeError:
                    if not self._started:
                        raise
            future: Future[T] = Future()
            self._calls.put((future, function))
            return future

    def close(self) -> None:
        """End idle threads now and the others after their calls; cancel calls that have not begun."""
        with self._lock:
            calls, started = self._calls, self._started
            self._reset()
        with suppress(Empty):
            while call := calls.get_nowait():
                call[0].cancel()
        for _ in range(started):
            calls.put(None)

    def _start_thread(self) -> None:
        name = f"{self._name} {self._started}"
        threading.Thread(target=_work, args=(self._calls, self._idle), name=name, daemon=True).start()
        self._started += 1

    def _reset(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0


def _work(calls: SimpleQueue[Call | None], idle: threading.Semaphore) -> None:
    while call := calls.get():
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        del call, future, function
        if calls.empty():  # or it goes on with a call that waits
            idle.release()
