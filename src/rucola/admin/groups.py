"""GroupAdmin: consumer and producer groups, their members and consume stats.

Brokers of a consumer group are those with its retry topic, otherwise (if it only pulls or broadcasts) all.
"""

from __future__ import annotations

from collections.abc import Iterable

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.requests import AdminRequests, addresses_of, gather_fail_fast, queue_of_item
from rucola.admin.topics import TopicAdmin
from rucola.domain.client import ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTableInfo
from rucola.domain.group import MessageRequestMode, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.pop import PopQueueStatus, PopStatus
from rucola.domain.queue import MessageQueue
from rucola.domain.route import BrokerData
from rucola.domain.statistics import ConsumeStats, QueueTimeSpan
from rucola.errors import BrokerError, ConfigError, MQError, TopicNotFound
from rucola.message.topics import RETRY_PREFIX, check_group, retry_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.connections import (
    ConsumerRunningInfo,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
    decode_running_info,
)
from rucola.protocol.group import (
    DeleteSubscriptionGroupRequestHeader,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequestHeader,
)
from rucola.protocol.pop import PopStatusRequestHeader, ReleasePopRequestHeader, ReleasePopResponseHeader
from rucola.protocol.topic import GetConsumeStatsRequestHeader, decode_consume_stats

CLIENT_WAIT_MS = 10_000
"""Limit for a client's response through its broker."""


def _groups_by_pop(name: str, topics: set[str]) -> set[str]:
    """Return the groups that may have the retry topic of this name for one of the topics."""
    return {name[:at] for at in range(1, len(name)) if name[at] == "_" and name[at + 1 :] in topics}


