"""Closing a producer with sends in flight: what they come to, and that nothing is stored or left open afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rucola.client import ClientInstance, LocalTransactionState, Message, Producer, SendResult, TransactionProducer
from rucola.client.producer import producer as producer_module
from rucola.client.producer import sender
from rucola.errors import RemotingError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageResponseHeader
from rucola.remoting.server import RemotingServer
from support.cluster import Cluster, Tally, cluster
from support.waiting import until

CLOSED = "the producer of group g was closed before an answer came: the message may be stored"


class Held:
    """A broker with one queue of T that answers sends when it is allowed to."""

    def __init__(self) -> None:
        self.asked: Tally[int] = Tally()
        self.may_answer = asyncio.Event()
        self.server: RemotingServer

    @classmethod
    @asynccontextmanager
    async def broker(cls, path: Path) -> AsyncIterator[tuple[Held, Cluster]]:
        held = cls()
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        async with cluster(path) as running:
            held.server = await running.scripted_broker(
                "broker-a", "T", {code: lambda _, command: held.answer(command) for code in codes}
            )
            yield held, running

    async def answer(self, command: RemotingCommand) -> RemotingCommand:
        self.asked.add(command.code)
        await self.may_answer.wait()
        return command.response(0, SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=0))


def send(producer: Producer) -> Awaitable[object]:
    return producer.send(Message("T", b"x"), timeout_ms=3_600_000)


def send_batch(producer: Producer) -> Awaitable[object]:
    return producer.send_batch([Message("T", b"x")], timeout_ms=3_600_000)


async def stream(producer: Producer) -> list[SendResult]:
    messages = [Message("T", b"x") for _ in range(2)]
    return [result async for result in producer.send_many(messages, timeout_ms=3_600_000)]


def send_half(producer: Producer) -> Awaitable[object]:
    assert isinstance(producer, TransactionProducer)
    return producer.send_in_transaction(
        Message("T", b"x"), lambda message: LocalTransactionState.UNKNOW, timeout_ms=3_600_000
    )


WAYS = [send, send_batch, stream, send_half]


def producer_of(running: Cluster, instance: ClientInstance | None = None) -> TransactionProducer:
    check = lambda message: LocalTransactionState.UNKNOW  # noqa: E731
    return TransactionProducer("g", None if instance else running.namesrv, check=check, instance=instance)


@pytest.mark.parametrize("way", WAYS)
async def test_close_waits_for_sends_in_flight(tmp_path: Path, way: Callable[[Producer], Awaitable[object]]) -> None:
    async with Held.broker(tmp_path) as (held, running):
        producer = producer_of(running)
        await producer.open()
        sending = asyncio.ensure_future(way(producer))
        await held.asked.reach(1)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait([closing], timeout=0.1)
        assert not closing.done()
        with pytest.raises(RemotingError):
            await producer.send(Message("T", b"late"))
        held.may_answer.set()
        assert await sending
        await closing
        await until(lambda: not held.server.connections)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shared", [False, True], ids=["own instance", "shared instance"])
async def test_a_send_without_a_response_within_the_grace_period_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Producer], Awaitable[object]], shared: bool
) -> None:
    monkeypatch.setattr(producer_module, "CLOSE_GRACE_MS", 50)

    async with Held.broker(tmp_path) as (held, running), ClientInstance(running.namesrv) as instance:
        producer = producer_of(running, instance if shared else None)
        await producer.open()
        sending = asyncio.ensure_future(way(producer))
        await held.asked.reach(1)
        await producer.close()
        with pytest.raises(RemotingError, match=CLOSED):
            await sending
        asked = len(held.asked.items)
        held.may_answer.set()
        await producer.close()
        assert len(held.asked.items) == asked
        await until(lambda: len(held.server.connections) == int(shared))


async def test_a_send_between_two_tries_ends_at_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker is away when the producer closes, and comes back right after."""
    monkeypatch.setattr(producer_module, "CLOSE_GRACE_MS", 50)
    monkeypatch.setattr(sender, "RETRY_PAUSE_MS", 300)

    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.create_topic(broker, "T", queues=1)
        producer = Producer("g", running.namesrv)
        await producer.open()
        await producer.send(Message("T", b"1"))
        await broker.stop()
        sending = asyncio.ensure_future(producer.send(Message("T", b"2"), timeout_ms=3_600_000))
        await asyncio.sleep(0)
        await producer.close()
        again = await running.start_broker(port=broker.config.listen_port)
        with pytest.raises(RemotingError):
            await sending
        async with Producer("g2", running.namesrv) as other:
            assert (await other.send(Message("T", b"3"))).queue_offset == 1, "the second was not stored"
        assert producer.instance.remoting.open_connection(again.address) is None


async def test_a_cancelled_close_finishes_at_once(tmp_path: Path) -> None:
    async with Held.broker(tmp_path) as (held, running):
        producer = producer_of(running)
        await producer.open()
        sending = asyncio.ensure_future(send(producer))
        await held.asked.reach(1)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait([closing], timeout=0.05)
        closing.cancel()
        with pytest.raises(RemotingError, match=CLOSED):
            await sending
        with suppress(asyncio.CancelledError):
            await closing
        await producer.close()
        await until(lambda: not held.server.connections)


async def test_a_stream_whose_producer_closes_ends_with_an_error(tmp_path: Path) -> None:
    """Whether it could still send, or only waits for what it has sent."""

    async with Held.broker(tmp_path) as (held, running):
        held.may_answer.set()
        for count in (5, 10):
            producer = producer_of(running)
            await producer.open()
            results = producer.send_many([Message("T", b"x") for _ in range(count)], in_flight=5)
            await anext(results)
            await producer.close()
            if count == 5:
                assert len([result async for result in results]) == 4, "they were answered before it closed"
            else:
                with pytest.raises(RemotingError):
                    await anext(results)
        assert len(held.asked.items) == 10


async def test_a_local_transaction_that_outlives_its_producer_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared instance, whose connections stay: the broker asks later."""
    monkeypatch.setattr(producer_module, "CLOSE_GRACE_MS", 50)

    ended: list[int] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def execute(message: Message) -> LocalTransactionState:
        begun.set()
        await may_end.wait()
        return LocalTransactionState.COMMIT_MESSAGE

    async with Held.broker(tmp_path) as (held, running), ClientInstance(running.namesrv) as instance:
        held.may_answer.set()
        held.server.processors[RequestCode.END_TRANSACTION] = lambda _, c: ended.append(c.code)  # type: ignore
        async with producer_of(running, instance) as producer:
            sending = asyncio.ensure_future(producer.send_in_transaction(Message("T", b"x"), execute))
            await begun.wait()
        may_end.set()
        assert (await sending).state is LocalTransactionState.COMMIT_MESSAGE
        await instance.remoting.invoke(running.namesrv, RemotingCommand.request(9999))  # a turn of everything
        assert ended == []
