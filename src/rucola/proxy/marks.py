"""Broker names in transaction ids and recall handles: `ID@broker-a`."""

from __future__ import annotations

_SEPARATOR = "@"


def marked(text: str, broker_name: str) -> str:
    """Add the name of the broker that made an id or handle; an empty one stays empty."""
    return f"{text}{_SEPARATOR}{broker_name}" if text else ""


def unmarked(text: str) -> tuple[str, str]:
    """Return an id or handle as its broker made it, and the name of the broker, empty without a mark."""
    own, _, broker_name = text.partition(_SEPARATOR)
    return own, broker_name
