"""Internal puts: records that the broker itself writes, most of them for an acknowledged message.

Limits (maxMessageSize, permissions, topics) apply only when a message is admitted. A failed internal put is retried,
and the state that depends on it does not advance:

    kind of put                           after a failure
    delay level n                         the offset of the level stays; retried with backoff
    timer message                         deliveredMs stays; retried with backoff
    delay, timer and transaction roll     the log file stays; retried in the next round of retention
    POP revival                           the message stays outstanding; retried after FIRST_RETRY_MS
    POP log                               the response is an error, and no state changes
    retry (and dead letter)               the response is an error; the consumer keeps the message and retries
    commit                                the transaction stays open; the next check asks the producer again
    op message                            after a commit: remembered, and retried by the next end or check
    transaction check                     the check ends; retried by the next one (transactionCheckInterval)
    transaction resume                    the response is an error; the operator tries again
    reply, offset moved event             buffered in memory, up to MAX_BUFFERED messages; retried with backoff

The kind labels log lines and the metric rocketmq_internal_put_failures_total. A failure is logged once per kind and
status until a put of that kind succeeds.
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

MAX_BUFFERED = 1024
MAX_BUFFERED_BYTES = 16 << 20
"""Bounds of the buffer of `put_or_buffer`: messages, and bytes of their bodies."""

_REASONS = {
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: "the disk is full",
    PutMessageStatus.MESSAGE_ILLEGAL: "it does not fit a record, or the record does not fit a file of the CommitLog",
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: "its properties do not fit a record",
}


@dataclass(slots=True)
class Backoff:
    """Exponential backoff of a put, from FIRST_RETRY_MS to LAST_RETRY_MS."""

    _wait_ms: int = 0
    _until_ms: int = 0

    def failed(self, now_ms: int) -> int:
        """Double the wait after a failure; return the time of the next attempt."""
        # 1, 2, 4, 8, 16, 30, 30 … seconds.
        self._wait_ms = min(max(2 * self._wait_ms, FIRST_RETRY_MS), LAST_RETRY_MS)
        self._until_ms = now_ms + self._wait_ms
        return self._until_ms

    def succeeded(self) -> None:
        self._wait_ms = self._until_ms = 0

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time of the next attempt; None if it is due, or if the clock was set back."""
        return self._until_ms if 0 < self._until_ms - now_ms <= LAST_RETRY_MS else None


class InternalPuts:
    """Internal puts of one store. `on_buffered` receives the time at which `put_buffered` must be called next."""

    def __init__(self, store: MessageStore, on_buffered: Callable[[int], None] = lambda due_ms: None) -> None:
        self.failures: Counter[str] = Counter()
        """Failed attempts since the start, by kind."""
        self._store = store
        self._on_buffered = on_buffered
        self._failing: dict[str, set[PutMessageStatus]] = {}
        self._buffer: deque[tuple[str, MessageInner]] = deque()
        """Kind and message, oldest first."""
        self._buffered_bytes = 0
        self._has_overflowed = False
        self._backoff = Backoff()

    def put(self, kind: str, message: MessageInner, now_ms: int, *, is_roll: bool = False) -> PutResult:
        """Put a message; log and count a failure, which the caller retries. `is_roll` puts even if the disk is full."""
        result = self._store.put(message, now_ms, frees_space=is_roll)
        if result.status is PutMessageStatus.PUT_OK:
            if kind in self._failing:
                logger.warning("%s: puts succeed again", kind)
                del self._failing[kind]
        else:
            self._failed(kind, result, message.unique_key or "without a unique key", message.topic, self.reason(result))
        return result

    def put_again(self, kind: str, message: MessageExt, now_ms: int, *, is_roll: bool = False) -> PutResult:
        """Put a stored message again, possibly with another queue or other properties; see `put`."""
        try:
            inner = renewed(message)
        except InvalidMessage as error:
            result = PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
            self._failed(kind, result, message.msg_id, message.topic, str(error))
            return result
        return self.put(kind, inner, now_ms, is_roll=is_roll)

    def reason(self, result: PutResult) -> str:
        return self._store.write_state.reason or _REASONS.get(result.status, result.status.name)

    def put_or_buffer(self, kind: str, message: MessageInner, now_ms: int) -> PutResult:
        """Put a message, or buffer it in memory in order: for messages that cannot be recovered from the store."""
        # While messages are buffered, new ones are queued without an attempt: the order is kept, and a
        # full disk costs one attempt per backoff instead of one per message.
        result = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        if not self._buffer and (result := self.put(kind, message, now_ms)).status is PutMessageStatus.PUT_OK:
            return result
        size = len(message.body)
        if len(self._buffer) >= MAX_BUFFERED or self._buffered_bytes + size > MAX_BUFFERED_BYTES:
            # A lost message counts as a failed attempt, and is logged once until the buffer is empty again.
            self.failures[kind] += 1
            if not self._has_overflowed:
                logger.error("%s: the buffer of messages that cannot be put is full; further messages are lost", kind)
            self._has_overflowed = True
            return result
        if not self._buffer:
            self._on_buffered(self._backoff.failed(now_ms))
        self._buffer.append((kind, message))
        self._buffered_bytes += size
        return result

    def put_buffered(self, now_ms: int) -> int | None:
        """Put buffered messages in order; return the time of the next attempt in ms, None if the buffer is empty."""
        if (due_ms := self._backoff.next_ms(now_ms)) is not None:
            return due_ms
        while self._buffer:
            kind, message = self._buffer[0]
            if self.put(kind, message, now_ms).status is not PutMessageStatus.PUT_OK:
                return self._backoff.failed(now_ms)
            self._buffer.popleft()
            self._buffered_bytes -= len(message.body)
        self._backoff.succeeded()
        self._has_overflowed = False
        return None

    def close(self, now_ms: int) -> None:
        """Put buffered messages for the last time; log those that are lost."""
        # Without the reset, a pending backoff would skip the last attempt.
        self._backoff.succeeded()
        self.put_buffered(now_ms)
        if self._buffer:
            lost = Counter(kind for kind, _ in self._buffer)
            logger.error("buffered messages lost at the stop, as they could not be put: %s", dict(lost))

    def _failed(self, kind: str, result: PutResult, msg_id: str, topic: str, reason: str) -> None:
        self.failures[kind] += 1
        logged = self._failing.setdefault(kind, set())
        # A full disk fails every put for hours: one line per kind and status is enough.
        if result.status not in logged:
            logged.add(result.status)
            logger.error("%s: put of message %s for %s failed and is retried: %s", kind, msg_id, topic, reason)
