"""Adapter of the Admin service of RocketMQ 5, as far as one broker has the answers.

Each response is about this broker alone. Messages that a group received by POP and has not acknowledged are in flight;
messages that wait for them in order count as ready. Not implemented: DeleteSubscription, since a subscription is its
client's, and what only a proxy knows. `admin_consumers` has the methods that ask consumers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from rucola.access import Action, Resource
from rucola.broker.client_calls import OffsetReset
from rucola.broker.grpc.admin_consumers import failure_of
from rucola.broker.grpc.codes import OK, IllegalCall
from rucola.broker.grpc.encoding import encoded_message
from rucola.broker.grpc.messages import milliseconds
from rucola.broker.grpc.methods import GrpcMethod, GrpcRequest, checked, name_of
from rucola.broker.grpc.send import SendAdapter
from rucola.broker.services.broker_services import BrokerServices
from rucola.broker.services.query import KeyQuery
from rucola.message import MessageExt
from rucola.message.ids import unique_id
from rucola.message.record import decode
from rucola.message.topics import check_group, check_topic, pop_retry_topic
from rucola.protocol.body import encode_body
from rucola.protocol.grpc.admin_pb2 import (
    AdminSendMessageRequest,
    AdminSendMessageResponse,
    DescribeGroupAccumulationRequest,
    DescribeGroupAccumulationResponse,
    DescribeTopicStatusRequest,
    DescribeTopicStatusResponse,
    GetTopicRouteRequest,
    GetTopicRouteResponse,
    ListMessageRequest,
    ListMessageResponse,
    QueryTimeSpanRequest,
    QueryTimeSpanResponse,
    ResetGroupOffsetRequest,
    ResetGroupOffsetResponse,
)
from rucola.protocol.grpc.definition_pb2 import Code, Message, MessageType
from rucola.store.index import MAX_LONG

ADMIN: Final = "apache.rocketmq.v2.Admin"
NOT_IMPLEMENTED: Final = ("DeleteSubscription", "GetProxyRuntimeStats")
MAX_QUERIED: Final = 64
"""Messages in the response to a query, as in one to a query by key of remoting."""

_Accumulation = DescribeGroupAccumulationResponse.GroupAccumulation


class AdminAdapter:
    def __init__(self, services: BrokerServices, sends: SendAdapter) -> None:
        self._services = services
        self._sends = sends

    def methods(self) -> Iterable[GrpcMethod[Any]]:
        def topic(request: Any) -> list[Resource]:
            return [Resource(name_of(request.topic))]

        def both(request: Any) -> list[Resource]:
            return [Resource(name_of(request.topic), name_of(request.group))]

        def group_of_topics(request: Any) -> list[Resource]:
            of_group = name_of(request.group)
            return [Resource(name_of(one), of_group) for one in request.topics] or [Resource(group=of_group)]

        methods = (
            ("DescribeTopicStatus", Action.QUERY, DescribeTopicStatusRequest, topic, self.topic_status),
            ("DescribeGroupAccumulation", Action.QUERY, DescribeGroupAccumulationRequest, group_of_topics,
             self.accumulation),
            ("ResetGroupOffset", Action.RESET_OFFSET, ResetGroupOffsetRequest, both, self.reset),
            ("QueryMessage", Action.READ, ListMessageRequest, topic, self.query),
            ("AdminSendMessage", Action.PUBLISH, AdminSendMessageRequest, topic, self.send),
            ("QueryTimeSpan", Action.QUERY, QueryTimeSpanRequest, group_of_topics, self.time_span),
            ("GetTopicRoute", Action.ROUTE, GetTopicRouteRequest, topic, self.route),
        )  # fmt: skip
        for name, action, request, resource, handler in methods:
            yield GrpcMethod(name, action, request, resource, failure_of(name), handler, needs_client_id=False)

    def topic_status(self, request: GrpcRequest[DescribeTopicStatusRequest]) -> DescribeTopicStatusResponse:
        name = checked(check_topic, name_of(request.content.topic), Code.ILLEGAL_TOPIC)
        topic = self._services.topics.get(name)
        kind = MessageType.FIFO if topic.order else MessageType.NORMAL
        tags = {
            "readQueueNums": topic.read_queue_nums, "writeQueueNums": topic.write_queue_nums, "perm": topic.perm,
        }  # fmt: skip
        return DescribeTopicStatusResponse(
            status=OK, topic_message_type=kind, tags={key: str(value) for key, value in tags.items()}
        )

    async def accumulation(
        self, request: GrpcRequest[DescribeGroupAccumulationRequest]
    ) -> DescribeGroupAccumulationResponse:
        content = request.content
        group = checked(check_group, name_of(content.group), Code.ILLEGAL_CONSUMER_GROUP)
        stats = await self._services.consume_stats.of_group(group, None)
        popped = {(one.topic, one.queue_id): one for one in await self._services.pop.status(group, None)}
        whole, wanted = _Accumulation(), {name_of(topic): _Accumulation() for topic in content.topics}
        for queue, offsets in stats.offset_table.items():
            held = popped.get((queue.topic, queue.queue_id))
            backlog = offsets.broker_offset - offsets.consumer_offset
            ready, in_flight = (backlog, 0) if held is None else (held.ready + held.waiting, held.in_flight)
            of_topic = [found for name, found in wanted.items() if queue.topic in (name, pop_retry_topic(group, name))]
            for total in (whole, *of_topic):
                total.ready_messages += ready
                total.inflight_messages += in_flight
                total.accumulation += ready + in_flight
                total.last_consume_timestamp = max(total.last_consume_timestamp, offsets.last_timestamp)
        return DescribeGroupAccumulationResponse(status=OK, accumulation=whole, topic_accumulation=wanted)

    async def reset(self, request: GrpcRequest[ResetGroupOffsetRequest]) -> ResetGroupOffsetResponse:
        content = request.content
        topic = checked(check_topic, name_of(content.topic), Code.ILLEGAL_TOPIC)
        group = checked(check_group, name_of(content.group), Code.ILLEGAL_CONSUMER_GROUP)
        if not content.HasField("reset_timestamp"):
            raise IllegalCall(Code.BAD_REQUEST, "reset_timestamp is missing")
        time_ms = milliseconds(content.reset_timestamp)
        await self._services.groups.reset_offsets(OffsetReset(topic, group, time_ms, is_force=True))
        return ResetGroupOffsetResponse(status=OK)

    async def query(self, request: GrpcRequest[ListMessageRequest]) -> ListMessageResponse:
        content = request.content
        topic = checked(check_topic, name_of(content.topic), Code.ILLEGAL_TOPIC)
        kind = content.WhichOneof("search_key")
        if kind not in ("message_id", "message_key"):
            raise IllegalCall(Code.NOT_IMPLEMENTED, "messages are found by message_id or message_key")
        key = getattr(content, kind)
        end_ms = milliseconds(content.end_timestamp) if content.HasField("end_timestamp") else MAX_LONG
        count = min(max(content.max_message_nums, 1), MAX_QUERIED)
        begin_ms = milliseconds(content.begin_timestamp)
        query = KeyQuery(topic, key, count, begin_ms, end_ms, is_unique_key=kind == "message_id")
        found = map(decode, (await self._services.query.by_key(request.caller, query)).records)
        chosen = [one for one in found if _has(one, topic, key, by_id=kind == "message_id")]
        messages = [Message.FromString(encoded_message(one, one.topic)) for one in chosen[:count]]
        return ListMessageResponse(status=OK, messages=messages)

    async def send(self, request: GrpcRequest[AdminSendMessageRequest]) -> AdminSendMessageResponse:
        content = request.content
        message = Message(topic=content.topic, body=content.body, user_properties=content.user_properties)
        message.system_properties.CopyFrom(content.system_properties)
        system = message.system_properties
        system.message_id = system.message_id or unique_id()
        if content.HasField("tag"):
            system.tag = content.tag
        if content.HasField("key"):
            system.keys.extend(re.split(r"\s+", content.key.strip()))
        (entry,) = (await self._sends.send_all(request.caller, [message])).entries
        return AdminSendMessageResponse(status=entry.status, message_id=entry.message_id)

    async def route(self, request: GrpcRequest[GetTopicRouteRequest]) -> GetTopicRouteResponse:
        """The route as name servers have it, in standard JSON."""
        topic = checked(check_topic, name_of(request.content.topic), Code.ILLEGAL_TOPIC)
        if (found := await self._services.assignment.route(topic)) is None:
            raise IllegalCall(Code.TOPIC_NOT_FOUND, f"no name server has a route for topic {topic}")
        return GetTopicRouteResponse(status=OK, topic_route_data=encode_body(found, quote_keys=True).decode())

    async def time_span(self, request: GrpcRequest[QueryTimeSpanRequest]) -> QueryTimeSpanResponse:
        content = request.content
        group = checked(check_group, name_of(content.group), Code.ILLEGAL_CONSUMER_GROUP)
        response = QueryTimeSpanResponse(status=OK)
        for resource in content.topics:
            topic = checked(check_topic, name_of(resource), Code.ILLEGAL_TOPIC)
            for span in await self._services.consume_stats.time_spans(group, topic):
                found = response.queue_time_span_list.add(
                    min_timestamp=span.min_time_stamp,
                    max_timestamp=span.max_time_stamp,
                    consume_timestamp=span.consume_time_stamp,
                    delay_time_ms=span.delay_time,
                )
                found.message_queue.topic.CopyFrom(resource)
                found.message_queue.id = span.message_queue.queue_id
                found.message_queue.broker.name = span.message_queue.broker_name
        return response


def _has(message: MessageExt, topic: str, key: str, *, by_id: bool) -> bool:
    """Whether a record is a hit: the index compares hashes only."""
    return message.topic == topic and (message.msg_id == key if by_id else key in (message.keys or "").split())
