"""Free ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Different ports for brokers: that of the VIP channel of each, two below, is free as well."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            taken = held.enter_context(socket.socket())
            taken.bind((HOST, 0))
            port = taken.getsockname()[1]
            vip = held.enter_context(socket.socket())
            with suppress(OSError):
                vip.bind((HOST, port - 2))
                found.append(port)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
