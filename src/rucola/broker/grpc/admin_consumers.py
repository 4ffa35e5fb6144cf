"""Adapter of those methods of the Admin service of RocketMQ 5 that ask the connected consumers.

A member by remoting is asked for its state, and to consume a message, as requests 307 and 309 do. A client of gRPC has
told its subscription, and reports nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import asdict

from rucola.access import Action, Resource
from rucola.broker.client_registry import ClientRegistry
from rucola.broker.grpc.clients import GrpcClient
from rucola.broker.grpc.codes import OK, IllegalCall
from rucola.broker.grpc.encoding import valid_ms
from rucola.broker.grpc.messages import milliseconds
from rucola.broker.grpc.methods import GrpcMethod, GrpcRequest, checked, name_of
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.services.broker_services import BrokerServices
from rucola.broker.services.query import KeyQuery
from rucola.domain.subscription import SubscriptionData
from rucola.errors import RemoteProtocolError
from rucola.message.record import decode
from rucola.message.topics import check_group, check_topic, retry_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, version_text
from rucola.protocol.connections import (
    CR_SUCCESS,
    ConsumeMessageDirectlyRequestHeader,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    decode_running_info,
)
from rucola.protocol.grpc import admin_pb2
from rucola.protocol.grpc.admin_pb2 import (
    ClientInfo,
    ConsumeStatus,
    DescribeSubscriptionRequest,
    DescribeSubscriptionResponse,
    GetConsumerRunningInfoRequest,
    GetConsumerRunningInfoResponse,
    ListConsumerConnectionRequest,
    ListConsumerConnectionResponse,
    ListSubscriptionRequest,
    ListSubscriptionResponse,
    MessageModel,
    PrintThreadStackTraceRequest,
    PrintThreadStackTraceResponse,
    ProcessQueueInfo,
    SubscriptionInfo,
    VerifyMessageRequest,
    VerifyMessageResponse,
)
from rucola.protocol.grpc.definition_pb2 import Code, FilterExpression, FilterType, Status
from rucola.store.index import MAX_LONG

MAX_MEMBERS: Final = 256
"""Members that are asked for one response."""

T = TypeVar("T")


class ConsumerAdminAdapter:
    def __init__(self, services: BrokerServices, clients: ClientRegistry, calls: RemotingClientCalls) -> None:
        self._services = services
        self._inspection = services.inspection
        self._clients = clients
        self._calls = calls

    def methods(self) -> Iterable[GrpcMethod[Any]]:
        def resource(request: Any) -> list[Resource]:
            return [Resource(name_of(request.topic), name_of(request.group))]

        def group(request: Any) -> list[Resource]:
            return [Resource(group=name_of(request.group))]

        query, call = Action.QUERY, Action.CALL_CLIENT
        for name, action, request, resources, handler in (
            ("ListConsumerConnection", query, ListConsumerConnectionRequest, group, self.connections),
            ("ListSubscription", query, ListSubscriptionRequest, resource, self.list_subscriptions),
            ("DescribeSubscription", query, DescribeSubscriptionRequest, resource, self.describe_subscription),
            ("GetConsumerRunningInfo", call, GetConsumerRunningInfoRequest, group, self.running_info),
            ("PrintThreadStackTrace", call, PrintThreadStackTraceRequest, group, self.stack_trace),
            ("VerifyMessage", call, VerifyMessageRequest, resource, self.verify),
        ):
            yield GrpcMethod(name, action, request, resources, failure_of(name), handler, needs_client_id=False)

    def connections(self, request: GrpcRequest[ListConsumerConnectionRequest]) -> ListConsumerConnectionResponse:
        return ListConsumerConnectionResponse(status=OK, client_info=self._members(_group(request.content)))

    async def list_subscriptions(self, request: GrpcRequest[ListSubscriptionRequest]) -> ListSubscriptionResponse:
        topic = name_of(request.content.topic)
        if request.content.HasField("group") or not topic:
            groups = [_group(request.content)]
        else:
            groups = self._clients.subscribed_groups(checked(check_topic, topic, Code.ILLEGAL_TOPIC))
        response = ListSubscriptionResponse(status=OK)
        for group in groups:
            by_topic: dict[str, list[SubscriptionInfo]] = {}
            members = await self._subscriptions(group, topic)
            for _, subscriptions in members:
                for info in subscriptions:
                    by_topic.setdefault(info.topic.name, []).append(info)
            for _, found in sorted(by_topic.items()):
                expressions = {(info.expression.type, info.expression.expression) for info in found}
                info = max(found, key=lambda info: milliseconds(info.last_update_timestamp))
                info.subscription_consistency = len(expressions) == 1 and len(found) == len(members)
                response.subscription_info.append(info)
        return response

    async def describe_subscription(
        self, request: GrpcRequest[DescribeSubscriptionRequest]
    ) -> DescribeSubscriptionResponse:
        response = DescribeSubscriptionResponse(status=OK)
        members = await self._subscriptions(_group(request.content), name_of(request.content.topic))
        for client, subscriptions in members:
            for info in subscriptions:
                response.client_subscription_info.add(client_info=client, subscription_info=info)
        return response

    async def running_info(self, request: GrpcRequest[GetConsumerRunningInfoRequest]) -> GetConsumerRunningInfoResponse:
        found = await self._running_info(_group(request.content), request.content.client_id)
        response = GetConsumerRunningInfoResponse(status=OK)
        info = response.consumer_running_info
        info.properties.update(found.properties)
        for data in found.subscription_set:
            info.subscriptions[data.topic].CopyFrom(_expression(data))
        for queue, held in found.mq_table.items():
            item = info.message_queue_table.add()
            item.message_queue.topic.name, item.message_queue.id = queue.topic, queue.queue_id
            item.message_queue.broker.name = queue.broker_name
            fields = asdict(held)
            item.process_queue_info.CopyFrom(
                ProcessQueueInfo(
                    cached_msg_size_in_mib=fields.pop("cached_msg_size_in_mi_b"),
                    dropped=fields.pop("droped"),
                    **fields,
                )
            )
        for topic, status in found.status_table.items():
            fields = asdict(status)
            fields |= {"receive_rt": fields.pop("pull_rt"), "receive_tps": fields.pop("pull_tps")}
            info.consume_status_table[topic].CopyFrom(ConsumeStatus(**fields))
        return response

    async def stack_trace(self, request: GrpcRequest[PrintThreadStackTraceRequest]) -> PrintThreadStackTraceResponse:
        client_id = request.content.client_id
        found = await self._running_info(_group(request.content), client_id, with_stack=True)
        if not found.jstack:  # only clients for Java have any
            raise IllegalCall(Code.NOT_IMPLEMENTED, f"client {client_id} reports no stack traces")
        return PrintThreadStackTraceResponse(status=OK, thread_stack_trace=found.jstack)

    async def verify(self, request: GrpcRequest[VerifyMessageRequest]) -> VerifyMessageResponse:
        content = request.content
        group, topic = _group(content), checked(check_topic, name_of(content.topic), Code.ILLEGAL_TOPIC)
        query = KeyQuery(topic, content.message_id, 1, 0, MAX_LONG, is_unique_key=True)
        records = (await self._services.query.by_key(request.caller, query)).records
        if not records or decode(records[0]).msg_id != content.message_id:
            raise IllegalCall(Code.MESSAGE_NOT_FOUND, f"topic {topic} has no message {content.message_id}")
        header = ConsumeMessageDirectlyRequestHeader(
            consumer_group=group, client_id=content.client_id, msg_id=content.message_id
        )
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        command = RemotingCommand.request(code, header, bytes(records[0]))
        result = await self._ask(group, content.client_id, command, partial(decode_body, ConsumeMessageDirectlyResult))
        if result.consume_result != CR_SUCCESS:
            raise IllegalCall(Code.FAILED_TO_CONSUME_MESSAGE, f"{result.consume_result}: {result.remark}")
        return VerifyMessageResponse(status=OK)

    # Members.

    def _members(self, group: str) -> list[ClientInfo]:
        found = self._inspection.consumer_connections(group)
        model = MessageModel.BROADCASTING if found.message_model == "BROADCASTING" else MessageModel.CLUSTERING
        return [
            ClientInfo(
                client_id=one.client_id,
                version=version_text(one.version),
                language=one.language,
                egress_ip=one.client_addr.rpartition(":")[0].strip("[]"),
                message_model=model,
            )
            for one in found.connection_set
        ]

    async def _subscriptions(self, group: str, topic: str) -> list[tuple[ClientInfo, list[SubscriptionInfo]]]:
        """Return what each member subscribes to, of all topics if none is given."""
        members = self._members(group)
        if len(members) > MAX_MEMBERS:
            raise IllegalCall(Code.BAD_REQUEST, f"group {group} has {len(members)} members; {MAX_MEMBERS} can be asked")
        receivers = self._clients.receivers.get(group)
        told = {
            channel.client_id: channel.subscriptions
            for channel in (receivers.members if receivers else ())
            if isinstance(channel, GrpcClient)
        }

        async def of(client: ClientInfo) -> list[SubscriptionInfo]:
            if (data := told.get(client.client_id)) is None:
                data = (await self._running_info(group, client.client_id)).subscription_set
            infos = []
            for one in data:
                if one.topic == topic or (not topic and one.topic != retry_topic(group)):
                    info = SubscriptionInfo(
                        group={"name": group}, topic={"name": one.topic}, expression=_expression(one), online=True,
                        message_model=client.message_model, subscription_consistency=True,
                    )  # fmt: skip
                    info.last_update_timestamp.FromMilliseconds(valid_ms(one.sub_version))
                    infos.append(info)
            return infos

        return list(zip(members, await asyncio.gather(*map(of, members)), strict=True))

    async def _running_info(self, group: str, client_id: str, *, with_stack: bool = False) -> ConsumerRunningInfo:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=str(with_stack).lower()
        )
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return await self._ask(group, client_id, request, decode_running_info)

    async def _ask(self, group: str, client_id: str, request: RemotingCommand, decode: Callable[[bytes], T]) -> T:
        """Return what a member responds. Raises Refused and IllegalCall."""
        channel = self._inspection.consumer(group, client_id)
        answer = await self._calls.ask(channel, request, f"<{group}> <{client_id}>")
        if answer.code != ResponseCode.SUCCESS:
            raise IllegalCall(Code.INTERNAL_SERVER_ERROR, f"client {client_id}: {answer.remark}")
        try:
            return decode(bytes(answer.body))
        except RemoteProtocolError as error:
            raise IllegalCall(Code.INTERNAL_SERVER_ERROR, f"client {client_id}: {error}") from None


def failure_of(method: str) -> Callable[[Status], Any]:
    """Return what makes the response of a method of the Admin service from a status."""
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    response = getattr(admin_pb2, service.methods_by_name[method].output_type.name)
    return lambda status: response(status=status)


def _group(request: Any) -> str:
    return checked(check_group, name_of(request.group), Code.ILLEGAL_CONSUMER_GROUP)


def _expression(data: SubscriptionData) -> FilterExpression:
    kind = FilterType.TAG if data.is_tag_type else FilterType.SQL
    return FilterExpression(type=kind, expression=data.sub_string)
