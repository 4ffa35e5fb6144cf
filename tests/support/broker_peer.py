"""A running broker and a client that sends it single requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.config import BrokerConfig
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.subscription import SubscriptionData
from rucola.message import MessageExt
from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.offset import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.protocol.transaction import EndTransactionRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.cluster import SMALL_FILES


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


@asynccontextmanager
async def broker_peer(
    path: Path,
    store: dict[str, Any] | None = None,
    clock: Callable[[], int] = wall_clock_ms,
    *,
    check_store: bool = True,
    **settings: Any,
) -> AsyncIterator[Peer]:
    """Start a broker on the directory `path` and yield a peer of it; check the store after the broker has stopped.

    `store` are settings of the store, `settings` those of the broker. A test that damages the store passes
    `check_store=False`.
    """
    config = BrokerConfig(**{"bind_address": "127.0.0.1", "listen_port": 0, "broker_name": "broker-a"} | settings)
    store_config = StoreConfig(store_path_root_dir=path, **SMALL_FILES | (store or {}))
    async with Broker(config, store_config, clock=clock) as broker:
        client = RemotingClient()
        try:
            yield Peer(broker, client)
        finally:
            await client.close()
    if check_store:
        assert check(path) == []


async def max_offset(peer: Peer, topic: str, queue_id: int) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=topic, queue_id=queue_id))
    return int(answer.ext_fields["offset"])


def heartbeat(client_id: str, topic: str = "T") -> bytes:
    subscription = SubscriptionData(topic=topic, sub_version=1)
    consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
    return encode_body(HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))


async def send_back(peer: Peer, offset: int, version: int | None = None, **fields: Any) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(**{"offset": offset, "group": "g", "delay_level": 0} | fields)
    command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    if version is not None:
        command.version = version
    return await peer.client.invoke(peer.broker.address, command)


def broker_with_delays(path: Path, levels: str, **settings: Any) -> AbstractAsyncContextManager[Peer]:
    """A broker with these delay levels, such as "1s 5s", and a peer of it."""
    return broker_peer(path, store={"message_delay_level": levels}, **settings)


async def next_messages(peer: Peer, **fields: Any) -> list[MessageExt]:
    """What the next pull finds, waiting for it."""
    answer = await asyncio.wait_for(peer.pull(sys_flag=6, suspend_timeout_millis=60_000, **fields), 20)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_many(answer.body)
