"""The blocking face: the same clients from a plain thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.client import ConsumeFromWhere, select_by_hash
from rucola.client.event_loop_thread import EventLoopThread
from rucola.client.sync import Message, Producer, PullConsumer, PushConsumer
from rucola.errors import InvalidMessage, MQError, RemotingConnectError, RemotingTimeout
from support.cluster import cluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@contextmanager
def servers(path: Path, queues: int = 2) -> Iterator[str]:
    """A name server and a broker with topic T, in a thread of their own; gives the name server's address."""
    thread = EventLoopThread("servers")
    context = cluster(path)
    running = thread.run(context.__aenter__())

    async def fill() -> None:
        await running.create_topic(await running.start_broker(), "T", queues)

    try:
        thread.run(fill())
        yield running.namesrv
    finally:
        thread.run(context.__aexit__(None, None, None))
        thread.stop()


def test_send_pull_and_consume_without_a_loop(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        with Producer("g", namesrv) as producer:
            queue = producer.queues("T")[0]
            assert producer.send(Message("T", b"0"), queue).queue_offset == 0
            producer.send_oneway(Message("T", b"1"), queue)
            assert len(producer.send_batch([Message("T", b"2"), Message("T", b"3")], queue)) == 2
            assert len(producer.send_many(Message("T", b"%d" % i) for i in range(4, 104))) == 100
            with pytest.raises(InvalidMessage):
                producer.send(Message("T", b""))
        with PullConsumer("g", namesrv) as reader:
            assert sum(reader.max_offset(queue) - reader.min_offset(queue) for queue in reader.queues("T")) == 104
            first = reader.pull(queue, 0, 2).messages
            assert [message.body for message in first] == [b"0", b"1"]
            assert reader.search_offset(queue, first[0].store_timestamp - 1) == 0
            reader.commit(queue, 2)
            assert reader.committed(queue) == 2
        consumer = PushConsumer("h", namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        bodies = set()
        with consumer:
            for message in consumer:
                bodies.add(int(message.body))
                if len(bodies) == 104:
                    consumer.ack(message)
                    break
        assert bodies == set(range(104))
        with PushConsumer("h", namesrv) as again:
            again.subscribe("T")
            assert list(again.messages(idle_timeout_ms=100)) == []


def test_a_listener_runs_in_threads(tmp_path: Path) -> None:
    threads: set[str] = set()
    bodies: set[bytes] = set()
    complete = threading.Event()

    def listener(message: Message) -> None:
        threads.add(threading.current_thread().name)
        bodies.add(message.body)
        if len(bodies) == 50:
            complete.set()

    with servers(tmp_path) as namesrv:
        consumer = PushConsumer("h", namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        consumer.listen(listener)
        with consumer, Producer("g", namesrv) as producer:
            producer.send_many(Message("T", b"%d" % i) for i in range(50))
            assert complete.wait(20)
    assert all(name.startswith("listener of h") for name in threads)


def test_a_listener_in_order_answers_requests_and_rests_while_suspended(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv, Producer("g", namesrv) as asker, Producer("h", namesrv) as replier:
        consumer = PushConsumer("c", namesrv, consume_from=FIRST, orderly=True)
        consumer.subscribe("T")
        consumer.listen(lambda request: replier.reply(request, b"yes, " + request.body))
        with consumer:
            for number in range(3):
                question = Message("T", b"%d" % number)
                reply = asker.request(question, select_by_hash("key"), timeout_ms=20_000)
                assert reply.body == b"yes, " + question.body
            consumer.suspend()
            with pytest.raises(RemotingTimeout, match="no reply came"):
                asker.request(Message("T", b"4"), timeout_ms=100)
            consumer.resume()
            assert asker.request(Message("T", b"5"), timeout_ms=20_000).body == b"yes, 5"


def test_misuse_is_told_instead_of_hanging(tmp_path: Path) -> None:
    producer = Producer("g", "127.0.0.1:1")
    with pytest.raises(MQError, match="inside `with`"):
        producer.send(Message("T", b"x"))
    with producer:
        with pytest.raises(RemotingConnectError, match=r"127\.0\.0\.1:1"):
            producer.send(Message("T", b"x"))

        async def blocking_call_on_its_own_loop() -> None:
            producer.send(Message("T", b"x"))

        with pytest.raises(MQError, match="own thread"):
            producer._run(blocking_call_on_its_own_loop())
    producer.close()
    with PullConsumer("g", "127.0.0.1:1") as consumer, pytest.raises(RemotingConnectError):
        consumer.queues("T")
    with pytest.raises(RemotingConnectError):
        PushConsumer("g", "127.0.0.1:1").open()


def test_works_inside_a_running_loop_as_in_a_notebook(tmp_path: Path) -> None:
    async def notebook(namesrv: str) -> int:
        with Producer("g", namesrv) as producer:
            return producer.send(Message("T", b"x")).queue_offset

    with servers(tmp_path) as namesrv:
        assert asyncio.run(notebook(namesrv)) == 0
