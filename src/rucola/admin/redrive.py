"""Re-driving of dead letters: each one is sent once more.

A copy of the dead letter goes to its original topic, where every group receives it, or to `%RETRY%group`, where only
this group does. The dead letter stays in its queue. Three records prevent a second copy:

    the copy     has the unique key of the dead letter, by which the topic's index finds it, and its offsetMsgId in
                 property REDRIVEN_FROM
    the ledger   topic TOOLS_REDRIVE: before a broker gets the copies of a batch, it gets a message with the queue
                 offsets of their dead letters. Both are in one log, so that no copy outlives its note in a crash, a
                 failover or by retention
    the offset   of group TOOLS_REDRIVE on the dead letter queue: every dead letter below it was re-driven

A run sends the dead letters that are in no note at once, looks for copies of the others first, and advances the offset
only past dead letters that have a copy. So an interrupted run can be repeated, even if the response to a send was lost.
A copy that fails again becomes a new dead letter with its own id.

Concurrent runs on one queue would not see each other's copies in time. A run therefore holds the queue's lock
(LOCK_BATCH_MQ), which a broker grants to one client at a time, and renews it before it expires.

Limit: if retention deletes a copy or its note before the dead letter, which requires brokers with different retention,
the copy proves nothing; below the offset no proof is needed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import count
from operator import itemgetter
from types import TracebackType
from typing import Self, TypeAlias

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.message_track import REDRIVEN_FROM
from rucola.admin.messages import MessageAdmin
from rucola.admin.queue_reader import batches, read_queue
from rucola.admin.requests import AdminRequests, gather_fail_fast
from rucola.admin.topics import TopicAdmin
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.producer.ordered_sender import OrderedSender
from rucola.client.producer.producer import Producer
from rucola.client.producer.send_request import SendResult
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.domain.topic import TopicConfig
from rucola.errors import ConfigError, InvalidMessage, MQError, TopicNotFound
from rucola.message import Message, MessageExt, properties
from rucola.message.topics import retry_topic
from rucola.protocol.body import Body, decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.lock import LockBatchResponseBody

REDRIVE_GROUP = "TOOLS_REDRIVE"
"""Group whose offsets record what was re-driven, producer group of the copies, and topic of the ledger."""

LOCK_RENEWAL_S = 20.0
"""Seconds; brokers expire queue locks after 60."""

ROUTE_WAIT_S = 30.0
ROUTE_POLL_S = 0.1
"""Brokers register a new topic at once, and what a name server has missed every 30 seconds."""

BATCH_COUNT = 128
BATCH_SIZE = 1 << 20
"""Dead letters, and bytes of their bodies, that are sent before the results of the first are returned."""

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

    @property
    def has_copy(self) -> bool:
        return self.status in (RedriveStatus.SENT, RedriveStatus.DONE_BEFORE)


AfterRedrive: TypeAlias = Callable[[RedriveResult], Awaitable[bool]]
"""Called for each dead letter that has a copy, before the offset moves past it; returns whether it reopened anything.

