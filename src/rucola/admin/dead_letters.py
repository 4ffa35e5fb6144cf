"""DeadLetterAdmin: the dead letters of a group: statistics, reading, and sending them again (`rucola.admin.redrive`).

Dead letters are in `%DLQ%group`, with their original topic in property RETRY_TOPIC. Apache's dashboard sends them again
without a record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.messages import MessageAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.queue_reader import TOOLS_GROUP, chunks, read_queue
from rucola.admin.redrive import (
    REDRIVE_GROUP,
    AfterRedrive,
    Redrive,
    RedriveLocks,
    RedrivenCopies,
    RedriveResult,
    redrive_offset,
)
from rucola.admin.requests import AdminRequests, gather_fail_fast, masters_of
from rucola.admin.topics import TopicAdmin
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.producer.producer import Producer
from rucola.client.results import Results
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, TopicNotFound
from rucola.message import MessageExt, properties
from rucola.message.topics import DLQ_PREFIX, dlq_topic
from rucola.protocol.codes import RequestCode
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.protocol.offset import EarliestStoreTimeResponseHeader, QueueRequestHeader

CONCURRENT_COPY_SEARCHES = 64


@dataclass(slots=True)
class DeadLetterStats:
    """Statistics of a group's dead letters."""

    consumer_group: str
    count: int
    # Dead letters at or beyond the offset below which all were re-driven.
    waiting: int
    # Store times in milliseconds since 1970, 0 without dead letters.
    oldest_ms: int
    newest_ms: int


@dataclass(slots=True)
class DeadLetter:
    """A dead letter, its original topic if known, and whether it was re-driven."""

    message: MessageExt
    origin_topic: str | None
    is_redriven: bool


