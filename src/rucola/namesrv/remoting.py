"""What the name server answers: one method a request code, from the tables.

Each is a plain function `(connection, command) -> RemotingCommand`; a request that cannot be read raises
RemoteProtocolError, which the connection turns into an answer.

Answers to `DefaultRequestProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: an unknown request code is
answered, with REQUEST_CODE_NOT_SUPPORTED, where Apache's name server says nothing; a configuration value that cannot
be read is refused, where Apache ignores it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from rucola import settings
from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import replace_file
from rucola.message.properties import is_true
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.routes import RouteTable
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.kv import (
    ORDER_TOPIC_CONFIG,
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
    TopicList,
    WipeWritePermOfBrokerResponseHeader,
    WritePermOfBrokerRequestHeader,
    decode_registration,
)
from rucola.protocol.topic import TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB, DataVersion
from rucola.remoting.connection import Connection, Processor

logger = logging.getLogger(__name__)

QUOTES_KEYS_SINCE = 401
"""Version of 4.9.4: from it on, clients are sent routes with quoted broker ids."""


class Processors:
    """Answers requests from the tables. `clock_ms` need not be the time of day; only differences count."""

    def __init__(
        self, routes: RouteTable, kv_config: KVConfig, config: NamesrvConfig, clock_ms: Callable[[], int]
    ) -> None:
        self.config = config
        self._routes = routes
        self._kv_config = kv_config
        self._clock_ms = clock_ms

    def by_code(self) -> dict[int, Processor]:
        """The processor of each request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv_config,
            RequestCode.GET_KV_CONFIG: self.get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv_config,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route_info_by_topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_broker_cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm_of_broker,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topic_list,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list_by_namespace,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topic_list,
            RequestCode.GET_UNIT_TOPIC_LIST: self.get_unit_topic_list,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_has_unit_sub_topic_list,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_has_unit_sub_ununit_topic_list,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_namesrv_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_namesrv_config,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm_of_broker,
        }

    # Brokers.

    def register_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(RegisterBrokerRequestHeader)
        master = self._routes.register(
            header.broker_addr,
            header.broker_name,
            header.broker_id,
            header.cluster_name,
            header.ha_server_addr,
            decode_registration(header, command.body),
            self._clock_ms(),
            connection,
        )
        ha_server_addr, master_addr = master or (None, None)
        order = self._kv_config.namespace(ORDER_TOPIC_CONFIG)
        return command.response(
            ResponseCode.SUCCESS,
            RegisterBrokerResponseHeader(ha_server_addr=ha_server_addr, master_addr=master_addr),
            b"" if order is None else encode_body(KVTable(table=order)),
        )

    def unregister_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._routes.unregister(command.decode_header(BrokerRequestHeader).broker_addr)
        return command.response(ResponseCode.SUCCESS)

    def query_data_version(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        address = command.decode_header(BrokerRequestHeader).broker_addr
        confirmed = self._routes.confirm(address, decode_body(DataVersion, command.body), self._clock_ms())
        registered = self._routes.data_version(address)
        return command.response(
            ResponseCode.SUCCESS,
            QueryDataVersionResponseHeader(changed=not confirmed),
            encode_body(registered) if registered else b"",
        )

    # Routes.

    def get_route_info_by_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(GetRouteInfoRequestHeader)
        route = self._routes.route(header.topic)
        if route is None:
            return command.response(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {header.topic}",
            )
        if self.config.order_message_enable:
            route.order_topic_conf = self._kv_config.get(ORDER_TOPIC_CONFIG, header.topic)
        quoted = command.version >= QUOTES_KEYS_SINCE or is_true(header.accept_standard_json_only)
        return command.response(ResponseCode.SUCCESS, body=encode_body(route, quote_keys=quoted))

    def get_broker_cluster_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS, body=encode_body(self._routes.clusters()))

    def get_all_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(command, self._routes.topics())

    def get_topics_by_cluster(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        cluster = command.decode_header(GetTopicsByClusterRequestHeader).cluster
        return _topic_list(command, self._routes.topics_of_cluster(cluster))

    def get_system_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(command, *self._routes.system_topics())

    def get_unit_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(command, self._routes.topics(lambda data: bool(data.topic_sys_flag & TOPIC_FLAG_UNIT)))

    def get_has_unit_sub_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(command, self._routes.topics(lambda data: bool(data.topic_sys_flag & TOPIC_FLAG_UNIT_SUB)))

    def get_has_unit_sub_ununit_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        both = TOPIC_FLAG_UNIT | TOPIC_FLAG_UNIT_SUB
        return _topic_list(command, self._routes.topics(lambda data: data.topic_sys_flag & both == TOPIC_FLAG_UNIT_SUB))

    def delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(DeleteTopicFromNamesrvRequestHeader)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        return command.response(ResponseCode.SUCCESS)

    def wipe_write_perm_of_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = command.decode_header(WritePermOfBrokerRequestHeader).broker_name
        count = self._routes.set_writable(name, False)
        logger.info("%s: took write permission on %d topics from broker %s", connection.peer, count, name)
        return command.response(ResponseCode.SUCCESS, WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_perm_of_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = command.decode_header(WritePermOfBrokerRequestHeader).broker_name
        count = self._routes.set_writable(name, True)
        logger.info("%s: gave write permission on %d topics to broker %s", connection.peer, count, name)
        return command.response(ResponseCode.SUCCESS, AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    # The key-value table.

    def put_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(PutKVConfigRequestHeader)
        self._kv_config.put(header.namespace, header.key, header.value)
        return command.response(ResponseCode.SUCCESS)

    def get_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(KVConfigRequestHeader)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            return command.response(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return command.response(ResponseCode.SUCCESS, GetKVConfigResponseHeader(value=value))

    def delete_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.decode_header(KVConfigRequestHeader)
        self._kv_config.delete(header.namespace, header.key)
        return command.response(ResponseCode.SUCCESS)

    def get_kv_list_by_namespace(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        namespace = command.decode_header(GetKVListByNamespaceRequestHeader).namespace
        table = self._kv_config.namespace(namespace)
        if table is None:
            return command.response(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return command.response(ResponseCode.SUCCESS, body=encode_body(KVTable(table=table)))

    # The server's own configuration.

    def get_namesrv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(
            ResponseCode.SUCCESS, body=settings.render(settings.to_properties(self.config)).encode("utf-8")
        )

    def update_namesrv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            properties = settings.parse(command.body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a configuration that is not UTF-8: {error.reason}") from None
        if self.config.fixed_keys & properties.keys():
            return command.response(ResponseCode.NO_PERMISSION, remark="Can not update config in black list.")
        self.config = dataclasses.replace(self.config, **settings.changes(NamesrvConfig, properties))
        logger.info("%s changed the configuration: %s", connection.peer, properties)
        if self.config.config_store_path:
            try:
                content = settings.render(settings.to_properties(self.config)).encode("utf-8")
                replace_file(Path(self.config.config_store_path), content)
            except OSError as error:
                raise ConfigError(f"{self.config.config_store_path} cannot be written: {error.strerror}") from None
        return command.response(ResponseCode.SUCCESS)


def _topic_list(command: RemotingCommand, topics: list[str], broker_addr: str | None = None) -> RemotingCommand:
    return command.response(
        ResponseCode.SUCCESS, body=encode_body(TopicList(broker_addr=broker_addr, topic_list=topics))
    )
