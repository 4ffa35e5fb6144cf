"""AdminClient: every administrative request as one method that returns values and prints nothing.

Names of methods and words in results are those of Apache's `MQAdminExt`, in snake case. Requests about topics go to the
name servers, one after the other until one answers; requests about queues and messages go to the master of every broker
name in the topic's route, at the same time.

**Queries by key.** A broker's index knows only the 32-bit hash of `topic#key`, so its answer holds strangers whose keys
have that hash, and at most `PAGE` records, the newest; nothing in it says whether there are more. Here the real keys
are compared, and a full page is followed by a query for what is as old as its oldest record or older, until the index
is exhausted or enough was found. Times in the index are whole seconds: a page that is filled by one second and adds
nothing new is stepped over, and then `is_cut` tells that messages of that second may be missing.

Answers to `DefaultMQAdminExtImpl` and `MQAdminImpl` of Apache RocketMQ 4.9.8. Deliberate differences: a key query does
not stop at 64 records, its result comes newest first and says when it was cut and which brokers did not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from rucola.client.route import NameServers
from rucola.errors import (
    BrokerError,
    ConfigError,
    MQError,
    RemotingConnectError,
    TopicNotFound,
)
from rucola.message import MessageExt
from rucola.message.ids import parse_offset_msg_id
from rucola.message.properties import KEY_SEPARATOR
from rucola.message.record import decode, decode_many
from rucola.message.topics import RETRY_PREFIX, check_topic, retry_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.kv import (
    ORDER_TOPIC_CONFIG,
    GetKVConfigResponseHeader,
    KVConfigRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
)
from rucola.protocol.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    GetRouteInfoRequestHeader,
    TopicList,
    TopicRouteData,
)
from rucola.protocol.topic import (
    ConsumeStats,
    CreateTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    TopicConfig,
    TopicOffset,
    TopicRequestHeader,
    decode_consume_stats,
    decode_topic_stats,
)
from rucola.remoting.client import RemotingClient

T = TypeVar("T")

PAGE = 64
"""The most records that a broker puts into one answer to QUERY_MESSAGE (`maxMsgsNumBatch`)."""

UNIQUE_KEY_PAGE = 32
"""The same for a unique key, whatever number was asked for (`defaultQueryMaxNum`)."""

MAX_TIMESTAMP = 2**63 - 1
REQUEST_TIMEOUT_MS = 5000


@dataclass(slots=True)
class KeyQueryResult:
    """The messages that have a key, and how far the answer can be trusted.

    `is_cut` says that there may be more messages than these. `failures` names the brokers that gave no answer and why;
    the messages that they hold are missing.
    """

    messages: list[MessageExt]
    is_cut: bool = False
    failures: dict[str, MQError] = field(default_factory=dict)


class AdminClient:
    """An operator's view of a cluster; use it as `async with AdminClient("127.0.0.1:9876") as admin`.

    `namesrv` reads "host:port;host:port". Belongs to one event loop. Every method raises RemotingConnectError or
    RemotingTimeout when nobody answers, BrokerError when an answer is an error code, and TopicNotFound for a topic
    without a route.
    """

    def __init__(self, namesrv: str, *, timeout_ms: float = REQUEST_TIMEOUT_MS) -> None:
        self.timeout_ms = timeout_ms
        self._remoting = RemotingClient()
        self._name_servers = NameServers(namesrv, self._remoting)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._remoting.close()

    # What name servers know.

    async def examine_topic_route(self, topic: str) -> TopicRouteData:
        """The brokers that have the topic, and how many queues each offers."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            answer = await self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(f"no name server knows a route for topic {topic}") from None
            raise
        return decode_body(TopicRouteData, answer.body)

    async def examine_cluster_info(self) -> ClusterInfo:
        """All clusters, their broker names, and the addresses of each."""
        return decode_body(ClusterInfo, (await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def fetch_all_topic_list(self) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, answer.body).topic_list)

    async def fetch_consumer_groups(self) -> list[str]:
        """The groups that have a retry topic, which is every group that consumed in clustering mode; sorted."""
        topics = await self.fetch_all_topic_list()
        return sorted(topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))

    async def fetch_masters_of_cluster(self, cluster: str) -> dict[str, str]:
        """The address of every master of a cluster, by broker name. ConfigError where no cluster has the name."""
        info = await self.examine_cluster_info()
        if cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"there is no cluster {cluster}; the name server knows {known}")
        brokers = (info.broker_addr_table[name] for name in sorted(info.cluster_addr_table[cluster]))
        return {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}

    async def fetch_broker_name(self, address: str) -> str:
        """The name of the broker at an address. ConfigError where no broker is registered there."""
        for data in (await self.examine_cluster_info()).broker_addr_table.values():
            if address in data.broker_addrs.values():
                return data.broker_name
        raise ConfigError(f"no broker is registered at {address}")

    # What brokers know.

    async def examine_topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """For every queue of the topic its ends and the time of its newest message; sorted by queue."""

        async def ask(address: str) -> dict[MessageQueue, TopicOffset]:
            header = TopicRequestHeader(topic=topic)
            return decode_topic_stats((await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)).body)

        route = await self.examine_topic_route(topic)
        tables = await _each([ask(address) for address in _addresses_of(route.broker_datas)])
        return dict(sorted((pair for table in tables for pair in table.items()), key=_first))

    async def examine_consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """How far the group has come in every queue of the topic, or of all its topics; sorted by queue.

        A group that never committed an offset has an empty table. Brokers are found by the group's retry topic; a group
        without one (it only pulls, or only broadcasts) is asked for at every master.
        """

        async def ask(address: str) -> ConsumeStats:
            header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            return decode_consume_stats((await self._ask(address, RequestCode.GET_CONSUME_STATS, header)).body)

        try:
            brokers = (await self.examine_topic_route(retry_topic(group))).broker_datas
        except TopicNotFound:
            brokers = list((await self.examine_cluster_info()).broker_addr_table.values())
        answers = await _each([ask(address) for address in _addresses_of(brokers)])
        return ConsumeStats(
            consume_tps=sum(stats.consume_tps for stats in answers),
            offset_table=dict(sorted((pair for stats in answers for pair in stats.offset_table.items()), key=_first)),
        )

    async def fetch_broker_runtime_stats(self, address: str) -> dict[str, str]:
        """A broker's own figures, by Apache's names (`brokerVersionDesc`, `putTps` …)."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_body(KVTable, answer.body).table

    async def create_and_update_topic_config(self, address: str, config: TopicConfig) -> None:
        """Create the topic on one broker, or change it there. InvalidMessage when its name is not allowed."""
        check_topic(config.topic_name)
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
        )
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def examine_order_conf(self, topic: str) -> dict[str, int]:
        """How many queues an ordered topic has on which broker name; empty where the topic is not ordered."""
        header = KVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=topic)
        try:
            answer = await self._ask_namesrv(RequestCode.GET_KV_CONFIG, header)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        value = answer.decode_header(GetKVConfigResponseHeader).value
        try:
            return {name: int(count) for name, count in (part.rsplit(":", 1) for part in value.split(";") if part)}
        except ValueError:
            raise ConfigError(f"order of topic {topic} reads {value!r}, not broker-a:4;broker-b:4") from None

    async def create_or_update_order_conf(self, topic: str, queue_counts: dict[str, int]) -> None:
        """Tell every name server how many queues the ordered topic has on each of the broker names."""
        value = ";".join(f"{name}:{count}" for name, count in queue_counts.items())
        header = PutKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=topic, value=value)
        await _each([self._ask(address, RequestCode.PUT_KV_CONFIG, header) for address in self._name_servers.addresses])

    # Messages.

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

        addresses = _addresses_of((await self.examine_topic_route(topic)).broker_datas)
        answers = await _each([ask(address) for address in addresses])
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

    # Asking.

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        return await self._remoting.invoke_ok(address, RemotingCommand.request(code, header), self.timeout_ms)

    async def _ask_namesrv(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """The answer of the first name server that gives one; an error code is an answer."""
        answer = await self._name_servers.invoke(RemotingCommand.request(code, header), self.timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, "the name server")
        return answer


def _addresses_of(brokers: Sequence[BrokerData]) -> list[str]:
    """One address for every broker name: its master's, or that of a slave where there is no master."""
    return [
        data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
        for data in brokers
        if data.broker_addrs
    ]


def _first(pair: tuple[MessageQueue, Any]) -> MessageQueue:
    return pair[0]


def _store_time(message: MessageExt) -> tuple[int, int]:
    return message.store_timestamp, message.physical_offset


async def _each(requests: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order; with the first failure the other requests are given up."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except* MQError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
