"""A client that sends single requests to a broker."""

from __future__ import annotations

from typing import Any

from rucola.broker.broker import Broker
from rucola.domain.group import SubscriptionGroupConfig
from rucola.protocol import pull
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.offset import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.protocol.transaction import EndTransactionRequestHeader
from rucola.remoting.client import RemotingClient


class Peer:
    """A client that sends what a test says to one broker."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.client.invoke(self.broker.address, RemotingCommand.request(code, header, body), 30_000)

    async def send(self, body: bytes = b"body", **fields: Any) -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(**fields), body)

    async def send_batch(self, body: bytes, **fields: Any) -> RemotingCommand:
        return await self.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(**{"batch": "true"} | fields), body)

    async def pull(self, **fields: Any) -> RemotingCommand:
        return await self.ask(RequestCode.PULL_MESSAGE, pull_header(**fields))

    async def alter_topic(self, topic: str = "T", queues: int = 1, **fields: Any) -> RemotingCommand:
        """Create a topic or change it."""
        settings = {"topic": topic, "read_queue_nums": queues, "write_queue_nums": queues, "perm": 6} | fields
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader(**settings))

    async def alter_group(self, group: str = "g", **fields: Any) -> RemotingCommand:
        """Create a consumer group or change it."""
        body = encode_body(SubscriptionGroupConfig(group_name=group, **fields))
        return await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def commit(self, offset: int, group: str = "g", topic: str = "T", queue_id: int = 0) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        return await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def end_transaction(
        self, queue_offset: int, physical_offset: int, outcome: int, group: str = "p", unique_key: str | None = None
    ) -> RemotingCommand:
        """Commit or roll back the half message at these offsets."""
        header = EndTransactionRequestHeader(
            producer_group=group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=outcome,
            transaction_id=unique_key,
        )
        return await self.ask(RequestCode.END_TRANSACTION, header)

    async def committed(self, group: str = "g", topic: str = "T", queue_id: int = 0) -> int | None:
        """Where a group begins; None if that is up to its clients."""
        header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id)
        answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else None


def send_header(**fields: Any) -> SendMessageRequestHeaderV2:
    defaults: dict[str, Any] = {"producer_group": "p", "topic": "T", "queue_id": 0, "sys_flag": 0}
    return SendMessageRequestHeaderV2(**defaults | {"born_timestamp": 1, "flag": 0} | fields)


def pull_header(**fields: Any) -> PullMessageRequestHeader:
    defaults: dict[str, Any] = {"consumer_group": "g", "topic": "T", "queue_id": 0, "queue_offset": 0}
    asked = {"max_msg_nums": 32, "sys_flag": pull.SUBSCRIPTION, "subscription": "*"}
    return PullMessageRequestHeader(**defaults | asked | fields)
