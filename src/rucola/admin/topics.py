"""TopicAdmin: topics, their routes and queues, and the groups that consume them."""

from __future__ import annotations

from rucola.admin.requests import AdminRequests, addresses_of, gather_fail_fast, queue_of_item
from rucola.domain.queue import MessageQueue, TopicOffset
from rucola.domain.route import TopicRouteData
from rucola.domain.topic import PERM_READ, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import BrokerError, TopicNotFound
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX, check_topic
from rucola.protocol.body import decode_body, decode_object
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.route import DeleteTopicFromNamesrvRequestHeader, GetRouteInfoRequestHeader, TopicList
from rucola.protocol.topic import CreateTopicRequestHeader, TopicRequestHeader, decode_topic_stats


class TopicAdmin:
    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # Known to the name servers.

    async def names(self) -> list[str]:
        response = await self._requests.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, response.body).topic_list)

    async def user_names(self) -> list[str]:
        """Return the names of all topics except retry topics and dead letter queues, sorted."""
        return [topic for topic in await self.names() if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers of a topic and the number of queues on each."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            response = await self._requests.invoke_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(
                    f"no name server knows a route for topic {topic}; `rucola admin topicList` lists the topics",
                    subject=topic,
                ) from None
            raise
        return decode_body(TopicRouteData, response.body)

    async def clusters(self, topic: str) -> list[str]:
        route = await self.route(topic)
        return sorted({data.cluster for data in route.broker_datas})

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in (await self.route(topic)).queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    # Known to the brokers.

    async def stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return minimum offset, maximum offset and last update of every queue, sorted by queue."""
        route = await self.route(topic)
        tables = await gather_fail_fast(self.stats_at(address, topic) for address in addresses_of(route.broker_datas))
        return dict(sorted((item for table in tables for item in table.items()), key=queue_of_item))

    async def stats_at(self, address: str, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the same of the queues on one broker."""
        header = TopicRequestHeader(topic=topic)
        response = await self._requests.invoke(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return decode_topic_stats(response.body)

    async def configs(self, address: str) -> dict[str, TopicConfig]:
        response = await self._requests.invoke(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_body(TopicConfigSerializeWrapper, response.body).topic_config_table

    async def consumer_groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic or have committed offsets on it, sorted."""
        route = await self.route(topic)
        addresses = addresses_of(route.broker_datas)
        answers = await gather_fail_fast(self.consumer_groups_at(address, topic) for address in addresses)
        return sorted({group for groups in answers for group in groups})

    async def consumer_groups_at(self, address: str, topic: str) -> list[str]:
        """Return the groups that one broker knows."""
        header = TopicRequestHeader(topic=topic)
        response = await self._requests.invoke(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return [str(group) for group in decode_object(response.body, "GroupList").get("groupList") or []]

    async def consume_queue_units(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """Return up to `count` ConsumeQueue units from queue offset `index` on. None beyond the end."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        response = await self._requests.invoke(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return decode_body(QueryConsumeQueueResponseBody, response.body or b"{}")

    # Changes.

    async def create_or_update(self, address: str, config: TopicConfig) -> None:
        """Create or change the topic on one broker. InvalidMessage for an invalid name."""
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
        await self._requests.invoke(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_on_broker(self, address: str, topic: str) -> None:
        await self._requests.invoke(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic))

    async def delete_on_name_servers(self, topic: str, cluster: str | None = None) -> None:
        """Delete the topic's route on every name server, for one cluster or all."""
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await self._requests.invoke_all_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
