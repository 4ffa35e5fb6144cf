"""Transaction ids of a proxy: the broker's id, and its name, as in `00000000000000010000000000000C2A@broker-a`."""

from __future__ import annotations

_SEPARATOR = "@"


def with_broker(transaction_id: str, broker_name: str) -> str:
    """Return the proxy's id; empty for no transaction."""
    return f"{transaction_id}{_SEPARATOR}{broker_name}" if transaction_id else ""


def without_broker(transaction_id: str) -> tuple[str, str]:
    """Return the broker's id and its name; an id that is not the proxy's has an empty name."""
    own, _, broker_name = transaction_id.partition(_SEPARATOR)
    return own, broker_name
