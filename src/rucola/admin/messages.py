"""MessageAdmin: messages by key or id, their consumption by a chosen client, and their track."""

from __future__ import annotations

from collections.abc import Iterable

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import CLIENT_WAIT_MS
from rucola.admin.message_track import MessageTrack, MessageTracker
from rucola.admin.queries import MAX_LONG, PAGE, KeyQueryResult, MessageIndexes
from rucola.admin.queue_reader import TOOLS_GROUP
from rucola.admin.requests import AdminRequests
from rucola.client.consumer.pull_consumer import PullConsumer, PullStatus
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, InvalidMessage, RemotingConnectError
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.message.record import decode
from rucola.message.topics import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.connections import ConsumeMessageDirectlyRequestHeader, ConsumeMessageDirectlyResult
from rucola.protocol.query import ViewMessageRequestHeader
from rucola.protocol.transaction import ResumeCheckHalfMessageRequestHeader


class MessageAdmin:
    def __init__(
        self, requests: AdminRequests, cluster: ClusterAdmin, indexes: MessageIndexes, tracker: MessageTracker
    ) -> None:
        self._requests = requests
        self._cluster = cluster
        self._indexes = indexes
        self._tracker = tracker

    async def query_by_key(
        self, topic: str, key: str, max_count: int = PAGE, begin_ms: int = 0, end_ms: int = MAX_LONG
    ) -> KeyQueryResult:
        """Return the newest `max_count` messages of a topic with a key in a time, inclusive, newest first."""
        return await self._indexes.query(topic, key, max_count, begin_ms, end_ms)

    async def query_by_unique_key(
        self, topic: str, unique_key: str, begin_ms: int = 0, end_ms: int = MAX_LONG
    ) -> KeyQueryResult:
        """Return the newest PAGE messages with a unique key, oldest first: repeated sends, retries and other copies."""
        return await self._indexes.query_unique_key(topic, unique_key, begin_ms, end_ms)

    async def get(self, offset_msg_id: str) -> MessageExt:
        """Return the message at the broker and physical offset that an offsetMsgId encodes.

        InvalidMessage if malformed, BrokerError without a message there, RemotingConnectError without a broker: a
        unique key has the same form but names no broker.
        """
        address, physical_offset = parse_offset_msg_id(offset_msg_id)
        try:
            header = ViewMessageRequestHeader(offset=physical_offset)
            response = await self._requests.invoke(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except RemotingConnectError as error:
            raise RemotingConnectError(
                f"{error} (the broker that {offset_msg_id} names; is this a unique key instead of an offsetMsgId?)",
                subject=offset_msg_id,
            ) from None
        return decode(response.body)

    async def at(self, queue: MessageQueue, queue_offset: int) -> MessageExt:
        """Return the message at a queue offset. ConfigError if there is none, TopicNotFound."""
        async with PullConsumer(TOOLS_GROUP, self._requests.connection) as consumer:
            await consumer.queues(queue.topic)
            result = await consumer.pull(queue, queue_offset, 1)
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset != queue_offset:
            first, last = result.min_offset, result.max_offset - 1
            has = f"has no message at offset {queue_offset}; it has {first} to {last}"
            raise ConfigError(f"{queue} {has if first <= last else 'holds no message'}")
        return result.messages[0]

    async def is_offset_msg_id(self, msg_id: str) -> bool:
        """Return whether an id is an offsetMsgId of one of the cluster's brokers; indexes have no such ids."""
        try:
            address, _ = parse_offset_msg_id(msg_id)
        except InvalidMessage:
            return False
        brokers = (await self._cluster.info()).broker_addr_table.values()
        return any(address in data.broker_addrs.values() for data in brokers)

    async def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumeMessageDirectlyResult:
        """Call a member's listener with a message. BrokerError if it has none or is not at the message's broker."""
        address, _ = parse_offset_msg_id(offset_msg_id)
        header = ConsumeMessageDirectlyRequestHeader(consumer_group=group, client_id=client_id, msg_id=offset_msg_id)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        response = await self._requests.invoke(address, code, header, extra_ms=CLIENT_WAIT_MS)
        return decode_body(ConsumeMessageDirectlyResult, response.body)

    async def resume_check_half_message(self, offset_msg_id: str) -> None:
        """Open a transaction again that its broker discarded: a message in TRANS_CHECK_MAX_TIME_TOPIC.

        Raises as `get`. ConfigError for another message, of which Apache's broker would make a half message.
        """
        address, _ = parse_offset_msg_id(offset_msg_id)
        found = await self.get(offset_msg_id)
        if found.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            raise ConfigError(
                f"message {found.msg_id} of topic {found.topic} is no discarded transaction: these are in "
                f"{TRANS_CHECK_MAX_TIME_TOPIC}",
                subject=offset_msg_id,
            )
        header = ResumeCheckHalfMessageRequestHeader(msg_id=offset_msg_id)
        await self._requests.invoke(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def track(self, message: MessageExt, groups: Iterable[str] | None = None) -> list[MessageTrack]:
        """Return a message's state in every consumer group of its topic, sorted by group, or in some groups."""
        return await self._tracker.track(message, groups)
