"""Message track: the state of a message in each consumer group of its topic.

Brokers keep no record of consumption per message. The track is inferred from

    consumer offset          whether it is beyond the message, and the store time up to which the queue is consumed
    POP                      what the group holds, so that consumption out of the order of offsets is known
    members                  their subscriptions, whether they pull or push, and the message model
    copies of the message    found by its unique key. Each time a member requeues a message, the broker stores a copy
                             in SCHEDULE_TOPIC_XXXX, from there in `%RETRY%group`, and after the last attempt in
                             `%DLQ%group`; each has the number of attempts before it in reconsumeTimes

A message waits for a retry if its copy with the highest reconsumeTimes is in SCHEDULE_TOPIC_XXXX only, or in
`%RETRY%group` at or beyond the consumer offset; by POP in `%RETRY%group_topic`, and not acknowledged. If an index does
not respond, the remark says that copies are unknown.

Corresponds to `DefaultMQAdminExtImpl.messageTrackDetail` of Apache RocketMQ 4.9.8, which uses offsets and members only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.queries import MessageIndexes
from rucola.admin.requests import gather_fail_fast
from rucola.admin.topics import TopicAdmin
from rucola.domain.client import ConsumerConnection
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import OffsetWrapper
from rucola.errors import BrokerError, MQError, TopicNotFound
from rucola.message import MessageExt, properties
from rucola.message.topics import SCHEDULE_TOPIC, dlq_topic, pop_retry_topic, retry_topic

REDRIVEN_FROM = "REDRIVEN_FROM"


class TrackType(Enum):
    """The state of a message in a group; the first seven are Apache's."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The consumer offset is beyond the message, and the group does not subscribe to its tag."""
    PULL = "PULL"
    """The group pulls; whether it consumed the message is unknown."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member keeps its own offsets; whether it consumed the message is unknown."""
    UNKNOWN = "UNKNOWN"
    IN_RETRY = "IN_RETRY"
    """The message was requeued and will be delivered again."""
    IN_DLQ = "IN_DLQ"
    """The message is in the group's dead letter queue."""
    IN_FLIGHT = "IN_FLIGHT"
    """A member holds the message by POP."""


@dataclass(slots=True)
class MessageTrack:
    """State of a message in one group. Times are milliseconds since 1970, 0 for never."""

    consumer_group: str
    track_type: TrackType
    # The reason for type UNKNOWN, or a note: that the group has no members, or who holds the message.
    error: str = ""
    # Whether the consumer offset is beyond the message; None if no broker of the route holds it.
    is_passed: bool | None = None
    # Store time of the last message before the consumer offset.
    consumed_until_ms: int = 0
    # Number of times that the message was requeued, and the time of the last one.
    retry_count: int = 0
    last_failed_ms: int = 0
    # Time at which the message became a dead letter.
    dead_ms: int = 0


