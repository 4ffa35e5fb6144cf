"""Programs that end without closing their clients: what no listener has seen is not failed, and the group is left."""

from __future__ import annotations

import signal
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
import asyncio, os, sys, threading, time
from rucola.client import ConsumeFromWhere, MessageModel
from rucola.client.sync import PushConsumer

namesrv, kind, count, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
at_work, seen = threading.Semaphore(0), []

def listen_in_a_thread(message):
    # Returns when the program has ended, and the main thread is at its exit handlers.
    os.write(1, message.body + b"\\n")
    at_work.release()
    while threading.main_thread().is_alive():
        time.sleep(0.001)

async def listen(message):
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
        assert len(seen) >= at_work  # the loop runs a moment longer
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
        seen = printed.encode().split()
        assert len(seen) >= 4
        assert "Error" not in logged
        member = PushConsumer("c", namesrv, **options)
        member.subscribe("T")
        with member:
            rest = list(islice(member.messages(idle_timeout_ms=20_000), COUNT - len(seen)))
            assert len({message.body for message in rest} - set(seen)) == COUNT - len(seen)


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

def outlive():
    threading.main_thread().join()
    print("ended", flush=True)
    sys.stdin.read()

threading.Thread(target=outlive).start()
"""


def test_a_consumer_goes_on_when_the_main_thread_ends(tmp_path: Path) -> None:
    """Another thread keeps the process alive."""
    with servers(tmp_path) as namesrv:
        program = subprocess.Popen(
            [sys.executable, "-c", LINGER, namesrv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "ended\n"
            fill(namesrv)
            assert {int(program.stdout.readline()) for _ in range(COUNT)} == set(range(COUNT))
            program.stdin.close()
        assert program.returncode == 0
        assert committed(namesrv) == COUNT
        assert stored(namesrv, "%RETRY%c") == 0


HANG = """
import asyncio, sys, threading
from rucola.client import ConsumeFromWhere, PushConsumer, sync
from rucola.client.consumer import push_consumer

push_consumer.CLOSE_GRACE_MS = 100
kind = sync.PushConsumer if sys.argv[2] == "blocking" else PushConsumer
consumer = kind("c", sys.argv[1], consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, concurrency=1)
consumer.subscribe("T")

is_open = threading.Event()

def hang(message):
    is_open.wait()
    print(message.msg_id, flush=True)
    threading.Event().wait()

async def main():
    async with consumer:
        is_open.set()
        await asyncio.Event().wait()

consumer.listen(hang)
if sys.argv[2] == "blocking":
    with consumer:
        is_open.set()
        while True:
            threading.Event().wait(1)  # a signal just before a wait without an end would not end it
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_one_interrupt_ends_a_program_whose_listener_hangs(tmp_path: Path, kind: str) -> None:
    with servers(tmp_path) as namesrv:
        fill(namesrv)
        with subprocess.Popen(
            [sys.executable, "-c", HANG, namesrv, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stderr is not None
            try:
                message_id = program.stdout.readline().strip()
                program.send_signal(signal.SIGINT)
                assert program.wait(60) == -signal.SIGINT
                assert message_id in program.stderr.read()
            finally:
                program.kill()
        assert committed(namesrv) == 0
