"""Topics: settings, ends of queues, and units of a ConsumeQueue, for operators.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: a deleted topic leaves
its ConsumeQueues until their messages expire; created again before that, it continues at their end offsets, so that the
committed offsets of groups stay valid. Numbers of queues and permissions out of range are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import NamedTuple

import msgspec

from rucola import fastjson, refusals
from rucola.access import Refused
from rucola.broker.services.requests import PublishRequest
from rucola.broker.state import BrokerState
from rucola.domain.queue import MessageQueue, TopicOffset
from rucola.domain.subscription import SubscriptionData
from rucola.domain.topic import TOPIC_FILTER_TYPES, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import InvalidMessage
from rucola.message.topics import RETRY_PREFIX, check_topic
from rucola.slices import sliced

MAX_UNITS = 1000

MAX_QUEUE_NUMS = 65_536
MAX_PERM = 15
"""Read, write, inherit, and the priority bit, which Apache's brokers define and never use."""


class QueueUnits(NamedTuple):
    """Units of a ConsumeQueue, and what the filter of a group would do with them."""

    begin: int
    end: int
    units: list[tuple[int, int, int]]
    """(physical offset, size, tagsCode) of each."""
    subscription: SubscriptionData | None = None
    filter_data: str | None = None


class TopicService:
    """Reads and changes topics. `topics_registered` waits until the name servers have all topics."""

    def __init__(self, state: BrokerState, topics_registered: Callable[[], Awaitable[None]]) -> None:
        self._state = state
        self._topics_registered = topics_registered

    def get(self, name: str) -> TopicConfig:
        """Return a topic's settings. Raises Refused."""
        if (topic := self._state.topics.get(name)) is None:
            raise Refused(refusals.TOPIC_NOT_FOUND, topic=name)
        return topic

    def expected(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings; those that its first message would create; None if it would not."""
        request = PublishRequest(topic, -1, b"")
        topics = self._state.topics
        return topics.get(topic) or topics.inherited(topic, request.default_topic, request.default_topic_queue_nums)

    async def create_or_update(self, topic: TopicConfig) -> None:
        """Create a topic or replace its settings; on disk and registered afterwards. Raises InvalidMessage."""
        self._check_user_topic(topic.topic_name)
        check_range("readQueueNums", topic.read_queue_nums, MAX_QUEUE_NUMS)
        check_range("writeQueueNums", topic.write_queue_nums, MAX_QUEUE_NUMS)
        self._state.limits.check_queue_nums("readQueueNums", topic.read_queue_nums)
        self._state.limits.check_queue_nums("writeQueueNums", topic.write_queue_nums)
        check_range("perm", topic.perm, MAX_PERM)
        if topic.topic_filter_type not in TOPIC_FILTER_TYPES:
            raise InvalidMessage(
                f"topicFilterType is {topic.topic_filter_type!r}; {' or '.join(TOPIC_FILTER_TYPES)} is expected"
            )
        self._state.topics.put(topic, self._state.clock())
        await self._settled()

    async def delete(self, topic: str) -> None:
        """Delete a topic's settings and statistics. Raises InvalidMessage for a topic of the system."""
        self._check_user_topic(topic)
        forget_pop(self._state, topic=topic)
        self._state.topics.remove(topic, self._state.clock())
        self._state.stats.remove_topic(topic)
        await self._settled()

    def all(self) -> TopicConfigSerializeWrapper:
        return self._state.topics.whole()

    async def queue_ends(self, name: str) -> dict[MessageQueue, TopicOffset]:
        """Return the ends of a topic's queues, and when each was written last. Raises Refused."""
        ends = await self._queue_ends(name)
        tiered = self._state.tiered
        for queue, offsets in ends.items():
            if offsets.min_offset:
                offsets.min_offset = await tiered.min_offset(name, queue.queue_id)
            if offsets.max_offset and not offsets.last_update_timestamp:
                newest_ms = await tiered.store_time(name, queue.queue_id, offsets.max_offset - 1)
                offsets.last_update_timestamp = max(0, newest_ms)
        return ends

    @sliced
    def _queue_ends(self, name: str) -> Generator[None, None, dict[MessageQueue, TopicOffset]]:
        topic = self.get(name)
        offsets: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(topic.write_queue_nums):
            max_offset = max(0, self._state.store.max_offset(name, queue_id, visible=True))
            newest_ms = self._state.store.store_time(name, queue_id, max_offset - 1) if max_offset else 0
            offsets[MessageQueue(name, self._state.config.broker_name, queue_id)] = TopicOffset(
                last_update_timestamp=max(0, newest_ms),
                max_offset=max_offset,
                min_offset=max(0, self._state.store.min_offset(name, queue_id)),
            )
            yield
        return offsets

    def consume_queue(
        self, topic: str, queue_id: int, queue_offset: int, count: int, group: str | None
    ) -> QueueUnits | None:
        """Return up to `MAX_UNITS` units; None if the offset is outside the queue. Raises Refused if it is missing."""
        ends = self._state.store.queue_ends(topic, queue_id)
        if ends is None:
            raise Refused(refusals.QUEUE_NOT_FOUND, queue_id=queue_id, topic=topic)
        if not ends[0] <= queue_offset < ends[1]:
            return None  # Apache answers that with success and a remark
        units = self._state.store.units(topic, queue_id, queue_offset, max(0, min(count, MAX_UNITS)))
        if group is None:
            return QueueUnits(*ends, units)
        members = self._state.clients.consumers.get(group)
        wanted = members.subscriptions.get(topic) if members else None
        if wanted is None:
            return QueueUnits(*ends, units, None, f"{group}@{topic} is not online!")
        data = self._state.filters.get(topic, group)
        return QueueUnits(*ends, units, wanted, fastjson.dumps_pretty(msgspec.to_builtins(data)))

    def _check_user_topic(self, topic: str) -> None:
        check_topic(topic)
        if self._state.topics.is_system_topic(topic):
            raise InvalidMessage(f"The topic[{topic}] is conflict with system topic.")

    async def _settled(self) -> None:
        await self._state.persistence.wait_persisted()
        await self._topics_registered()


def forget_pop(state: BrokerState, *, topic: str | None = None, group: str | None = None) -> None:
    """Delete what POP knows of a topic or group, and its retry topics. Raises Refused."""
    state.modes.remove(topic=topic, group=group)
    queues = state.pop.of(topic=topic, group=group)
    state.pop.remove(queues, state.clock())
    for retry_topic in {queue.topic for queue in queues if queue.topic.startswith(RETRY_PREFIX)}:
        state.topics.remove(retry_topic, state.clock())


def check_range(name: str, value: int, greatest: int) -> None:
    """Raise InvalidMessage unless a number is in the range 0 to `greatest`."""
    if not 0 <= value <= greatest:
        raise InvalidMessage(f"{name} is {value}; 0 to {greatest} are allowed")
