"""Idle times of a connection: how long ago its last byte was sent, and received.

Linux tells both (TCP_INFO), at no cost between two queries, and counts bytes that wait in the socket as received
although this process was suspended. Elsewhere they are measured (`MeasuredIdleTimes`): two assignments per read and
per write, and a look for waiting bytes per query.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable
from struct import Struct
from typing import Final

MIN_SILENCE_MS = 1000
"""Minimum time without a received byte, with a request in flight, for a connection to count as half-open."""
KERNEL_TICK_MS: Final = 10
"""Maximum error of the kernel's times of a connection: a jiffy at 100 Hz."""
KERNEL_TELLS: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")

_TCP_INFO: Final = Struct("=44xI4xI")
"""tcpi_last_data_sent and tcpi_last_data_recv of the kernel's struct tcp_info, in milliseconds before now."""


def kernel_idle_times_ms(sock: socket.socket) -> tuple[int, int]:
    """Return the milliseconds since the last sent and the last received byte. Linux only."""
    sent_ms, received_ms = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return sent_ms, received_ms


class MeasuredIdleTimes:
    """Idle times of one connection since it was opened, measured by reads and writes."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._sent = self._received = time.monotonic()

    def on_received(self) -> None:
        """Note that bytes were received."""
        self._received = time.monotonic()

    def measuring(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that writes, and notes the time."""

        def measured(data: bytes) -> None:
            self._sent = time.monotonic()
            write(data)

        return measured

    def read_ms(self, sock: socket.socket) -> tuple[int, int]:
        """Return the milliseconds since the last write and the last read.

        The latter are 0 if bytes wait.
        """
        now = time.monotonic()
        if _has_waiting_bytes(sock.fileno()):
            self._received = now
        return int((now - self._sent) * 1000), int((now - self._received) * 1000)


class Silence:
    """The time in which a client's peer sends nothing although requests are in flight.

    A peer can vanish silently (cut cable, firewall that drops its state, power failure): writes succeed and no response
    arrives. That is so if a request timed out, and nothing was received since it was sent, for MIN_SILENCE_MS at least.
    If other responses arrived, only that one request was slow. Several short timeouts in one silence add up. Apache:
    clientCloseSocketIfTimeout.
    """

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms = 0.0
        """When the first request of the current silence was sent, on the clock of the event loop."""

    def timed_out(self, now_ms: float, waited_ms: float, received_ms: int) -> float:
        """Note that a request timed out; return the length of the silence.

        Returns 0 if the silence is short or has ended. `received_ms` is the time since the last received byte.
        """
        if received_ms + KERNEL_TICK_MS < waited_ms:
            return 0.0
        # Requests of 400 ms, one after the other: the silence is 400, 800, then 1,200 ms, and the third one tells.
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
