"""Clients and `os.fork`: a client that was not opened gets an id of its own, one that was is its parent's alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rucola.client.sync import Message, Producer, PullConsumer
from support.broker_thread import servers
from support.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

COUNT = 200


def run(program: str, *arguments: str) -> list[Any]:
    """Run a program to its end; what it printed, a line of JSON each."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    logged = [line for line in done.stderr.splitlines() if "unacknowledged messages of an iteration" not in line]
    assert logged == []
    return [json.loads(line) for line in done.stdout.splitlines()]


PRELUDE = """
import asyncio, gc, json, multiprocessing, os, sys, threading, time
from rucola.client import ClientInstance, ConsumeFromWhere, Message, MessageModel
from rucola import client as aio
from rucola.client import sync
from rucola.errors import MQError

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
namesrv = sys.argv[1]

def say(*words):
    os.write(1, json.dumps(words).encode() + b"\\n")

def forked(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        say("failed", type(error).__name__, str(error))
    sys.exit()  # with all exit handlers, as at the end of any program

def joined(*pids):
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert status == 0, status

def attempt(name, function):
    try:
        result = function()
    except MQError as error:
        say(name, str(error))
    else:
        say(name, "result", repr(result))
"""

SHARED_BY_CHILDREN = """
face, orderly, all_there = sys.argv[2], eval(sys.argv[3]), multiprocessing.get_context("fork").Barrier(3)
module = sync if face == "blocking" else aio
count, got = int(sys.argv[4]), multiprocessing.get_context("fork").Value("i")
consumer = module.PushConsumer("c", namesrv, consume_from=FIRST, orderly=orderly)
consumer.subscribe("T")

def take(message, client):
    say("got", client.instance.client_id, int(message.body))
    with got:
        got.value += 1

def blocking():
    with consumer:
        while len(consumer.queues) != 2:
            consumer._run(consumer.asyncio_client.rebalanced())
        all_there.wait()
        while got.value < count:
            for message in consumer.messages(idle_timeout_ms=100):
                take(message, consumer.asyncio_client)

def on_a_loop():
    async def consume():
        async with consumer:
            while len(consumer.queues) != 2:
                await consumer.rebalanced()
            await asyncio.to_thread(all_there.wait)
            while got.value < count:
                async for message in consumer.messages(idle_timeout_ms=100):
                    take(message, consumer)
    asyncio.run(consume())

children = [forked(blocking if face == "blocking" else on_a_loop) for _ in range(2)]
all_there.wait()
with sync.Producer("g", namesrv) as producer:
    producer.send_many(Message("T", b"%d" % number) for number in range(count))
joined(*children)
"""


@pytest.mark.parametrize(("face", "orderly"), [("blocking", True), ("asyncio", False)])
def test_children_that_open_a_consumer_made_before_share_its_queues(tmp_path: Path, face: str, orderly: bool) -> None:
    """With one client id both would own the same half of the queues, and nothing the other."""
    with servers(tmp_path, queues=4) as namesrv:
        said = run(SHARED_BY_CHILDREN, namesrv, face, str(orderly), str(COUNT))
        assert all(word == "got" for word, *_ in said), said
        assert sorted(number for _, _, number in said) == list(range(COUNT))
        by_member = Counter(client_id for _, client_id, _ in said)
        assert len(by_member) == 2


OPEN_IN_THE_PARENT = """
producer = sync.Producer("g", namesrv)
reader = sync.PullConsumer("r", namesrv)
consumer = sync.PushConsumer("c", namesrv, consume_from=FIRST)
consumer.subscribe("T")
with producer, reader, consumer:
    queue = producer.queues("T")[0]
    producer.send_batch([Message("T", b"0"), Message("T", b"1"), Message("T", b"2")], queue)
    iteration = iter(consumer)
    assert next(iteration).body == b"0"

    def child():
        attempt("send", lambda: producer.send(Message("T", b"x")))
        attempt("send_many", lambda: producer.send_many([Message("T", b"x")]))
        attempt("pull", lambda: reader.pull(queue, 0))
        attempt("queues", lambda: consumer.queues)
        attempt("subscribe", lambda: consumer.subscribe("U"))
        attempt("listen", lambda: consumer.listen(print))
        attempt("iterate", lambda: next(iter(consumer)))
        attempt("go on", lambda: next(iteration))
        attempt("open", producer.open)
        for client in (producer, reader, consumer):
            client.close()
        attempt("open again", producer.open)
        with sync.Producer("own", namesrv) as own:
            say("own", own.send(Message("T", b"of the child"), queue).queue_offset)

    joined(forked(child))
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    say("parent", producer.send(Message("T", b"of the parent"), queue).queue_offset)
    say("parent", next(iteration).body.decode(), next(iteration).body.decode(), next(iteration).body.decode())
"""


