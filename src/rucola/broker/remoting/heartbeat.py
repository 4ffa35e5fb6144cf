"""Adapter of HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38) and CHECK_CLIENT_CONFIG (46)."""

from __future__ import annotations

from collections.abc import Iterator

from rucola.access import Action, Resource
from rucola.broker.services.clients import ClientService
from rucola.domain.client import HeartbeatData
from rucola.protocol.codes import RequestCode
from rucola.protocol.connections import CheckClientRequestBody
from rucola.protocol.heartbeat import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseBody,
    UnregisterClientRequestHeader,
)
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def _announced(heartbeat: HeartbeatData) -> Iterator[Resource]:
    for consumer in heartbeat.consumer_data_set:
        yield Resource(group=consumer.group_name)
        yield from (Resource(wanted.topic, consumer.group_name) for wanted in consumer.subscription_data_set)
    yield from (Resource(producer_group=producer.group_name) for producer in heartbeat.producer_data_set)
    if not heartbeat.consumer_data_set and not heartbeat.producer_data_set:
        yield Resource()


def _left_groups(header: UnregisterClientRequestHeader) -> list[Resource]:
    producer = [Resource(producer_group=header.producer_group)] if header.producer_group else []
    consumer = [Resource(group=header.consumer_group)] if header.consumer_group else []
    return producer + consumer or [Resource()]


def _listed_group(header: GetConsumerListByGroupRequestHeader) -> Resource:
    return Resource(group=header.consumer_group)


def _checked_subscription(request: CheckClientRequestBody) -> Resource:
    return Resource(request.subscription_data.topic if request.subscription_data else "", request.group)


class HeartbeatAdapter:
    def __init__(self, service: ClientService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        leaving, members = UnregisterClientRequestHeader, GetConsumerListByGroupRequestHeader
        checked = CheckClientRequestBody
        return (
            Endpoint(RequestCode.HEART_BEAT, Action.HEARTBEAT, self.heart_beat, HeartbeatData, _announced),
            Endpoint(RequestCode.UNREGISTER_CLIENT, Action.UNREGISTER, self.unregister, leaving, _left_groups),
            Endpoint(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Action.QUERY, self.consumer_ids, members, _listed_group),
            Endpoint(RequestCode.CHECK_CLIENT_CONFIG, Action.QUERY, self.check_config, checked, _checked_subscription),
        )

    def heart_beat(self, request: Request[HeartbeatData]) -> Reply:
        # The client gets the response before the notification that it has joined: Apache's client would rebalance while
        # its first heartbeat is in flight, and pull what the broker does not know yet. Nothing waits for the files of a
        # new group: after a crash, the next heartbeat creates it again.
        self._service.heartbeat(
            request.connection,
            request.caller,
            request.content,
            request.command.language,
            request.command.version,
            on_accepted=lambda: request.connection.answer(request.command, request.success()),
        )
        return None

    def unregister(self, request: Request[UnregisterClientRequestHeader]) -> Reply:
        self._service.unregister(request.connection, request.content.producer_group, request.content.consumer_group)
        return request.success()

    def consumer_ids(self, request: Request[GetConsumerListByGroupRequestHeader]) -> Reply:
        members = self._service.consumer_ids(request.content.consumer_group)
        return request.success(body=GetConsumerListByGroupResponseBody(consumer_id_list=members))

    def check_config(self, request: Request[CheckClientRequestBody]) -> Reply:
        self._service.check_subscription(request.content.subscription_data)
        return request.success()
