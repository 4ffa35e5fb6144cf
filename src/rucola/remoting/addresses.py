"""Addresses of sockets as text."""

from __future__ import annotations

from typing import Any


def address_of(name: tuple[Any, ...]) -> str:
    """Return `ip:port`, with an IPv6 address in brackets."""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
