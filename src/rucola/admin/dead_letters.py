"""DeadLetterAdmin: what groups have given up, and sending it again.

A message that a group failed on too often lies in `%DLQ%group`, with the topic it came from in its property
RETRY_TOPIC. To re-drive it is to send a copy to that topic, where every group gets it, or to `%RETRY%group`, where only
this group does. The dead letter stays where it is. What tells that it was re-driven is

    the copy     has a property REDRIVEN_FROM with the offsetMsgId of the dead letter, and its unique key, by which it
                 is found in the index of the topic it went to
    the offset   of group TOOLS_REDRIVE on the DLQ: everything below was re-driven, and is not looked at again

A dead letter is looked for among the copies before it is sent, and the offset only passes what has a copy. So after a
run that was broken off at any point the next goes on where it was: what was sent is not sent again, though its answer
was lost, and what failed is tried again. A copy that fails once more becomes a dead letter of its own, with
an id of its own.

Two runs on one queue would not see each other's copies in time. So a run holds the queue's lock (LOCK_BATCH_MQ), which
a broker gives to one client at a time, and asks for it again before it expires.

Limits: a copy that has left the log of its broker before the dead letter left its own, which takes brokers with other
retention, proves nothing any more; below the offset nothing needs proof. Apache has no such command; its dashboard
sends dead letters again without a memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from rucola.admin.messages import REDRIVEN_FROM, MessageAdmin
from rucola.admin.queue_reader import TOOLS_GROUP, chunks, read_queue
from rucola.admin.requests import each, masters_of
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.producer.producer import Producer
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message import Message, MessageExt, properties
from rucola.message.topics import DLQ_PREFIX, dlq_topic, retry_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.protocol.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.offset import EarliestStoreTimeResponseHeader, QueueRequestHeader
from rucola.protocol.queue import MessageQueue

REDRIVE_GROUP = "TOOLS_REDRIVE"
"""The group whose offset on a dead letter queue tells how far it was re-driven, and in whose name copies are sent."""

LOCK_RENEWAL_S = 20.0
"""How often the lock of a queue is asked for again; brokers keep it for a minute."""

COMMIT_INTERVAL = 100
"""After how many dead letters the offset is committed, and at the end."""

ASKED_AT_A_TIME = 64
"""For how many dead letters copies are looked for at the same time, when they are only shown."""

_OF_THE_FIRST_LIFE = frozenset(
    {
        properties.WAIT, properties.DELAY, properties.REAL_TOPIC, properties.REAL_QID, properties.TRAN_MSG,
        properties.PGROUP, properties.MIN_OFFSET, properties.MAX_OFFSET, properties.RECONSUME_TIME,
        properties.MAX_RECONSUME_TIMES, properties.CONSUME_START_TIME, properties.TRAN_PREPARED_QUEUE_OFFSET,
        properties.TRANSACTION_CHECK_TIMES, properties.CLUSTER,
    }
)  # fmt: skip
"""Properties that spoke of the earlier deliveries, and are not copied."""


@dataclass(slots=True)
class DeadLetterStats:
    """A group's dead letters: how many there are, how many are beyond the offset up to which all were re-driven, and
    the store times of the oldest and the newest, in milliseconds; 0 without any."""

    consumer_group: str
    count: int
    waiting: int
    oldest_ms: int
    newest_ms: int


@dataclass(slots=True)
class DeadLetter:
    """A dead letter, the topic it came from where it says, and whether it was re-driven."""

    message: MessageExt
    origin_topic: str | None
    is_redriven: bool


class RedriveStatus(Enum):
    """What came of a dead letter."""

    SENT = "SENT"
    WOULD_SEND = "WOULD_SEND"
    """A dry run sends nothing."""
    DONE_BEFORE = "DONE_BEFORE"
    FAILED = "FAILED"
    """It stays, and the next run tries it again."""


@dataclass(slots=True)
class RedriveResult:
    """What came of one dead letter; `topic` is where its copy goes, `reason` why it failed."""

    message: MessageExt
    topic: str
    status: RedriveStatus
    reason: str = ""


class DeadLetterAdmin(MessageAdmin):
    """Part of AdminClient."""

    async def fetch_dead_letter_groups(self) -> list[str]:
        """The groups that have a dead letter topic, sorted."""
        topics = await self.fetch_all_topic_list()
        return sorted(topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX))

    async def examine_dead_letters(self, group: str) -> DeadLetterStats:
        """How many dead letters a group has, and how old they are. TopicNotFound where it never had any."""
        topic = dlq_topic(group)
        stats = DeadLetterStats(group, 0, 0, 0, 0)
        oldest = []
        async with PullConsumer(REDRIVE_GROUP, self.namesrv) as consumer:
            try:
                places = await self.examine_topic_stats(topic)
            except TopicNotFound:
                raise _no_dead_letters(group) from None
            for queue, ends in places.items():
                if ends.min_offset == ends.max_offset:
                    continue
                begin = await _redriven_until(consumer, queue)
                stats.count += ends.max_offset - ends.min_offset
                stats.waiting += ends.max_offset - begin
                stats.newest_ms = max(stats.newest_ms, ends.last_update_timestamp)
                header = QueueRequestHeader(topic=topic, queue_id=queue.queue_id)
                address = await self.fetch_broker_addr(queue.broker_name)
                answer = await self._ask(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
                oldest.append(answer.decode_header(EarliestStoreTimeResponseHeader).timestamp)
        stats.oldest_ms = max(0, min(oldest, default=0))
        return stats

    async def dead_letters(
        self, group: str, begin_ms: int | None = None, end_ms: int | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """The group's dead letters stored within the times, both included, queue by queue, oldest first.

        TopicNotFound where it never had any.
        """
        async with PullConsumer(TOOLS_GROUP, self.namesrv) as reader, PullConsumer(REDRIVE_GROUP, self.namesrv) as done:
            for queue in await self._dead_letter_queues(group):
                until = await _redriven_until(done, queue)
                async for chunk in chunks(read_queue(reader, queue, begin_ms=begin_ms, end_ms=end_ms), ASKED_AT_A_TIME):
                    are_redriven = await each(self._is_redriven(message, group, until) for message in chunk)
                    for message, is_redriven in zip(chunk, are_redriven, strict=True):
                        yield DeadLetter(message, message.properties.get(properties.RETRY_TOPIC), is_redriven)

    async def redrive_dead_letters(
        self,
        group: str,
        offset_msg_ids: Sequence[str] = (),
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        only_group: bool = False,
        per_second: float | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[RedriveResult, None]:
        """Re-drive those of the group's dead letters with these ids, or all that were stored within the times.

        `only_group` sends to `%RETRY%group` instead of the topic they came from, `per_second` limits how many are
        sent. Each result comes when its dead letter is done with; whoever stops listening stops the run. ConfigError
        where another run has a queue, TopicNotFound where the group never had a dead letter.
        """
        queues = await self._dead_letter_queues(group)
        # Tried once, so that nothing is stored twice; and what one broker took another may take, whatever its size.
        async with Producer(REDRIVE_GROUP, self.namesrv, retry_times=0, max_message_size=MAX_FRAME_SIZE) as producer:
            run = _Run(self, group, producer, only_group, per_second, dry_run)
            async with PullConsumer(REDRIVE_GROUP, instance=producer.instance) as consumer:
                try:
                    if offset_msg_ids:
                        await run.lock(queues)
                        for offset_msg_id in offset_msg_ids:
                            yield await run.redrive(await self._dead_letter(group, offset_msg_id))
                        return
                    for queue in queues:
                        await run.lock([queue])
                        async with aclosing(run.whole_queue(consumer, queue, begin_ms, end_ms)) as results:
                            async for result in results:
                                yield result
                finally:
                    await run.unlock()

    async def forget_redriven(self, group: str) -> None:
        """Begin anew with the group's dead letters, as is due before their topic is deleted. Does nothing without one.

        What was re-driven is still known by its copies.
        """
        topic = dlq_topic(group)
        try:
            route = await self.examine_topic_route(topic)
        except TopicNotFound:
            return
        masters = masters_of(route.broker_datas)
        for queue in await self.fetch_subscribe_message_queues(topic):
            await self.update_consume_offset(masters[queue.broker_name], REDRIVE_GROUP, queue, 0)

    async def _dead_letter_queues(self, group: str) -> list[MessageQueue]:
        """The readable queues of the group's dead letter topic. ConfigError where none may be read."""
        topic = dlq_topic(group)
        try:
            queues = await self.fetch_subscribe_message_queues(topic)
        except TopicNotFound:
            raise _no_dead_letters(group) from None
        if not queues:
            raise ConfigError(f"topic {topic} may not be read: `updateTopicPerm -t {topic} -p 6` permits it")
        return queues

    async def _dead_letter(self, group: str, offset_msg_id: str) -> MessageExt:
        message = await self.query_message_by_id(offset_msg_id)
        if message.topic != dlq_topic(group):
            raise ConfigError(f"{offset_msg_id} is a message of {message.topic}, not of {dlq_topic(group)}")
        return message

    async def _is_redriven(self, message: MessageExt, group: str, until: int) -> bool:
        return message.queue_offset < until or await self._has_copy(message, group)

    async def _has_copy(self, message: MessageExt, group: str) -> bool:
        """Whether the dead letter was re-driven, to the topic it came from or to the group alone."""
        for topic in {message.properties.get(properties.RETRY_TOPIC), retry_topic(group)} - {None}:
            assert topic is not None
            try:
                found = await self.query_message_by_unique_key(topic, message.msg_id)
            except TopicNotFound:
                continue
            if any(copy.properties.get(REDRIVEN_FROM) == message.offset_msg_id for copy in found.messages):
                return True
            for error in found.failures.values():
                raise error
            if found.is_cut:
                raise ConfigError(f"topic {topic} has too many messages with the unique key {message.msg_id}")
        return False

    async def _lock_queues(self, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Take or renew the locks. ConfigError where another client has one."""
        for queue in queues:
            body = LockBatchRequestBody(client_id=client_id, consumer_group=REDRIVE_GROUP, mq_set=[queue])
            address = await self.fetch_broker_addr(queue.broker_name)
            answer = await self._ask(address, RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
            if queue not in decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set:
                raise ConfigError(f"another run re-drives {queue} now; it lets go of it a minute after its end at most")

    async def _unlock_queues(self, client_id: str, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            body = LockBatchRequestBody(client_id=client_id, consumer_group=REDRIVE_GROUP, mq_set=[queue])
            address = await self.fetch_broker_addr(queue.broker_name)
            await self._ask(address, RequestCode.UNLOCK_BATCH_MQ, body=encode_body(body))


class _Run:
    """One run of `redrive_dead_letters`: its pace, its locks, and what it does with a dead letter."""

    def __init__(
        self,
        admin: DeadLetterAdmin,
        group: str,
        producer: Producer,
        only_group: bool,
        per_second: float | None,
        dry_run: bool,
    ) -> None:
        self._admin = admin
        self._group = group
        self._producer = producer
        self._only_group = only_group
        self._interval_s = 1 / per_second if per_second else 0.0
        self._dry_run = dry_run
        self._next_send_s = 0.0
        self._locked: list[MessageQueue] = []
        self._locked_s = 0.0

    async def lock(self, queues: Sequence[MessageQueue]) -> None:
        """Hold the queues from now on, so that no other run sends what this one does."""
        if not self._dry_run:
            await self._admin._lock_queues(self._producer.instance.client_id, queues)
            self._locked += [queue for queue in queues if queue not in self._locked]
            self._locked_s = time.monotonic()

    async def unlock(self) -> None:
        """Let go of the queues. Where that fails, the locks expire."""
        try:
            await self._admin._unlock_queues(self._producer.instance.client_id, self._locked)
        except MQError:
            pass

    async def whole_queue(
        self, consumer: PullConsumer, queue: MessageQueue, begin_ms: int | None, end_ms: int | None
    ) -> AsyncGenerator[RedriveResult, None]:
        """Re-drive what a queue holds within the times, and commit how far everything was."""
        until = committed = await _redriven_until(consumer, queue)
        try:
            async for message in read_queue(consumer, queue, begin_ms=begin_ms, end_ms=end_ms):
                if message.queue_offset < until:
                    continue
                result = await self.redrive(message)
                if message.queue_offset == until and result.status in (RedriveStatus.SENT, RedriveStatus.DONE_BEFORE):
                    until += 1
                if until - committed >= COMMIT_INTERVAL:
                    await self._commit(consumer, queue, until)
                    committed = until
                yield result
        finally:
            if until > committed:
                await self._commit(consumer, queue, until)

    async def _commit(self, consumer: PullConsumer, queue: MessageQueue, until: int) -> None:
        if not self._dry_run:
            await consumer.commit(queue, until)

    async def redrive(self, message: MessageExt) -> RedriveResult:
        """Send a copy of one dead letter, unless there is one. ConfigError, which ends the run, for a lost lock."""
        await self._renew_lock()
        origin = message.properties.get(properties.RETRY_TOPIC)
        topic = retry_topic(self._group) if self._only_group else origin
        if topic is None:
            why = f"it has no property {properties.RETRY_TOPIC}, which names the topic it came from"
            return RedriveResult(message, "", RedriveStatus.FAILED, why)
        try:
            if await self._admin._has_copy(message, self._group):
                return RedriveResult(message, topic, RedriveStatus.DONE_BEFORE)
            await self._admin.examine_topic_route(topic)  # or it would be made anew
        except MQError as error:
            return RedriveResult(message, topic, RedriveStatus.FAILED, str(error))
        if self._dry_run:
            return RedriveResult(message, topic, RedriveStatus.WOULD_SEND)
        await self._wait_for_turn()
        try:
            await self._producer.send(_copy(message, topic, keeps_origin=self._only_group))
        except MQError as error:
            return RedriveResult(message, topic, RedriveStatus.FAILED, str(error))
        return RedriveResult(message, topic, RedriveStatus.SENT)

    async def _wait_for_turn(self) -> None:
        while (wait_s := self._next_send_s - time.monotonic()) > 0:
            await asyncio.sleep(min(wait_s, LOCK_RENEWAL_S))
            await self._renew_lock()
        self._next_send_s = time.monotonic() + self._interval_s

    async def _renew_lock(self) -> None:
        if self._locked and time.monotonic() - self._locked_s > LOCK_RENEWAL_S:
            await self.lock(self._locked)


async def _redriven_until(consumer: PullConsumer, queue: MessageQueue) -> int:
    """The queue offset below which every dead letter was re-driven.

    An offset beyond the end was committed on a queue that was deleted since, and says nothing.
    """
    committed = await consumer.committed(queue) or 0
    begin, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    return committed if begin < committed <= end else begin


def _copy(message: MessageExt, topic: str, *, keeps_origin: bool) -> Message:
    """What is sent for a dead letter: what its application gave it, its unique key, and where it comes from."""
    left_out = _OF_THE_FIRST_LIFE if keeps_origin else _OF_THE_FIRST_LIFE | {properties.RETRY_TOPIC}
    copied = {name: value for name, value in message.properties.items() if name not in left_out}
    copied[properties.UNIQ_KEY] = message.msg_id
    copied[REDRIVEN_FROM] = message.offset_msg_id
    return Message(topic, message.body, properties=copied, flag=message.flag)


def _no_dead_letters(group: str) -> TopicNotFound:
    return TopicNotFound(f"group {group} has no dead letters: there is no topic {dlq_topic(group)}")
