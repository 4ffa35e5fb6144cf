"""Internal puts: records that the broker writes on its own account, most of them for an acknowledged message.

Limits (maxMessageSize, permissions, topics) apply when a message is admitted, never again: once it is acknowledged, the
broker has to carry it on. So an internal put that fails is retried, and whatever it belongs to does not move on:

    put                                   after a failure
    delay level n                         the offset of the level stays; retried with backoff
    timer message                         deliveredMs stays; retried with backoff
    timer roll                            rolledOffset stays, and so does the file of the log; next round of retention
    retry (and dead letter)               the response is an error; the consumer keeps the message and tries again
    commit                                the transaction stays open; the next check asks the producer again
    op message                            after a commit kept in memory, and retried by the next end or check
    transaction check                     the check ends there; retried by the next one (transactionCheckInterval)
    reply, offset moved event             kept in memory, up to MAX_BUFFERED messages; retried with backoff

The left column has the kinds under which failures are logged, once for each status until a put of that kind succeeds,
and counted in the metric rocketmq_internal_put_failures_total.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.stored_message import renewed
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

FIRST_RETRY_MS = 1000
LAST_RETRY_MS = 30_000
"""Shortest and longest time between two attempts of a put; each wait is twice the one before."""

MAX_BUFFERED = 1024
MAX_BUFFERED_BYTES = 16 << 20
"""Most messages, and most bytes of their bodies, that are kept in memory until they can be put."""

_REASONS = {
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: "the disk has no room for it",
    PutMessageStatus.MESSAGE_ILLEGAL: "it does not fit a record, or the record does not fit a file of the CommitLog",
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: "its properties do not fit a record",
}


@dataclass(slots=True)
class Backoff:
    """When a put that failed is attempted again."""

    _wait_ms: int = 0
    _until_ms: int = 0

    def failed(self, now_ms: int) -> int:
        """Note a failure and return the time of the next attempt, milliseconds."""
        self._wait_ms = min(max(2 * self._wait_ms, FIRST_RETRY_MS), LAST_RETRY_MS)
        self._until_ms = now_ms + self._wait_ms
        return self._until_ms

    def succeeded(self) -> None:
        """Let the next failure wait for the shortest time again."""
        self._wait_ms = self._until_ms = 0

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time of the next attempt, or None if that is now. A clock that was set back ends the wait."""
        return self._until_ms if 0 < self._until_ms - now_ms <= LAST_RETRY_MS else None


class InternalPuts:
    """The internal puts of one store. `on_buffered` is called with the time at which `put_buffered` is to be called
    next."""

    def __init__(self, store: MessageStore, on_buffered: Callable[[int], None] = lambda due_ms: None) -> None:
        self.failures: Counter[str] = Counter()
        """Failed attempts since the start, by kind."""
        self._store = store
        self._on_buffered = on_buffered
        self._failing: dict[str, set[PutMessageStatus]] = {}
        """What was logged of each kind since a put of it last succeeded."""
        self._kept: deque[tuple[str, MessageInner]] = deque()
        self._kept_bytes = 0
        self._has_overflown = False
        self._backoff = Backoff()

    def put(self, kind: str, message: MessageInner, now_ms: int) -> PutResult:
        """Put a message. A failure is logged and counted; the caller retries."""
        result = self._store.put(message, now_ms)
        if result.status is PutMessageStatus.PUT_OK:
            if kind in self._failing:
                logger.warning("%s: puts succeed again", kind)
                del self._failing[kind]
        else:
            self._failed(kind, result, message.unique_key or "without a unique key", message.topic, self.reason(result))
        return result

    def put_again(self, kind: str, message: MessageExt, now_ms: int) -> PutResult:
        """Put a stored message again, which may have been changed; see `put`."""
        try:
            inner = renewed(message)
        except InvalidMessage as error:
            result = PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
            self._failed(kind, result, message.msg_id, message.topic, str(error))
            return result
        return self.put(kind, inner, now_ms)

    def reason(self, result: PutResult) -> str:
        """Return why a put failed."""
        return self._store.refuses_writes or _REASONS.get(result.status, result.status.name)

    def put_or_buffer(self, kind: str, message: MessageInner, now_ms: int) -> PutResult:
        """Put a message, or keep it in memory until it can be put. Messages keep their order.

        For records that no queue or file leads back to. Kept messages are bounded, and lost if the broker ends first;
        both are logged.
        """
        result = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        if not self._kept and (result := self.put(kind, message, now_ms)).status is PutMessageStatus.PUT_OK:
            return result
        size = len(message.body)
        if len(self._kept) >= MAX_BUFFERED or self._kept_bytes + size > MAX_BUFFERED_BYTES:
            self.failures[kind] += 1
            if not self._has_overflown:
                logger.error("%s: too many messages wait until they can be put; more of them are lost", kind)
            self._has_overflown = True
            return result
        if not self._kept:
            self._on_buffered(self._backoff.failed(now_ms))
        self._kept.append((kind, message))
        self._kept_bytes += size
        return result

    def put_buffered(self, now_ms: int) -> int | None:
        """Put what was kept, and return the time of the next attempt; None if nothing is kept any more."""
        if (due_ms := self._backoff.next_ms(now_ms)) is not None:
            return due_ms
        while self._kept:
            kind, message = self._kept[0]
            if self.put(kind, message, now_ms).status is not PutMessageStatus.PUT_OK:
                return self._backoff.failed(now_ms)
            self._kept.popleft()
            self._kept_bytes -= len(message.body)
        self._backoff.succeeded()
        self._has_overflown = False
        return None

    def close(self, now_ms: int) -> None:
        """Put what was kept, one last time; what cannot be put is lost, and logged."""
        self._backoff.succeeded()
        self.put_buffered(now_ms)
        if self._kept:
            lost = Counter(kind for kind, _ in self._kept)
            logger.error("lost, as they could not be put before the end: %s", dict(lost))

    def _failed(self, kind: str, result: PutResult, msg_id: str, topic: str, reason: str) -> None:
        self.failures[kind] += 1
        logged = self._failing.setdefault(kind, set())
        if result.status not in logged:
            logged.add(result.status)
            logger.error("%s: message %s for %s cannot be put and is retried: %s", kind, msg_id, topic, reason)
