"""Re-driving of dead letters: each one is sent once more.

A copy of the dead letter goes to its original topic, where every group receives it, or to `%RETRY%group`, where only
this group does. The dead letter stays in its queue. Two records prevent a second copy:

    the copy     has the unique key of the dead letter, by which the topic's index finds it, and its offsetMsgId in
                 property REDRIVEN_FROM
    the offset   of group TOOLS_REDRIVE on the dead letter queue: every dead letter below it was re-driven

A run looks for a copy before it sends one, and advances the offset only past dead letters that have a copy. So an
interrupted run can be repeated, even if the response to a send was lost. A copy that fails again becomes a new dead
letter with its own id.

Concurrent runs on one queue would not see each other's copies in time. A run therefore holds the queue's lock
(LOCK_BATCH_MQ), which a broker grants to one client at a time, and renews it before it expires.

Limit: if retention deletes a copy before its dead letter, which requires brokers with different retention, the copy
proves nothing; below the offset no proof is needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.message_track import REDRIVEN_FROM
from rucola.admin.messages import MessageAdmin
from rucola.admin.queue_reader import read_queue
from rucola.admin.requests import AdminRequests
from rucola.admin.topics import TopicAdmin
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.producer.producer import Producer
from rucola.client.producer.send_request import SendResult
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message import Message, MessageExt, properties
from rucola.message.topics import retry_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.lock import LockBatchResponseBody

REDRIVE_GROUP = "TOOLS_REDRIVE"
"""Group whose offsets record what was re-driven, and producer group of the copies."""

LOCK_RENEWAL_S = 20.0
"""Seconds; brokers expire queue locks after 60."""

COMMIT_INTERVAL = 100

_PROPERTIES_OF_DELIVERY = frozenset(
    {
        properties.WAIT, properties.DELAY, properties.REAL_TOPIC, properties.REAL_QID, properties.TRAN_MSG,
        properties.PGROUP, properties.MIN_OFFSET, properties.MAX_OFFSET, properties.RECONSUME_TIME,
        properties.MAX_RECONSUME_TIMES, properties.CONSUME_START_TIME, properties.TRAN_PREPARED_QUEUE_OFFSET,
        properties.TRANSACTION_CHECK_TIMES, properties.CLUSTER,
    }
)  # fmt: skip


class RedriveStatus(Enum):
    """The outcome for one dead letter."""

    SENT = "SENT"
    WOULD_SEND = "WOULD_SEND"
    """A dry run sends nothing."""
    DONE_BEFORE = "DONE_BEFORE"
    """A copy exists already."""
    FAILED = "FAILED"
    """No copy was sent; the next run tries again."""


@dataclass(slots=True)
class RedriveResult:
    """The outcome for one dead letter."""

    message: MessageExt
    # Destination of the copy; empty if the dead letter does not name its original topic.
    topic: str
    status: RedriveStatus
    # Why it failed.
    reason: str = ""
    # Position of the copy, if it was sent now.
    sent: SendResult | None = None
    # Whether `AfterRedrive` returned True.
    is_reopened: bool = False


AfterRedrive: TypeAlias = Callable[[RedriveResult], Awaitable[bool]]
"""Called for each dead letter that has a copy, before the offset moves past it; returns whether it reopened anything.

