"""Another broker becomes master while the old one hangs: clients find it after a timeout, not with the next refresh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rucola.client import Message, Producer, PullConsumer
from rucola.client.instance import ROUTE_INTERVAL_MS
from rucola.domain.queue import MessageQueue
from rucola.errors import RemotingError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from support.cluster import Cluster, cluster
from support.waiting import until

QUEUE = MessageQueue("T", "broker-a", 0)
TIMEOUT_MS = 50
SOON_S = ROUTE_INTERVAL_MS / 1000 / 2
CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET)


async def hang(running: Cluster) -> str:
    """Start a broker-a that accepts connections and answers nothing, and register it; return its address."""
    server = await running.scripted_broker("broker-a", "T", {code: lambda *_: None for code in CODES})
    return f"127.0.0.1:{server.port}"


async def send(producer: Producer) -> object:
    return await producer.send(Message("T", b"x"), timeout_ms=TIMEOUT_MS)


async def send_to_a_queue(producer: Producer) -> object:
    return await producer.send(Message("T", b"x"), QUEUE, timeout_ms=TIMEOUT_MS)


async def send_many(producer: Producer) -> object:
    return [result async for result in producer.send_many([Message("T", b"x")], timeout_ms=TIMEOUT_MS)]


@pytest.mark.parametrize("attempt", [send, send_to_a_queue, send_many])
async def test_a_producer_asks_for_the_route_when_a_send_times_out(
    tmp_path: Path, attempt: Callable[[Producer], Awaitable[object]]
) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, retry_times=0) as producer:
        first = await hang(running)
        await producer.queues("T")
        second = await hang(running)
        routes = producer.instance.routes
        assert routes.address("broker-a") == first
        with pytest.raises(RemotingError):
            await attempt(producer)
        await until(lambda: routes.address("broker-a") == second, SOON_S)


async def test_a_consumer_asks_for_the_route_when_a_request_times_out(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, PullConsumer("g", running.namesrv) as consumer:
        await hang(running)
        await consumer.queues("T")
        second = await hang(running)
        with pytest.raises(RemotingError):
            await consumer.instance.invoke_master(QUEUE, RemotingCommand.request(CODES[1]), TIMEOUT_MS)
        await until(lambda: consumer.instance.routes.address("broker-a") == second, SOON_S)


async def test_a_master_that_is_elected_later_is_found_without_another_failure(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv, retry_times=0) as producer:
        first = await hang(running)
        await producer.queues("T")
        with pytest.raises(RemotingError):
            await send(producer)
        routes = producer.instance.routes
        await routes.refresh("T")  # the lookup after the failure is over as well, and has found nothing new
        assert routes.address("broker-a") == first
        second = await hang(running)
        await until(lambda: routes.address("broker-a") == second, SOON_S)
