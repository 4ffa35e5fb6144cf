"""MessageAdmin: finding messages, following them, giving one to a consumer.

**Queries by key.** A broker's index knows only the 32-bit hash of `topic#key`, so its answer holds strangers whose keys
have that hash, and at most `PAGE` records, the newest; nothing in it says whether there are more. Here the real keys
are compared, and a full page is followed by a query for what is as old as its oldest record or older, until the index
is exhausted or enough was found. Times in the index are whole seconds: a page that is filled by one second and adds
nothing new is stepped over, and then `is_cut` tells that messages of that second may be missing.

**Track.** What became of a message, for each group that consumes its topic, is read off the group's place in the
queue, its subscription and its kind; nobody keeps a record of each message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from rucola.admin.asking import addresses_of, each
from rucola.admin.groups import CLIENT_WAIT_MS, GroupAdmin
from rucola.admin.topics import TopicAdmin
from rucola.errors import BrokerError, MQError, RemotingConnectError
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.message.properties import KEY_SEPARATOR
from rucola.message.record import decode, decode_many
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    ConsumeMessageDirectlyRequestHeader,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
)
from rucola.protocol.query import QueryMessageRequestHeader, ViewMessageRequestHeader

PAGE = 64
"""The most records that a broker puts into one answer to QUERY_MESSAGE (`maxMsgsNumBatch`)."""

UNIQUE_KEY_PAGE = 32
"""The same for a unique key, whatever number was asked for (`defaultQueryMaxNum`)."""

MAX_TIMESTAMP = 2**63 - 1


@dataclass(slots=True)
class KeyQueryResult:
    """The messages that have a key, and how far the answer can be trusted.

    `is_cut` says that there may be more messages than these. `failures` names the brokers that gave no answer and why;
    the messages that they hold are missing.
    """

    messages: list[MessageExt]
    is_cut: bool = False
    failures: dict[str, MQError] = field(default_factory=dict)


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


@dataclass(slots=True)
class MessageTrack:
    """What became of a message in one group. `error` says why that is unknown, or that the group is not there."""

    consumer_group: str
    track_type: TrackType
    error: str = ""


class MessageAdmin(TopicAdmin, GroupAdmin):
    """Part of AdminClient."""

    async def query_message_by_key(
        self, topic: str, key: str, max_count: int = PAGE, begin_ms: int = 0, end_ms: int = MAX_TIMESTAMP
    ) -> KeyQueryResult:
        """The newest `max_count` messages of the topic with this key, by store time, newest first."""

        def has_key(message: MessageExt) -> bool:
            return message.topic == topic and key in (message.keys or "").split(KEY_SEPARATOR)

        result = await self._query_all(topic, key, has_key, max_count, begin_ms, end_ms, unique=False)
        result.messages.sort(key=_store_time, reverse=True)
        result.is_cut = result.is_cut or len(result.messages) > max_count
        del result.messages[max_count:]
        return result

    async def query_message_by_unique_key(
        self, topic: str, unique_key: str, begin_ms: int = 0, end_ms: int = MAX_TIMESTAMP
    ) -> KeyQueryResult:
        """The messages to which the producer gave this id, by store time, oldest first.

        More than one means that the producer sent again after it had no answer, or that the message was delayed,
        retried or part of a transaction.
        """

        def has_key(message: MessageExt) -> bool:
            return message.unique_key == unique_key

        result = await self._query_all(topic, unique_key, has_key, PAGE, begin_ms, end_ms, unique=True)
        result.messages.sort(key=_store_time)
        return result

    async def query_message_by_id(self, offset_msg_id: str) -> MessageExt:
        """The message at the address that an offsetMsgId names. InvalidMessage for what is no offsetMsgId.

        BrokerError where the broker has no message there, RemotingConnectError where no broker is: a producer's unique
        key looks the same, but names no broker.
        """
        address, physical_offset = parse_offset_msg_id(offset_msg_id)
        try:
            header = ViewMessageRequestHeader(offset=physical_offset)
            answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except RemotingConnectError as error:
            raise RemotingConnectError(
                f"{error} (the broker that {offset_msg_id} names; is this a unique key instead of an offsetMsgId?)"
            ) from None
        return decode(answer.body)

    async def _query_all(
        self,
        topic: str,
        key: str,
        has_key: Callable[[MessageExt], bool],
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool,
    ) -> KeyQueryResult:
        """What the brokers of the topic's route hold, in no order; an error only when none of them answered."""

        async def ask(address: str) -> KeyQueryResult:
            try:
                return await self._query_one(address, topic, key, has_key, max_count, begin_ms, end_ms, unique=unique)
            except MQError as error:
                return KeyQueryResult([], failures={address: error})

        addresses = addresses_of((await self.examine_topic_route(topic)).broker_datas)
        answers = await each([ask(address) for address in addresses])
        failures = {address: error for answer in answers for address, error in answer.failures.items()}
        if failures and len(failures) == len(addresses):
            raise next(iter(failures.values()))
        messages = [message for answer in answers for message in answer.messages]
        return KeyQueryResult(messages, any(answer.is_cut for answer in answers), failures)

    async def _query_one(
        self,
        address: str,
        topic: str,
        key: str,
        has_key: Callable[[MessageExt], bool],
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool,
    ) -> KeyQueryResult:
        """Page through one broker's index, newest first, until it is exhausted or `max_count` messages were found."""
        seen: set[int] = set()
        found: list[MessageExt] = []
        is_cut = False
        while True:
            page = await self._query_page(address, topic, key, begin_ms, end_ms, unique=unique)
            fresh = [message for message in page if message.physical_offset not in seen]
            seen.update(message.physical_offset for message in fresh)
            found += filter(has_key, fresh)
            if len(page) < (UNIQUE_KEY_PAGE if unique else PAGE):
                return KeyQueryResult(found, is_cut)
            if len(found) >= max_count:
                return KeyQueryResult(found, is_cut=True)
            end_ms = min(message.store_timestamp for message in page)
            if not fresh:
                is_cut = True
                end_ms -= 1000

    async def _query_page(
        self, address: str, topic: str, key: str, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[MessageExt]:
        """The newest records, at most PAGE, whose keys have the hash, between two times, both included."""
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=PAGE,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query="true" if unique else "false",
        )
        request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
        answer = await self._remoting.invoke(address, request, self.timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        return decode_many(answer.body)

    # Giving a message to a consumer, and following it.

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
        try:
            connection = await self.examine_consumer_connection_info(group)
            return MessageTrack(group, await self._track_type(message, group, connection))
        except BrokerError as error:
            is_away = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            return MessageTrack(group, TrackType.NOT_ONLINE if is_away else TrackType.UNKNOWN, error.remark or "")
        except MQError as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))

    async def _track_type(self, message: MessageExt, group: str, connection: ConsumerConnection) -> TrackType:
        if connection.consume_type == "CONSUME_ACTIVELY":
            return TrackType.PULL
        if connection.message_model == "BROADCASTING":
            return TrackType.CONSUME_BROADCASTING
        stats = await self.examine_consume_stats(group, message.topic)
        for queue, place in stats.offset_table.items():
            address = await self.fetch_broker_addr(queue.broker_name)
            if queue.queue_id == message.queue_id and address == message.store_host:
                if place.consumer_offset <= message.queue_offset:
                    return TrackType.NOT_CONSUME_YET
                wanted = connection.subscription_table.get(message.topic)
                is_wanted = wanted is None or not wanted.tags_set or message.tags in wanted.tags_set
                return TrackType.CONSUMED if is_wanted else TrackType.CONSUMED_BUT_FILTERED
        return TrackType.UNKNOWN


def _store_time(message: MessageExt) -> tuple[int, int]:
    return message.store_timestamp, message.physical_offset
