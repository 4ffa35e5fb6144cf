"""A master that is held up between the check of its right and its answer: the answer does not leave."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.coordination.config import CoordinationConfig, MasterRole
from rucola.errors import MQError, RemotingConnectError
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageRequestHeader
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.remoting.client import RemotingClient
from rucola.store.config import BrokerRole, StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.check import check
from support.cluster import HOST, SMALL_FILES
from support.etcd import EtcdServer
from support.ports import free_port
from support.waiting import DEADLINE_S, until

TTL_MS = 4000


class HeldUp:
    """A clock that the store asks when it puts a message, and that stops the event loop there when it is armed."""

    def __init__(self) -> None:
        self.is_armed = False

    def __call__(self) -> int:
        if self.is_armed:
            self.is_armed = False
            time.sleep(TTL_MS / 1000)  # what SIGSTOP and SIGCONT do to the process
        return time.time_ns() // 1_000_000


async def put(client: RemotingClient, broker: Broker, body: bytes) -> int:
    header = SendMessageRequestHeader(
        producer_group="p", topic="TBW102", queue_id=0, sys_flag=0, born_timestamp=0, flag=0
    )
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE, header, body)
    return (await client.invoke(broker.address, request, 60_000)).code


async def put_at_last(client: RemotingClient, broker: Broker, body: bytes) -> None:
    """Send until the store takes it: on a busy machine a right may end between two renewals."""
    while await put(client, broker, body) != ResponseCode.SUCCESS:
        pass


@pytest.mark.slow
def test_an_answer_that_is_ready_when_the_right_has_ended_does_not_leave(
    tmp_path: Path, shared_etcd: EtcdServer
) -> None:
    clock = HeldUp()

    async def run() -> None:
        coordination = CoordinationConfig(
            etcd_endpoints=shared_etcd.endpoint, etcd_ttl=TTL_MS, etcd_loop_wait=300, etcd_retry_timeout=1700,
            etcd_master_role=MasterRole.ASYNC_MASTER,
        )  # fmt: skip
        client = RemotingClient()
        async with Namesrv(HOST, 0) as namesrv:
            config = BrokerConfig(
                broker_name="held-up", broker_id=1, bind_address=HOST, broker_ip1=HOST, listen_port=0,
                ha_listen_port=free_port(), namesrv_addr=f"{HOST}:{namesrv.port}", coordination=coordination,
            )  # fmt: skip
            store = StoreConfig(store_path_root_dir=tmp_path, broker_role=BrokerRole.SLAVE, **SMALL_FILES)
            async with Broker(config, store, clock=clock) as broker:

                async def is_master() -> bool:
                    with suppress(MQError):
                        return await put(client, broker, b"is it?") == ResponseCode.SUCCESS
                    return False

                await until(is_master, DEADLINE_S)
                clock.is_armed = True
                with pytest.raises(RemotingConnectError):
                    await put_at_last(client, broker, b"held up")
                assert not clock.is_armed
                await until(is_master, DEADLINE_S)
        await client.close()

    with asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
        runner.run(run())
    with StoreReader(tmp_path) as reader:
        assert [message.body for message in reader.walk()].count(b"held up") == 1
    assert check(tmp_path) == []
