"""TopicAdmin: topics, their queues, and who has to do with them."""

from __future__ import annotations

from rucola.admin.requests import Asking, addresses_of, each, first
from rucola.message.topics import check_topic
from rucola.protocol.body import decode_body, decode_object
from rucola.protocol.codes import RequestCode
from rucola.protocol.query import QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import DeleteTopicFromNamesrvRequestHeader
from rucola.protocol.topic import (
    PERM_READ,
    CreateTopicRequestHeader,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicOffset,
    TopicRequestHeader,
    decode_topic_stats,
)


class TopicAdmin(Asking):
    """Part of AdminClient."""

    async def examine_topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """For every queue of the topic its ends and the time of its newest message; sorted by queue."""

        async def ask(address: str) -> dict[MessageQueue, TopicOffset]:
            header = TopicRequestHeader(topic=topic)
            return decode_topic_stats((await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)).body)

        route = await self.examine_topic_route(topic)
        tables = await each([ask(address) for address in addresses_of(route.broker_datas)])
        return dict(sorted((pair for table in tables for pair in table.items()), key=first))

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

    async def examine_topic_config(self, address: str) -> dict[str, TopicConfig]:
        """All topics of a broker, by name."""
        answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_body(TopicConfigSerializeWrapper, answer.body).topic_config_table

    async def delete_topic_in_broker(self, address: str, topic: str) -> None:
        """Delete the topic on one broker."""
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic))

    async def delete_topic_in_name_server(self, topic: str, cluster: str | None = None) -> None:
        """Let every name server forget the topic, for one cluster or for all."""
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await self._tell_namesrvs(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def get_topic_cluster_list(self, topic: str) -> list[str]:
        """The clusters that have the topic, sorted."""
        route = await self.examine_topic_route(topic)
        return sorted({data.cluster for data in route.broker_datas})

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that consumers of the topic share, sorted."""
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in (await self.examine_topic_route(topic)).queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    async def query_topic_consume_by_who(self, topic: str) -> list[str]:
        """The groups that consume the topic, or have, sorted."""

        async def ask(address: str) -> list[str]:
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader(topic=topic))
            return [str(group) for group in decode_object(answer.body, "GroupList").get("groupList") or []]

        route = await self.examine_topic_route(topic)
        answers = await each(ask(address) for address in addresses_of(route.broker_datas))
        return sorted({group for groups in answers for group in groups})

    async def query_consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """`count` units of a queue from the queue offset `index` on; without units, where the queue has none there."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        answer = await self._ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return decode_body(QueryConsumeQueueResponseBody, answer.body or b"{}")
