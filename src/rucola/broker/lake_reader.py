"""The process that reads the lake of a broker with tieredReads, and the requests that wait for it.

The process has what a broker must not load, and may hang with its storage. A thread exchanges requests and results
with it, one after the other, so that the event loop never waits. If it ends, or has no result after `STUCK_S`, what
waits fails, and the next request starts a new one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rucola import tiered_reads
from rucola.errors import StoreError
from rucola.outages import Outages
from rucola.tiered_reads import Failed, Request, Result

logger = logging.getLogger(__name__)

STUCK_S: Final = 30.0
MAX_WAITING: Final = 256
"""Requests that wait; further ones fail."""


class LakeReader:
    """Belongs to the running event loop."""

    def __init__(self, directory: Path, name: str, catalog: str | None = None, *, stuck_s: float = STUCK_S) -> None:
        self.failures = 0
        self._command = [sys.executable, "-m", "rucola.spark.lake.tiered_reader", str(directory), name]
        if catalog is not None:
            self._command.append(catalog)
        self._subject = f"reading the lake of {directory}"
        self.stuck_s = stuck_s
        self._loop = asyncio.get_running_loop()
        self._outages = Outages(logger)
        self._waiting: dict[Request, asyncio.Future[Result]] = {}
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="lake reader", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process, 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    def ask(self, request: Request) -> asyncio.Future[Result]:
        """Return the result of a request, which may be waited for already: StoreError if there is none."""
        found = self._waiting.get(request)
        if found is None:
            found = self._loop.create_future()
            found.add_done_callback(lambda done: done.exception())  # an error without a waiter is ignored
            if len(self._waiting) >= MAX_WAITING:
                found.set_exception(StoreError(f"{MAX_WAITING} requests wait for the lake"))
                return found
            self._waiting[request] = found
            self._requests.put(request)
        return found

    async def close(self) -> None:
        self._requests.put(None)
        if (process := self._process) is not None:
            process.kill()
        await asyncio.to_thread(self._thread.join)

    # The thread.

    def _run(self) -> None:
        with suppress(OSError):  # a request tries again
            self._start_process()
        while (request := self._requests.get()) is not None:
            result: Result
            try:
                result = self._exchange(request)
                is_lost = False
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                self._end_process()
                # What waits behind a request that hung would hang as well; it is asked for again.
                while not self._requests.empty():
                    if self._requests.get() is None:
                        return
                reason = f"no result after {self.stuck_s:g} s" if isinstance(error, TimeoutError) else str(error)
                result, is_lost = Failed(reason), True
            try:
                self._loop.call_soon_threadsafe(self._done, request, result, is_lost)
            except RuntimeError:  # the loop is closed
                break
        self._end_process()

    def _exchange(self, request: Request) -> Result:
        if self._stream is None:
            self._start_process()
        assert self._stream is not None
        self._stream.settimeout(self.stuck_s)
        tiered_reads.send(self._stream, request)
        return tiered_reads.receive_result(self._stream)

    def _start_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            raise OSError("the process that was stopped still waits for its storage")
        self._stream, peer = socket.socketpair()
        with peer:
            # In a process group of its own, since an interrupt is the broker's, and in the session of the broker: Linux
            # shares the processors out among sessions (autogroups), so its priority would mean nothing in another one.
            self._process = subprocess.Popen(  # noqa: S603 - our own
                self._command, stdin=peer.fileno(), stdout=subprocess.DEVNULL, process_group=0
            )

    def _end_process(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:  # not before its storage answers
                logger.warning("the process %d does not end, since its storage does not answer", self._process.pid)

    # The event loop.

    def _done(self, request: Request, result: Result, is_lost: bool) -> None:
        if not isinstance(result, Failed):
            self._outages.succeeded(self._subject)
            self._resolve(request, result)
            return
        self.failures += 1
        self._outages.failed(self._subject, result.why)
        for each in list(self._waiting) if is_lost else [request]:
            self._resolve(each, result)

    def _resolve(self, request: Request, result: Result) -> None:
        future = self._waiting.pop(request, None)
        if future is None or future.done():
            return
        if isinstance(result, Failed):
            future.set_exception(StoreError(result.why))
        else:
            future.set_result(result)
