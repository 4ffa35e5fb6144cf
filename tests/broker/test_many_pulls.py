"""Thousands of pulls at once, of many connections: no iteration of the event loop takes long.

Counted in steps, as in `test_largest_requests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.background import group_commit
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData
from rucola.protocol import pull
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from simulation.in_memory import FlushOnLoop
from simulation.step_loop import StepClient, StepLoop
from support.cluster import SMALL_FILES
from support.peer import pull_header, send_header

pytestmark = pytest.mark.slow

CONNECTIONS = 20
PULLS = 6000
MAX_STEPS_OF_READS = 1_000_000
"""The bound of an iteration that reads from all connections: decoding their frames takes three quarters of it."""
MAX_STEPS = 400_000
"""The bound of other iterations, some 10 ms; all pulls together take several times as much."""
HELD_MS = 10_000


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "FlushThread", FlushOnLoop)


@contextmanager
def clients_of(path: Path) -> Iterator[tuple[StepLoop, list[StepClient]]]:
    """Yield the loop of a broker and consumers of it, all of one group."""
    loop = StepLoop()
    asyncio.set_event_loop(loop)
    try:
        config = BrokerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            broker_name="broker-a",
            vip_channel_enabled=False,
            grpc_server_enabled=False,
        )
        broker = Broker(
            config,
            StoreConfig(store_path_root_dir=path, **SMALL_FILES),
            clock=lambda: int(loop.time() * 1000) + loop.now_ms,
        )
        loop.run(broker.start())
        clients = []
        for number in range(CONNECTIONS):
            client = loop.connect(50_000 + number)
            consumer = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="TBW102")])
            data = HeartbeatData(client_id=f"c{number}", consumer_data_set=[consumer])
            loop.run(client.request(RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(data))))
            clients.append(client)
        yield loop, clients
        loop.run(broker.stop())
        assert check(path) == []
    finally:
        loop.close()
        asyncio.set_event_loop(None)


def pull_request() -> RemotingCommand:
    asked: dict[str, Any] = {"topic": "TBW102", "sys_flag": pull.SUSPEND, "suspend_timeout_millis": HELD_MS}
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(**asked))


def all_pulls(loop: StepLoop, clients: list[StepClient]) -> asyncio.Future[list[RemotingCommand]]:
    """Send the pulls in the next iteration, each connection's in one read; return the future of all responses."""
    answers: list[asyncio.Future[RemotingCommand]] = []
    for client in clients:
        send, futures = client.prepared([pull_request() for _ in range(PULLS // len(clients))])
        loop.call_soon(send)
        answers += futures
    return asyncio.gather(*answers)


def test_pulls_that_arrive_at_once_and_expire_at_once_are_processed_in_slices(tmp_path: Path) -> None:
    with clients_of(tmp_path) as (loop, clients):
        answered = all_pulls(loop, clients)
        _, steps = loop.counted(asyncio.sleep(HELD_MS / 2000))
        assert not answered.done()
        assert steps < MAX_STEPS_OF_READS
        answers, steps = loop.counted(answered)
        assert [answer.code for answer in answers] == [ResponseCode.PULL_NOT_FOUND] * PULLS
        assert steps < MAX_STEPS


def test_pulls_that_one_message_wakes_are_answered_in_slices(tmp_path: Path) -> None:
    with clients_of(tmp_path) as (loop, clients):
        answered = all_pulls(loop, clients)
        loop.settle()
        assert not answered.done()
        header = send_header(topic="TBW102", queue_id=0)
        send, (sent,) = clients[0].prepared([RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"body")])
        loop.call_soon(send)
        answers, steps = loop.counted(answered)
        assert sent.result().code == ResponseCode.SUCCESS
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * PULLS
        assert steps < MAX_STEPS