An exception ends the run before the dead letter, so that the next run calls it again.
"""


class LedgerNote(Body, kw_only=True):
    """The dead letters of a queue from `begin` to `end` - 1 may have copies. All queues with this id are meant."""

    group: str
    queue_id: int
    begin: int
    end: int


class RedriveLedger:
    def __init__(self, cluster: ClusterAdmin, topics: TopicAdmin) -> None:
        self._cluster = cluster
        self._topics = topics

    async def read(self, consumer: PullConsumer, group: str) -> dict[int, list[range]]:
        """Return the noted dead letters of a group, as disjoint ranges of queue offsets by queue id."""
        try:
            queues = await consumer.queues(REDRIVE_GROUP)
        except TopicNotFound:
            return {}
        messages = [message for queue in queues async for message in read_queue(consumer, queue)]
        notes = (decode_body(LedgerNote, message.body) for message in messages)
        noted: dict[int, list[range]] = {}
        for note in sorted((note for note in notes if note.group == group), key=lambda note: note.begin):
            ranges = noted.setdefault(note.queue_id, [])
            before = ranges.pop() if ranges and ranges[-1].stop >= note.begin else range(note.begin, note.begin)
            ranges.append(range(before.start, max(before.stop, note.end)))
        return noted

    async def note(self, producer: Producer, broker_name: str, group: str, letters: Iterable[MessageExt]) -> None:
        """Note at a broker that it may have copies of dead letters from now on."""
        await self._create_topic(broker_name)
        offsets: dict[int, list[int]] = {}
        for letter in letters:
            offsets.setdefault(letter.queue_id, []).append(letter.queue_offset)
        for queue_id, of_queue in offsets.items():
            note = LedgerNote(group=group, queue_id=queue_id, begin=min(of_queue), end=max(of_queue) + 1)
            await producer.send(Message(REDRIVE_GROUP, encode_body(note)), MessageQueue(REDRIVE_GROUP, broker_name, 0))

    async def _create_topic(self, broker_name: str) -> None:
        """Create the topic unless it exists, and wait until its route names the broker: a run reads what it names."""
        config = TopicConfig(topic_name=REDRIVE_GROUP, read_queue_nums=1, write_queue_nums=1)
        deadline_s = time.monotonic() + ROUTE_WAIT_S
        while True:
            try:
                route = await self._topics.route(REDRIVE_GROUP)
                if any(data.broker_name == broker_name for data in route.queue_datas):
                    return
            except TopicNotFound:
                pass
            if time.monotonic() > deadline_s:
                raise ConfigError(f"no name server has topic {REDRIVE_GROUP} of broker {broker_name}")
            await self._topics.create_or_update(await self._cluster.master_address(broker_name), config)
            await asyncio.sleep(ROUTE_POLL_S)


class RedrivenCopies:
    def __init__(self, messages: MessageAdmin, group: str, noted: Mapping[int, Sequence[range]]) -> None:
        self._messages = messages
        self._group = group
        self._noted = noted

    async def exists(self, letter: MessageExt) -> bool:
        """Return whether a dead letter has a copy. Raises if in doubt: a missed copy would be sent a second time."""
        if not any(letter.queue_offset in offsets for offsets in self._noted.get(letter.queue_id, ())):
            return False
        # An earlier run may have used the other destination, so both topics are searched.
        for topic in {letter.properties.get(properties.RETRY_TOPIC), retry_topic(self._group)} - {None}:
            assert topic is not None
            try:
                result = await self._messages.query_by_unique_key(topic, letter.msg_id)
            except TopicNotFound:
                continue
            if any(copy.properties.get(REDRIVEN_FROM) == letter.offset_msg_id for copy in result.messages):
                return True
            for error in result.failures.values():
                raise error
            if result.is_cut:
                raise ConfigError(f"topic {topic} has too many messages with the unique key {letter.msg_id}")
        return False


class RedriveLocks:
    """The queue locks of one run, held under its client id; the end of the context releases them."""

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(MQError):  # locks expire
            for queue in self._queues:
                await self._send(RequestCode.UNLOCK_BATCH_MQ, queue)

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
        ledger: RedriveLedger,
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
        # Without retries, so that no copy is stored twice: only the messages of a refused batch are sent alone.
        self._sender = OrderedSender(producer, timeout_ms=0)
        self._topics = topics
        self._ledger = ledger
        self._copies = copies
        self._locks = locks
        self._only_group = only_group
        self._interval_s = 1 / per_second if per_second else 0.0
        self._batch_count = max(1, min(BATCH_COUNT, int(per_second / 100))) if per_second else BATCH_COUNT
        self._next_send_s = 0.0  # monotonic time from which on the next copy may be sent
        self._turns = count(random.randrange(1 << 16))  # noqa: S311 - spreads load

    async def redrive_queue(
        self, consumer: PullConsumer, queue: MessageQueue, begin_ms: int | None, end_ms: int | None
    ) -> AsyncGenerator[RedriveResult, None]:
        """Re-drive a queue's dead letters stored from `begin_ms` to `end_ms`, and commit the offset."""
        offset = committed = await redrive_offset(consumer, queue)
        letters = read_queue(consumer, queue, begin_ms=begin_ms, end_ms=end_ms, begin_offset=offset)
        try:
            async for batch in batches(letters, self._batch_count, BATCH_SIZE):
                done = set[int]()
                async with aclosing(self.redrive(batch)) as results:
                    async for result in results:
                        # The offset stays before a failed dead letter, or one outside of the times.
                        if result.has_copy:
                            done.add(result.message.queue_offset)
                        while offset in done:
                            offset += 1
                        yield result
                if offset > committed:
                    await self._commit(consumer, queue, offset)
                    committed = offset
        finally:
            if offset > committed:
                await self._commit(consumer, queue, offset)

    async def _commit(self, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        if self._locks is not None:
            await consumer.commit(queue, offset)

    async def redrive(self, letters: Sequence[MessageExt]) -> AsyncGenerator[RedriveResult, None]:
        """Send copies unless there are some, and call `after`; its errors and a lost lock (ConfigError) end the run."""
        await self._renew_locks()
        results = await gather_fail_fast(map(self._look_for_copy, letters))
        to_send: dict[str, list[RedriveResult]] = {}
        for result in results:
            if result.status is RedriveStatus.WOULD_SEND:
                to_send.setdefault(result.topic, []).append(result)
        for topic, of_topic in to_send.items():
            await self._send(topic, of_topic)
        for result in results:
            if result.has_copy and self._after is not None and self._locks is not None:
                result.is_reopened = await self._after(result)
            yield result

    async def _look_for_copy(self, letter: MessageExt) -> RedriveResult:
        topic = retry_topic(self._group) if self._only_group else letter.properties.get(properties.RETRY_TOPIC)
        if topic is None:
            why = f"it has no property {properties.RETRY_TOPIC}, which names the topic it came from"
            return RedriveResult(letter, "", RedriveStatus.FAILED, why)
        try:
            has_copy = await self._copies.exists(letter)
        except MQError as error:
            return RedriveResult(letter, topic, RedriveStatus.FAILED, str(error))
        return RedriveResult(letter, topic, RedriveStatus.DONE_BEFORE if has_copy else RedriveStatus.WOULD_SEND)

    async def _send(self, topic: str, results: Sequence[RedriveResult]) -> None:
        copies: list[tuple[RedriveResult, Message]] = []
        for result in results:
            try:
                copies.append((result, self._copy(result)))
            except InvalidMessage as error:
                _fail([result], error)
        try:
            await self._topics.route(topic)  # fails for a deleted topic, which a send would create again
            if self._locks is None:
                return
            queue = await self._noted_queue(topic, [result.message for result, _ in copies])
        except MQError as error:
            _fail(results, error)
            return
        await self._wait_for_rate_limit(len(copies))
        # A retry topic rejects batches, and its messages have no order.
        parts = [[copy] for copy in copies] if self._only_group else [copies]
        await gather_fail_fast(self._send_copies(part, queue) for part in parts)

    async def _send_copies(self, copies: Sequence[tuple[RedriveResult, Message]], queue: MessageQueue) -> None:
        async with aclosing(self._sender.send(copies, itemgetter(1), queue)) as requests:
            async for request, found in requests:
                if isinstance(found, MQError):
                    _fail([result for result, _ in request], found)
                else:
                    for (result, _), sent in zip(request, found, strict=True):
                        result.status, result.sent = RedriveStatus.SENT, sent
                await self._renew_locks()

    async def _noted_queue(self, topic: str, letters: Sequence[MessageExt]) -> MessageQueue:
        """Note the dead letters at the broker whose turn it is, or the next one that responds; return a queue of it."""
        queues = await self._producer.queues(topic)
        failures: dict[str, MQError] = {}
        for _ in queues:
            queue = queues[next(self._turns) % len(queues)]
            if queue.broker_name not in failures:
                try:
                    await self._ledger.note(self._producer, queue.broker_name, self._group, letters)
                    return queue
                except MQError as error:
                    failures[queue.broker_name] = error
        for failure in failures.values():
            raise failure
        raise ConfigError(f"topic {topic} has no queue that accepts messages", subject=topic)

    async def _wait_for_rate_limit(self, number: int) -> None:
        # A low rate can take longer than the locks last: wake up to renew them.
        while (wait_s := self._next_send_s - time.monotonic()) > 0:
            await asyncio.sleep(min(wait_s, LOCK_RENEWAL_S))
            await self._renew_locks()
        self._next_send_s = time.monotonic() + number * self._interval_s

    async def _renew_locks(self) -> None:
        if self._locks is not None:
            await self._locks.renew_if_due()

    def _copy(self, result: RedriveResult) -> Message:
        letter = result.message
        excluded = _PROPERTIES_OF_DELIVERY | ({properties.RETRY_TOPIC} if not self._only_group else set())
        copied = {name: value for name, value in letter.properties.items() if name not in excluded}
        copied[properties.UNIQ_KEY] = letter.msg_id
        copied[REDRIVEN_FROM] = letter.offset_msg_id
        return Message(result.topic, letter.body, properties=copied, flag=letter.flag, body_flags=letter.body_flags)


def _fail(results: Sequence[RedriveResult], error: MQError) -> None:
    for result in results:
        result.status, result.reason = RedriveStatus.FAILED, str(error)


async def redrive_offset(consumer: PullConsumer, queue: MessageQueue) -> int:
    """Return the queue offset below which every dead letter was re-driven.

    An offset beyond the end is obsolete: it was committed before the queue was deleted and created again.
    """
    committed = await consumer.committed(queue) or 0
    begin, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    return committed if begin < committed <= end else begin
