"""Rucola: a message system, byte- and wire-compatible with Apache RocketMQ. Its log is a Spark table.

The asyncio clients may be imported from here; `rucola.client` has everything else of the client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rucola.client import Message as Message
    from rucola.client import MessageExt as MessageExt
    from rucola.client import Producer as Producer
    from rucola.client import PullConsumer as PullConsumer
    from rucola.client import PushConsumer as PushConsumer
    from rucola.client import Router as Router
    from rucola.client import SimpleConsumer as SimpleConsumer
    from rucola.client import TransactionProducer as TransactionProducer

__version__ = "0.1.0"

_CLIENTS = frozenset(
    (
        "Message", "MessageExt", "Producer", "PullConsumer", "PushConsumer", "Router", "SimpleConsumer",
        "TransactionProducer",
    )
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import clients when they are asked for: servers and commands do not need them."""
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rucola import client

    return getattr(client, name)
