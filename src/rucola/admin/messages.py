"""MessageAdmin: giving a message to a consumer, and following it.

**Track.** What became of a message, for each group that consumes its topic, or has. Nobody keeps a record of each
message; it is put together from

    the group's offset       whether the group is past the message in its queue, and up to when it has consumed there
    its members              what they subscribe to, and whether they consume by themselves or each for itself
    copies of the message    found by its unique key: each time a group gives a message back, the broker puts a copy
                             into SCHEDULE_TOPIC_XXXX, from there into `%RETRY%group`, and the last one into
                             `%DLQ%group`, each with the number of tries before it

A copy that waits is one in SCHEDULE_TOPIC_XXXX that has no counterpart in `%RETRY%group` yet, or one there that the
group is not past. Where an index does not answer, the copies are unknown, and the remark says so.

Answers to `DefaultMQAdminExtImpl.messageTrackDetail` of Apache RocketMQ 4.9.8, which looks at offsets and members only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rucola.admin.groups import CLIENT_WAIT_MS, GroupAdmin
from rucola.admin.queries import SearchAdmin
from rucola.admin.requests import each
from rucola.errors import BrokerError, MQError, TopicNotFound
from rucola.message import MessageExt, properties
from rucola.message.ids import parse_offset_msg_id
from rucola.message.topics import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.connections import (
    ConsumeMessageDirectlyRequestHeader,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
)
from rucola.protocol.topic import OffsetWrapper

REDRIVEN_FROM = "REDRIVEN_FROM"
"""The property of a message that was sent again for a dead letter, and names that by its offsetMsgId."""


class TrackType(Enum):
    """What became of a message in a group."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group is past it, and does not subscribe to its tag."""
    PULL = "PULL"
    """The group's clients pull for themselves; nobody knows."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Every client consumes for itself; nobody knows."""
    UNKNOWN = "UNKNOWN"
    IN_RETRY = "IN_RETRY"
    """The group gave it back, and gets it again."""
    IN_DLQ = "IN_DLQ"
    """The group has given it up."""


@dataclass(slots=True)
class MessageTrack:
    """What became of a message in one group. `error` says why that is unknown, or that the group is not there.

    `is_passed` tells whether the group's offset is past the message, and `consumed_until_ms` the store time of the last
    message that it is past in that queue, 0 for none; both also where nobody of the group is there. `retry_count` is
    how often the group gave the message back, `last_failed_ms` when it last did, `dead_ms` when it gave it up; 0 for
    never. Times are milliseconds since 1970.
    """

    consumer_group: str
    track_type: TrackType
    error: str = ""
    is_passed: bool | None = None
    consumed_until_ms: int = 0
    retry_count: int = 0
    last_failed_ms: int = 0
    dead_ms: int = 0


class MessageAdmin(SearchAdmin, GroupAdmin):
    """Part of AdminClient."""

    async def consume_message_directly(
        self, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Let a client's listener consume a message now, and tell what came of it.

        BrokerError where the client is not connected to the broker that has the message, or has no listener.
        """
        address, _ = parse_offset_msg_id(offset_msg_id)
        header = ConsumeMessageDirectlyRequestHeader(consumer_group=group, client_id=client_id, msg_id=offset_msg_id)
        answer = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, extra_ms=CLIENT_WAIT_MS)
        return decode_body(ConsumeMessageDirectlyResult, answer.body)

    async def message_track_detail(self, message: MessageExt) -> list[MessageTrack]:
        """What became of a message in every group that consumes its topic, sorted by group."""
        groups = await self.query_topic_consume_by_who(message.topic)
        return await each(self._track(message, group) for group in groups)

    async def _track(self, message: MessageExt, group: str) -> MessageTrack:
        track = MessageTrack(group, TrackType.UNKNOWN)
        try:
            place = await self._place(message, group)
            if place is not None:
                track.is_passed = place.consumer_offset > message.queue_offset
                track.consumed_until_ms = place.last_timestamp
            connection = await self.find_consumer_connection(group)
            if connection is None:
                track.track_type, track.error = TrackType.NOT_ONLINE, f"group {group} has no clients now"
            else:
                track.track_type = _track_type(message, connection, track.is_passed)
            await self._follow_copies(message, track)
        except MQError as error:
            track.error = error.remark or "" if isinstance(error, BrokerError) else str(error)
        return track

    async def _place(self, message: MessageExt, group: str) -> OffsetWrapper | None:
        """The group's place in the queue that holds the message; None where no broker of the route holds it."""
        for queue, place in (await self.examine_consume_stats(group, message.topic)).offset_table.items():
            is_queue = queue.queue_id == message.queue_id
            if is_queue and await self.fetch_broker_addr(queue.broker_name) == message.store_host:
                return place
        return None

    async def _follow_copies(self, message: MessageExt, track: MessageTrack) -> None:
        """Look for what the group gave back: the copy of the most tries tells how it stands."""
        group = track.consumer_group
        retry, dead = retry_topic(group), dlq_topic(group)
        retried = {copy.reconsume_times: copy for copy in await self._copies(message, retry)}
        waiting = {
            copy.reconsume_times: copy
            for copy in await self._copies(message, SCHEDULE_TOPIC)
            if copy.properties.get(properties.REAL_TOPIC) == retry
        }
        for copy in await self._copies(message, dead):
            track.dead_ms = copy.store_timestamp
        if given_back := waiting | retried:
            track.retry_count = max(given_back)
            track.last_failed_ms = (waiting.get(track.retry_count) or given_back[track.retry_count]).store_timestamp
        if track.dead_ms:
            track.track_type, track.last_failed_ms = TrackType.IN_DLQ, track.dead_ms
        elif given_back:
            latest = retried.get(track.retry_count)
            place = await self._place(latest, group) if latest is not None else None
            if latest is None or place is None or place.consumer_offset <= latest.queue_offset:
                track.track_type = TrackType.IN_RETRY

    async def _copies(self, message: MessageExt, topic: str) -> list[MessageExt]:
        """The copies of a message in a topic, oldest first; those of a life before it was re-driven are others."""
        try:
            found = await self.query_message_by_unique_key(topic, message.msg_id)
        except TopicNotFound:
            return []
        for error in found.failures.values():
            raise error
        origin = message.properties.get(properties.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        redriven_from = message.properties.get(REDRIVEN_FROM)
        return [
            copy
            for copy in found.messages
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
    wanted = connection.subscription_table.get(message.topic)
    is_wanted = wanted is None or not wanted.tags_set or message.tags in wanted.tags_set
    return TrackType.CONSUMED if is_wanted else TrackType.CONSUMED_BUT_FILTERED
