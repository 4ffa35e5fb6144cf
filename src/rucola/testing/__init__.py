"""Test support for programs that use RocketMQ.

`message` makes a message for a unit test; `rocketmq.RocketMQ` is a name server and a broker, started in milliseconds;
`plugin` has the fixtures for pytest. User documentation: docs/testing.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rucola.testing.messages import message as message


def __getattr__(name: str) -> Any:
    """Import `message` at its first use: pytest loads this package in every run."""
    if name != "message":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rucola.testing.messages import message

    return message
