"""One broker of two hangs: members of a group go on with the other, and none of their steps waits for the hung one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.client import Message, Producer, PushConsumer
from rucola.domain.allocation import average_by_circle
from rucola.store.tools.check import check
from support.cluster import Cluster, Tally, cluster
from support.consumers import committed, consumer_of
from support.proxy import Proxy

pytestmark = pytest.mark.slow

QUEUES = 8
MESSAGES = 40
SOON_S = 20
"""Each queue of the hung broker used to cost 5 s, so 40 s and more for all of them."""

ORDERLY = pytest.mark.parametrize("orderly", [False, True], ids=["side by side", "in order"])


@asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[tuple[Cluster, Proxy, Broker]]:
    """broker-a behind a proxy that can freeze, and broker-b, with 8 queues of T each; 40 messages lie in broker-b."""
    async with cluster(path) as running:
        hanging, proxy = await running.start_broker_behind_proxy("broker-a")
        healthy = await running.start_broker("broker-b")
        for broker in (hanging, healthy):
            await running.create_topic(broker, "T", queues=QUEUES)
        await send(running, range(MESSAGES))
        yield running, proxy, healthy
        for broker in (hanging, healthy):
            await broker.stop()
            assert check(path / broker.config.broker_name) == []


async def send(running: Cluster, bodies: range) -> None:
    """Send to the healthy broker alone."""
    async with Producer("g", running.namesrv) as producer:
        queues = [queue for queue in await producer.queues("T") if queue.broker_name == "broker-b"]
        for body in bodies:
            await producer.send(Message("T", b"%d" % body), queues[body % QUEUES])


@asynccontextmanager
async def consuming(running: Cluster, got: Tally[int], *, orderly: bool) -> AsyncIterator[PushConsumer]:
    consumer = consumer_of(running, orderly=orderly, strategy=average_by_circle)  # each gets queues of both brokers
    consumer.listen(lambda message: got.add(int(message.body)))
    async with consumer:
        yield consumer


def of_healthy(*consumers: PushConsumer) -> int:
    return sum(queue.broker_name == "broker-b" for consumer in consumers for queue in consumer.queues)


@ORDERLY
async def test_members_join_and_leave_while_a_broker_hangs(tmp_path: Path, orderly: bool) -> None:
    """Giving up its queues and taking up those of the healthy broker are independent of each other."""

    async with two_brokers(tmp_path) as (running, proxy, _):
        got: Tally[int] = Tally()
        async with consuming(running, got, orderly=orderly) as first:
            await got.reach(MESSAGES)
            while len(first.queues) < 2 * QUEUES:
                await first.rebalanced()
            proxy.freeze()
            async with asyncio.timeout(SOON_S), consuming(running, got, orderly=orderly) as second:
                while not (0 < of_healthy(second) < QUEUES and of_healthy(first, second) == QUEUES):
                    await asyncio.wait(
                        [asyncio.ensure_future(member.rebalanced()) for member in (first, second)],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                await send(running, range(MESSAGES, 2 * MESSAGES))
                await got.reach(lambda items: set(items) == {*range(2 * MESSAGES)})
        proxy.thaw()


@ORDERLY
async def test_a_leaving_member_commits_and_unlocks_at_the_healthy_broker(tmp_path: Path, orderly: bool) -> None:
    async with two_brokers(tmp_path) as (running, proxy, _):
        got: Tally[int] = Tally()
        async with consuming(running, got, orderly=orderly):
            await got.reach(MESSAGES)
            proxy.freeze()
            closing = asyncio.timeout(SOON_S)
            await closing.__aenter__()
        await closing.__aexit__(None, None, None)
        proxy.thaw()
        assert await committed(running) == MESSAGES
        async with asyncio.timeout(SOON_S), consuming(running, got, orderly=orderly):
            await send(running, range(MESSAGES, 2 * MESSAGES))
            await got.reach(lambda items: set(items) == {*range(2 * MESSAGES)})
