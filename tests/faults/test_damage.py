"""Bytes that changed or went: whatever is damaged, the store opens with all that is whole, or says what to do.

Nothing that is undamaged may be lost in silence: a message can be had, or `check` tells of the damage. And nothing but
the errors of this package may come out of it, from no tool.
"""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import MQError, StoreError
from rucola.message.record import FRAME, MESSAGE_MAGIC, decode
from rucola.store.checkpoint import Checkpoint
from rucola.store.config_files import config_path, read_config, write_config
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from simulation.disk import without_waiting
from support.stores import config, crashed_copy, inner

pytestmark = pytest.mark.slow

LOG = Path("commitlog") / f"{0:020d}"
QUEUE = Path("consumequeue") / "T" / "1" / f"{0:020d}"
MESSAGES = 16


class Sound:
    """A sound store, to be copied and damaged: 16 messages in two queues, and each of their records."""

    def __init__(self, root: Path, after_crash: bool) -> None:
        self.after_crash = after_crash
        store = MessageStore(config(root / "origin"))
        store.open(1)
        for k in range(MESSAGES):
            message = inner(queue_id=k % 2, body=b"body %2d" % k, keys=f"key{k}", unique_key=f"U{k}", tags="A")
            result = store.put(message, 1_000_000 + 5000 * k)
            if k == MESSAGES - 2:
                store.reput()
                store.checkpoint()
        self.root = root / "sound"
        store.reput()
        if after_crash:
            crashed_copy(store, self.root)
        store.close()
        if not after_crash:
            crashed_copy(store, self.root)
        with StoreReader(root / "origin") as reader:
            self.places = [(m.queue_id, m.queue_offset, m.physical_offset, m.store_size) for m in reader.walk()]
        self.log = (root / "origin" / LOG).read_bytes()
        self.last, self.end = result.physical_offset, result.physical_offset + result.size

    def record(self, number: int) -> bytes:
        *_, physical_offset, size = self.places[number]
        return self.log[physical_offset : physical_offset + size]

    def judge(self, to: Path, damage: Callable[[Path], object], what: object, spoiled: int = MESSAGES) -> None:
        """Damage a copy and use it. Of the messages only number `spoiled` is damaged itself."""
        shutil.copytree(self.root, to)
        damage(to)
        look_everywhere(to)
        store = MessageStore(config(to))
        refusal = None
        try:
            store.open(2_000_000)
        except StoreError as error:
            refusal = str(error)
        if refusal is not None:
            assert str(to) in refusal, what
            assert "run `" in refusal or "set to" in refusal or "have" in refusal, (what, refusal)
            shutil.rmtree(to)
            return
        missing = []
        for number, (queue_id, queue_offset, *_) in enumerate(self.places):
            got = store.get("T", queue_id, queue_offset, 1).records
            if got != [self.record(number)] and number != spoiled:
                missing.append(number)
        by_key = [
            number
            for number in range(MESSAGES)
            if number != spoiled and self.record(number) not in store.query("T", f"U{number}", 64).records
        ]
        store.put(inner(queue_id=1), 2_000_000)
        store.close()
        if missing or by_key:
            assert look_everywhere(to), (what, missing, by_key)
        shutil.rmtree(to)


def look_everywhere(root: Path) -> bool:
    """Use every tool; whether `check` finds something. Whatever they meet, they may end with an MQError only."""
    findings = check(root)
    try:
        for _ in dump(root):
            pass
    except MQError:
        pass
    try:
        with StoreReader(root) as reader:
            for topic, queue_id in reader.queues():
                reader.units(topic, queue_id)
            for number in range(MESSAGES):
                reader.query("T", f"key{number}")
    except MQError:
        pass
    return findings != []


