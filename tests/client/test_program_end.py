"""Programs that end without closing their clients: what no listener has seen is not failed, and the group is left."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from rucola.client import MessageModel
from rucola.client.sync import Message, Producer, PullConsumer, PushConsumer
from rucola.errors import TopicNotFound
from support.broker_thread import servers
from support.consumers import FIRST

COUNT = 200

CONSUME = """
import asyncio, concurrent.futures.thread, os, sys, threading, time
from rucola.client import ConsumeFromWhere, MessageModel
from rucola.client.sync import PushConsumer

namesrv, kind, count, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
at_work, seen = threading.Semaphore(0), []

def listen_in_a_thread(message):
    # Returns when the program has ended, when no thread pool takes calls any more.
    os.write(1, message.body + b"\\n")
    at_work.release()
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.001)

async def listen(message):
    # Returns when the program has ended, and the main thread is at its exit handlers.
    os.write(1, message.body + b"\\n")
    at_work.release()
    while threading.main_thread().is_alive():
        await asyncio.sleep(0.001)

consumer = PushConsumer(
    "c", namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, concurrency=count, **options
)
consumer.subscribe("T")
consumer.listen(listen if kind == "coroutine" else listen_in_a_thread)
consumer.open()
for _ in range(count):
    at_work.acquire()
"""


def run(program: str, *arguments: str) -> tuple[str, str]:
    """Run a program to its end; what it printed, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def fill(namesrv: str) -> None:
    with Producer("g", namesrv) as producer:
        producer.send_many(Message("T", b"%d" % number) for number in range(COUNT))


def stored(namesrv: str, topic: str) -> int:
    """How many messages a topic has; none if there is no such topic."""
    with PullConsumer("reader", namesrv) as reader:
        try:
            return sum(reader.max_offset(queue) for queue in reader.queues(topic))
        except TopicNotFound:
            return 0


def committed(namesrv: str) -> int:
    with PullConsumer("c", namesrv) as reader:
        return sum(reader.committed(queue) or 0 for queue in reader.queues("T"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
@pytest.mark.parametrize("orderly", [False, True])
def test_unseen_messages_reach_the_next_member_without_a_retry(tmp_path: Path, kind: str, orderly: bool) -> None:
    """In order, the successor needs the locks: they were given back, or it would wait for a minute."""
    with servers(tmp_path) as namesrv:
        fill(namesrv)
        at_work = 2 if orderly else 4
        printed, logged = run(CONSUME, namesrv, kind, str(at_work), f"dict(orderly={orderly}, max_reconsume_times=0)")
        seen = [int(line) for line in printed.split()]
        assert len(seen) == at_work or (kind == "coroutine" and len(seen) > at_work)  # its loop runs a moment longer
        assert "failed" not in logged
        assert "Error" not in logged
        assert committed(namesrv) == len(seen)
        assert stored(namesrv, "%RETRY%c") == stored(namesrv, "%DLQ%c") == 0
        successor = PushConsumer("c", namesrv, consume_from=FIRST, orderly=orderly)
        successor.subscribe("T")
        rest: list[int] = []
        with successor:
            for message in successor.messages(idle_timeout_ms=20_000):
                assert message.reconsume_times == 0
                rest.append(int(message.body))
                if len(rest) == COUNT - len(seen):
                    break
        assert sorted(seen + rest) == list(range(COUNT))


def test_broadcasting_offsets_are_written_at_exit(tmp_path: Path) -> None:
    options = {"message_model": MessageModel.BROADCASTING, "offsets_root": str(tmp_path / "offsets")}
    with servers(tmp_path) as namesrv:
        fill(namesrv)
        text = f"dict(message_model=MessageModel.BROADCASTING, offsets_root={options['offsets_root']!r})"
        printed, logged = run(CONSUME, namesrv, "thread", "4", text)
        assert len(printed.split()) == 4
        assert "Error" not in logged
        member = PushConsumer("c", namesrv, **options)
        member.subscribe("T")
        with member:
            rest = list(islice(member.messages(idle_timeout_ms=20_000), COUNT - 4))
            assert len({message.body for message in rest} - set(printed.encode().split())) == COUNT - 4


ITERATE = """
import sys
from rucola.client import ConsumeFromWhere
from rucola.client.sync import Producer, PushConsumer, Message

consumer = PushConsumer("c", sys.argv[1], consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe("T")
consumer.open()
producer = Producer("other", sys.argv[1])
producer.open()
iteration = iter(consumer)
for _ in range(3):
    next(iteration)
"""


def test_an_open_iteration_ends_with_the_program(tmp_path: Path) -> None:
    """Two of three messages are done; the generator that is alive at the end does not hang, and the third is named."""
    with servers(tmp_path) as namesrv:
        fill(namesrv)
        printed, logged = run(ITERATE, namesrv)
        assert printed == ""
        (line,) = logged.splitlines()
        assert line.startswith(
            "group c: closing with unacknowledged messages of an iteration (1, the first with offset 1"
        )
        assert committed(namesrv) == 2


LINGER = """
import sys, threading
from rucola.client import ConsumeFromWhere
from rucola.client.sync import PushConsumer

consumer = PushConsumer("c", sys.argv[1], consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe("T")
consumer.listen(lambda message: print(message.body.decode() + "\\n", end="", flush=True))
consumer.open()
threading.Thread(target=sys.stdin.read).start()
"""


def test_a_consumer_releases_its_queues_when_the_main_thread_ends(tmp_path: Path) -> None:
    """Another thread keeps the process alive. Python's thread pools take no more calls, so that nothing is consumed."""
    with servers(tmp_path) as namesrv:
        program = subprocess.Popen(
            [sys.executable, "-c", LINGER, namesrv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with program:
            assert program.stdin is not None
            assert program.stdout is not None
            fill(namesrv)
            successor = PushConsumer("c", namesrv, consume_from=FIRST)
            successor.subscribe("T")
            with successor:
                rest: set[int] = set()
                while len(successor.queues) < 2:
                    successor._run(successor.asyncio_client.rebalanced())
                assert program.poll() is None
                for message in successor.messages(idle_timeout_ms=500):
                    rest.add(int(message.body))
            program.stdin.close()
            seen = {int(line) for line in program.stdout}
        assert program.returncode == 0
        assert seen | rest == set(range(COUNT))
        assert stored(namesrv, "%RETRY%c") == 0
