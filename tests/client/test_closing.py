"""Closing: it is done once, awaited by all, expedited by a cancellation, and leaves nothing to starve a successor."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.client import (
    ClientInstance,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    background_tasks,
    lifecycle,
)
from rucola.client import sync as blocking
from rucola.client.consumer import push_consumer
from rucola.client.group_client import GroupClient
from rucola.client.trace import MessageTrace
from rucola.errors import RemotingError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection, Reply
from support.broker_thread import servers
from support.cluster import Cluster, Tally, cluster
from support.consumers import (
    FIRST,
    LockingBroker,
    ScriptedBroker,
    cluster_with_topic,
    committed,
    consumer_of,
    other_locks,
    record_of,
    send,
    take,
)
from support.waiting import until

each_order = pytest.mark.parametrize("orderly", [False, True])


class Blocked:
    """A listener that has each message in hand until it may end."""

    def __init__(self) -> None:
        self.begun: Tally[MessageExt] = Tally()
        self.may_end = asyncio.Event()

    async def listen(self, message: MessageExt) -> None:
        self.begun.add(message)
        await self.may_end.wait()


def tasks_of_clients() -> list[str]:
    """What runs on the loop for a client: the servers of a test are there as well."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return [str(each) for each in coroutines if "/rucola/client/" in each.cr_code.co_filename]  # type: ignore[union-attr]


@each_order
@pytest.mark.parametrize("how", ["cancel", "cancel twice", "timeout"])
async def test_a_cancelled_close_leaves_everything_to_the_successor(tmp_path: Path, orderly: bool, how: str) -> None:
    """The listener never ends. The member would keep its queues, and in order its locks, which expire in a minute."""

    async with cluster_with_topic(tmp_path, range(40)) as (running, broker):
        blocked = Blocked()
        consumer = consumer_of(running, orderly=orderly)
        consumer.listen(blocked.listen)
        await consumer.open()
        await blocked.begun.reach(4)
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await consumer.close()
        else:
            closing = asyncio.create_task(consumer.close())
            await until(lambda: not consumer.is_open)
            closing.cancel()
            if how == "cancel twice":
                await asyncio.sleep(0)
                closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        await consumer.close()
        assert tasks_of_clients() == []
        if orderly:
            assert len(await other_locks(running, broker.address, "other", RequestCode.LOCK_BATCH_MQ)) == 4
            await other_locks(running, broker.address, "other", RequestCode.UNLOCK_BATCH_MQ)
        async with consumer_of(running, orderly=orderly) as successor:
            assert len(successor.queues) == 4
            assert sorted(await take(successor, 40)) == list(range(40))
        assert await committed(running) == 40


