"""Free ports of this machine, which stay free while a server that had one is down.

The kernel gives ports of its ephemeral range to outgoing connections and to listeners on port 0, also the port of a
server that a test has just killed and is about to start again. The ports of this module lie below that range. Parallel
workers of pytest have different ones: a port that a test is about to use looks free to others.
"""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 10_000
_WORKERS = 8
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
EPHEMERAL = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
"""The begin of the ephemeral range: what Linux says, or its default."""


def free_ports(count: int, *others: int) -> list[int]:
    """Different ports for brokers: that of the VIP channel of each, two below, is free as well.

    So are those at the distances `others` from each, such as 1 for replication.
    """
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.SystemRandom().choice(_ports())
            with suppress(OSError), ExitStack() as pair:
                for each in (port, port - 2, *(port + distance for distance in others)):
                    pair.enter_context(socket.socket()).bind((HOST, each))
                held.push(pair.pop_all())
                found.append(port)
    return found


def free_port() -> int:
    """One port."""
    return free_ports(1)[0]


def _ports() -> range:
    """The ports of this worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return range(_LOWEST + worker % _WORKERS, EPHEMERAL, _WORKERS)
