"""What a client cannot do, such as serve two event loops, it says at once: no hang, no doubled worker, no silence."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rucola import fastjson
from rucola.client import (
    ClientInstance,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from rucola.client import sync as blocking
from rucola.client.consumer import options as consume_options
from rucola.errors import ConfigError, MQError, RemotingError
from support.broker_thread import servers
from support.cluster import Tally
from support.consumers import FIRST, cluster_with_topic, consumer_of
from support.errors import raises
from support.waiting import until

ELSEWHERE = "belongs to the event loop on which it was opened"
QUEUE = MessageQueue("T", "broker-a", 0)

USES: dict[str, Callable[[Producer, PullConsumer, PushConsumer], Awaitable[object]]] = {
    "open": lambda producer, pulls, consumer: producer.open(),
    "send": lambda producer, pulls, consumer: producer.send(Message("T", b"x")),
    "send_oneway": lambda producer, pulls, consumer: producer.send_oneway(Message("T", b"x")),
    "send_batch": lambda producer, pulls, consumer: producer.send_batch([Message("T", b"x")]),
    "send_many": lambda producer, pulls, consumer: anext(producer.send_many([Message("T", b"x")])),
    "request": lambda producer, pulls, consumer: producer.request(Message("T", b"x")),
    "pull": lambda producer, pulls, consumer: pulls.pull(QUEUE, 0),
    "commit": lambda producer, pulls, consumer: pulls.commit(QUEUE, 0),
    "open a consumer": lambda producer, pulls, consumer: consumer.open(),
    "iterate": lambda producer, pulls, consumer: anext(consumer.messages()),
    "listen": lambda producer, pulls, consumer: awaited(lambda: consumer.listen(print)),
    "subscribe": lambda producer, pulls, consumer: awaited(lambda: consumer.subscribe("U")),
    "unsubscribe": lambda producer, pulls, consumer: awaited(lambda: consumer.unsubscribe("T")),
    "suspend": lambda producer, pulls, consumer: awaited(consumer.suspend),
}


async def awaited(function: Callable[[], object]) -> object:
    return function()


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("closed", [False, True], ids=["left open", "closed"])
def test_a_client_of_a_first_asyncio_run_raises_in_a_second(tmp_path: Path, use: str, closed: bool) -> None:
    """Left open by the first, a client has its state on a loop that is gone; closed, it can be opened there."""
    with servers(tmp_path) as namesrv:
        clients = Producer("g", namesrv), PullConsumer("r", namesrv), PushConsumer("c", namesrv)
        clients[2].subscribe("T")

        async def first() -> None:
            for client in clients:
                await client.open()
            if closed:
                for client in clients:
                    await client.close()

        async def second() -> None:
            async with asyncio.timeout(20):
                await USES[use](*clients)

        asyncio.run(first())
        if closed and use in ("listen", "subscribe", "unsubscribe", "suspend"):
            asyncio.run(second())  # these only set up what a next opening would use
        elif closed and "open" in use:

            async def third() -> None:
                await second()
                for client in clients:
                    await client.close()

            asyncio.run(third())
        elif closed and use == "iterate":
            with pytest.raises(StopAsyncIteration):
                asyncio.run(second())
        else:
            with pytest.raises(MQError, match="is not open" if closed else ELSEWHERE):
                asyncio.run(second())
        gc.collect()  # the transports of the first loop, while their servers are there


def test_a_client_used_from_another_loop_raises(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:

        async def main() -> None:
            async with Producer("g", namesrv) as producer, PushConsumer("c", namesrv) as consumer:
                for use in (lambda: producer.send(Message("T", b"x")), lambda: anext(consumer.messages())):
                    with pytest.raises(MQError):
                        await asyncio.to_thread(asyncio.run, asyncio.wait_for(use(), 20))
                with pytest.raises(MQError):
                    await asyncio.to_thread(consumer.listen, print)
                with pytest.raises(MQError):
                    await asyncio.to_thread(asyncio.run, producer.close())
                assert (await producer.send(Message("T", b"y"))).is_ok

        asyncio.run(main())


async def test_a_second_listener_is_refused(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(10)) as (running, _):
        seen: Tally[int] = Tally()

        async def listen(message: MessageExt) -> None:
            seen.add(int(message.body))

        consumer = consumer_of(running, concurrency=2)
        async with consumer:
            consumer.listen(listen)
            for _ in range(2):
                with pytest.raises(ConfigError):
                    consumer.listen(listen)
            with pytest.raises(ConfigError):
                consumer.listen_to_batches(print, 8)
            await consumer.open()
            assert len([task for task in asyncio.all_tasks() if task.get_name().startswith("listener ")]) == 2
            assert sorted(await seen.reach(10)) == list(range(10))
        before = consumer_of(running)
        before.listen(listen)
        with pytest.raises(ConfigError):
            before.listen(listen)


async def test_iterating_a_consumer_with_a_listener_is_refused(tmp_path: Path) -> None:
    """They would share the messages at random."""

    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        consumer = consumer_of(running)
        async with consumer:
            async for message in consumer:
                with pytest.raises(ConfigError):
                    consumer.listen(print)
                consumer.ack(message)
                break
            seen: Tally[int] = Tally()

            async def listen(message: MessageExt) -> None:
                seen.add(int(message.body))

            def is_listening() -> bool:
                try:
                    consumer.listen(listen)
                except ConfigError:
                    return False
                return True

            await until(is_listening)  # the loop closes the generator a moment after the break
            assert await seen.reach(2) == [1, 2]
            with pytest.raises(ConfigError):
                await anext(consumer.messages())


def test_iterating_an_unopened_consumer_raises() -> None:
    async def iterate() -> None:
        async for _ in PushConsumer("c", "127.0.0.1:1"):
            pass

    with pytest.raises(RemotingError):
        asyncio.run(iterate())
    with pytest.raises(MQError):
        iter(blocking.PushConsumer("c", "127.0.0.1:1"))


BROADCASTING: dict[str, Any] = {"message_model": MessageModel.BROADCASTING, "consume_from": FIRST}


def blocked(root: Path) -> Path:
    root.write_text("a file where a directory should be")
    return root


def broken(root: Path) -> Path:
    """One whose files of offsets are there and cannot be read."""
    for name in ("offsets.json", "offsets.json.bak"):
        path = root / "me" / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    return root


@pytest.mark.parametrize(
    "make",
    [
        blocked,
        lambda root: Path("/proc/offsets"),
        lambda root: root / "nul\0",
        broken,
    ],
)
async def test_an_unusable_offset_directory_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """The consumer would begin somewhere, or nowhere, and forget how far it came."""

    async with (
        cluster_with_topic(tmp_path) as (running, _),
        ClientInstance(running.namesrv, client_id="me") as instance,
    ):
        root = make(tmp_path / "offsets")
        consumer = consumer_of(running, instance=instance, offsets_root=root, **BROADCASTING)
        with pytest.raises(ConfigError):
            await consumer.open()
        assert not consumer.is_open


async def test_opening_leaves_the_offset_directory_unchanged(tmp_path: Path) -> None:
    async with (
        cluster_with_topic(tmp_path) as (running, _),
        ClientInstance(running.namesrv, client_id="me") as instance,
    ):
        path = tmp_path / "offsets" / "me" / "c" / "offsets.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(fastjson.dumps({"offsetTable": {}}))
        options = BROADCASTING | {"offsets_root": str(tmp_path / "offsets")}
        async with consumer_of(running, instance=instance, **options):
            assert [each.name for each in path.parent.iterdir()] == ["offsets.json"]


def test_an_invalid_offset_directory_is_refused_on_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(ConfigError, subject="offsets_root"):
        PushConsumer("c", "127.0.0.1:1", offsets_root=7, **BROADCASTING)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with raises(ConfigError, subject="offsets_root"):
        PushConsumer("c", "127.0.0.1:1", **BROADCASTING)
    assert consume_options.ConsumeOptions().offsets_root is None


@pytest.fixture
def consuming(tmp_path: Path) -> Iterator[tuple[blocking.PushConsumer, str]]:
    """A blocking consumer of one queue with the messages 0 to 4."""
    with servers(tmp_path, queues=1) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            producer.send_many(Message("T", b"%d" % number) for number in range(5))
        consumer = blocking.PushConsumer("c", namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        with consumer:
            yield consumer, namesrv


def test_an_abandoned_blocking_iterator_requeues_its_message(consuming: tuple[blocking.PushConsumer, str]) -> None:
    """Its message comes to the next one, on whichever thread it is collected, also on the consumer's own."""
    consumer, _ = consuming
    iterators = [iter(consumer)]
    assert next(iterators[0]).body == b"0"
    iterators.clear()
    iterators.append(iter(consumer))
    assert next(iterators[0]).body == b"0"
    threading.Thread(target=iterators.clear).start()
    assert next(iter(consumer)).body == b"0"
    iterators.append(iter(consumer))
    assert next(iterators[0]).body == b"0"
    consumer._call(iterators.clear)
    assert next(iter(consumer)).body == b"0"


