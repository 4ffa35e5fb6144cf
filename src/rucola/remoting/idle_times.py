"""Idle times of a connection, from TCP_INFO on Linux, elsewhere measured; bytes in the socket count as received."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable
from struct import Struct
from typing import Final

MIN_SILENCE_MS = 1000
"""Minimum silence with a request in flight for a half-open connection."""
KERNEL_TICK_MS: Final = 10
"""Maximum error of the kernel's times: a jiffy at 100 Hz."""
KERNEL_TELLS: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")

_TCP_INFO: Final = Struct("=44xI4xI")
"""tcpi_last_data_sent and tcpi_last_data_recv of struct tcp_info, in milliseconds."""


def kernel_idle_times_ms(sock: socket.socket) -> tuple[int, int]:
    """Return milliseconds since the last sent and received byte. Linux only."""
    sent_ms, received_ms = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return sent_ms, received_ms


class MeasuredIdleTimes:
    """Idle times since the connection was opened, measured by reads and writes."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._sent = self._received = time.monotonic()

    def on_received(self) -> None:
        self._received = time.monotonic()

    def measuring(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that writes, and records the time."""

        def measured(data: bytes) -> None:
            self._sent = time.monotonic()
            write(data)

        return measured

    def read_ms(self, sock: socket.socket) -> tuple[int, int]:
        """Return milliseconds since the last write and read; the latter are 0 if bytes wait."""
        now = time.monotonic()
        if _has_waiting_bytes(sock.fileno()):
            self._received = now
        return int((now - self._sent) * 1000), int((now - self._received) * 1000)


class Silence:
    """The time without bytes from a client's peer although requests are in flight.

    A half-open peer: a request timed out, and nothing was received since it was sent, for MIN_SILENCE_MS at least.
    Several short timeouts in one silence add up. Apache: clientCloseSocketIfTimeout.
    """

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms = 0.0
        """When the first request of the silence was sent, on the loop's clock."""

    def timed_out(self, now_ms: float, waited_ms: float, received_ms: int) -> float:
        """Record a timeout; return the silence, 0 if it is short or has ended."""
        if received_ms + KERNEL_TICK_MS < waited_ms:
            return 0.0
        # Requests of 400 ms, one after the other: the silence is 400, 800, then 1,200 ms, which is enough.
        if now_ms - self._since_ms > received_ms + KERNEL_TICK_MS:  # a byte was received after that time
            self._since_ms = now_ms - waited_ms
        silence_ms = now_ms - self._since_ms
        return silence_ms if silence_ms >= MIN_SILENCE_MS else 0.0


def _has_waiting_bytes(fd: int) -> bool:
    if not hasattr(select, "poll"):  # Windows, whose select has no limit of the descriptor's number
        return bool(select.select([fd], [], [], 0)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
