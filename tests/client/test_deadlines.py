"""One deadline a call: whatever hangs, every way of sending ends at its timeout, and none waits for another.

The hanging peers here never answer, so a call that ended late would have waited for a second timeout of some step. The
bounds are far from both: the timeout is 0.5 s, and calls that queue up, or take a step's own timeout, need 3 s or more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.client import LocalTransactionState, Message, MessageQueue, Producer, TransactionProducer, sync
from rucola.client.request_reply import request_message
from rucola.errors import MQError, RemotingError, SendFailed
from rucola.message import MessageExt
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageResponseHeader
from rucola.remoting.connection import Connection, Processor
from support.cluster import Cluster, cluster
from support.proxy import Proxy
from support.remoting_peers import full_backlog

pytestmark = pytest.mark.slow

TIMEOUT_MS = 500
LATEST_S = 2.0
CONCURRENT = 8

SILENT: Processor = lambda connection, command: None  # noqa: E731


def first_of(queues: Any) -> MessageQueue:
    return queues[0]


async def stream(producer: Producer, count: int) -> None:
    async for _ in producer.send_many([Message("T", b"x") for _ in range(count)], timeout_ms=TIMEOUT_MS):
        pass


def commit(message: Message) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


WAYS: dict[str, Callable[[TransactionProducer], Awaitable[object]]] = {
    "send": lambda p: p.send(Message("T", b"x"), timeout_ms=TIMEOUT_MS),
    "to a queue": lambda p: p.send(Message("T", b"x"), MessageQueue("T", "broker-a", 0), timeout_ms=TIMEOUT_MS),
    "by a selector": lambda p: p.send(Message("T", b"x"), first_of, timeout_ms=TIMEOUT_MS),
    "batch": lambda p: p.send_batch([Message("T", b"x")] * 3, timeout_ms=TIMEOUT_MS),
    "batch by a selector": lambda p: p.send_batch([Message("T", b"x")] * 3, first_of, timeout_ms=TIMEOUT_MS),
    "request": lambda p: p.request(Message("T", b"x"), timeout_ms=TIMEOUT_MS),
    "stream": lambda p: stream(p, 3),
    "transaction": lambda p: p.send_in_transaction(Message("T", b"x"), commit, timeout_ms=TIMEOUT_MS),
}


async def fails_in_time(name: str, call: Awaitable[object]) -> None:
    begin = time.monotonic()
    with pytest.raises(MQError):
        await call
    elapsed_s = time.monotonic() - begin
    assert elapsed_s < LATEST_S, f"{name} took {elapsed_s:.1f} s"


@asynccontextmanager
async def hung_name_server(path: Path) -> AsyncIterator[str]:
    """The only name server takes connections and says nothing."""
    async with cluster(path) as running, Proxy(running.namesrv) as proxy:
        proxy.freeze()
        yield proxy.address


@asynccontextmanager
async def hung_broker(path: Path) -> AsyncIterator[str]:
    """The broker's process is stopped: its kernel takes connections, and nothing is answered."""
    async with cluster(path) as running:
        _, proxy = await running.start_broker_behind_proxy()
        await running.create_topic(_, "T", queues=1)
        proxy.freeze()
        yield running.namesrv


@asynccontextmanager
async def deaf_broker(path: Path) -> AsyncIterator[str]:
    async with cluster(path) as running:
        with full_backlog() as address:
            await running.register("broker-a", "T", address)
            yield running.namesrv


HANGING = {"name server": hung_name_server, "broker": hung_broker, "broker's kernel": deaf_broker}


@pytest.mark.parametrize("what", HANGING)
async def test_every_way_of_sending_respects_its_timeout_independently(tmp_path: Path, what: str) -> None:
    async with HANGING[what](tmp_path) as namesrv, TransactionProducer("g", namesrv, check=commit) as producer:
        calls = [fails_in_time(name, way(producer)) for name, way in WAYS.items() for _ in range(CONCURRENT)]
        await asyncio.gather(*calls)


@pytest.mark.parametrize("what", ["name server", "broker's kernel"])
async def test_a_oneway_send_respects_its_timeout(tmp_path: Path, what: str) -> None:
    async with HANGING[what](tmp_path) as namesrv, Producer("g", namesrv) as producer:
        sends = [producer.send_oneway(Message("T", b"x"), timeout_ms=TIMEOUT_MS) for _ in range(CONCURRENT)]
        await asyncio.gather(*(fails_in_time("oneway", send) for send in sends))


