"""Finding messages: QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33).

Answers to `QueryMessageProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: who asks for records before a
physical offset, which Apache does not know, goes through all hits without loss, and is told how far the index reaches.
"""

from __future__ import annotations

from rucola.broker.config import BrokerConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.query import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.store.index import MAX_LONG
from rucola.store.message_store import MessageStore


class QueryProcessor:
    """Answers from the index and from the log."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message_by_id,
        }

    def query_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueryMessageRequestHeader)
        max_num = self._config.default_query_max_num if is_true(header.unique_key_query) else header.max_num
        before = header.before_physical_offset
        window = header.begin_timestamp, header.end_timestamp
        found = self._store.query(header.topic, header.key, max_num, *window, MAX_LONG if before is None else before)
        reach = QueryMessageResponseHeader(
            index_last_update_timestamp=found.index_last_update_timestamp,
            index_last_update_phyoffset=found.index_last_update_physical_offset,
        )
        if before is not None:
            reach.index_begin_timestamp, reach.index_end_timestamp = found.index_range or (-1, -1)
        if not found.records:
            return command.response(
                ResponseCode.QUERY_NOT_FOUND, reach, remark="can not find message, maybe time range not correct"
            )
        return command.response(ResponseCode.SUCCESS, reach, b"".join(found.records))

    def view_message_by_id(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(ViewMessageRequestHeader)
        record = self._store.record_at(header.offset)
        if record is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {header.offset}"
            )
        return command.response(ResponseCode.SUCCESS, body=bytes(record))
