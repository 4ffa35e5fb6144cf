"""Calls from the broker to its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rucola.broker.client_registry import ClientChannel, Member
from rucola.broker.delivery.transactions import TransactionCheckRequest
from rucola.broker.services.requests import PublishRequest
from rucola.domain.queue import MessageQueue


class OffsetReset(NamedTuple):
    """A group goes to a store time in a topic, or to LATEST; with `queue_id`, to `offset` in that queue alone."""

    topic: str
    group: str
    timestamp: int
    """Milliseconds since 1970, or LATEST."""
    is_force: bool = False
    """Whether offsets may move forward, too."""
    queue_id: int | None = None
    offset: int | None = None


class PushedReply(NamedTuple):
    """A reply as its sender published it, with the properties that the requester gets."""

    request: PublishRequest
    properties: bytes
    born_host: bytes
    store_host: bytes
    store_timestamp: int


class ConsumerCalls(Protocol):
    """Requests of a broker to the members of consumer groups, which are clients of remoting.

    Methods that are not coroutines wait for no response.
    """

    def notify_consumer_ids_changed(self, channel: ClientChannel, group: str) -> None:
        """Make a member rebalance after a change of its group."""

    async def reset_offsets(
        self,
        members: Sequence[tuple[ClientChannel, Member]],
        request: OffsetReset,
        offsets: Mapping[MessageQueue, int],
    ) -> None:
        """Have members continue at these offsets, and commit them."""

    async def consumer_status(
        self, channel: ClientChannel, client_id: str, topic: str, group: str
    ) -> dict[MessageQueue, int] | None:
        """Return the offsets at which a client consumes the topic; None, with a warning, if it does not respond."""


class ProducerCalls(Protocol):
    """Requests of a broker to producers, which are clients of either protocol."""

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        """Request the state of a half message's transaction; the producer ends it."""

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        """Deliver a reply; return the reason if the client did not get it, or None."""


class ProducerCallsByChannel:
    """Calls to the producers of all protocols: `choose` returns those for a channel."""

    def __init__(self, choose: Callable[[ClientChannel], ProducerCalls]) -> None:
        self._choose = choose

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        self._choose(channel).check_transaction(channel, check)

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        return await self._choose(channel).push_reply(channel, reply)
