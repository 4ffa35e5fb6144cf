"""DeadLetterAdmin: the dead letters of a group: statistics, reading, and sending them again (`rucola.admin.redrive`).

Dead letters are in `%DLQ%group`, with their original topic in property RETRY_TOPIC. Apache's dashboard sends them again
without a record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.messages import MessageAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.queue_reader import TOOLS_GROUP, batches, read_queue
from rucola.admin.redrive import (
    BATCH_COUNT,
    BATCH_SIZE,
    REDRIVE_GROUP,
    AfterRedrive,
    Redrive,
    RedriveLedger,
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
        self._ledger = RedriveLedger(cluster, topics)

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
            queues = await self._queues(group)
            copies = await self._copies(redriver, group)
            for queue in queues:
                redriven = await redrive_offset(redriver, queue)
                letters = read_queue(reader, queue, begin_ms=begin_ms, end_ms=end_ms)
                async for batch in batches(letters, BATCH_COUNT, BATCH_SIZE):
                    # Those below the offset need no search.
                    later = [letter for letter in batch if letter.queue_offset >= redriven]
                    with_copy = await gather_fail_fast(map(copies.exists, later))
                    waiting = {one.queue_offset for one, has_copy in zip(later, with_copy, strict=True) if not has_copy}
                    for one in batch:
                        origin = one.properties.get(properties.RETRY_TOPIC)
                        yield DeadLetter(one, origin, one.queue_offset not in waiting)

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
        body: bytes | None = None,
    ) -> Results[RedriveResult]:
        """Re-drive the dead letters with these ids, or all stored from `begin_ms` to `end_ms`, inclusive.

        `only_group` sends to `%RETRY%group` instead of the original topic; `per_second` limits the rate. `after` is
        called for each dead letter that has a copy. `body` replaces theirs in the copies. Results are yielded when
        complete; `aclose` ends the run. ConfigError if another run holds a queue, TopicNotFound without a dead letter
        queue.
        """
        results = self._redrive(group, offset_msg_ids, begin_ms, end_ms, only_group, per_second, dry_run, after, body)
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
        body: bytes | None,
    ) -> AsyncGenerator[RedriveResult, None]:
        queues = await self._queues(group)
        # No retries, so that no copy is stored twice. The frame limit as maximum size: one broker may accept larger
        # messages than another by default.
        async with Producer(
            REDRIVE_GROUP, self._requests.connection, retry_times=0, max_message_size=MAX_FRAME_SIZE
        ) as producer:
            locks = None if dry_run else RedriveLocks(self._requests, self._cluster, producer.instance.client_id)
            async with PullConsumer(REDRIVE_GROUP, instance=producer.instance) as consumer, locks or nullcontext():
                if locks is not None:
                    await locks.acquire(queues)
                run = Redrive(
                    group, producer, self._topics, self._ledger, await self._copies(consumer, group), locks,
                    only_group=only_group, per_second=per_second, after=after,
                )  # fmt: skip
                if offset_msg_ids:
                    letters = [await self._get(group, one) for one in offset_msg_ids]
                    if body is not None:
                        for one in letters:
                            one.body, one.body_error = body, None
                    parts = [run.redrive([one]) for one in letters]
                else:
                    parts = [run.redrive_queue(consumer, queue, begin_ms, end_ms) for queue in queues]
                for part in parts:
                    async with aclosing(part) as results:
                        async for result in results:
                            yield result

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

    async def _copies(self, consumer: PullConsumer, group: str) -> RedrivenCopies:
        return RedrivenCopies(self._messages, group, await self._ledger.read(consumer, group))


def _no_dead_letters(group: str) -> TopicNotFound:
    return TopicNotFound(f"group {group} has no dead letters: there is no topic {dlq_topic(group)}", subject=group)