@pytest.fixture(params=[False, True], ids=["clean stop", "crash"])
def sound(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sound:
    without_waiting(monkeypatch)
    return Sound(tmp_path, request.param)


def flip(path: Path, position: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def index_file(root: Path) -> Path:
    return next((root / "index").iterdir())


def test_store_recovers_or_names_flipped_bits_of_the_last_record(sound: Sound, tmp_path: Path) -> None:
    for position in range(sound.last, sound.end):
        sound.judge(
            tmp_path / "copy",
            lambda root, position=position: flip(root / LOG, position, position * 5 % 8),
            position - sound.last,
            spoiled=MESSAGES - 1,
        )


def test_store_recovers_or_names_flipped_bits_of_an_early_record(sound: Sound, tmp_path: Path) -> None:
    begin, size = sound.places[3][2:]
    for position in range(begin, begin + size):
        sound.judge(
            tmp_path / "copy",
            lambda root, position=position: flip(root / LOG, position, position % 8),
            position - begin,
            spoiled=3,
        )


@pytest.mark.parametrize(
    ("find", "positions"),
    [
        (lambda root: root / QUEUE, range(20 * MESSAGES // 2)),
        (index_file, range(40)),
        (index_file, range(40, 80)),
        (index_file, range(80, 80 + 20 * (2 * MESSAGES + 1))),
        (lambda root: root / "checkpoint", range(24)),
    ],
    ids=["units", "index header", "slots", "entries", "checkpoint"],
)
def test_store_recovers_or_names_flipped_bits_of_queues_and_index(
    sound: Sound, tmp_path: Path, find: Callable[[Path], Path], positions: range
) -> None:
    for position in positions:
        sound.judge(
            tmp_path / "copy",
            lambda root, position=position: flip(find(root), position, position * 5 % 8),
            position,
        )


def test_store_recovers_a_log_cut_at_any_byte_of_the_last_record(sound: Sound, tmp_path: Path) -> None:
    """A copy that ended too early: the file is short, not filled with zeros."""
    for size in range(sound.last, sound.end):
        sound.judge(
            tmp_path / "copy",
            lambda root, size=size: os.truncate(root / LOG, size),
            size,
            spoiled=MESSAGES - 1,
        )


@pytest.mark.parametrize("size", [0, 1, 13, 39, 100])
def test_store_rebuilds_or_names_short_files(sound: Sound, tmp_path: Path, size: int) -> None:
    for find in (lambda root: root / QUEUE, index_file, lambda root: root / "checkpoint"):
        sound.judge(tmp_path / "copy", lambda root, find=find: os.truncate(find(root), size), find)


def test_store_rebuilds_or_names_lost_files_and_directories(sound: Sound, tmp_path: Path) -> None:
    for name in ("consumequeue", "consumequeue/T", "consumequeue/T/0", "consumequeue/T/1", "index"):
        sound.judge(tmp_path / "copy", lambda root, name=name: shutil.rmtree(root / name), name)
    for name in ("checkpoint", "lock", QUEUE):
        sound.judge(tmp_path / "copy", lambda root, name=name: (root / name).unlink(), name)


def test_store_without_its_log_does_not_open_as_an_empty_one(sound: Sound, tmp_path: Path) -> None:
    """As where the log has a disk of its own that is not mounted."""
    shutil.rmtree(sound.root / "commitlog")
    with pytest.raises(StoreError):
        MessageStore(config(sound.root)).open(1)
    assert (sound.root / QUEUE).exists()


@pytest.mark.parametrize("claimed", [0x7FFFFFFF, 0x38000000, 0x00FFFFFF])
def test_record_with_a_huge_size_field_takes_no_memory(tmp_path: Path, claimed: int) -> None:
    settings = config(tmp_path / "store", mapped_file_size_commit_log=1 << 30)
    store = MessageStore(settings)
    store.open(1)
    store.put(inner(body=b"whole"), 1)
    end = store.max_physical_offset
    store.close()
    with open(tmp_path / "store" / LOG, "r+b") as log:
        log.seek(end)
        log.write(FRAME.pack(claimed, MESSAGE_MAGIC))
    (tmp_path / "store" / "abort").touch()
    tracemalloc.start()
    try:
        assert any("size" in finding.what for finding in check(tmp_path / "store"))
        again = MessageStore(settings)
        again.open(1)
        assert [decode(record).body for record in again.get("T", 0, 0, 32).records] == [b"whole"]
        again.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert check(tmp_path / "store") == []


# config files ---------------------------------------------------------------------------------------------------------


def test_damaged_config_file_falls_back_or_is_named(tmp_path: Path) -> None:
    path = config_path(tmp_path, "consumerOffset")
    old = {"offsetTable": {"T@g": {0: 33, 1: 32}}}
    write_config(path, old)
    write_config(path, {"offsetTable": {"T@g": {0: 34, 1: 32}}})
    data = path.read_bytes()
    damaged = [data[:size] for size in range(len(data))]
    damaged += [data[:k] + bytes([data[k] ^ 1 << bit]) + data[k + 1 :] for k in range(len(data)) for bit in range(8)]
    damaged += [b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 100, b"1" * 10_000, b"\0" * 4096]
    for content in damaged:
        path.write_bytes(content)
        with_backup = read_config(path)
        assert with_backup is not None, content[:100]
        backup = path.with_name(path.name + ".bak")
        kept = backup.read_bytes()
        backup.unlink()
        refusal = None
        try:
            read_config(path)
        except StoreError as error:
            refusal = str(error)
        assert refusal is None or (str(path) in refusal and with_backup == old)
        backup.write_bytes(kept)


def test_checkpoint_of_any_size_is_read(tmp_path: Path) -> None:
    for size in range(40):
        (tmp_path / "checkpoint").write_bytes(b"\xff" * size)
        assert Checkpoint(tmp_path / "checkpoint").queues_timestamp == 0
