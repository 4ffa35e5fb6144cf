"""The name server's remoting adapter: one handler per request code, header -> service -> response.

Deliberate difference to Apache RocketMQ 4.9.8: the response to an unknown request code is REQUEST_CODE_NOT_SUPPORTED;
Apache's name server sends none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rucola import settings
from rucola.access import Action, Resource
from rucola.domain.route import QueueData
from rucola.domain.topic import DataVersion
from rucola.errors import MQError
from rucola.message.properties import is_true
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.routes import Registration, is_unit, is_unit_sub, is_unit_sub_only
from rucola.namesrv.services import ConfigurationService, RouteService
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.kv import (
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
)
from rucola.protocol.route import (
    AddWritePermOfBrokerResponseHeader,
    BrokerRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    WipeWritePermOfBrokerResponseHeader,
    WritePermOfBrokerRequestHeader,
    digest_steps,
    encode_topic_list,
    registration_steps,
)
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Handler, Request
from rucola.slices import in_slices

QUOTES_KEYS_SINCE = 401
"""Version 4.9.4: clients from this version on receive routes with quoted broker ids."""


class RouteAdapter:
    def __init__(self, service: RouteService) -> None:
        self._service = service
        self._routes = service.routes

    def endpoints(self) -> Endpoints:
        register, route, alter = Action.REGISTER_BROKER, Action.ROUTE, Action.ALTER_ROUTE
        broker, perm = BrokerRequestHeader, WritePermOfBrokerRequestHeader
        deleted = DeleteTopicFromNamesrvRequestHeader
        return [
            Endpoint(RequestCode.REGISTER_BROKER, register, self.register_broker, RegisterBrokerRequestHeader),
            Endpoint(RequestCode.UNREGISTER_BROKER, register, self.unregister_broker, broker),
            Endpoint(RequestCode.QUERY_DATA_VERSION, register, self.query_data_version, broker),
            Endpoint(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, self.route, GetRouteInfoRequestHeader, _topic),
            Endpoint(RequestCode.GET_BROKER_CLUSTER_INFO, route, self.clusters),
            Endpoint(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, route, self._listing(None)),
            Endpoint(RequestCode.GET_TOPICS_BY_CLUSTER, route, self.topics_of_cluster, GetTopicsByClusterRequestHeader),
            Endpoint(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, route, self.system_topics),
            Endpoint(RequestCode.GET_UNIT_TOPIC_LIST, route, self._listing(is_unit)),
            Endpoint(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, route, self._listing(is_unit_sub)),
            Endpoint(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, route, self._listing(is_unit_sub_only)),
            Endpoint(RequestCode.DELETE_TOPIC_IN_NAMESRV, alter, self.delete_topic, deleted, _topic),
            Endpoint(RequestCode.WIPE_WRITE_PERM_OF_BROKER, alter, self.wipe_write_perm, perm),
            Endpoint(RequestCode.ADD_WRITE_PERM_OF_BROKER, alter, self.add_write_perm, perm),
        ]

    async def register_broker(self, request: Request[RegisterBrokerRequestHeader]) -> Answer:
        header = request.content
        try:
            broker = Registration(
                header.broker_addr,
                header.broker_name,
                header.broker_id,
                header.cluster_name,
                header.ha_server_addr,
                header.master_epoch,
            )
            digest = await in_slices(digest_steps(request.command.body))
            registered = self._service.registered_again(request.connection, broker, digest)
            if registered is None:
                body = await in_slices(registration_steps(header, request.command.body, self._service.max_topics))
                if not request.connection.is_open:
                    return None  # its registration would never be removed
                registered = await in_slices(self._service.register(request.connection, broker, body, digest))
        except MQError:
            self._service.refused_registrations += 1
            raise
        order = registered.order_config
        return request.success(
            RegisterBrokerResponseHeader(ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr),
            b"" if order is None else KVTable(table=order),
        )

    def unregister_broker(self, request: Request[BrokerRequestHeader]) -> Reply:
        self._routes.unregister(request.content.broker_addr)
        return request.success()

    def query_data_version(self, request: Request[BrokerRequestHeader]) -> Reply:
        header = request.content
        version = decode_body(DataVersion, request.command.body)
        confirmed, registered = self._service.confirm(header.broker_addr, version)
        answer = QueryDataVersionResponseHeader(changed=not confirmed)
        if header.master_epoch is not None:
            answer.master_epoch, answer.master_addr = self._routes.newest_master(header.broker_name)
        return request.success(answer, registered or b"")

    def route(self, request: Request[GetRouteInfoRequestHeader]) -> Reply:
        route = self._service.route(request.content.topic)
        quoted = request.command.version >= QUOTES_KEYS_SINCE or is_true(request.content.accept_standard_json_only)
        return request.success(body=encode_body(route, quote_keys=quoted))

    def clusters(self, request: Request[None]) -> Reply:
        return request.success(body=self._routes.clusters())

    async def topics_of_cluster(self, request: Request[GetTopicsByClusterRequestHeader]) -> Answer:
        return _topic_list(request, await in_slices(self._routes.topics_of_cluster_steps(request.content.cluster)))

    def _listing(self, accepts: Callable[[QueueData], bool] | None) -> Handler[None]:
        async def answer(request: Request[None]) -> Answer:
            return _topic_list(request, await in_slices(self._routes.topics_steps(accepts)))

        return answer

    def system_topics(self, request: Request[None]) -> Reply:
        return _topic_list(request, *self._routes.system_topics())

    def delete_topic(self, request: Request[DeleteTopicFromNamesrvRequestHeader]) -> Reply:
        self._routes.delete_topic(request.content.topic, request.content.cluster_name or None)
        return request.success()

    async def wipe_write_perm(self, request: Request[WritePermOfBrokerRequestHeader]) -> Answer:
        count = await self._service.set_writable(request.caller, request.content.broker_name, False)
        return request.success(WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    async def add_write_perm(self, request: Request[WritePermOfBrokerRequestHeader]) -> Answer:
        count = await self._service.set_writable(request.caller, request.content.broker_name, True)
        return request.success(AddWritePermOfBrokerResponseHeader(add_topic_count=count))


class KVAdapter:
    def __init__(self, table: KVConfig) -> None:
        self._table = table

    def endpoints(self) -> Endpoints:
        query, alter, key = Action.QUERY, Action.ALTER_KV, KVConfigRequestHeader
        return [
            Endpoint(RequestCode.PUT_KV_CONFIG, alter, self.put, PutKVConfigRequestHeader),
            Endpoint(RequestCode.GET_KV_CONFIG, query, self.get, key),
            Endpoint(RequestCode.DELETE_KV_CONFIG, alter, self.delete, key),
            Endpoint(RequestCode.GET_KVLIST_BY_NAMESPACE, query, self.namespace, GetKVListByNamespaceRequestHeader),
        ]

    def put(self, request: Request[PutKVConfigRequestHeader]) -> Reply:
        header = request.content
        self._table.put(header.namespace, header.key, header.value)
        return request.success()

    def get(self, request: Request[KVConfigRequestHeader]) -> Reply:
        value = self._table.known(request.content.namespace, request.content.key)
        return request.success(GetKVConfigResponseHeader(value=value))

    def delete(self, request: Request[KVConfigRequestHeader]) -> Reply:
        self._table.delete(request.content.namespace, request.content.key)
        return request.success()

    def namespace(self, request: Request[GetKVListByNamespaceRequestHeader]) -> Reply:
        table = self._table.known_namespace(request.content.namespace)
        return request.success(body=KVTable(table=table))


class ConfigurationAdapter:
    def __init__(self, service: ConfigurationService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        return [
            Endpoint(RequestCode.GET_NAMESRV_CONFIG, Action.QUERY, self.get),
            Endpoint(RequestCode.UPDATE_NAMESRV_CONFIG, Action.ALTER_CONFIG, self.update),
        ]

    def get(self, request: Request[None]) -> Reply:
        return request.success(body=settings.render(self._service.properties()).encode("utf-8"))

    def update(self, request: Request[None]) -> Reply:
        self._service.update(request.caller, request.command.body)
        return request.success()


def _topic(header: GetRouteInfoRequestHeader | DeleteTopicFromNamesrvRequestHeader) -> Resource:
    return Resource(header.topic)


def _topic_list(request: Request[Any], topics: list[str], broker_addr: str | None = None) -> RemotingCommand:
    return request.success(body=encode_topic_list(topics, broker_addr))
