"""GroupAdmin: consumer and producer groups, their clients, and how far they have come.

A reset is put to the brokers. Where one answers that the group has no clients, the offsets are worked out and
committed from here instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rucola.admin.requests import Asking, addresses_of, each, first, masters_of, settled
from rucola.errors import BrokerError, ConfigError, TopicNotFound
from rucola.message.topics import check_group, retry_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    decode_consumer_status,
    decode_running_info,
)
from rucola.protocol.group import (
    LATEST,
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequestHeader,
    QueueTimeSpan,
    ResetOffsetRequestHeader,
    decode_offset_table,
)
from rucola.protocol.offset import (
    OffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import BrokerData
from rucola.protocol.topic import (
    ConsumeStats,
    GetConsumeStatsRequestHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    decode_consume_stats,
)

CLIENT_WAIT_MS = 10_000
"""How long a broker waits for a client that it asks in our place."""


@dataclass(slots=True)
class ResetResult:
    """Where a group begins now. `online` tells whether its clients were told, or its offsets committed for it."""

    offsets: dict[MessageQueue, int]
    online: bool


class GroupAdmin(Asking):
    """Part of AdminClient."""

    # Settings.

    async def create_and_update_subscription_group_config(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create the group on one broker, or change it there. InvalidMessage when its name is not allowed."""
        check_group(config.group_name)
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))

    async def examine_subscription_group_config(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """All groups of a broker, by name."""
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return decode_body(SubscriptionGroupWrapper, answer.body).subscription_group_table

    async def check_group_exists(self, group: str) -> None:
        """ConfigError where no broker knows the group: it has no settings, no offsets and no clients."""
        addresses = addresses_of((await self.examine_cluster_info()).broker_addr_table.values())
        if any(group in groups for groups in await each(map(self.examine_subscription_group_config, addresses))):
            return
        if (await self.examine_consume_stats(group)).offset_table or await self.find_consumer_connection(group):
            return
        raise ConfigError(f"there is no consumer group {group}: no broker has settings, offsets or clients of it")

    async def delete_subscription_group(self, address: str, group: str, *, remove_offset: bool = False) -> None:
        """Delete the group on one broker, and its offsets where that is asked for."""
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, remove_offset=str(remove_offset).lower())
        await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    # Clients.

    async def examine_consumer_connection_info(self, group: str, address: str | None = None) -> ConsumerConnection:
        """The group's clients and subscriptions, as one broker knows them, or the first that knows any.

        BrokerError with code CONSUMER_NOT_ONLINE where the group has no clients.
        """
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        addresses = [address] if address else addresses_of(await self._brokers_of(group))
        answer = await self._ask_any(addresses, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return decode_body(ConsumerConnection, answer.body)

    async def find_consumer_connection(self, group: str) -> ConsumerConnection | None:
        """The group's clients and subscriptions; None where it has no clients."""
        try:
            return await self.examine_consumer_connection_info(group)
        except BrokerError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise

    async def examine_producer_connection_info(self, group: str, topic: str) -> ProducerConnection:
        """The clients of a producer group, as the first of the topic's brokers that knows any."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        addresses = addresses_of((await self.examine_topic_route(topic)).broker_datas)
        answer = await self._ask_any(addresses, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return decode_body(ProducerConnection, answer.body)

    async def get_all_producer_info(self, address: str) -> dict[str, list[ProducerInfo]]:
        """The clients of every producer group of a broker."""
        answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return decode_body(ProducerTableInfo, answer.body).data

    async def get_consumer_running_info(
        self, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """The inside of one consumer, which the broker asks for it. BrokerError where it is not connected."""
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=str(jstack).lower()
        )
        addresses = addresses_of(await self._brokers_of(group))
        answer = await self._ask_any(addresses, RequestCode.GET_CONSUMER_RUNNING_INFO, header, extra_ms=CLIENT_WAIT_MS)
        return decode_running_info(answer.body)

    async def get_consume_status(
        self, topic: str, group: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """The offsets at which the group's clients are, by client id; of one client where its id is given."""
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        status: dict[str, dict[MessageQueue, int]] = {}
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        addresses = addresses_of((await self.examine_topic_route(topic)).broker_datas)
        for answer in await each(self._ask(address, code, header, extra_ms=CLIENT_WAIT_MS) for address in addresses):
            for name, offsets in decode_consumer_status(answer.body).items():
                status.setdefault(name, {}).update(offsets)
        return status

    # Progress.

    async def examine_consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """How far the group has come in every queue of the topic, or of all its topics; sorted by queue.

        A group that never committed an offset has an empty table. Brokers are found by the group's retry topic; a group
        without one (it only pulls, or only broadcasts) is asked for at every master.
        """

        async def ask(address: str) -> ConsumeStats:
            header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            return decode_consume_stats((await self._ask(address, RequestCode.GET_CONSUME_STATS, header)).body)

        answers = await each(ask(address) for address in addresses_of(await self._brokers_of(group)))
        return ConsumeStats(
            consume_tps=sum(stats.consume_tps for stats in answers),
            offset_table=dict(sorted((pair for stats in answers for pair in stats.offset_table.items()), key=first)),
        )

    async def _brokers_of(self, group: str) -> list[BrokerData]:
        """The brokers that have the group's retry topic; all, where it has none."""
        try:
            return (await self.examine_topic_route(retry_topic(group))).broker_datas
        except TopicNotFound:
            return list((await self.examine_cluster_info()).broker_addr_table.values())

    async def query_consume_time_span(self, topic: str, group: str) -> list[QueueTimeSpan]:
        """For every queue of the topic the times of its ends and of what the group consumed last."""
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)

        async def ask(address: str) -> list[QueueTimeSpan]:
            answer = await self._ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            return decode_body(QueryConsumeTimeSpanBody, answer.body).consume_time_span_set

        route = await self.examine_topic_route(topic)
        answers = await each(ask(address) for address in addresses_of(route.broker_datas))
        return [span for spans in answers for span in spans]

    async def examine_consume_delays(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int]:
        """For every queue of these topics how long the next message for the group has waited, in milliseconds."""
        answers = await each(self.query_consume_time_span(topic, group) for topic in topics)
        return {span.message_queue: max(0, span.delay_time) for spans in answers for span in spans}

    # Moving.

    async def reset_offset_by_timestamp(
        self, topic: str, group: str, timestamp_ms: int, *, force: bool = True, cpp: bool = False
    ) -> ResetResult:
        """Let the group go on with what was stored at a time, or, with LATEST, with what comes next.

        Times are milliseconds since 1970. Without `force` no queue goes forward. `cpp` lets Apache's brokers talk to
        the clients as those of C++ understand it; our brokers know whom they talk to.
        ConfigError where the group has committed nothing on the topic.
        """
        header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp_ms, is_force=str(force).lower())
        language = LanguageCode.CPP.name if cpp else None

        async def reset(name: str, address: str) -> ResetResult:
            request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            request.language = language or request.language
            try:
                answer = await self._remoting.invoke_ok(address, request, self.timeout_ms)
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                return ResetResult(await self._reset_offline(address, name, header, force), online=False)
            return ResetResult(decode_offset_table(answer.body), online=True)

        masters = masters_of((await self.examine_topic_route(topic)).broker_datas)
        results = await settled(reset(name, address) for name, address in masters.items())
        offsets = {queue: offset for result in results for queue, offset in result.offsets.items()}
        return ResetResult(offsets, online=all(result.online for result in results))

    async def reset_offset(self, group: str, queue: MessageQueue, queue_offset: int) -> ResetResult:
        """Let the group go on at a queue offset of one queue, its clients too where it has any.

        ConfigError where the queue does not reach there, and where a broker of RocketMQ 4 has clients of the group: it
        can tell them times only, and leaves them where they are. BrokerError where the group has committed nothing.
        """
        address = await self.fetch_broker_addr(queue.broker_name)
        begin = await self._end_of(address, RequestCode.GET_MIN_OFFSET, queue)
        end = await self._end_of(address, RequestCode.GET_MAX_OFFSET, queue)
        if not begin <= queue_offset <= end:
            raise ConfigError(f"{queue} has no place at offset {queue_offset}; it has {begin} to {end}")
        header = ResetOffsetRequestHeader(
            topic=queue.topic, group=group, timestamp=LATEST, queue_id=queue.queue_id, offset=queue_offset
        )  # who does not know the last two sees a reset to the end that may not go forward, which moves nothing
        try:
            answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            await self.update_consume_offset(address, group, queue, queue_offset)
            return ResetResult({queue: queue_offset}, online=False)
        if decode_offset_table(answer.body) != {queue: queue_offset}:
            raise ConfigError(
                f"broker {queue.broker_name} is of RocketMQ 4, which cannot move running clients to an offset: stop "
                f"all clients of group {group}, run this once more and start them again, or use resetOffsetByTime"
            )
        return ResetResult({queue: queue_offset}, online=True)

    async def _reset_offline(
        self, address: str, broker_name: str, header: ResetOffsetRequestHeader, force: bool
    ) -> dict[MessageQueue, int]:
        """Commit other offsets for a group without clients."""
        question = GetConsumeStatsRequestHeader(consumer_group=header.group, topic=header.topic)
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, question)
        places = decode_consume_stats(answer.body).offset_table
        if not places:
            raise ConfigError(f"group {header.group} has committed nothing on topic {header.topic} at {broker_name}")
        offsets = {}
        for queue, place in sorted(places.items(), key=first):
            if header.timestamp == LATEST:
                offset = await self._end_of(address, RequestCode.GET_MAX_OFFSET, queue)
            else:
                offset = await self._offset_at(address, queue, header.timestamp)
            if not force:
                offset = min(offset, place.consumer_offset)
            await self.update_consume_offset(address, header.group, queue, offset)
            offsets[queue] = offset
        return offsets

    async def _offset_at(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        at = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        answer = await self._ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at)
        return max(0, answer.decode_header(OffsetResponseHeader).offset)

    async def _end_of(self, address: str, code: RequestCode, queue: MessageQueue) -> int:
        """One end of a queue, by GET_MIN_OFFSET or GET_MAX_OFFSET."""
        answer = await self._ask(address, code, QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id))
        return max(0, answer.decode_header(OffsetResponseHeader).offset)

    async def update_consume_offset(self, address: str, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Commit an offset for a group. Its clients do not learn of it, and commit theirs over it."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
        )
        await self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def clone_group_offset(self, source: str, destination: str, topic: str, *, offline: bool = False) -> None:
        """Give one group the offsets of another on a topic. `offline`: even where the other has left the topic.

        Where the other has none, the broker does nothing, and says that it did.
        """
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=destination, topic=topic, offline=str(offline).lower()
        )
        route = await self.examine_topic_route(topic)
        await each(
            self._ask(address, RequestCode.CLONE_GROUP_OFFSET, header)
            for address in masters_of(route.broker_datas).values()
        )