async def test_the_blocking_client_respects_its_timeout(tmp_path: Path) -> None:
    async with hung_broker(tmp_path) as namesrv:

        def send() -> None:
            with sync.Producer("g", namesrv) as producer:
                for choice in (None, MessageQueue("T", "broker-a", 0), first_of):
                    begin = time.monotonic()
                    with pytest.raises(RemotingError):
                        producer.send(Message("T", b"x"), choice, timeout_ms=TIMEOUT_MS)
                    assert time.monotonic() - begin < LATEST_S

        await asyncio.to_thread(send)


async def test_the_parts_of_a_batch_share_its_timeout(tmp_path: Path) -> None:
    """A broker that takes a part of the time for each request gets some, not each with a time of its own."""

    asked = 0

    async def slow(command: RemotingCommand) -> RemotingCommand:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.4 * TIMEOUT_MS / 1000)
        header = SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=0)
        return command.response(0, header)

    async with cluster(tmp_path) as running, Producer("g", running.namesrv, max_message_size=1000) as producer:
        await running.scripted_broker("broker-a", "T", {RequestCode.SEND_BATCH_MESSAGE: lambda _, c: slow(c)})
        with pytest.raises(SendFailed):
            await producer.send_batch([Message("T", bytes(800)) for _ in range(10)], timeout_ms=TIMEOUT_MS)
        assert asked <= 3


async def test_nothing_is_sent_after_the_deadline(tmp_path: Path) -> None:
    asked: list[int] = []

    def note(connection: Connection, command: RemotingCommand) -> None:
        asked.append(command.code)

    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.scripted_broker("broker-a", "T", {RequestCode.SEND_MESSAGE_V2: note})
        (queue,) = await producer.queues("T")
        for timeout_ms in (0,):
            with pytest.raises(RemotingError):
                await producer.send(Message("T", b"x"), queue, timeout_ms=timeout_ms)
            await producer.instance.send_heartbeats()  # so that there is a connection the second time
        assert asked == []


async def test_a_send_with_the_default_timeout_survives_a_hung_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hung one is asked first. Its timeout is the same as the send's: nothing was left for the other."""
    monkeypatch.setattr(random, "randrange", lambda count: 0)

    async with cluster(tmp_path) as running, Proxy(running.namesrv) as proxy:
        await running.start_broker()
        proxy.freeze()
        async with Producer("g", f"{proxy.address};{running.namesrv}") as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok


async def two_brokers(running: Cluster) -> Any:
    brokers = [await running.start_broker(name) for name in ("broker-a", "broker-b")]
    for broker in brokers:
        await running.create_topic(broker, "T", queues=1)
    return brokers


async def test_a_hung_lookup_leaves_time_for_the_send(tmp_path: Path) -> None:
    """One broker of two has gone, and the name server hangs: the route at hand names the other."""

    async with cluster(tmp_path) as running, Proxy(running.namesrv) as proxy:
        first, _ = await two_brokers(running)
        async with Producer("g", proxy.address) as producer:
            await producer.queues("T")
            proxy.freeze()
            await first.stop()
            for _ in range(4):
                result = await producer.send(Message("T", b"x"), timeout_ms=TIMEOUT_MS)
                assert result.queue.broker_name == "broker-b"


async def test_a_broker_that_accepts_no_connection_leaves_time_for_the_other(tmp_path: Path) -> None:
    async with (
        deaf_broker(tmp_path) as namesrv,
        cluster(tmp_path / "other") as other,
        Producer("g", namesrv) as producer,
    ):
        other.namesrv = namesrv
        await other.create_topic(await other.start_broker("broker-b"), "T", queues=1)
        for _ in range(4):
            result = await producer.send(Message("T", b"x"), timeout_ms=3 * TIMEOUT_MS)
            assert result.queue.broker_name == "broker-b"


async def test_a_reply_respects_its_timeout(tmp_path: Path) -> None:
    async with hung_name_server(tmp_path) as namesrv, Producer("g", namesrv) as producer:
        asked = request_message(Message("T", b"x"), "1", "client", 1000)
        asked.properties["CLUSTER"] = "c"
        consumed = MessageExt(
            topic="T", queue_id=0, queue_offset=0, physical_offset=0, store_size=0, body=b"x",
            properties=asked.properties, flag=0, sys_flag=0, body_crc=0, stored_size=1, born_timestamp=0,
            born_host="127.0.0.1:1", store_timestamp=0, store_host="127.0.0.1:1", reconsume_times=0,
            prepared_transaction_offset=0, store_host_bytes=bytes(8),
        )  # fmt: skip
        replies = [producer.reply(consumed, b"y", TIMEOUT_MS) for _ in range(CONCURRENT)]
        await asyncio.gather(*(fails_in_time("reply", reply) for reply in replies))
