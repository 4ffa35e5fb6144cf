"""BatchingEventLoop: an event loop that batches socket writes.

One iteration:

    1. `select` returns the sockets that are ready.
    2. asyncio runs their callbacks, which process requests and append responses to the batch.
    3. asyncio calls `select` again, which first runs the callbacks of `call_at_iteration_end`, for responses that
       became ready one by one, and then sends the batch, in order.

With 16 connections that send one message at a time, batching saves 0.9 wake-ups of the peer per message. The batch is
sent early at `MAX_BATCH` writes, or a write of `LARGE_WRITE` bytes. Other event loops write immediately.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

MAX_BATCH: Final = 32
"""Writes at which a batch is sent before the iteration ends."""
LARGE_WRITE: Final = 64 * 1024
"""Bytes of a write that is sent at once, after the batch before it."""
MAX_EVENTS: Final = 16
"""Ready sockets per iteration, so that timers run in between. With 32, large reads took 15 ms."""


class BatchingSelector(selectors.DefaultSelector):
    """The selector of a BatchingEventLoop, which owns the batch. asyncio calls `select` exactly once per iteration."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Callable[[], None]] = []
        # The bound method `transport.write` and its argument.
        self._batch: list[tuple[Callable[[bytes], None], bytes]] = []
        # Since `select` was called.
        self._has_unregistered = False
        # Ready files of the next iterations, the time of their poll, and the duration of the last round.
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        self._round_begin_s = self._last_round_s = 0.0
        # Whether the batch may be sent; None always sends it.
        self._gate: Callable[[], bool] | None = None

    def set_gate(self, gate: Callable[[], bool] | None) -> None:
        """Call `gate` before a batch is sent; if it returns False, close the batch's connections instead.

        A master checks there whether it may still acknowledge, since the process may have been stopped in the meantime.
        """
        self._gate = gate

    def call_at_iteration_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end of this iteration (the next, from a callback); it must not raise or schedule."""
        self._callbacks.append(callback)

    def writer_of(self, transport: asyncio.Transport) -> Callable[[bytes], None]:
        """Return a function that adds a write to the batch. A closure, which looks up no attribute."""
        batch, flush, send = self._batch, self.flush, transport.write

        def write(data: bytes) -> None:
            batch.append((send, data))
            if len(batch) == MAX_BATCH or len(data) >= LARGE_WRITE:
                flush()

        return write

    def is_any_ready(self, but: int) -> bool:
        """Return whether a file with another descriptor is ready now."""
        return bool(self._ready) or any(key.fd != but for key, _ in super().select(0))

    def round_s(self) -> float:
        """How long ready files wait; 0 if one iteration serves all."""
        age_s = time.monotonic() - self._round_begin_s if self._round_begin_s else 0.0
        return max(age_s, self._last_round_s)

    def flush(self) -> None:
        # Emptied first, since a failing transport may call back and write; in place, since writers refer to it.
        batch = self._batch[:]
        self._batch.clear()
        if self._gate is not None and not self._gate():
            for send, _ in batch:
                # A bound method of the transport, or of the object that counts its bytes.
                getattr(send, "__self__").abort()  # noqa: B009 - the type is any function's
            return
        for send, data in batch:
            # Its peer has closed it, as an earlier write of the batch found: asyncio would warn of each further one.
            if self._has_unregistered and getattr(send, "__self__").is_closing():  # noqa: B009 - as above
                continue
            send(data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Run the callbacks, send the batch, and poll; returns MAX_EVENTS files at a time, the others later."""
        self._has_unregistered = False
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()
        if self._batch:
            self.flush()
        # A transport whose send fails unregisters its socket and schedules `connection_lost`. asyncio computed
        # `timeout` before that: poll without blocking, so that the callback runs now.
        if self._has_unregistered or self._callbacks:
            timeout = 0
        if not self._ready:
            if self._last_round_s or self._round_begin_s:
                self._end_round()
            ready = super().select(timeout)
            if len(ready) <= MAX_EVENTS:
                return ready
            self._ready, self._round_begin_s = ready, time.monotonic()
        served, self._ready = self._ready[:MAX_EVENTS], self._ready[MAX_EVENTS:]
        return served

    def _end_round(self) -> None:
        self._last_round_s = time.monotonic() - self._round_begin_s if self._round_begin_s else 0.0
        self._round_begin_s = 0.0

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self._has_unregistered = True
        key = super().unregister(fileobj)
        self._forget(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().modify(fileobj, events, data)
        self._forget(key.fd)  # the next poll reports it if it is still ready
        return key

    def _forget(self, fd: int) -> None:
        if self._ready:
            self._ready = [(key, events) for key, events in self._ready if key.fd != fd]


class ImmediateWrites:
    """The counterpart of BatchingSelector without a batch. Callbacks run in the next iteration and share a write."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_at_iteration_end(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def writer_of(self, transport: asyncio.Transport) -> Callable[[bytes], None]:
        return transport.write

    def flush(self) -> None:
        """There is no batch."""

    def is_any_ready(self, but: int) -> bool:
        """Return False: the selector of this loop cannot be polled."""
        return False

    def round_s(self) -> float:
        return 0.0


WriteBatching: TypeAlias = "BatchingSelector | ImmediateWrites"


class BatchingEventLoop(asyncio.SelectorEventLoop):
    """The event loop of servers: `asyncio.Runner(loop_factory=BatchingEventLoop)`."""

    def __init__(self) -> None:
        self.batching = BatchingSelector()
        super().__init__(self.batching)


def write_batching_of(loop: asyncio.AbstractEventLoop) -> WriteBatching:
    return loop.batching if isinstance(loop, BatchingEventLoop) else ImmediateWrites(loop)
