"""The default addresses of name servers: ROCKETMQ_NAMESRV, else NAMESRV_ADDR, else localhost:9876."""

from __future__ import annotations

import os

NAMESRV_VARIABLES = ("ROCKETMQ_NAMESRV", "NAMESRV_ADDR")
"""The first one that is not empty counts; Apache reads the second one."""
DEFAULT_PORT = 9876
DEFAULT_NAMESRV = f"localhost:{DEFAULT_PORT}"


def name_servers_in_environment() -> str | None:
    """Return "host:port;host:port"; None if no variable is set."""
    return next((value for name in NAMESRV_VARIABLES if (value := os.environ.get(name))), None)


def default_name_servers() -> str:
    """Return "host:port;host:port"."""
    return name_servers_in_environment() or DEFAULT_NAMESRV


def split(addresses: str) -> list[str]:
    """Return the addresses of "host:port;host:port", with the default port where there is none."""
    parts = [part.strip() for part in addresses.replace(",", ";").split(";")]
    return [part if ":" in part.rpartition("]")[2] else f"{part}:{DEFAULT_PORT}" for part in parts if part]


def origin(addresses: str) -> str:
    """Return the source of addresses, for error texts; empty if the caller gave them."""
    for name in NAMESRV_VARIABLES:
        if value := os.environ.get(name):
            return f" (the address is that of the environment variable {name})" if value == addresses else ""
    if addresses == DEFAULT_NAMESRV:
        return f" (the default address; give another one by namesrv=, -n or {NAMESRV_VARIABLES[0]})"
    return ""
