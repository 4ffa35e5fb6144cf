"""PullConsumer: reads queues at offsets that the caller chooses.

The broker can hold a pull until a message arrives (`suspend_ms`). It filters by the hash code of tags; messages whose
tag merely has the same hash code are removed here. If a broker suggests a slave, the next pull of that queue is sent
there. While a queue has no master, pulls, and requests for committed offsets, are sent to a slave.

A PullConsumer does not take part in rebalance, and brokers do not count it as a member of the group.

Corresponds to `DefaultMQPullConsumer` and `PullAPIWrapper` of Apache RocketMQ 4.9.8. Deliberate differences: MIN_OFFSET
and MAX_OFFSET are part of the result, not of each message's properties; a body that cannot be decompressed is returned
as stored, with `body_error`, while Apache loses the rest of the pull.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from rucola.acl.credentials import Credentials
from rucola.client.arguments import check_number, check_queue
from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer.decoding import decoded
from rucola.client.group_client import GroupClient
from rucola.client.instance import UNREACHABLE, ClientInstance
from rucola.domain import subscription as subscriptions
from rucola.domain.queue import MessageQueue
from rucola.domain.role import MASTER_ID
from rucola.domain.route import ClusterInfo
from rucola.domain.subscription import SUB_ALL, SubscriptionData
from rucola.errors import BrokerError, RemoteProtocolError, RemotingConnectError
from rucola.message import MessageExt
from rucola.message.topics import check_tags, check_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
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
from rucola.protocol.route import TopicList
from rucola.remoting.deadline import Deadline
from rucola.remoting.tls import ClientTls

PULL_BATCH_SIZE = 32
PULL_TIMEOUT_MS = 10_000
"""The timeout of a pull, in addition to the time for which the broker may hold it."""
OFFSET_TIMEOUT_MS = 5000


class PullStatus(Enum):
    """The outcome of a pull. Every result has the next offset."""

    FOUND = int(ResponseCode.SUCCESS)
    """Messages were found; none may be left after removing those with only the hash code of a subscribed tag."""
    NO_NEW_MSG = int(ResponseCode.PULL_NOT_FOUND)
    """The queue has no message from the offset."""
    NO_MATCHED_MSG = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    """No message that was searched matches the subscription."""
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
    """The queue offset is outside the queue; `next_begin_offset` is the nearest one inside."""


_STATUS_OF_CODE = {status.value: status for status in PullStatus}


class PullResult(msgspec.Struct, frozen=True):
    """Result of a pull. The queue contains the queue offsets `min_offset` .. `max_offset` - 1."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class PulledRecords(msgspec.Struct, frozen=True):
    """The undecoded result of a pull: `records` are whole records end to end (see `rucola.message.record`)."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes


class PullConsumer(GroupClient):
    """Reads queues for a group. `async with PullConsumer("group", "host:9876") as consumer: ...`.

    `namesrv`, `tls` and `credentials` are documented in ConnectionOptions.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        instance: ClientInstance | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(group, namesrv, instance, tls=tls, credentials=credentials)
        self._suggested_broker_ids: dict[MessageQueue, int] = {}

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the topic's read queues, ordered by broker name and queue id. TopicNotFound."""
        self._check_open()
        check_topic(topic)
        return (await self.instance.routes.find(topic)).read_queues

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        response = await self._request_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, response.body).topic_list)

    async def registered_masters(self) -> set[str]:
        """Return the names of the brokers whose master is registered now."""
        response = await self._request_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = decode_body(ClusterInfo, response.body).broker_addr_table
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
        """Pull up to `max_count` messages from `queue_offset` that match the subscription.

        Without a match, the broker holds the request for up to `suspend_ms`. `commit_offset` is committed for the
        group. BrokerError, RemotingConnectError, RemotingTimeout; RemoteProtocolError for offsets that no queue has.
        """
        wanted = _subscription_of(queue, subscription)
        deadline = Deadline(suspend_ms + PULL_TIMEOUT_MS)
        result = await self.pull_records(
            queue, queue_offset, max_count, wanted, suspend_ms=suspend_ms, commit_offset=commit_offset
        )
        messages, count = await decoded(result.records, f"a pull from {queue}", deadline, max_count)
        is_whole = count == len(messages) and sum([each.store_size for each in messages]) == len(result.records)
        messages = messages[:count]
        next_offset = result.next_begin_offset if is_whole else messages[-1].queue_offset + 1
        if next_offset < result.next_begin_offset:
            _check_next_offset(result.status, next_offset, queue, queue_offset)
        return PullResult(
            result.status, next_offset, result.min_offset, result.max_offset, _with_subscribed_tags(messages, wanted)
        )

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
        """As `pull`, but return undecoded records, without removing those that match only by the hash code of a tag."""
        self._check_open()
        wanted = _subscription_of(queue, subscription)
        check_number("max_count", max_count, least=1)
        deadline = Deadline(suspend_ms + PULL_TIMEOUT_MS)
        broker_id, address = await self._address(queue)
        # The subscription is part of the request, which may be held, and commits an offset (at the master only, as in
        # Apache's client).
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
            sender = self.instance.held_pulls if suspend_ms > 0 else self.instance.remoting
            response = await sender.invoke(address, request, deadline.left_ms)
        except UNREACHABLE:
            # The suggested slave may be unreachable: the next pull goes to the master, along a fresh route.
            self._suggested_broker_ids.pop(queue, None)
            self.instance.refresh_route_soon(queue.topic)
            raise
        status = _STATUS_OF_CODE.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark, address)
        response_header = response.decode_header(PullMessageResponseHeader)
        _check_next_offset(status, response_header.next_begin_offset, queue, queue_offset)
        self._suggested_broker_ids[queue] = response_header.suggest_which_broker_id
        records = response.body if status is PullStatus.FOUND else b""
        return PulledRecords(
            status, response_header.next_begin_offset, response_header.min_offset, response_header.max_offset, records
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the oldest message."""
        # Apache's broker returns -1 for a queue without a file.
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue, _queue_header(queue), absent=-1)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will have."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue, _queue_header(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at `timestamp_ms` (since 1970).

        If there is none, of the message nearest to it; 0 for an empty queue. If there are several, an Apache broker
        returns any of them.
        """
        check_queue(queue)
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, header)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None; perhaps 0 if the first message is still in memory."""
        check_queue(queue)
        header = QueryConsumerOffsetRequestHeader(consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id)
        try:
            response = await self._request(RequestCode.QUERY_CONSUMER_OFFSET, queue, header, or_slave=True)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = response.decode_header(OffsetResponseHeader).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Commit that the group has completed all messages below `queue_offset`; return when the broker has it."""
        check_queue(queue)
        check_number("queue_offset", queue_offset)
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
        )
        await self._request(RequestCode.UPDATE_CONSUMER_OFFSET, queue, header, or_slave=True)

    async def _request_name_server(self, code: RequestCode) -> RemotingCommand:
        self._check_open()
        response = await self.instance.routes.name_servers.invoke(RemotingCommand.request(code))
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, "the name server")
        return response

    async def _offset(self, code: RequestCode, queue: MessageQueue, header: Header, *, absent: int = 0) -> int:
        """Return the offset of a response, 0 for `absent`. RemoteProtocolError for another negative one."""
        offset = (await self._request(code, queue, header)).decode_header(OffsetResponseHeader).offset
        if offset < absent:
            raise RemoteProtocolError(f"broker {queue.broker_name} answered {code.name} of {queue} with {offset}")
        return max(0, offset)

    async def _request(
        self, code: RequestCode, queue: MessageQueue, header: Header, *, or_slave: bool = False
    ) -> RemotingCommand:
        self._check_open()
        request = RemotingCommand.request(code, header)
        response = await self.instance.invoke_master(queue, request, OFFSET_TIMEOUT_MS, or_slave=or_slave)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, queue.broker_name)
        return response

    async def _address(self, queue: MessageQueue) -> tuple[int, str]:
        """Return id and address of the broker to pull from: the suggested one, else the master, else any."""
        addresses = self.instance.routes.brokers.get(queue.broker_name)
        if not addresses:
            await self.instance.routes.refresh(queue.topic)
            addresses = self.instance.routes.brokers.get(queue.broker_name)
        if not addresses:
            raise RemotingConnectError(f"broker {queue.broker_name} of topic {queue.topic} is in no current route")
        for broker_id in (self._suggested_broker_ids.get(queue, MASTER_ID), MASTER_ID, *addresses):
            if broker_id in addresses:
                return broker_id, addresses[broker_id]
        raise AssertionError("a broker with addresses has one of them")


def _queue_header(queue: MessageQueue) -> QueueRequestHeader:
    check_queue(queue)
    return QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id)


def _check_next_offset(status: PullStatus, next_offset: int, queue: MessageQueue, queue_offset: int) -> None:
    """Raise RemoteProtocolError for a next offset that would repeat a pull: only an illegal one is moved backward."""
    if status is PullStatus.FOUND:
        least = queue_offset + 1
    else:
        least = 0 if status is PullStatus.OFFSET_ILLEGAL else queue_offset
    if next_offset < least:
        raise RemoteProtocolError(
            f"a pull from {queue} at offset {queue_offset} returned {status.name} with the next offset {next_offset}"
        )


def _with_subscribed_tags(messages: list[MessageExt], subscription: SubscriptionData) -> list[MessageExt]:
    if not subscription.tags_set or subscription.class_filter_mode:
        return messages
    tags = set(subscription.tags_set)
    return [message for message in messages if message.tags in tags]


def _subscription_of(queue: MessageQueue, subscription: str | SubscriptionData) -> SubscriptionData:
    check_queue(queue)
    if isinstance(subscription, SubscriptionData):
        return subscription
    check_tags(subscription)
    return subscriptions.subscription(queue.topic, subscription)