def test_a_blocking_client_that_was_open_raises_at_once_in_a_child_and_stays_open_in_the_parent(tmp_path: Path) -> None:
    """Its thread does not exist in the child, so that every call would wait for ever."""
    with servers(tmp_path) as namesrv:
        said = run(OPEN_IN_THE_PARENT, namesrv)
        *of_children, sent, got = said
        assert len(of_children) == 22
        for name, why, *_ in of_children:
            assert name != "failed", why
            if name != "own":
                assert "of which this process is a fork" in why, name
                assert "make a new client here" in why, name
        assert [place for name, place, *_ in of_children if name == "own"] == [3, 4]
        assert sent == ["parent", 5]
        assert got == ["parent", "1", "2", "of the child"]


OPEN_ON_A_LOOP = """
async def main():
    consumer = aio.PushConsumer("c", namesrv, consume_from=FIRST)
    consumer.subscribe("T")
    async with aio.Producer("g", namesrv) as producer, consumer:
        await producer.send(Message("T", b"0"))
        async for message in consumer:
            break

        def child():
            attempt("send", lambda: asyncio.run(producer.send(Message("T", b"x"))))
            attempt("open", lambda: asyncio.run(producer.open()))
            attempt("subscribe", lambda: consumer.subscribe("U"))
            attempt("listen", lambda: consumer.listen(print))
            attempt("ack", lambda: consumer.ack(message))

            async def iterate():
                async for message in consumer:
                    return message
            attempt("iterate", lambda: asyncio.run(iterate()))
            attempt("close", lambda: asyncio.run(consumer.close()))
            gc.collect()
            os._exit(0)

        joined(await asyncio.to_thread(forked, child))
        say("parent", (await producer.send(Message("T", b"1"))).is_ok, len(consumer.queues))
        consumer.ack(message)
        async for message in consumer:
            say("parent", message.body.decode())
            break

asyncio.run(main())
"""


def test_an_asyncio_client_that_was_open_raises_at_once_in_a_child(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        said = run(OPEN_ON_A_LOOP, namesrv)
        refused = [(name, "of which this process is a fork" in why) for name, why, *_ in said[:6]]
        assert refused == [(name, True) for name in ("send", "open", "subscribe", "listen", "ack", "iterate")]
        assert said[6:] == [["close", "result", "None"], ["parent", True, 2], ["parent", "1"]]


CHOSEN = """
broadcasting = aio.PushConsumer(
    "c", namesrv, message_model=MessageModel.BROADCASTING, offsets_root=sys.argv[2]
)
named = ClientInstance(namesrv, client_id="one-of-a-kind")

def child():
    attempt("broadcasting", lambda: asyncio.run(broadcasting.open()))
    attempt("named", lambda: asyncio.run(named.open()))

joined(forked(child))

async def main():
    async with broadcasting, named:
        say("parent", named.client_id)

asyncio.run(main())
"""


def test_a_client_with_an_explicit_id_is_refused_in_a_child(tmp_path: Path) -> None:
    """An id of its own would find no offsets; the same one would share queues, or the file of offsets."""
    with servers(tmp_path) as namesrv:
        first, second, parent = run(CHOSEN, namesrv, str(tmp_path / "offsets"))
        for name, why in (first, second):
            assert "was chosen in process" in why, name
            assert "make the client after the fork" in why, name
        assert parent == ["parent", "one-of-a-kind"]


KEYS = """
with sync.Producer("first", namesrv) as producer:
    producer.send(Message("T", b"before"))

later = sync.Producer("g", namesrv)
with later:  # closed again before the forks, it is nobody's
    later.queues("T")

def child():
    with later:
        for result in later.send_many(Message("T", b"x") for _ in range(50)):
            say("key", later.asyncio_client.instance.client_id, result.msg_id)

children = [forked(child) for _ in range(3)]
child.__globals__["children"] = children
joined(*children)
child()
"""


def test_messages_of_children_have_unique_keys(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        said = run(KEYS, namesrv)
        assert len({key for _, _, key in said}) == 200
        assert len({client_id for _, client_id, _ in said}) == 4


LEFT_OPEN = """
consumer = sync.PushConsumer("c", namesrv, consume_from=FIRST)
consumer.subscribe("T")
consumer.listen(lambda message: say("got", int(message.body)))
consumer.open()
joined(forked(lambda: None))
with sync.Producer("g", namesrv) as producer:
    producer.send_many(Message("T", b"%d" % number) for number in range(20))
while consumer.stats().get("T") is None or consumer.stats()["T"].consumed < 20:
    consumer.queues
"""


def test_the_end_of_a_child_leaves_its_parents_clients_open(tmp_path: Path) -> None:
    with servers(tmp_path) as namesrv:
        assert sorted(number for _, number in run(LEFT_OPEN, namesrv)) == list(range(20))
        with Producer("g", namesrv) as producer, PullConsumer("c", namesrv) as reader:
            producer.send(Message("T", b"20"))
            assert sum(reader.committed(queue) or 0 for queue in reader.queues("T")) == 20
