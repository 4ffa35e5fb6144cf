"""Keepalive of TCP: the kernel's probes, which end a connection whose peer has vanished."""

from __future__ import annotations

import socket
from typing import Final

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds until the first probe (Linux, macOS) and between probes, and number of unanswered probes."""

_USER_TIMEOUT: Final = {"TCP_USER_TIMEOUT": 30_000}
"""Milliseconds for which sent data may stay unacknowledged. Clients only: a server waits for slow readers."""


def enable_keepalive(sock: socket.socket, *, is_client: bool) -> None:
    """Probe an idle connection; not every platform has all options."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (_KEEPALIVE | _USER_TIMEOUT if is_client else _KEEPALIVE).items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
