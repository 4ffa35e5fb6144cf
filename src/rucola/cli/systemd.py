"""Messages to systemd about the state of a service (sd_notify), without a library.

A unit of `Type=notify` passes a Unix datagram socket in NOTIFY_SOCKET. Without that variable nothing is sent.

    READY=1       the server accepts requests
    RELOADING=1   it reads its configuration again; READY=1 follows
    STOPPING=1    it stops
    STATUS=...    one line for `systemctl status`
"""

from __future__ import annotations

import logging
import os
import socket
import time

logger = logging.getLogger(__name__)

NOTIFY_SOCKET = "NOTIFY_SOCKET"


def ready(status: str) -> None:
    """Report that the server accepts requests; `status` is one line for people."""
    _notify("READY=1", f"STATUS={status}")


def reloading() -> None:
    """Report that a reload starts; end it with `ready`. systemd orders both by the monotonic clock."""
    _notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def stopping() -> None:
    _notify("STOPPING=1")


def _notify(*lines: str) -> None:
    address = os.environ.get(NOTIFY_SOCKET)
    if not address:
        return
    if address.startswith("@"):  # a name in Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)  # a full queue must not stop the server
            channel.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        logger.warning("systemd was not notified of %s: %s", lines[0], error)