async def test_a_cancelled_close_commits_completed_messages(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        consumer = consumer_of(running)
        await consumer.open()
        assert await take(consumer, 2) == [0, 1]
        closing = asyncio.create_task(consumer.close())
        await until(lambda: not consumer.is_open)
        closing.cancel()
        await asyncio.wait([closing])
        assert await committed(running) == 2


async def test_a_second_close_awaits_the_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0")])
        await broker.start(running)
        blocked = Blocked()
        consumer = consumer_of(running)
        consumer.listen(blocked.listen)
        await consumer.open()
        await blocked.begun.reach(1)
        closings = [asyncio.create_task(consumer.close()) for _ in range(3)]
        done, _ = await asyncio.wait(closings, timeout=0.1)
        assert not done
        blocked.may_end.set()
        await closings[1]
        assert broker.left == ["c"]
        assert broker.committed == 1
        await asyncio.gather(*closings)
        await consumer.close()
        assert broker.left == ["c"]
        assert tasks_of_clients() == []


async def test_one_cancelled_caller_hurries_the_close_for_all(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(1), queues=1) as (running, _):
        blocked = Blocked()
        consumer = consumer_of(running)
        consumer.listen(blocked.listen)
        await consumer.open()
        await blocked.begun.reach(1)
        first, second = (asyncio.create_task(consumer.close()) for _ in range(2))
        await until(lambda: not consumer.is_open)
        second.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert tasks_of_clients() == []


async def test_a_hurried_close_does_not_wait_for_a_broker_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It never answers a commit, for which a close has five seconds; locks and membership are given up all the same."""
    monkeypatch.setattr(lifecycle, "EXPEDITED_STEP_TIMEOUT_MS", 50)

    async with cluster(tmp_path) as running:
        broker = LockingBroker([record_of(i, b"%d" % i) for i in range(3)])
        asked = asyncio.Event()
        broker.processors[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda _, command: asked.set()
        await broker.start(running)
        consumer = consumer_of(running, orderly=True)
        await consumer.open()
        assert await take(consumer, 1) == [0]
        closing = asyncio.create_task(consumer.close())
        await asked.wait()
        closing.cancel()
        await asyncio.wait([closing])
        await until(lambda: broker.left == ["c"])
        await until(lambda: not broker.server.connections)
        assert tasks_of_clients() == []
    assert "a step has not ended within 50 ms" in caplog.text


async def test_a_cancelled_body_closes_and_a_second_cancellation_hurries_the_close(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(4)) as (running, _):
        blocked = Blocked()
        consumer = consumer_of(running, orderly=True)
        consumer.listen(blocked.listen)

        async def consume() -> None:
            async with consumer:
                await asyncio.Event().wait()

        consuming = asyncio.create_task(consume())
        await blocked.begun.reach(4)
        consuming.cancel()
        await until(lambda: not consumer.is_open)
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert tasks_of_clients() == []
        async with consumer_of(running, orderly=True) as successor:
            assert sorted(await take(successor, 4)) == [0, 1, 2, 3]


def test_a_close_finishes_when_the_loop_ends(tmp_path: Path) -> None:
    """`asyncio.run` cancels all tasks at its end, also the one that closes."""

    async def consume(namesrv: str, orderly: bool) -> None:
        blocked = Blocked()
        consumer = PushConsumer("c", namesrv, consume_from=FIRST, orderly=orderly)
        consumer.subscribe("T")
        consumer.listen(blocked.listen)
        await consumer.open()
        await blocked.begun.reach(1)
        closing = asyncio.create_task(consumer.close())
        await until(lambda: not consumer.is_open)
        assert not closing.done()

    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            producer.send(Message("T", b"0"))
        asyncio.run(consume(namesrv, orderly=True))
        successor = blocking.PushConsumer("c", namesrv, consume_from=FIRST, orderly=True)
        successor.subscribe("T")
        with successor:
            assert next(successor.messages(idle_timeout_ms=20_000)).body == b"0"


async def test_close_gives_up_a_listener_that_ignores_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(push_consumer, "CLOSE_GRACE_MS", 10)
    monkeypatch.setattr(background_tasks, "CANCEL_TIMEOUT_MS", 10)

    begun, may_end = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                pass

    async with cluster_with_topic(tmp_path, range(1), queues=1) as (running, _):
        consumer = consumer_of(running)
        consumer.listen(listen)
        async with consumer:
            await begun.wait()
        async with consumer_of(running) as successor:
            assert len(successor.queues) == 1
        may_end.set()
        await until(lambda: tasks_of_clients() == [])
    assert "is still running 10 ms after it was cancelled" in caplog.text


@pytest.mark.parametrize("how", ["directly", "with a timeout"])
async def test_a_listener_may_close_its_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Directly, closing goes on when the listener has ended, and its message is done. In a task it awaits itself."""
    if how == "with a timeout":  # that of the listener, which waits for itself
        monkeypatch.setattr(push_consumer, "CLOSE_GRACE_MS", 50)

    async with cluster_with_topic(tmp_path, range(1), queues=1) as (running, _):
        consumer = consumer_of(running)

        async def listen(message: MessageExt) -> None:
            if how == "directly":
                await consumer.close()
            else:
                await asyncio.create_task(consumer.close())

        consumer.listen(listen)
        await consumer.open()
        await until(lambda: not consumer.is_open)
        await consumer.close()
        await until(lambda: tasks_of_clients() == [])
        assert await committed(running) == (how == "directly")
        async with consumer_of(running) as successor:
            assert len(successor.queues) == 1


def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError(f"nothing asks about {message}")


CLIENTS: dict[str, Callable[[str], lifecycle.Lifecycle]] = {
    "instance": lambda namesrv: ClientInstance(namesrv),
    "producer": lambda namesrv: Producer("g", namesrv),
    "transactions": lambda namesrv: TransactionProducer("g", namesrv, check=never, topics=["T"]),
    "pulls": lambda namesrv: PullConsumer("g", namesrv),
    "trace": lambda namesrv: MessageTrace(namesrv),
}


async def connect(client: lifecycle.Lifecycle, address: str) -> None:
    """Let the client have a connection to a broker, and its route."""
    if isinstance(client, MessageTrace):
        client = client._producer
    instance = client.instance if isinstance(client, GroupClient) else client
    assert isinstance(instance, ClientInstance)
    await instance.routes.find("T")
    await instance.remoting.connect(address)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_every_client_is_closed_after_its_close_was_cancelled(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker never says that it has taken note."""
    monkeypatch.setattr(lifecycle, "EXPEDITED_STEP_TIMEOUT_MS", 50)

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker()
        broker.processors[RequestCode.UNREGISTER_CLIENT] = lambda _, command: None
        await broker.start(running)
        client = CLIENTS[kind](running.namesrv)
        await client.open()
        await connect(client, f"127.0.0.1:{broker.server.port}")
        closing = asyncio.create_task(client.close())
        await until(lambda: not client.is_open)
        closing.cancel()
        await asyncio.wait([closing])
        await until(lambda: not broker.server.connections)
        assert tasks_of_clients() == []
        await client.close()


async def hanging_broker(running: Cluster) -> tuple[ScriptedBroker, asyncio.Event]:
    """A broker that never tells who is in a group, and when it was asked."""
    broker, asked = ScriptedBroker(), asyncio.Event()
    broker.processors[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda _, command: asked.set()
    await broker.start(running)
    return broker, asked


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_cancelled_opening_is_undone(tmp_path: Path, how: str) -> None:
    async with cluster(tmp_path) as running:
        broker, asked = await hanging_broker(running)
        consumer = consumer_of(running)
        opening = asyncio.create_task(consumer.open())
        await asked.wait()
        if how == "cancel":
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            await consumer.close()
            with pytest.raises(RemotingError):
                await opening
        assert not consumer.is_open
        assert broker.left == ["c"]
        await until(lambda: not broker.server.connections)
        assert tasks_of_clients() == []
        broker.processors[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = broker.consumer_list
        async with consumer:
            assert len(consumer.queues) == 1


@pytest.mark.parametrize("answers", [False, True])
async def test_a_requested_lock_is_released_before_its_response(tmp_path: Path, answers: bool) -> None:
    """The broker may have given it, and would keep it for a minute, for a member that is gone."""

    async with cluster(tmp_path) as running:
        broker = LockingBroker([record_of(0, b"0")])
        asked = asyncio.Event()

        def lock(connection: Connection, command: RemotingCommand) -> Reply:
            asked.set()
            return broker.lock(connection, command) if answers else None

        broker.processors[RequestCode.LOCK_BATCH_MQ] = lock
        await broker.start(running)
        consumer = consumer_of(running, orderly=True)
        opening = asyncio.create_task(consumer.open())
        await asked.wait()
        opening.cancel()
        await asyncio.wait([opening])
        assert broker.unlocked


async def test_concurrent_openings_open_once_and_both_wait(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(8)) as (running, _):
        seen: Tally[int] = Tally()

        async def listen(message: MessageExt) -> None:
            seen.add(int(message.body))

        consumer = consumer_of(running, concurrency=3)
        consumer.listen(listen)
        openings = [asyncio.create_task(consumer.open()) for _ in range(2)]
        await openings[1]
        assert len(consumer.queues) == 4
        await openings[0]
        await consumer.open()
        assert len([task for task in asyncio.all_tasks() if task.get_name().startswith("listener ")]) == 3
        assert sorted(await seen.reach(8)) == list(range(8))
        await consumer.close()


async def test_a_client_can_be_opened_again_also_while_it_closes(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(2), queues=1) as (running, _):
        consumer = consumer_of(running, orderly=True)
        await consumer.open()
        assert await take(consumer, 1) == [0]
        closing = asyncio.create_task(consumer.close())
        await until(lambda: not consumer.is_open)
        await consumer.open()
        await closing
        assert consumer.is_open
        assert await take(consumer, 1) == [1]
        await consumer.close()
        await send(running, [2])
        async with consumer:
            assert await take(consumer, 1) == [2]
        assert await committed(running) == 3


INTERRUPTED = """
import asyncio, sys, threading, time
from rucola.client import ConsumeFromWhere
from rucola.client.sync import PushConsumer

async def listen(message):
    print("in hand", flush=True)
    await asyncio.Event().wait()

consumer = PushConsumer(
    "c", sys.argv[1], consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, orderly=True
)
consumer.subscribe("T")
consumer.listen(listen)
consumer.open()

def say_when_it_closes():
    while consumer.asyncio_client.is_open:
        time.sleep(0.001)
    print("closing", flush=True)

threading.Thread(target=say_when_it_closes).start()
try:
    input()
    consumer.close()
except KeyboardInterrupt:
    print("interrupted", consumer.asyncio_client._closing, flush=True)
consumer.close()
"""


def test_ctrl_c_hurries_the_close_of_a_blocking_client(tmp_path: Path) -> None:
    """The close waits for a listener that never ends; the successor gets its queue all the same, and its lock."""
    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            producer.send(Message("T", b"0"))
        program = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, namesrv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "in hand\n"
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "closing\n"
            program.send_signal(signal.SIGINT)
            assert program.stdout.readline() == "interrupted None\n"
        assert program.returncode == 0
        successor = blocking.PushConsumer("c", namesrv, consume_from=FIRST, orderly=True)
        successor.subscribe("T")
        with successor:
            assert next(iter(successor)).body == b"0"
