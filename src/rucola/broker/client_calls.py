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


class ClientCalls(Protocol):
    """Requests of a broker to its connected clients. Methods that are not coroutines wait for no response."""

    def notify_consumer_ids_changed(self, channel: ClientChannel, group: str) -> None:
        """Make a member rebalance after a change of its group."""

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        """Request the state of a half message's transaction; the producer ends it."""

    async def reset_offsets(
        self,
        members: Sequence[tuple[ClientChannel, Member]],
        request: OffsetReset,
        offsets: Mapping[MessageQueue, int],
    ) -> None:
        """Have members continue at these offsets, and commit them."""

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        """Deliver a reply; return the reason if the client did not get it, or None."""

    async def consumer_status(
        self, channel: ClientChannel, client_id: str, topic: str, group: str
    ) -> dict[MessageQueue, int] | None:
        """Return the offsets at which a client consumes the topic; None, with a warning, if it does not respond."""


class CallsByChannel:
    """Calls to the clients of all protocols: `choose` returns those for a channel."""

    def __init__(self, choose: Callable[[ClientChannel], ClientCalls]) -> None:
        self._choose = choose

    def notify_consumer_ids_changed(self, channel: ClientChannel, group: str) -> None:
        self._choose(channel).notify_consumer_ids_changed(channel, group)

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        self._choose(channel).check_transaction(channel, check)

    async def reset_offsets(
        self,
        members: Sequence[tuple[ClientChannel, Member]],
        request: OffsetReset,
        offsets: Mapping[MessageQueue, int],
    ) -> None:
        by_calls: dict[ClientCalls, list[tuple[ClientChannel, Member]]] = {}
        for member in members:
            by_calls.setdefault(self._choose(member[0]), []).append(member)
        for calls, found in by_calls.items():
            await calls.reset_offsets(found, request, offsets)

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        return await self._choose(channel).push_reply(channel, reply)

    async def consumer_status(
        self, channel: ClientChannel, client_id: str, topic: str, group: str
    ) -> dict[MessageQueue, int] | None:
        return await self._choose(channel).consumer_status(channel, client_id, topic, group)
