"""Consumer groups: their settings, and moving their offsets.

The clients of a group carry out a reset of its offsets, and commit them. Without clients the refusal is CLIENT_OFFLINE:
the operator then commits offsets with UPDATE_CONSUMER_OFFSET. A group that consumes by POP needs no clients for it;
its deliveries are forgotten.

Corresponds to parts of `AdminBrokerProcessor` and `Broker2Client` of Apache RocketMQ 4.9.8. Deliberate difference: a
queue on which the group never committed is reset with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from rucola import refusals
from rucola.access import Refused
from rucola.broker.client_calls import ConsumerCalls, OffsetReset
from rucola.broker.delivery.pop_log import PopQueue
from rucola.broker.services.topics import MAX_QUEUE_NUMS, check_range, forget_pop
from rucola.broker.state import BrokerState
from rucola.domain.group import LATEST, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.queue import MessageQueue
from rucola.domain.topic import TopicConfig
from rucola.message.topics import check_group, retry_topic
from rucola.slices import sliced


class GroupService:
    def __init__(self, state: BrokerState, calls: ConsumerCalls) -> None:
        self._state = state
        self._calls = calls

    async def create_or_update(self, group: SubscriptionGroupConfig) -> None:
        """Create a group or replace its settings; on disk afterwards. Raises InvalidMessage."""
        check_group(group.group_name)
        check_range("retryQueueNums", group.retry_queue_nums, MAX_QUEUE_NUMS)
        self._state.limits.check_queue_nums("retryQueueNums", group.retry_queue_nums)
        now_ms = self._state.clock()
        self._state.groups.put(group, now_ms)
        if self._state.topics.get(retry_topic(group.group_name)) is not None:
            self._state.topics.ensure_retry_topic(group, now_ms)  # consumers know its queues before the first retry
        await self._state.persistence.wait_persisted()

    async def delete(self, group: str, with_offsets: bool) -> None:
        forget_pop(self._state, group=group)
        self._state.groups.remove(group, self._state.clock())
        if with_offsets:
            self._state.offsets.remove_group(group)
        self._state.stats.remove_group(group)
        await self._state.persistence.wait_persisted()

    def all(self) -> SubscriptionGroupWrapper:
        return self._state.groups.whole()

    def consuming(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now or have offsets on it."""
        groups = [*self._state.clients.subscribed_groups(topic), *self._state.offsets.groups_of(topic)]
        return list(dict.fromkeys(groups))

    @sliced
    def clone_offsets(
        self, source: str, destination: str, topic: str | None, is_offline: bool
    ) -> Generator[None, None, None]:
        """Copy a group's offsets to another group. Raises Refused if not all fit into the table; those before stay.

        Topics to which the connected clients of the source do not subscribe are skipped, unless `is_offline`.
        """
        for name in [topic] if topic else self._state.offsets.topics_of(source):
            yield
            if self._state.topics.get(name) is None:
                continue
            if is_offline or is_subscribed(self._state, source, name):
                for queue_id, queue_offset in self._state.offsets.of(source, name).items():
                    self._state.limits.check_offset(self._state.offsets, destination, name, queue_id)
                    self._state.offsets.commit(destination, name, queue_id, queue_offset)
                    yield

    async def reset_offsets(self, request: OffsetReset) -> dict[MessageQueue, int]:
        """Have a group continue at other offsets of a topic, by POP and at its clients; return them. Raises Refused."""
        topic = self._state.topics.get(request.topic)
        if topic is None:
            raise Refused(refusals.RESET_TOPIC_NOT_FOUND, topic=request.topic)
        if not self._state.offsets.of(request.group, request.topic):
            raise Refused(refusals.RESET_GROUP_NOT_FOUND, group=request.group)
        group = self._state.clients.consumers.get(request.group)
        popped = self._state.pop.of(group=request.group, topic=request.topic)
        if group is None and not popped:
            raise Refused(
                refusals.RESET_GROUP_OFFLINE, group=request.group, topic=request.topic, timestamp=request.timestamp
            )
        offsets = await self._reset_targets(request, topic)
        by_pop = {PopQueue(queue.topic, request.group, queue.queue_id): offset for queue, offset in offsets.items()}
        self._state.pop.reset(by_pop, self._state.clock())
        if group is not None:
            await self._calls.reset_offsets(list(group.members.items()), request, offsets)
        return offsets

    async def _reset_targets(self, request: OffsetReset, topic: TopicConfig) -> dict[MessageQueue, int]:
        """New offset of every queue, or only of the requested one. Without `is_force` no offset moves forward."""
        if request.queue_id is not None and request.offset is not None:
            return {self._queue(request.topic, request.queue_id): request.offset}
        offsets: dict[MessageQueue, int] = {}
        # The offset at the requested time; the end of the queue for a time to come, at which the store would find the
        # last message. Without force, the offset may only move back: the group must not skip messages that it has not
        # consumed.
        is_latest = request.timestamp == LATEST or request.timestamp > self._state.clock()
        for queue_id in range(topic.write_queue_nums):
            committed = self._state.offsets.get(request.group, request.topic, queue_id)
            if is_latest:
                offset = self._state.store.max_offset(request.topic, queue_id, visible=True)
            else:
                offset = max(0, await self._state.tiered.offset_by_time(request.topic, queue_id, request.timestamp))
            if committed >= 0 and not request.is_force:
                offset = min(offset, committed)
            offsets[self._queue(request.topic, queue_id)] = offset
            await asyncio.sleep(0)
        return offsets

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)


def is_subscribed(state: BrokerState, group: str, topic: str) -> bool:
    """Return whether a group's clients subscribe to a topic; True without clients."""
    members = state.clients.consumers.get(group)
    return members is None or not members.subscriptions or topic in members.subscriptions
