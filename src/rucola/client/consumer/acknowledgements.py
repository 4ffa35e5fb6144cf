"""Acknowledgements: the requests by which a POP consumer ends its hold on messages, repeated until a broker answers.

Nothing is repeated beyond the invisible time of its message.

Acknowledgements to a broker that come within LINGER_MS, or while a request is sent, are sent together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.pop_requests import MAX_ACKED, Held, PopRequests
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, MQError
from rucola.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

LINGER_MS = 10
"""How long acknowledgements wait for others, unless in order."""
PAUSE_MS = 1000
"""The pause after a failure."""


class Acknowledgements:
    """The acknowledgements of one consumer, in place of its offset store. Belongs to one event loop."""

    commits_with_pulls = False

    def __init__(self, context: ConsumerContext, requests: PopRequests) -> None:
        self._context = context
        self._requests = requests
        self._outages = context.instance.outages
        self._pending: dict[str, dict[Held, None]] = {}
        """By broker, those of whose messages some are to be acknowledged, in order."""
        self._sending: set[str] = set()
        """Brokers with a task that acknowledges."""
        self._suspended: list[tuple[Held, int]] = []
        """Messages that were not delivered, to be given back."""

    async def open(self) -> None:
        for broker in list(self._pending):
            self._drop(broker, list(self._pending[broker]))

    async def read(self, queue: MessageQueue) -> int | None:
        return 0  # the broker's POP state has the offset of the group

    def add(self, held: Held, queue_offset: int) -> None:
        """Acknowledge a message soon."""
        held.queue_offsets.append(queue_offset)
        if len(held.queue_offsets) > 1:
            return  # it is pending
        broker = held.handle.broker_name
        if (pending := self._pending.get(broker)) is None:
            pending = self._pending[broker] = {}
        pending[held] = None
        if broker not in self._sending:
            self._sending.add(broker)
            name = f"acknowledgements of {self._context.group} at {broker}"
            self._context.background.start(self._acknowledge_all(broker), name)

    def change_invisible(self, held: Held, queue_offset: int, invisible_ms: int, *, suspend: bool = False) -> None:
        """Let others receive a message after `invisible_ms`."""
        name = f"retry of {held.topic} by {self._context.group}"
        self._context.background.start(self._change_invisible(held, queue_offset, invisible_ms, suspend), name)

    def give_back(self, messages: Iterable[tuple[Held, int]]) -> None:
        """Let others receive messages that were not delivered, with the next commit."""
        self._suspended += messages

    async def commit(self, *queues: AssignedQueue) -> None:
        """Send the rest: messages that are given back and, when the consumer closes, the last acknowledgements."""
        suspended, self._suspended = self._suspended, []
        await asyncio.gather(
            *(self._change_once(held, offset, 0, suspend=True) for held, offset in suspended),
            # Without a task that sends them, some are pending only after a cancellation.
            *(
                self._acknowledge_once(broker)
                for broker, pending in list(self._pending.items())
                if pending and broker not in self._sending
            ),
        )

    async def _acknowledge_all(self, broker: str) -> None:
        try:
            while self._pending.get(broker):
                if not self._context.options.orderly:  # which would delay the next messages of a message group
                    await asyncio.sleep(LINGER_MS / 1000)
                if not await self._acknowledge_once(broker):
                    await asyncio.sleep(PAUSE_MS / 1000)
                    self._drop_visible(broker)
        finally:
            self._sending.discard(broker)

    async def _acknowledge_once(self, broker: str) -> bool:
        """Send the acknowledgements that are pending now; return whether the broker answered."""
        pending = self._pending.get(broker, {})
        for batch in list(_batches(pending)):
            purpose = f"group {self._context.group}: acknowledgement of messages at {broker}"
            try:
                await self._requests.ack(broker, batch)
            except MQError as error:
                if not _is_stale(error):
                    self._outages.failed(broker, purpose, error)
                    return False
                logger.info("group %s: some messages were acknowledged too late: %s", self._context.group, error)
            self._outages.succeeded(broker, purpose)
            for held, offsets in batch.items():
                del held.queue_offsets[: len(offsets)]
                if not held.queue_offsets:
                    pending.pop(held, None)  # unless it was dropped
        return True

    def _drop_visible(self, broker: str) -> None:
        pending, now_ms = self._pending[broker], precise_monotonic_ms()
        visible = [held for held in pending if held.until_ms <= now_ms]
        if count := self._drop(broker, visible):
            logger.warning(
                "group %s: %d messages of broker %s could not be acknowledged in time and are delivered again",
                self._context.group, count, broker,
            )  # fmt: skip

    def _drop(self, broker: str, dropped: Iterable[Held]) -> int:
        """Acknowledge none of these messages; return how many they are."""
        count = 0
        for held in dropped:
            count += len(held.queue_offsets)
            held.queue_offsets.clear()
            del self._pending[broker][held]
        return count

    async def _change_invisible(self, held: Held, queue_offset: int, invisible_ms: int, suspend: bool) -> None:
        while precise_monotonic_ms() < held.until_ms:
            if await self._change_once(held, queue_offset, invisible_ms, suspend=suspend):
                break
            await asyncio.sleep(PAUSE_MS / 1000)

    async def _change_once(self, held: Held, queue_offset: int, invisible_ms: int, *, suspend: bool) -> bool:
        """Return whether the broker answered."""
        broker = held.handle.broker_name
        purpose = f"group {self._context.group}: change of the invisible time at {broker}"
        try:
            await self._requests.change_invisible(held, queue_offset, invisible_ms, suspend=suspend)
        except MQError as error:
            if not _is_stale(error):
                self._outages.failed(broker, purpose, error)
                return False
        self._outages.succeeded(broker, purpose)
        return True


def _batches(pending: Iterable[Held]) -> Iterator[dict[Held, list[int]]]:
    """Yield the messages that are to be acknowledged, up to MAX_ACKED at a time."""
    batch, room = dict[Held, list[int]](), MAX_ACKED
    for held in pending:
        offsets = held.queue_offsets
        while len(offsets) > room:
            yield batch | {held: offsets[:room]}
            offsets, batch, room = offsets[room:], {}, MAX_ACKED
        batch[held] = offsets[:]
        room -= len(offsets)
    if batch:
        yield batch


def _is_stale(error: MQError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_MESSAGE