def test_a_blocking_iterator_ends_when_its_consumer_is_closed(consuming: tuple[blocking.PushConsumer, str]) -> None:
    consumer, _ = consuming
    iterator = iter(consumer)
    assert next(iterator).body == b"0"
    rest: list[bytes] = []
    thread = threading.Thread(target=lambda: rest.extend(message.body for message in consumer))
    thread.start()
    while consumer.stats()["T"].consumed < 4:
        consumer.queues  # noqa: B018 (a turn of the consumer's loop)
    closing = [threading.Thread(target=consumer.close) for _ in range(2)]
    for each in closing:
        each.start()
    for each in (*closing, thread):
        each.join(20)
        assert not each.is_alive()
    assert rest == [b"1", b"2", b"3", b"4"]
    assert list(iterator) == []
    with pytest.raises(MQError):
        iter(consumer)


def test_a_blocking_close_from_its_own_loop_raises(tmp_path: Path) -> None:
    """An async listener that calls it would wait for itself; the consumer stays open and can be closed."""
    with servers(tmp_path) as namesrv, blocking.Producer("g", namesrv) as producer:
        consumer = blocking.PushConsumer("c", namesrv, consume_from=FIRST)
        raised: list[MQError] = []
        called = threading.Event()

        async def listen(message: MessageExt) -> None:
            try:
                consumer.close()
            except MQError as error:
                raised.append(error)
            called.set()

        consumer.subscribe("T")
        consumer.listen(listen)
        with consumer:
            producer.send(Message("T", b"0"))
            assert called.wait(20)
            assert "would wait for itself" in str(raised[0])
            assert consumer.asyncio_client.is_open
        assert not consumer.asyncio_client.is_open


def test_a_blocking_call_during_a_close_raises(tmp_path: Path) -> None:
    """The call ends, with an error."""
    outcomes: list[BaseException] = []
    with servers(tmp_path) as namesrv:
        producer = blocking.Producer("g", namesrv)
        producer.open()
        begun = threading.Event()

        async def never() -> None:
            begun.set()
            await asyncio.Event().wait()

        def wait() -> None:
            try:
                producer._run(never())
            except MQError as error:
                outcomes.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(20)
        producer.close()
        thread.join(20)
        assert "the client was closed before this call had ended" in str(outcomes[0])
        with producer:
            assert producer.send(Message("T", b"x")).is_ok
