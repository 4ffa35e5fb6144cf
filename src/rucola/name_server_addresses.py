"""The addresses of the name servers of a client that is not given any.

1. the environment variable ROCKETMQ_NAMESRV
2. the environment variable NAMESRV_ADDR, which Apache's clients and brokers read as well
3. localhost:9876, where `rucola standalone` and Apache's name server listen by default
"""

from __future__ import annotations

import os

NAMESRV_VARIABLES = ("ROCKETMQ_NAMESRV", "NAMESRV_ADDR")
"""The environment variables with the addresses of the name servers; the first one that is not empty counts."""
DEFAULT_NAMESRV = "localhost:9876"


def name_servers_in_environment() -> str | None:
    """Return the addresses in the environment, "host:port;host:port"; None if no variable is set."""
    return next((value for name in NAMESRV_VARIABLES if (value := os.environ.get(name))), None)


def default_name_servers() -> str:
    """Return the addresses for a client that is not given any, "host:port;host:port"."""
    return name_servers_in_environment() or DEFAULT_NAMESRV


def origin(addresses: str) -> str:
    """Return where addresses come from; empty if the caller gave them.

    For the error when no name server answers.
    """
    for name in NAMESRV_VARIABLES:
        if value := os.environ.get(name):
            return f" (the address is that of the environment variable {name})" if value == addresses else ""
    if addresses == DEFAULT_NAMESRV:
        return f" (the default address; give another one by namesrv=, -n or {NAMESRV_VARIABLES[0]})"
    return ""
