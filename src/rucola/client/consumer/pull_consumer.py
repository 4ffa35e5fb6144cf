"""PullConsumer: a reader that says itself which queue to read and from where.

    queues(topic)                 what there is to read
    registered_masters()          the brokers that are there now
    pull(queue, queue_offset)     the next messages from there on, and where to go on
    min_offset, max_offset        the ends of a queue: what it holds is min_offset .. max_offset - 1
    search_offset                 the queue offset at a store time, to begin there
    committed, commit             the group's progress, kept by the broker

A pull can be held by the broker until a message comes (`suspend_ms`). The broker filters by the hash of tags; what has
only the hash of a wanted tag is taken out here. Where a broker suggests one of its slaves to pull from, the next pull
of that queue goes there. While a queue has no master, it is pulled from a slave, which is asked and told of progress,
too.

A PullConsumer does not take part in its group's rebalance: brokers do not count it as a member.

Answers to `DefaultMQPullConsumer` and `PullAPIWrapper` of Apache RocketMQ 4.9.8. Deliberate differences: MIN_OFFSET and
MAX_OFFSET stand in the result, not in each message's properties; a body that cannot be decompressed is given out as
it is stored, with its sysFlag, where Apache loses the rest of the pull.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum

import msgspec

from rucola.client.instance import ClientInstance, GroupClient
from rucola.errors import BrokerError, InvalidMessage, RemoteProtocolError, RemotingConnectError
from rucola.message import MessageExt, record
from rucola.message.topics import check_topic
from rucola.protocol import heartbeat
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.heartbeat import SUB_ALL, SubscriptionData
from rucola.protocol.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pull import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    SUSPEND,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import MASTER_ID, ClusterInfo, TopicList
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)

PULL_BATCH_SIZE = 32
PULL_TIMEOUT_MS = 10_000
"""How long a pull may take besides the time for which the broker may hold it."""
OFFSET_TIMEOUT_MS = 5000


class PullStatus(Enum):
    """How a pull went. In every case the result says where to go on."""

    FOUND = int(ResponseCode.SUCCESS)
    """There may still be no messages, when none has exactly a wanted tag."""
    NO_NEW_MSG = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MSG = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
    """The queue offset lies outside the queue; `next_begin_offset` is the nearest one inside."""


_STATUS_OF_CODE = {status.value: status for status in PullStatus}


class PullResult(msgspec.Struct, frozen=True):
    """What a pull brought. Offsets are queue offsets; the queue holds `min_offset` .. `max_offset` - 1."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class PulledRecords(msgspec.Struct, frozen=True):
    """What a pull brought, as it came: `records` are whole records end to end (see `rucola.message.record`)."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes


class PullConsumer(GroupClient):
    """Reads queues for a group. `async with PullConsumer("group", "host:9876") as consumer: ...`."""

    def __init__(self, group: str, namesrv: str | None = None, *, instance: ClientInstance | None = None) -> None:
        super().__init__(group, namesrv, instance)
        self._suggested_broker_ids: dict[MessageQueue, int] = {}

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The topic's readable queues, ordered by broker name and queue id. TopicNotFound."""
        self._must_be_open()
        check_topic(topic)
        return (await self.instance.routes.find(topic)).read_queues

    async def topics(self) -> list[str]:
        """The names of all topics that the name servers know, sorted."""
        answer = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, answer.body).topic_list)

    async def registered_masters(self) -> set[str]:
        """Return the names of the brokers whose master is registered with the name servers now."""
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = decode_body(ClusterInfo, answer.body).broker_addr_table
        return {name for name, broker in brokers.items() if MASTER_ID in broker.broker_addrs}

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_count: int = PULL_BATCH_SIZE,
        subscription: str | SubscriptionData = SUB_ALL,
        *,
        suspend_ms: int = 0,
        commit_offset: int | None = None,
    ) -> PullResult:
        """The messages of `queue` from `queue_offset` on, at most `max_count`, that match the subscription.

        With `suspend_ms` a broker that has nothing waits so long for something to come. With `commit_offset` the
        group's progress is committed on the way. BrokerError, RemotingConnectError, RemotingTimeout.
        """
        wanted = heartbeat.subscription(queue.topic, subscription) if isinstance(subscription, str) else subscription
        result = await self.pull_records(
            queue, queue_offset, max_count, wanted, suspend_ms=suspend_ms, commit_offset=commit_offset
        )
        messages = _with_wanted_tags(_decode(result.records, queue), wanted)
        return PullResult(result.status, result.next_begin_offset, result.min_offset, result.max_offset, messages)

    async def pull_records(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_count: int = PULL_BATCH_SIZE,
        subscription: str | SubscriptionData = SUB_ALL,
        *,
        suspend_ms: int = 0,
        commit_offset: int | None = None,
    ) -> PulledRecords:
        """As `pull`, but the records are given out as they are, those with only the hash of a wanted tag among them."""
        self._must_be_open()
        wanted = heartbeat.subscription(queue.topic, subscription) if isinstance(subscription, str) else subscription
        deadline = Deadline(suspend_ms + PULL_TIMEOUT_MS)
        broker_id, address = await self._address(queue)
        sys_flag = SUBSCRIPTION
        if suspend_ms > 0:
            sys_flag |= SUSPEND
        if commit_offset is not None and broker_id == MASTER_ID:
            sys_flag |= COMMIT_OFFSET
        header = PullMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=max_count,
            sys_flag=sys_flag,
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=suspend_ms,
            subscription=wanted.sub_string,
            sub_version=wanted.sub_version,
            expression_type=wanted.expression_type,
        )
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        try:
            answer = await self.instance.remoting.invoke(address, request, deadline.left_ms)
        except RemotingConnectError:
            self._suggested_broker_ids.pop(queue, None)
            self.instance.renew_route(queue.topic)
            raise
        status = _STATUS_OF_CODE.get(answer.code)
        if status is None:
            raise BrokerError(answer.code, answer.remark, address)
        places = answer.decode_header(PullMessageResponseHeader)
        self._suggested_broker_ids[queue] = places.suggest_which_broker_id
        records = answer.body if status is PullStatus.FOUND else b""
        return PulledRecords(status, places.next_begin_offset, places.min_offset, places.max_offset, records)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The queue offset of the oldest message that is still there."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue, _queue_header(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will have."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue, _queue_header(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Where to begin for what was stored at `timestamp_ms` (milliseconds since 1970) or later."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, header)

    async def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has come, or None where nothing was ever committed.

        A broker may answer 0 for a young queue whose first message is still in memory, though nothing was committed.
        """
        header = QueryConsumerOffsetRequestHeader(consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id)
        try:
            answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue, header, or_slave=True)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = answer.decode_header(OffsetResponseHeader).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Record that the group has done everything below `queue_offset`, and wait until the broker has noted it."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
        )
        await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue, header, or_slave=True)

    async def _ask_name_server(self, code: RequestCode) -> RemotingCommand:
        self._must_be_open()
        answer = await self.instance.routes.name_servers.invoke(RemotingCommand.request(code))
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, "the name server")
        return answer

    async def _offset(self, code: RequestCode, queue: MessageQueue, header: Header) -> int:
        return (await self._ask(code, queue, header)).decode_header(OffsetResponseHeader).offset

    async def _ask(
        self, code: RequestCode, queue: MessageQueue, header: Header, *, or_slave: bool = False
    ) -> RemotingCommand:
        self._must_be_open()
        request = RemotingCommand.request(code, header)
        answer = await self.instance.invoke_master(queue, request, OFFSET_TIMEOUT_MS, or_slave=or_slave)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, queue.broker_name)
        return answer

    async def _address(self, queue: MessageQueue) -> tuple[int, str]:
        """Broker id and address of the broker to pull from: the suggested one, else the master, else any."""
        addresses = self.instance.routes.brokers.get(queue.broker_name)
        if not addresses:
            await self.instance.routes.refresh(queue.topic)
            addresses = self.instance.routes.brokers.get(queue.broker_name)
        if not addresses:
            raise RemotingConnectError(f"broker {queue.broker_name} of topic {queue.topic} is in no route now")
        for broker_id in (self._suggested_broker_ids.get(queue, MASTER_ID), MASTER_ID, *addresses):
            if broker_id in addresses:
                return broker_id, addresses[broker_id]
        raise AssertionError("a broker with addresses has one of them")


def _queue_header(queue: MessageQueue) -> QueueRequestHeader:
    return QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id)


def _decode(body: bytes, queue: MessageQueue) -> list[MessageExt]:
    """The records of a pull. RemoteProtocolError where the body is no row of whole records."""
    try:
        return record.decode_many(body)
    except InvalidMessage:
        pass
    messages: list[MessageExt] = []
    position = 0
    while position < len(body):
        try:
            message = record.decode(body, position)
        except InvalidMessage as error:
            try:
                message = record.decode(body, position, decompress=False)
            except InvalidMessage:
                raise RemoteProtocolError(f"a pull from {queue} brought no sound record: {error}") from None
            logger.warning("%s, offset %d: the body is given out as stored: %s", queue, message.queue_offset, error)
        messages.append(message)
        position += message.store_size
    return messages


def _with_wanted_tags(messages: list[MessageExt], wanted: SubscriptionData) -> list[MessageExt]:
    if not wanted.tags_set or wanted.class_filter_mode:
        return messages
    tags = set(wanted.tags_set)
    return [message for message in messages if message.tags in tags]
