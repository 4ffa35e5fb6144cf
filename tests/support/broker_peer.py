"""A running broker and a client that sends it single requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.broker.background.retention import DiskUsageProbe, disk_usage
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.config import BrokerConfig
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData
from rucola.message import MessageExt
from rucola.message.record import decode_many
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.cluster import SMALL_FILES
from support.peer import Peer


@asynccontextmanager
async def broker_peer(
    path: Path,
    store: dict[str, Any] | None = None,
    clock: Callable[[], int] = wall_clock_ms,
    probe_disk: DiskUsageProbe = disk_usage,
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
    async with Broker(config, store_config, clock=clock, probe_disk=probe_disk) as broker:
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
