"""Adapter of QueryRoute: the queues of a topic on this broker, with the address of its gRPC port.

A topic that does not exist has the route that it will have, if the first message creates it.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from rucola import refusals
from rucola.access import Action, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.grpc.codes import OK
from rucola.broker.grpc.methods import GrpcMethod, GrpcRequest, checked, name_of
from rucola.broker.services.topics import TopicService
from rucola.domain.role import MASTER_ID
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.message.topics import check_topic
from rucola.protocol.grpc import definition_pb2
from rucola.protocol.grpc.definition_pb2 import (
    Address,
    AddressScheme,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
)
from rucola.protocol.grpc.service_pb2 import QueryRouteRequest, QueryRouteResponse

_TYPES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_PERMISSIONS: Final = {
    PERM_READ | PERM_WRITE: Permission.READ_WRITE,
    PERM_READ: Permission.READ,
    PERM_WRITE: Permission.WRITE,
}


class RouteAdapter:
    def __init__(self, service: TopicService, config: BrokerConfig) -> None:
        self._service = service
        self._config = config

    def methods(self) -> list[GrpcMethod[QueryRouteRequest]]:
        def failed(status: definition_pb2.Status) -> QueryRouteResponse:
            return QueryRouteResponse(status=status)

        def resource(request: QueryRouteRequest) -> list[Resource]:
            return [Resource(name_of(request.topic))]

        return [GrpcMethod("QueryRoute", Action.ROUTE, QueryRouteRequest, resource, failed, self.query_route)]

    def query_route(self, request: GrpcRequest[QueryRouteRequest]) -> QueryRouteResponse:
        return QueryRouteResponse(status=OK, message_queues=self.queues(request.content.topic))

    def queues(self, resource: definition_pb2.Resource) -> list[MessageQueue]:
        """Return the queues of a topic. Raises Refused and IllegalCall."""
        name = checked(check_topic, name_of(resource), Code.ILLEGAL_TOPIC)
        topic = self._service.expected(name)
        if topic is None:
            raise Refused(refusals.TOPIC_NOT_FOUND, topic=name)
        endpoints = endpoints_of(self._config.broker_ip1, self._config.grpc_server_port)
        broker = Broker(name=self._config.broker_name, id=MASTER_ID, endpoints=endpoints)
        perm = topic.perm & self._config.broker_permission
        queues = []
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            allowed = perm & (
                PERM_READ * (queue_id < topic.read_queue_nums) | PERM_WRITE * (queue_id < topic.write_queue_nums)
            )
            if allowed:
                queues.append(
                    MessageQueue(
                        topic=resource,
                        id=queue_id,
                        permission=_PERMISSIONS[allowed],
                        broker=broker,
                        accept_message_types=_TYPES,
                    )
                )
        return queues


def endpoints_of(host: str, port: int) -> Endpoints:
    try:
        version = ipaddress.ip_address(host).version
        scheme = AddressScheme.IPv4 if version == 4 else AddressScheme.IPv6
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=port)])
