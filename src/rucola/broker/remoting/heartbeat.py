"""Clients: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38).

The first heartbeat of a consumer group makes the group and its retry topic, so that the group can subscribe to it.

Answers to `ClientManageProcessor` and a part of `ConsumerManageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.broker.state import BrokerState
from rucola.message.topics import retry_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.heartbeat import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    UnregisterClientRequestHeader,
)
from rucola.protocol.topic import TOPIC_FLAG_UNIT_SUB
from rucola.remoting.connection import Connection, Processor, Reply


class HeartbeatProcessor:
    """Keeps the list of clients."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister_client,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.get_consumer_list_by_group,
        }

    def heart_beat(self, connection: Connection, command: RemotingCommand) -> Reply:
        heartbeat = decode_body(HeartbeatData, command.body)
        now_ms = self._state.clock()
        for consumer in heartbeat.consumer_data_set:
            group = self._state.groups.find(consumer.group_name, now_ms)
            if group is not None:
                sys_flag = TOPIC_FLAG_UNIT_SUB if is_true(consumer.unit_mode) else 0
                self._state.topics.ensure(retry_topic(group.group_name), group.retry_queue_nums, now_ms, sys_flag)
            self._state.filters.register(consumer.group_name, consumer.subscriptions, now_ms)
        self._state.clients.heartbeat(connection, heartbeat, command.language, command.version, now_ms)
        return self._state.persistence.reply_when_persisted(command.response(ResponseCode.SUCCESS))

    def unregister_client(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(UnregisterClientRequestHeader)
        if header.consumer_group:
            self._state.groups.find(header.consumer_group, self._state.clock())
        self._state.clients.unregister(connection, header.producer_group, header.consumer_group)
        return self._state.persistence.reply_when_persisted(command.response(ResponseCode.SUCCESS))

    def get_consumer_list_by_group(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(GetConsumerListByGroupRequestHeader)
        group = self._state.clients.consumers.get(header.consumer_group)
        if group is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {header.consumer_group}"
            )
        body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids))
        return command.response(ResponseCode.SUCCESS, body=body)