An exception ends the run before the dead letter, so that the next run calls it again.
"""


class RedrivenCopies:
    def __init__(self, messages: MessageAdmin) -> None:
        self._messages = messages

    async def exists(self, message: MessageExt, group: str) -> bool:
        """Return whether a dead letter has a copy. Raises if in doubt: a missed copy would be sent a second time."""
        # An earlier run may have used the other destination, so both topics are searched.
        for topic in {message.properties.get(properties.RETRY_TOPIC), retry_topic(group)} - {None}:
            assert topic is not None
            try:
                result = await self._messages.query_by_unique_key(topic, message.msg_id)
            except TopicNotFound:
                continue
            if any(copy.properties.get(REDRIVEN_FROM) == message.offset_msg_id for copy in result.messages):
                return True
            for error in result.failures.values():
                raise error
            if result.is_cut:
                raise ConfigError(f"topic {topic} has too many messages with the unique key {message.msg_id}")
        return False


class RedriveLocks:
    """The queue locks of one run, held under its client id."""

    def __init__(self, requests: AdminRequests, cluster: ClusterAdmin, client_id: str) -> None:
        self._requests = requests
        self._cluster = cluster
        self._client_id = client_id
        self._queues: list[MessageQueue] = []
        self._acquired_s = 0.0  # monotonic time of the last acquisition or renewal

    async def acquire(self, queues: Sequence[MessageQueue]) -> None:
        """Acquire or renew the locks of some queues. ConfigError if another client holds one."""
        for queue in queues:
            response = await self._send(RequestCode.LOCK_BATCH_MQ, queue)
            if queue not in decode_body(LockBatchResponseBody, response).lock_ok_mq_set:
                raise ConfigError(
                    f"another run is re-driving {queue}; its lock expires a minute after it ends at most", subject=queue
                )
        self._queues += [queue for queue in queues if queue not in self._queues]
        self._acquired_s = time.monotonic()

    async def renew_if_due(self) -> None:
        """Renew all locks every LOCK_RENEWAL_S seconds. ConfigError if another client has acquired one."""
        if self._queues and time.monotonic() - self._acquired_s > LOCK_RENEWAL_S:
            await self.acquire(self._queues)

    async def release(self) -> None:
        """Release all locks. A failure is ignored, because locks expire."""
        try:
            for queue in self._queues:
                await self._send(RequestCode.UNLOCK_BATCH_MQ, queue)
        except MQError:
            pass

    async def _send(self, code: RequestCode, queue: MessageQueue) -> bytes:
        body = LockedQueues(client_id=self._client_id, consumer_group=REDRIVE_GROUP, mq_set=[queue])
        address = await self._cluster.master_address(queue.broker_name)
        response = await self._requests.invoke(address, code, body=encode_body(body))
        return response.body


class Redrive:
    """One run: its locks and rate. A dry run, without `locks`, neither sends nor commits, nor calls `after`."""

    def __init__(
        self,
        group: str,
        producer: Producer,
        topics: TopicAdmin,
        copies: RedrivenCopies,
        locks: RedriveLocks | None,
        *,
        only_group: bool,
        per_second: float | None,
        after: AfterRedrive | None,
    ) -> None:
        self._after = after
        self._group = group
        self._producer = producer
        self._topics = topics
        self._copies = copies
        self._locks = locks
        self._only_group = only_group
        self._interval_s = 1 / per_second if per_second else 0.0
        self._next_send_s = 0.0  # monotonic time from which on the next copy may be sent

    async def lock(self, queues: Sequence[MessageQueue]) -> None:
        if self._locks is not None:
            await self._locks.acquire(queues)

    async def unlock(self) -> None:
        if self._locks is not None:
            await self._locks.release()

    async def redrive_queue(
        self, consumer: PullConsumer, queue: MessageQueue, begin_ms: int | None, end_ms: int | None
    ) -> AsyncGenerator[RedriveResult, None]:
        """Re-drive a queue's dead letters stored from `begin_ms` to `end_ms`, and commit the offset."""
        offset = committed = await redrive_offset(consumer, queue)
        try:
            async for message in read_queue(consumer, queue, begin_ms=begin_ms, end_ms=end_ms):
                if message.queue_offset < offset:
                    continue
                result = await self.redrive(message)
                # The offset stays before a failed dead letter, or one outside of the times.
                if message.queue_offset == offset and result.status in (RedriveStatus.SENT, RedriveStatus.DONE_BEFORE):
                    offset += 1
                if offset - committed >= COMMIT_INTERVAL:
                    await self._commit(consumer, queue, offset)
                    committed = offset
                yield result
        finally:
            if offset > committed:
                await self._commit(consumer, queue, offset)

    async def _commit(self, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        if self._locks is not None:
            await consumer.commit(queue, offset)

    async def redrive(self, message: MessageExt) -> RedriveResult:
        """Send a copy unless there is one, and call `after`; its errors and a lost lock (ConfigError) end the run."""
        result = await self._send_copy(message)
        has_copy = result.status in (RedriveStatus.SENT, RedriveStatus.DONE_BEFORE)
        if has_copy and self._after is not None and self._locks is not None:
            result.is_reopened = await self._after(result)
        return result

    async def _send_copy(self, message: MessageExt) -> RedriveResult:
        await self._renew_locks()
        origin = message.properties.get(properties.RETRY_TOPIC)
        topic = retry_topic(self._group) if self._only_group else origin
        if topic is None:
            why = f"it has no property {properties.RETRY_TOPIC}, which names the topic it came from"
            return RedriveResult(message, "", RedriveStatus.FAILED, why)
        try:
            if await self._copies.exists(message, self._group):
                return RedriveResult(message, topic, RedriveStatus.DONE_BEFORE)
            await self._topics.route(topic)  # fails for a deleted topic, which a send would create again
        except MQError as error:
            return RedriveResult(message, topic, RedriveStatus.FAILED, str(error))
        if self._locks is None:
            return RedriveResult(message, topic, RedriveStatus.WOULD_SEND)
        await self._wait_for_rate_limit()
        try:
            sent = await self._producer.send(_copy(message, topic, keep_origin=self._only_group))
        except MQError as error:
            return RedriveResult(message, topic, RedriveStatus.FAILED, str(error))
        return RedriveResult(message, topic, RedriveStatus.SENT, sent=sent)

    async def _wait_for_rate_limit(self) -> None:
        # A low rate can take longer than the locks last: wake up to renew them.
        while (wait_s := self._next_send_s - time.monotonic()) > 0:
            await asyncio.sleep(min(wait_s, LOCK_RENEWAL_S))
            await self._renew_locks()
        self._next_send_s = time.monotonic() + self._interval_s

    async def _renew_locks(self) -> None:
        if self._locks is not None:
            await self._locks.renew_if_due()


async def redrive_offset(consumer: PullConsumer, queue: MessageQueue) -> int:
    """Return the queue offset below which every dead letter was re-driven.

    An offset beyond the end is obsolete: it was committed before the queue was deleted and created again.
    """
    committed = await consumer.committed(queue) or 0
    begin, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    return committed if begin < committed <= end else begin


def _copy(message: MessageExt, topic: str, *, keep_origin: bool) -> Message:
    excluded = _PROPERTIES_OF_DELIVERY if keep_origin else _PROPERTIES_OF_DELIVERY | {properties.RETRY_TOPIC}
    copied = {name: value for name, value in message.properties.items() if name not in excluded}
    copied[properties.UNIQ_KEY] = message.msg_id
    copied[REDRIVEN_FROM] = message.offset_msg_id
    return Message(topic, message.body, properties=copied, flag=message.flag, body_flags=message.body_flags)