class GroupAdmin:
    def __init__(self, requests: AdminRequests, cluster: ClusterAdmin, topics: TopicAdmin) -> None:
        self._requests = requests
        self._cluster = cluster
        self._topics = topics

    # Configuration.

    async def names(self) -> list[str]:
        """Return the groups with a retry topic, i.e. that have consumed in clustering mode; sorted."""
        topics = set(await self._topics.names())
        names = {topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)}
        # `%RETRY%billing_Orders` is of group billing and topic Orders by POP, or of a group billing_Orders.
        by_pop = {name: groups for name in names if (groups := _groups_by_pop(name, topics))}
        if by_pop:
            addresses = addresses_of((await self._cluster.info()).broker_addr_table.values())
            known = {group for groups in await gather_fail_fast(map(self.configs, addresses)) for group in groups}
            names -= {name for name, groups in by_pop.items() if name not in known and groups & known}
            names |= {group for name, groups in by_pop.items() if name not in known for group in groups & known}
        return sorted(names)

    async def configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        response = await self._requests.invoke(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return decode_body(SubscriptionGroupWrapper, response.body).subscription_group_table

    async def check_exists(self, group: str) -> None:
        """Raise ConfigError if no broker has configuration, offsets or members of the group."""
        # Configuration first: it needs one request per broker and exists for nearly every group.
        addresses = addresses_of((await self._cluster.info()).broker_addr_table.values())
        if any(group in groups for groups in await gather_fail_fast(map(self.configs, addresses))):
            return
        if (await self.consume_stats(group)).offset_table or await self.find_consumer_connection(group):
            return
        raise ConfigError(f"there is no consumer group {group}: no broker has settings, offsets or clients of it")

    async def create_or_update(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change the group on one broker. InvalidMessage for an invalid name."""
        check_group(config.group_name)
        body = encode_body(config)
        await self._requests.invoke(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete(self, address: str, group: str, *, remove_offset: bool = False) -> None:
        """Delete the group on one broker, and its consumer offsets if `remove_offset`."""
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, remove_offset=str(remove_offset).lower())
        await self._requests.invoke(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def set_message_request_mode(self, address: str, mode: MessageRequestMode) -> None:
        """Set on one broker whether a group receives a topic's messages by PULL or by POP."""
        await self._requests.invoke(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(mode))

    # POP.

    async def pop_status(
        self, address: str, group: str, topic: str | None = None, offset: int | None = None
    ) -> PopStatus:
        """Return what a group holds by POP on one broker, with its first messages or the one at a queue offset."""
        header = PopStatusRequestHeader(consumer_group=group, topic=topic, offset=offset)
        response = await self._requests.invoke(address, RequestCode.GET_POP_STATUS, header)
        return decode_body(PopStatus, response.body)

    async def pop_queues(
        self, group: str, topic: str | None = None, offset: int | None = None
    ) -> dict[MessageQueue, PopQueueStatus]:
        """Return what a group holds by POP on all of its brokers; empty at brokers of Apache."""
        addresses = addresses_of(await self._brokers_of(group))
        queues: dict[MessageQueue, PopQueueStatus] = {}
        for address in addresses:
            try:
                status = await self.pop_status(address, group, topic, offset)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                continue
            for one in status.queues:
                queues[MessageQueue(one.topic, status.broker_name, one.queue_id)] = one
        return queues

    async def release_pop(
        self, address: str, group: str, topic: str, queue_id: int | None = None, offset: int | None = None
    ) -> int:
        """Let others receive held messages at once: of a topic, a queue, or one message; return how many."""
        header = ReleasePopRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id, offset=offset)
        response = await self._requests.invoke(address, RequestCode.RELEASE_POP, header)
        return response.decode_header(ReleasePopResponseHeader).count

    # Members.

    async def consumer_connection(self, group: str, address: str | None = None) -> ConsumerConnection:
        """Return members and subscriptions from the first broker with any, else BrokerError (CONSUMER_NOT_ONLINE)."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        addresses = [address] if address else addresses_of(await self._brokers_of(group))
        response = await self._requests.invoke_any(addresses, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return decode_body(ConsumerConnection, response.body)

    async def find_consumer_connection(self, group: str, address: str | None = None) -> ConsumerConnection | None:
        """Return members and subscriptions of a group, or None without members."""
        try:
            return await self.consumer_connection(group, address)
        except BrokerError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Return a producer group's clients, from the first broker of the topic that has any."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        addresses = addresses_of((await self._topics.route(topic)).broker_datas)
        response = await self._requests.invoke_any(addresses, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return decode_body(ProducerConnection, response.body)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        response = await self._requests.invoke(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_body(ProducerTableInfo, response.body).data

    async def running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """Return one member's state, `jstack` with stack traces. BrokerError if it is not connected."""
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=str(jstack).lower()
        )
        addresses = addresses_of(await self._brokers_of(group))
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._requests.invoke_any(addresses, code, header, extra_ms=CLIENT_WAIT_MS)
        return decode_running_info(response.body)

    async def running_infos(
        self, group: str, connection: ConsumerConnection
    ) -> tuple[dict[str, ConsumerRunningInfo], dict[str, MQError]]:
        """Return the state of the members of a connection, or the error, by client id."""
        infos: dict[str, ConsumerRunningInfo] = {}
        failures: dict[str, MQError] = {}
        for member in connection.connection_set:
            try:
                infos[member.client_id] = await self.running_info(group, member.client_id)
            except MQError as error:
                failures[member.client_id] = error
        return infos, failures

    # Consume stats.

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return consumer and end offsets of one or all topics, sorted by queue; empty without any commit.

        Also empty for a group with broadcasting members, which keep their offsets themselves.
        """

        addresses = addresses_of(await self._brokers_of(group))
        answers = await gather_fail_fast(self.consume_stats_at(address, group, topic) for address in addresses)
        items = (item for stats in answers for item in stats.offset_table.items())
        found = ConsumeStats(
            consume_tps=sum(stats.consume_tps for stats in answers),
            offset_table=dict(sorted(items, key=queue_of_item)),
        )
        # Apache's brokers return such groups, too, with all messages of their topics as backlog.
        members = await self.find_consumer_connection(group) if found.offset_table else None
        if members is not None and members.message_model == "BROADCASTING":
            found.offset_table = {}
        return found

    async def consume_stats_at(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the consume stats of one broker; broadcasting members have offset 0 at Apache's brokers."""
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        response = await self._requests.invoke(address, RequestCode.GET_CONSUME_STATS, header)
        return decode_consume_stats(response.body)

    async def consume_time_spans(self, topic: str, group: str) -> list[QueueTimeSpan]:
        """Return the store times of every queue's ends and of the group's consumer offset."""
        route = await self._topics.route(topic)
        addresses = addresses_of(route.broker_datas)
        answers = await gather_fail_fast(self.consume_time_spans_at(address, topic, group) for address in addresses)
        return [span for spans in answers for span in spans]

    async def consume_time_spans_at(self, address: str, topic: str, group: str) -> list[QueueTimeSpan]:
        """Return the same of the queues on one broker."""
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        response = await self._requests.invoke(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        return decode_body(QueryConsumeTimeSpanBody, response.body).consume_time_span_set

    async def consume_delays(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int]:
        """Return the age of the group's next message in every queue, in milliseconds."""
        answers = await gather_fail_fast(self.consume_time_spans(topic, group) for topic in topics)
        return {span.message_queue: max(0, span.delay_time) for spans in answers for span in spans}

    async def _brokers_of(self, group: str) -> list[BrokerData]:
        try:
            return (await self._topics.route(retry_topic(group))).broker_datas
        except TopicNotFound:
            return list((await self._cluster.info()).broker_addr_table.values())