class MessageTracker:
    def __init__(self, cluster: ClusterAdmin, topics: TopicAdmin, groups: GroupAdmin, indexes: MessageIndexes) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
        self._indexes = indexes

    async def track(self, message: MessageExt, groups: Iterable[str] | None = None) -> list[MessageTrack]:
        if groups is None:
            groups = await self._topics.consumer_groups(message.topic)
        return await gather_fail_fast(self._track_in_group(message, group) for group in groups)

    async def _track_in_group(self, message: MessageExt, group: str) -> MessageTrack:
        track = MessageTrack(group, TrackType.UNKNOWN)
        try:
            offsets = await self._queue_offsets(message, group)
            if offsets is not None:
                track.is_passed = offsets.consumer_offset > message.queue_offset
                track.consumed_until_ms = offsets.last_timestamp
            popped = await self._pop_type(message, track, offsets)
            connection = None if popped else await self._groups.find_consumer_connection(group)
            if popped is not None:
                track.track_type = popped
            elif connection is None:
                track.track_type, track.error = TrackType.NOT_ONLINE, f"group {group} has no clients now"
            else:
                track.track_type = _track_type(message, connection, track.is_passed)
            await self._add_copies(message, track)
        except MQError as error:
            track.error = error.remark or "" if isinstance(error, BrokerError) else str(error)
        return track

    async def _queue_offsets(self, message: MessageExt, group: str) -> OffsetWrapper | None:
        """Return the group's offsets on the message's queue, or None."""
        table = (await self._groups.consume_stats(group, message.topic)).offset_table
        queue = await self._queue_of(message, table)
        return None if queue is None else table[queue]

    async def _queue_of(self, message: MessageExt, queues: Iterable[MessageQueue]) -> MessageQueue | None:
        # Queue ids are unique per broker only: compare the broker's address with the store host as well.
        for queue in queues:
            is_queue = (queue.topic, queue.queue_id) == (message.topic, message.queue_id)
            if is_queue and await self._cluster.master_address(queue.broker_name) == message.store_host:
                return queue
        return None

    async def _pop_type(
        self, message: MessageExt, track: MessageTrack, offsets: OffsetWrapper | None
    ) -> TrackType | None:
        """Return the state of a message in a group that consumes its queue by POP, else None."""
        popped = await self._groups.pop_queues(track.consumer_group, message.topic, message.queue_offset)
        queue = await self._queue_of(message, popped)
        if queue is None:
            return None
        status = popped[queue]
        held = next((one for one in status.messages if one.queue_offset == message.queue_offset), None)
        if held is not None and held.attempt:
            track.error = f"{held.client} holds it"
            return TrackType.IN_FLIGHT
        is_read = offsets is not None and message.queue_offset < offsets.broker_offset - status.ready
        return TrackType.CONSUMED if is_read and held is None else TrackType.NOT_CONSUME_YET

    async def _add_copies(self, message: MessageExt, track: MessageTrack) -> None:
        """Complete a track from the copies of the message.

        1. Collect the copies in the retry topic, and those still delayed on their way there, by number of attempts. 2.
        A copy in the dead letter queue makes the type IN_DLQ. 3. Otherwise, if the copy with the most attempts is
        delayed, or at or beyond the group's offset on its retry queue, the
           type is IN_RETRY. If the offset is beyond it, the retry was consumed: the type stays.
        """
        group = track.consumer_group
        retry, dead = retry_topic(group), dlq_topic(group)
        copies = await self._copies(message, retry) + await self._copies(message, pop_retry_topic(group, message.topic))
        retried = {copy.reconsume_times: copy for copy in copies}
        delayed = {
            copy.reconsume_times: copy
            for copy in await self._copies(message, SCHEDULE_TOPIC)
            if copy.properties.get(properties.REAL_TOPIC) == retry
        }
        for copy in await self._copies(message, dead):
            track.dead_ms = copy.store_timestamp
        if requeued := delayed | retried:
            track.retry_count = max(requeued)
            track.last_failed_ms = (delayed.get(track.retry_count) or requeued[track.retry_count]).store_timestamp
        if track.dead_ms:
            track.track_type, track.last_failed_ms = TrackType.IN_DLQ, track.dead_ms
        elif requeued:
            latest = retried.get(track.retry_count)
            offsets = await self._queue_offsets(latest, group) if latest is not None else None
            popped = await self._pop_type(latest, track, offsets) if latest is not None else None
            if popped in (TrackType.IN_FLIGHT, TrackType.CONSUMED):
                track.track_type = popped
            elif latest is None or offsets is None or offsets.consumer_offset <= latest.queue_offset:
                track.track_type = TrackType.IN_RETRY

    async def _copies(self, message: MessageExt, topic: str) -> list[MessageExt]:
        """Return a message's copies in a topic since its last re-drive, oldest first."""
        try:
            result = await self._indexes.query_unique_key(topic, message.msg_id)
        except TopicNotFound:
            return []
        for error in result.failures.values():
            raise error
        # Copies of one message share its first offsetMsgId. A re-driven message has its own copies, which name the dead
        # letter.
        origin = message.properties.get(properties.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        redriven_from = message.properties.get(REDRIVEN_FROM)
        return [
            copy
            for copy in result.messages
            if copy.properties.get(properties.ORIGIN_MESSAGE_ID) == origin
            and copy.properties.get(REDRIVEN_FROM) == redriven_from
        ]


def _track_type(message: MessageExt, connection: ConsumerConnection, is_passed: bool | None) -> TrackType:
    if connection.consume_type == "CONSUME_ACTIVELY":
        return TrackType.PULL
    if connection.message_model == "BROADCASTING":
        return TrackType.CONSUME_BROADCASTING
    if not is_passed:
        return TrackType.UNKNOWN if is_passed is None else TrackType.NOT_CONSUME_YET
    subscription = connection.subscription_table.get(message.topic)
    is_subscribed = subscription is None or not subscription.tags_set or message.tags in subscription.tags_set
    return TrackType.CONSUMED if is_subscribed else TrackType.CONSUMED_BUT_FILTERED
