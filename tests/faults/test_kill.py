"""The process dies at once: everything that was acknowledged is there, the same bytes at the same offsets.

What a dead process wrote into mapped memory stays in the page cache, so nothing may be missing with ASYNC_FLUSH either.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest

from power import without_waiting
from rucola import store as store_room
from rucola.client.parcel import SendStatus
from rucola.client.producer import Producer
from rucola.errors import RemotingError
from rucola.message import Message, MessageInner
from rucola.message.record import decode
from rucola.store.check import check
from rucola.store.config import FlushDiskType, StoreConfig
from rucola.store.message_store import MessageStore
from servers import server
from stores import batch, config, inner

STORE_CODE = os.path.dirname(store_room.__file__)

# at every line of the engine ------------------------------------------------------------------------------------------


def some_messages(count: int) -> list[MessageInner]:
    """Messages that roll every kind of file, with batches, keys and transactions among them."""
    random = Random(7)
    return [
        inner(
            random.choice(["A", "Bb"]),
            random.randrange(2),
            random.randbytes(random.choice([0, 40, 400])),
            keys=random.choice([None, f"k{number}", f"k{number} all"]),
            unique_key=f"U{number}",
        )
        for number in range(count)
    ]


def use(settings: StoreConfig, acknowledge: Callable[[int, int, int], None]) -> None:
    """A whole life of a store in which everything happens: puts, batches, dispatch, flushes, a stop and a restart."""
    messages = some_messages(75)
    for begin, end in ((0, 50), (50, 75)):
        store = MessageStore(settings)
        store.open(1000 * begin)
        number = begin
        while number < end:
            now_ms = 1000 * number
            if number % 10 == 5:
                name = (messages[number].topic, messages[number].queue_id)
                several = [inner(*name, b"%d" % number, unique_key=f"U{number + k}") for k in range(3)]
                result = store.put_batch(batch(*several), now_ms)
                for queue_offset, physical_offset in enumerate(result.physical_offsets, result.queue_offset):
                    acknowledge(number, physical_offset, queue_offset)
                    number += 1
            else:
                one = store.put(messages[number], now_ms)
                acknowledge(number, one.physical_offset, one.queue_offset)
                number += 1
            if number % 4 == 0:
                store.reput()
            if number % 16 == 0:
                store.checkpoint()
        store.close()


def lines_of(use_once: Callable[[], None], on_line: Callable[[int], None]) -> None:
    """Run, telling before each line of the engine how many came before it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(STORE_CODE):
            return None
        if event == "line":
            on_line(count)
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        use_once()
    finally:
        sys.settrace(before)


def die_at(line: int, settings: StoreConfig) -> list[tuple[int, int, int]]:
    """Use a store in a process that kills itself before that line; what it acknowledged until then."""
    ledger, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ledger)

            def acknowledge(*numbers: int) -> None:
                os.write(writer, b"%d %d %d\n" % numbers)

            def kill(now: int) -> None:
                if now == line:
                    os.kill(os.getpid(), signal.SIGKILL)

            lines_of(lambda: use(settings, acknowledge), kill)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(ledger) as lines:
        acknowledged = [tuple(map(int, line.split())) for line in lines]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it lived longer than the first time"
    return acknowledged  # type: ignore[return-value]


def test_killed_before_any_line_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)  # the page cache survives
    seen: dict[tuple[str, int], list[int]] = {}

    def note(count: int) -> None:
        frame = sys._getframe(2)
        seen.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(count)

    lines_of(lambda: use(config(tmp_path / "whole"), lambda *numbers: None), note)
    random = Random(1)
    # Of all the lines that were run some, each at one of the times at which it was.
    for line in sorted({random.choice(counts) for counts in random.sample(list(seen.values()), 100)}):
        settings = config(tmp_path / str(line))
        acknowledged = die_at(line, settings)
        store = MessageStore(settings)
        store.open(1_000_000)
        for number, physical_offset, queue_offset in acknowledged:
            record = store.record_at(physical_offset)
            assert record is not None, (line, number)
            message = decode(record)
            assert (message.unique_key, message.queue_offset) == (f"U{number}", queue_offset), line
            assert record in store.query(message.topic, f"U{number}", 64).records
        put = store.put(inner("A", 0), 1_000_000)
        assert put.queue_offset == store.max_offset("A", 0) - 1
        units = sum(end - begin for begin, end in store.queues().values())
        assert len(acknowledged) + 1 <= units <= len(acknowledged) + 1 + 3, "at most one more request came so far"
        store.close()
        assert check(settings.store_path_root_dir) == [], line


# a broker with clients ------------------------------------------------------------------------------------------------

SMALL_FILES = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


class Sent(NamedTuple):
    """A message that a broker said it has."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


async def send_until_killed(process: subprocess.Popen[str], namesrv: str, random: Random, enough: int) -> list[Sent]:
    """Eight clients send at once. The broker dies as soon as so many sends were answered, amid the others."""
    acknowledged: list[Sent] = []

    async def send(producer: Producer, name: int) -> None:
        while True:
            body = random.randbytes(random.choice([10, 300, 3000]))
            try:
                result = await producer.send(Message(f"Topic{random.randrange(3)}", body, keys=f"key-{name}"))
            except RemotingError:
                return
            assert result.status is SendStatus.SEND_OK
            queue = result.queue
            acknowledged.append(Sent(queue.topic, queue.queue_id, result.queue_offset, body))
            if len(acknowledged) == enough:
                process.kill()

    async with Producer("senders", namesrv=namesrv, retry_times=0) as producer:
        await asyncio.gather(*(send(producer, name) for name in range(8)))
    return acknowledged


@pytest.mark.parametrize("flush", FlushDiskType)
def test_killed_broker_has_all_that_it_acknowledged(tmp_path: Path, flush: FlushDiskType) -> None:
    (tmp_path / "broker.conf").write_text(
        f"flushDiskType={flush.name}\nmappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    root = tmp_path / "store"
    random = Random(flush.name)
    acknowledged: list[Sent] = []
    for enough in (1, random.randrange(20, 100), random.randrange(200, 500)):
        arguments = ("--store", root, "-c", tmp_path / "broker.conf", "--namesrv-port", "0", "--broker-port", "0")
        with server("standalone", *arguments, log=tmp_path / "log") as standalone:
            namesrv, _ = standalone.addresses()
            acknowledged += asyncio.run(send_until_killed(standalone.process, namesrv, random, enough))
        assert (root / "abort").exists()
    store = MessageStore(config(root, **SMALL_FILES))
    store.open(1)
    for sent in acknowledged:
        (record,) = store.get(sent.topic, sent.queue_id, sent.queue_offset, 1).records
        message = decode(record)
        place = Sent(message.topic, message.queue_id, message.queue_offset, message.body)
        assert place == sent
    store.close()
    assert check(root) == []