class DeadLetterAdmin:
    def __init__(
        self,
        requests: AdminRequests,
        cluster: ClusterAdmin,
        topics: TopicAdmin,
        offsets: OffsetAdmin,
        messages: MessageAdmin,
    ) -> None:
        self._requests = requests
        self._cluster = cluster
        self._topics = topics
        self._offsets = offsets
        self._messages = messages
        self._copies = RedrivenCopies(messages)

    async def groups(self) -> list[str]:
        topics = await self._topics.names()
        return sorted(topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX))

    async def stats(self, group: str) -> DeadLetterStats:
        """Return statistics. TopicNotFound without a dead letter queue."""
        topic = dlq_topic(group)
        stats = DeadLetterStats(group, 0, 0, 0, 0)
        oldest = []
        async with PullConsumer(REDRIVE_GROUP, self._requests.connection) as consumer:
            try:
                offsets_by_queue = await self._topics.stats(topic)
            except TopicNotFound:
                raise _no_dead_letters(group) from None
            for queue, offsets in offsets_by_queue.items():
                if offsets.min_offset == offsets.max_offset:
                    continue
                stats.count += offsets.max_offset - offsets.min_offset
                stats.waiting += offsets.max_offset - await redrive_offset(consumer, queue)
                stats.newest_ms = max(stats.newest_ms, offsets.last_update_timestamp)
                header = QueueRequestHeader(topic=topic, queue_id=queue.queue_id)
                address = await self._cluster.master_address(queue.broker_name)
                response = await self._requests.invoke(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
                oldest.append(response.decode_header(EarliestStoreTimeResponseHeader).timestamp)
        stats.oldest_ms = max(0, min(oldest, default=0))
        return stats

    async def read(
        self, group: str, begin_ms: int | None = None, end_ms: int | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """Yield dead letters stored in this time, inclusive; by queue, oldest first. May raise TopicNotFound."""
        # Two consumers: pull messages as TOOLS_CONSUMER, read the offset of TOOLS_REDRIVE.
        async with (
            PullConsumer(TOOLS_GROUP, self._requests.connection) as reader,
            PullConsumer(REDRIVE_GROUP, self._requests.connection) as redriver,
        ):
            for queue in await self._queues(group):
                redriven = await redrive_offset(redriver, queue)
                messages = read_queue(reader, queue, begin_ms=begin_ms, end_ms=end_ms)
                async for chunk in chunks(messages, CONCURRENT_COPY_SEARCHES):
                    are_redriven = await gather_fail_fast(
                        self._is_redriven(message, group, redriven) for message in chunk
                    )
                    for message, is_redriven in zip(chunk, are_redriven, strict=True):
                        yield DeadLetter(message, message.properties.get(properties.RETRY_TOPIC), is_redriven)

    def redrive(
        self,
        group: str,
        offset_msg_ids: Sequence[str] = (),
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        only_group: bool = False,
        per_second: float | None = None,
        dry_run: bool = False,
        after: AfterRedrive | None = None,
    ) -> Results[RedriveResult]:
        """Re-drive the dead letters with these ids, or all stored from `begin_ms` to `end_ms`, inclusive.

        `only_group` sends to `%RETRY%group` instead of the original topic; `per_second` limits the rate. `after` is
        called for each dead letter that has a copy. Results are yielded when complete; `aclose` ends the run.
        ConfigError if another run holds a queue, TopicNotFound without a dead letter queue.
        """
        results = self._redrive(group, offset_msg_ids, begin_ms, end_ms, only_group, per_second, dry_run, after)
        return Results("dead_letters.redrive", results)

    async def _redrive(
        self,
        group: str,
        offset_msg_ids: Sequence[str],
        begin_ms: int | None,
        end_ms: int | None,
        only_group: bool,
        per_second: float | None,
        dry_run: bool,
        after: AfterRedrive | None,
    ) -> AsyncGenerator[RedriveResult, None]:
        queues = await self._queues(group)
        # No retries, so that no copy is stored twice. The frame limit as maximum size: one broker may accept larger
        # messages than another by default.
        async with Producer(
            REDRIVE_GROUP, self._requests.connection, retry_times=0, max_message_size=MAX_FRAME_SIZE
        ) as producer:
            client_id = producer.instance.client_id
            locks = None if dry_run else RedriveLocks(self._requests, self._cluster, client_id)
            run = Redrive(
                group, producer, self._topics, self._copies, locks,
                only_group=only_group, per_second=per_second, after=after,
            )  # fmt: skip
            async with PullConsumer(REDRIVE_GROUP, instance=producer.instance) as consumer:
                try:
                    if offset_msg_ids:
                        await run.lock(queues)
                        for offset_msg_id in offset_msg_ids:
                            yield await run.redrive(await self._get(group, offset_msg_id))
                        return
                    for queue in queues:
                        await run.lock([queue])
                        async with aclosing(run.redrive_queue(consumer, queue, begin_ms, end_ms)) as results:
                            async for result in results:
                                yield result
                finally:
                    await run.unlock()

    async def reset_redrive_offset(self, group: str) -> None:
        """Reset the re-drive offset before the topic is deleted. Dead letters with a copy still count as re-driven."""
        topic = dlq_topic(group)
        try:
            route = await self._topics.route(topic)
        except TopicNotFound:
            return
        masters = masters_of(route.broker_datas)
        for queue in await self._topics.queues(topic):
            await self._offsets.commit(masters[queue.broker_name], REDRIVE_GROUP, queue, 0)

    async def _queues(self, group: str) -> list[MessageQueue]:
        topic = dlq_topic(group)
        try:
            queues = await self._topics.queues(topic)
        except TopicNotFound:
            raise _no_dead_letters(group) from None
        if not queues:
            raise ConfigError(f"topic {topic} is not readable: `updateTopicPerm -t {topic} -p 6` permits it")
        return queues

    async def _get(self, group: str, offset_msg_id: str) -> MessageExt:
        message = await self._messages.get(offset_msg_id)
        if message.topic != dlq_topic(group):
            raise ConfigError(
                f"{offset_msg_id} is a message of {message.topic}, not of {dlq_topic(group)}", subject=offset_msg_id
            )
        return message

    async def _is_redriven(self, message: MessageExt, group: str, redriven: int) -> bool:
        return message.queue_offset < redriven or await self._copies.exists(message, group)


def _no_dead_letters(group: str) -> TopicNotFound:
    return TopicNotFound(f"group {group} has no dead letters: there is no topic {dlq_topic(group)}", subject=group)
