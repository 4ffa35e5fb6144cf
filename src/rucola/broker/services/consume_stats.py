"""Consume statistics: how far groups have consumed, their backlogs, and the times of their messages.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a broadcasting group has
no backlog; Apache counts every message of its topics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from rucola import refusals
from rucola.access import Refused
from rucola.broker.services.groups import is_subscribed
from rucola.broker.state import BrokerState
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import ConsumeStats, ConsumeStatsList, OffsetWrapper, QueueTimeSpan
from rucola.slices import sliced

MAX_LONG = 2**63 - 1
MAX_QUEUES = 65_536
"""Maximum in one result: each needs up to 200 bytes of a frame of 16 MiB."""


class ConsumeStatsService:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    async def of_group(self, group: str, topic: str | None) -> ConsumeStats:
        """Return a group's offsets and the ends of the queues, of one or all topics."""
        stats = await self._of_group(group, topic)
        for queue, offsets in stats.offset_table.items():
            if offsets.consumer_offset and not offsets.last_timestamp:
                place = queue.topic, queue.queue_id, offsets.consumer_offset - 1
                try:
                    offsets.last_timestamp = max(0, await self._state.tiered.store_time(*place))
                except Refused:  # the offsets count more than the times
                    break
        return stats

    @sliced
    def _of_group(self, group: str, topic: str | None) -> Generator[None, None, ConsumeStats]:
        stats = ConsumeStats()
        for name in [topic] if topic else self._state.offsets.topics_of(group):
            of_topic = yield from self._of_topic(group, name)
            yield
            if of_topic is not None:
                _check_count(len(stats.offset_table) + len(of_topic.offset_table))
                stats.consume_tps += of_topic.consume_tps
                stats.offset_table |= of_topic.offset_table
        return stats

    @sliced
    def of_broker(self, only_ordered: bool) -> Generator[None, None, ConsumeStatsList]:
        """Return the same for all groups, with their total backlog; optionally for ordered topics only."""
        config = self._state.config
        found = ConsumeStatsList(broker_addr=f"{config.broker_ip1}:{config.listen_port}")
        count = 0
        for group in list(self._state.groups):
            of_topics: list[ConsumeStats] = []
            for topic in self._state.offsets.topics_of(group.group_name):
                stats = yield from self._of_topic(group.group_name, topic, only_ordered)
                yield
                if stats is not None:
                    count += len(stats.offset_table)
                    _check_count(count)
                    of_topics.append(stats)
            found.groups[group.group_name] = of_topics
            found.total_diff += sum(
                queue.broker_offset - queue.consumer_offset
                for stats in of_topics
                for queue in stats.offset_table.values()
            )
            yield
        return found

    def _of_topic(
        self, group: str, topic: str, only_ordered: bool = False
    ) -> Generator[None, None, ConsumeStats | None]:
        """A group's offsets on a topic; None if the topic is deleted, not subscribed to, or broadcast."""
        members = self._state.clients.consumers.get(group)
        if members is not None and members.message_model == "BROADCASTING":
            return None
        config = self._state.topics.get(topic)
        if config is None or not is_subscribed(self._state, group, topic) or (only_ordered and not config.order):
            return None
        stats = ConsumeStats(consume_tps=self._state.stats.consume_tps(group, topic, self._state.clock()))
        for queue_id in range(config.read_queue_nums):
            stats.offset_table[self._queue(topic, queue_id)] = self._of_queue(group, topic, queue_id)
            yield
        return stats

    def _of_queue(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._state.store
        consumed = max(0, self._state.offsets.get(group, topic, queue_id))
        last_ms = store.store_time(topic, queue_id, consumed - 1) if consumed else 0
        # A new master may not know yet that the others have what the group has consumed: that is no negative backlog.
        known_end = min(consumed, store.max_offset(topic, queue_id))
        return OffsetWrapper(
            broker_offset=max(known_end, store.max_offset(topic, queue_id, visible=True)),
            consumer_offset=consumed,
            last_timestamp=max(0, last_ms),
        )

    async def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return the times of every queue's first, last and last consumed message. Raises Refused."""
        config = self._state.topics.get(topic)
        if config is None:
            raise Refused(refusals.TOPIC_NOT_FOUND, topic=topic)
        spans: list[QueueTimeSpan] = []
        for queue_id in range(config.write_queue_nums):
            spans.append(await self._time_span(group, topic, queue_id))
            await asyncio.sleep(0)
        return spans

    async def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        # A time is -1 if its message does not exist: in an empty queue, or before the first message. The delay is that
        # of the next message to consume, 0 if the group has consumed all.
        store, tiered = self._state.store, self._state.tiered
        end = store.max_offset(topic, queue_id, visible=True)
        oldest_ms = await tiered.earliest_store_time(topic, queue_id)
        newest_ms = await tiered.store_time(topic, queue_id, end - 1)
        consumed = self._state.offsets.get(group, topic, queue_id)
        consumed_ms = await tiered.store_time(topic, queue_id, consumed - 1) if consumed > 0 else oldest_ms
        following = max(consumed, await tiered.min_offset(topic, queue_id))
        next_ms = await tiered.store_time(topic, queue_id, following)
        return QueueTimeSpan(
            consume_time_stamp=consumed_ms,
            consume_time_stamp_str=_text(consumed_ms),
            delay_time=self._state.clock() - next_ms if consumed < end and next_ms >= 0 else 0,
            max_time_stamp=newest_ms,
            max_time_stamp_str=_text(newest_ms),
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=oldest_ms,
            min_time_stamp_str=_text(oldest_ms),
        )

    @sliced
    def least_offsets(
        self, topic: str, compare_group: str, excluded: set[str]
    ) -> Generator[None, None, dict[int, int]]:
        """Return the least offset of all groups, except `excluded`, on each queue of a topic.

        A queue on which `compare_group` has consumed less than all of these gets the greatest number instead.
        """
        least: dict[int, int] = {}
        # Offsets before the first message do not count: those groups have stopped consuming long ago.
        for group in self._state.offsets.groups_of(topic):
            yield
            if group in excluded:
                continue
            for queue_id, offset in self._state.offsets.of(group, topic).items():
                if offset >= self._known_min_offset(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, MAX_LONG))
                yield
        for queue_id, offset in self._state.offsets.of(compare_group, topic).items():
            if least.get(queue_id, MAX_LONG) > offset:
                least[queue_id] = MAX_LONG
        return least

    def _known_min_offset(self, topic: str, queue_id: int) -> int:
        begin = self._state.store.min_offset(topic, queue_id)
        return self._state.tiered.known_min_offset(topic, queue_id, begin)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)


def _check_count(count: int) -> None:
    if count > MAX_QUEUES:
        raise Refused(refusals.TOO_MANY_QUEUES, limit=MAX_QUEUES)


def _text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return ""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03}"
