"""HeldPulls: the connections for pulls that brokers hold, since they hold a limited number for each connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

MAX_HELD = 4096
"""Pulls of one connection; half of `maxHeldPullsPerConnection`, where one with a long filter counts as several."""


class HeldPulls:
    """Sends pulls on `first`, and on further clients while that has MAX_HELD at a broker. Belongs to one event loop."""

    def __init__(self, first: RemotingClient, make: Callable[[], RemotingClient]) -> None:
        self._first = first
        self._make = make
        self._held: dict[RemotingClient, Counter[str]] = {first: Counter()}
        """The pulls of each client by address."""

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """As `RemotingClient.invoke`."""
        client = next((client for client, held in self._held.items() if held[address] < MAX_HELD), None)
        if client is None:
            client = self._make()
            self._held[client] = Counter()
        held = self._held[client]
        held[address] += 1
        try:
            return await client.invoke(address, request, timeout_ms)
        finally:
            held[address] -= 1

    async def close(self) -> None:
        """Close the further clients. Repeatable after a cancellation."""
        for client in [client for client in self._held if client is not self._first]:
            await client.close()
            del self._held[client]
        self._held[self._first].clear()
