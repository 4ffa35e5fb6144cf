"""The process dies at once: everything that was acknowledged is there, the same bytes at the same offsets.

What a dead process wrote into mapped memory stays in the page cache, so nothing may be missing with ASYNC_FLUSH either.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

import pytest

from rucola import files
from rucola import store as store_room
from rucola.client.producer.producer import Producer
from rucola.client.producer.send_request import SendStatus
from rucola.errors import RemotingError
from rucola.message import Message, MessageInner
from rucola.message.record import decode
from rucola.store.config import FlushDiskType, StoreConfig
from rucola.store.config_files import config_path, read_config, write_config
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from simulation.disk import without_waiting
from support.killing import trace_lines
from support.servers import server
from support.stores import batch, config, crashed_copy, inner

pytestmark = pytest.mark.slow

STORE_CODE = (os.path.dirname(store_room.__file__), files.__file__)

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


class Ledger(NamedTuple):
    """What a store said until it died, and how far it had begun to delete."""

    messages: list[tuple[int, int, int]]
    """Number, physical offset and queue offset of those that were acknowledged."""
    configs: list[tuple[int]]
    """The values of a config file whose writing was begun; all but the last were acknowledged."""
    deletions: list[tuple[int]]
    """Where the log would begin."""


Say = Callable[..., None]


def use(settings: StoreConfig, say: Say) -> None:
    """A whole life of a store in which everything happens: recovery, puts, batches, dispatch, flushes, deletion of the
    oldest file, config files, a stop and a restart."""
    messages = some_messages(75)
    for begin, end in ((10, 50), (50, 75)):
        store = MessageStore(settings)
        store.open(1000 * begin)
        number = begin
        while number < end:
            now_ms = 1000 * number
            if number % 10 == 5:
                name = (messages[number].topic, messages[number].queue_id)
                several = [inner(*name, b"%d" % number, unique_key=f"U{number + k}") for k in range(3)]
                result = store.put_batch(batch(*several), now_ms)
                for queue_offset, physical_offset in enumerate(result.physical_offsets, result.queue_offsets[0]):
                    say("messages", number, physical_offset, queue_offset)
                    number += 1
            else:
                one = store.put(messages[number], now_ms)
                say("messages", number, one.physical_offset, one.queue_offset)
                number += 1
            if number % 4 == 0:
                store.reput()
            if number % 16 == 0:
                store.checkpoint()
                say("configs", number)
                write_config(config_path(settings.store_path_root_dir, "topics"), {"v": number})
            if number == end - 5:
                say("deletions", store.min_physical_offset + settings.mapped_file_size_commit_log)
                store.begin_retention_round(now_ms, 12, [DiskUsage(settings.store_path_root_dir, 86, 100)])
                assert store.expire(now_ms)
                store.delete_expired()
        store.close()


def begin(root: Path) -> list[tuple[int, int, int]]:
    """Make what a kill leaves after the first ten messages; these, as a ledger has them."""
    acknowledged = []
    with MessageStore(config(root.with_name("killed"))) as store:
        for number, message in enumerate(some_messages(10)):
            result = store.put(message, 1000 * number)
            acknowledged.append((number, result.physical_offset, result.queue_offset))
            if number == 6:
                store.reput()
        crashed_copy(store, root)
    return acknowledged


def lines_of(use_once: Callable[[], None], on_line: Callable[[int, FrameType], None]) -> None:
    """Run, telling before each line of the engine how many came before it, and its frame."""
    count = itertools.count()
    trace_lines(use_once, lambda name: name.startswith(STORE_CODE), lambda frame: on_line(next(count), frame))


def die_at(line: int, settings: StoreConfig, ledger: Ledger) -> None:
    """Use a store in a process that kills itself before that line; the ledger gets what it said until then."""
    told, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)

            def say(kind: str, *numbers: int) -> None:
                os.write(writer, f"{kind} {' '.join(map(str, numbers))}\n".encode())

            def kill(now: int, frame: FrameType) -> None:
                if now == line:
                    os.kill(os.getpid(), signal.SIGKILL)

            lines_of(lambda: use(settings, say), kill)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(told) as lines:
        for kind, *numbers in map(str.split, lines):
            getattr(ledger, kind).append(tuple(map(int, numbers)))
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it lived longer than the first time"


def test_store_killed_before_any_line_of_the_engine_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)  # the page cache survives
    seen: dict[tuple[str, int], list[int]] = {}

    def note(count: int, frame: FrameType) -> None:
        seen.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(count)

    begun = tmp_path / "begun"
    first = begin(begun)
    # Once before counting: the first run fills caches, so later runs execute fewer lines.
    use(config(shutil.copytree(begun, tmp_path / "first")), lambda *numbers: None)
    whole = config(shutil.copytree(begun, tmp_path / "whole"))  # made before counting, as in `die_at`
    lines_of(lambda: use(whole, lambda *numbers: None), note)
    random = Random(1)
    # Of all the lines that were run some, each at one of the times at which it was.
    for line in sorted({random.choice(counts) for counts in random.sample(list(seen.values()), 350)}):
        settings, ledger = config(shutil.copytree(begun, tmp_path / str(line))), Ledger([*first], [], [])
        die_at(line, settings, ledger)
        store = MessageStore(settings)
        store.open(1_000_000)
        log_begin = store.min_physical_offset
        assert log_begin == 0 or (log_begin,) in ledger.deletions, line
        for number, physical_offset, queue_offset in ledger.messages:
            if physical_offset < log_begin:
                continue
            record = store.record_at(physical_offset)
            assert record is not None, (line, number)
            message = decode(record)
            assert (message.unique_key, message.queue_offset) == (f"U{number}", queue_offset), line
            assert record in store.query(message.topic, f"U{number}", 64).records
        put = store.put(inner("A", 0), 1_000_000)
        assert put.queue_offset == store.max_offset("A", 0) - 1
        count = sum(end for _, end in store.queues().values())
        assert len(ledger.messages) + 1 <= count <= len(ledger.messages) + 1 + 3, "at most one more request came so far"
        *acknowledged, begun_last = [None, *(value for (value,) in ledger.configs)]
        value = read_config(config_path(settings.store_path_root_dir, "topics"))
        assert (value and value["v"]) in (begun_last, *acknowledged[-1:]), line
        store.close()
        assert check(settings.store_path_root_dir) == [], line
        shutil.rmtree(settings.store_path_root_dir)


# twice in a recovery --------------------------------------------------------------------------------------------------

RECOVERED = 100


def leave_a_recovery_to_do(root: Path, damage: str) -> None:
    """A store after a kill: some messages are covered by the checkpoint, in log files, queues and index files."""
    settings = config(root.with_name("served"), max_hash_slot_num=20, max_index_num=150)
    with MessageStore(settings) as store:
        for number in range(RECOVERED):
            keys = None if number % 7 == 3 else f"k{number} all"
            message = inner(queue_id=number % 3, body=bytes(150), keys=keys, unique_key=f"U{number}")
            store.put(message, 1000 * number)
            if number == 60:
                store.reput()
                store.checkpoint()
        store.reput()
        crashed_copy(store, root)
    if damage == "a queue lacks a file":
        (root / "consumequeue" / "T" / "1" / f"{200:020d}").unlink()
    if damage == "the index lacks a page":
        data = (last := max((root / "index").iterdir())).read_bytes()
        last.write_bytes(data[:200] + bytes(512) + data[712:])


def recover_until_killed(settings: StoreConfig, line: int) -> bool:
    """Open a store in a process that kills itself before that line; return whether it lived so long."""
    child = os.fork()
    if child == 0:
        try:

            def kill(now: int, frame: FrameType) -> None:
                if now == line:
                    os.kill(os.getpid(), signal.SIGKILL)

            lines_of(lambda: MessageStore(settings).open(1), kill)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("damage", ["none", "a queue lacks a file", "the index lacks a page"])
def test_a_recovery_killed_before_any_line_and_its_successor_too_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    without_waiting(monkeypatch)  # the page cache survives
    left = tmp_path / "left"
    leave_a_recovery_to_do(left, damage)
    sizes = {"max_hash_slot_num": 20, "max_index_num": 150}
    seen: dict[tuple[str, int], list[int]] = {}

    def note(count: int, frame: FrameType) -> None:
        seen.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(count)

    for name in ("first", "counted"):  # the first run fills caches
        seen.clear()
        store = MessageStore(config(shutil.copytree(left, tmp_path / name), **sizes))
        lines_of(lambda store=store: store.open(1), note)  # type: ignore[misc]
        store.close()
    last = max(counts[-1] for counts in seen.values())
    random = Random(2)
    for line in sorted({random.choice(counts) for counts in random.sample(list(seen.values()), 60)}):
        settings = config(shutil.copytree(left, tmp_path / str(line)), **sizes)
        assert recover_until_killed(settings, line), "it lived longer than the first time"
        recover_until_killed(settings, random.choice([line, random.randrange(last)]))
        with MessageStore(settings) as store:
            assert store.queues() == {("T", queue_id): (0, len(range(queue_id, RECOVERED, 3))) for queue_id in range(3)}
            for number in range(RECOVERED):
                (record,) = store.query("T", f"U{number}", 8).records
                message = decode(record)
                assert (message.queue_id, message.queue_offset) == (number % 3, number // 3), line
                assert store.get("T", number % 3, number // 3, 1).records == [record], line
            assert store.put(inner("T", 1), 1_000_000).queue_offset == len(range(1, RECOVERED, 3))
        assert check(settings.store_path_root_dir) == [], line
        shutil.rmtree(settings.store_path_root_dir)


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
async def test_killed_broker_keeps_every_acknowledged_message(tmp_path: Path, flush: FlushDiskType) -> None:
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
            acknowledged += await send_until_killed(standalone.process, namesrv, random, enough)
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
