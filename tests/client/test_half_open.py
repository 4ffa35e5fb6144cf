"""Clients whose connection to a broker is half-open: sends and pulls go on over a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.client import Message, Producer, PullConsumer, PushConsumer
from rucola.client import instance as instance_module
from rucola.errors import RemotingConnectError, RemotingTimeout, SendFailed
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import GetConsumerListByGroupRequestHeader, GetConsumerListByGroupResponseBody
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.server import RemotingServer
from rucola.store.tools.check import check
from support.cluster import HOST, Cluster, Tally, cluster
from support.consumers import ScriptedBroker, consumer_of
from support.proxy import Proxy

pytestmark = pytest.mark.slow


@asynccontextmanager
async def behind_a_proxy(path: Path, queues: int) -> AsyncIterator[tuple[Cluster, Broker, Proxy]]:
    """A broker with a topic T, which clients reach by way of a proxy; its store is checked afterwards."""
    async with cluster(path) as running:
        broker, proxy = await running.start_broker_behind_proxy()
        await running.create_topic(broker, "T", queues)
        yield running, broker, proxy
    assert check(path / "broker-a") == []


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "PROBE_INTERVAL_MS", 50)
    monkeypatch.setattr(instance_module, "PROBE_AFTER_MS", 100)
    monkeypatch.setattr(instance_module, "PROBE_TIMEOUT_MS", 1000)


async def test_only_the_send_that_detects_a_half_open_connection_fails(tmp_path: Path) -> None:
    """Before, each send ran into its timeout, until the kernel gave up a quarter of an hour later."""
    async with (
        behind_a_proxy(tmp_path, queues=1) as (running, _, proxy),
        Producer("g", running.namesrv) as producer,
    ):
        await producer.send(Message("T", b"0"))
        proxy.half_open()
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("T", b"1"), timeout_ms=1100)
        assert isinstance(caught.value.attempts[0][1], RemotingTimeout)
        for number in range(2, 14):
            await producer.send(Message("T", b"%d" % number), timeout_ms=20_000)


async def test_sends_in_flight_are_retried_within_their_timeout(tmp_path: Path) -> None:
    """The first timeout closes the connection; sends with time left go on over a new one, none of them fails."""
    async with (
        behind_a_proxy(tmp_path, queues=1) as (running, _, proxy),
        Producer("g", running.namesrv) as producer,
    ):
        await producer.send(Message("T", b"0"))
        proxy.half_open()
        patient = [producer.send(Message("T", b"x"), timeout_ms=20_000) for _ in range(20)]
        stream = producer.send_many([Message("T", b"x") for _ in range(20)], timeout_ms=20_000)
        sending = asyncio.gather(*patient)
        streaming = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"), timeout_ms=1100)
        results = [*await sending, await streaming, *[result async for result in stream]]
        assert all(result.is_ok for result in results)


@pytest.mark.parametrize("orderly", [False, True], ids=["side by side", "in order"])
async def test_a_consumer_continues_over_a_new_connection(tmp_path: Path, quick_probes: None, orderly: bool) -> None:
    """A held pull does not notice by itself, and what comes meanwhile goes to the dead connection, and again."""
    async with behind_a_proxy(tmp_path, queues=4) as (running, _, proxy):
        got: Tally[int] = Tally()
        consumer = consumer_of(running, orderly=orderly)
        consumer.listen(lambda message: got.add(int(message.body)))
        async with Producer("g", running.namesrv) as producer, consumer:
            for number in range(8):
                await producer.send(Message("T", b"%d" % number))
            await got.reach(8)
            proxy.half_open()
            async with Producer("g2", running.namesrv) as other:
                for number in range(8, 16):
                    await other.send(Message("T", b"%d" % number))
            await got.reach(lambda items: set(items) == {*range(16)})
            assert len(consumer.queues) == 4


async def test_a_group_takes_over_all_queues_while_the_broker_lists_a_dead_connection(
    tmp_path: Path, quick_probes: None
) -> None:
    """A client that is connected twice, once half-open, is one member, not two."""

    async def settled(*consumers: PushConsumer) -> None:
        while sorted(queue.queue_id for consumer in consumers for queue in consumer.queues) != [0, 1, 2, 3]:
            await asyncio.wait(
                [asyncio.ensure_future(c.rebalanced()) for c in consumers], return_when="FIRST_COMPLETED"
            )

    async with behind_a_proxy(tmp_path, queues=4) as (running, broker, proxy):
        first, second = consumer_of(running), consumer_of(running)
        async with asyncio.timeout(30), first, second:
            await settled(first, second)
            rebalanced = asyncio.gather(first.rebalanced(), second.rebalanced())
            proxy.half_open()
            await rebalanced
            await settled(first, second)
            header = GetConsumerListByGroupRequestHeader(consumer_group="c")
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            answer = await running.remoting.invoke_ok(f"{HOST}:{broker.config.listen_port}", request)
            members = decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list
            assert sorted(members) == sorted([first.instance.client_id, second.instance.client_id])


async def test_a_member_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    """Apache's broker lists every connection, the dead one for two minutes."""

    async with cluster(tmp_path) as running:
        scripted = ScriptedBroker()

        def consumer_list(connection: Connection, command: RemotingCommand) -> Reply:
            body = GetConsumerListByGroupResponseBody(consumer_id_list=2 * list(scripted.members.values()))
            return command.response(ResponseCode.SUCCESS, body=encode_body(body))

        scripted.processors[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = consumer_list
        await running.scripted_broker("broker-a", "T", scripted.processors, queues=4)
        async with consumer_of(running) as consumer:
            assert len(consumer.queues) == 4


async def test_a_pull_without_a_group_is_probed_too(tmp_path: Path, quick_probes: None) -> None:
    async with (
        behind_a_proxy(tmp_path, queues=1) as (running, _, proxy),
        PullConsumer("c", running.namesrv) as consumer,
    ):
        (queue,) = await consumer.queues("T")
        assert (await consumer.pull(queue, 0)).messages == []
        proxy.half_open()
        with pytest.raises(RemotingConnectError):
            await consumer.pull(queue, 0, suspend_ms=600_000)
        assert (await consumer.pull(queue, 0)).messages == []


@pytest.mark.usefixtures("quick_probes")
async def test_a_slow_name_server_is_no_broker_whose_heartbeats_fail() -> None:
    """It refuses heartbeats, also those that ask a silent connection for a sign of life."""
    probes: Tally[str] = Tally()
    is_answering = asyncio.Event()

    async def route(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await is_answering.wait()
        return request.response(ResponseCode.TOPIC_NOT_EXIST)

    def heartbeat(connection: Connection, request: RemotingCommand) -> Reply:
        probes.add(connection.peer)
        return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    slow = RemotingServer(HOST, 0, {RequestCode.GET_ROUTEINFO_BY_TOPIC: route, RequestCode.HEART_BEAT: heartbeat})
    await slow.start()
    async with Producer("g", f"{HOST}:{slow.port}") as producer:
        sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await probes.reach(3)
        assert not producer.instance.outages.any_failing
        is_answering.set()
        await asyncio.gather(sending, return_exceptions=True)
    await slow.stop()
