"""The power fails: whatever the disk may then hold, what was flushed is there, and nothing that nobody sent."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rucola.message import MessageInner
from rucola.message.record import decode
from rucola.store import commit_log
from rucola.store.config import FlushDiskType, GetMessageStatus, PutMessageStatus, StoreConfig
from rucola.store.config_files import config_path, read_config, write_config
from rucola.store.kernel_flush import KernelFlush
from rucola.store.mapped_file import file_name
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from simulation.disk import Disk, without_waiting
from support.stores import batch, config, crashed_copy, flush_in_kernel, inner, sound_store


@dataclass
class Ledger:
    """What was put, in order, and how much of it a flush has vouched for."""

    records: list[bytes] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    durable: int = 0
    now_ms: int = 1_000_000
    is_behind: bool = False
    """Whether a record may be in the log that nobody was told of yet."""

    def copy(self) -> Ledger:
        return Ledger(list(self.records), list(self.keys), self.durable, self.now_ms)

    def cut(self, count: int) -> None:
        del self.records[count:], self.keys[count:]
        self.durable = count


def some_message(random: Random, number: int) -> MessageInner:
    keys = random.choice(["", f"k{number}", f"k{number} all"])
    filler = "x" * random.choice([0, 0, 20, 700])
    return inner(
        random.choice(["A", "A", "Topic"]),
        random.randrange(3),
        random.randbytes(random.choice([0, 1, 30, 300, 900])),
        tags=f"tag{filler}",
        keys=keys or None,
        unique_key=f"{number:032X}",
    )


def flush(store: MessageStore) -> None:
    """Flush as the store's flushDiskType would have it."""
    if store.config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
        store.flush()
        return
    kernel = KernelFlush.open()
    assert kernel is not None
    flush_in_kernel(store, kernel)
    kernel.close()


def work(store: MessageStore, ledger: Ledger, random: Random, steps: int, disk: Disk) -> None:
    """Put, read, dispatch, flush and vouch in any order, noting what was promised."""

    def put(*messages: MessageInner) -> None:
        ledger.now_ms += random.choice([0, 1, 900, 4000])
        is_synchronous = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        ledger.is_behind = is_synchronous or commit_log._WRITE_FROM < 4096
        if len(messages) == 1:
            one = store.put(messages[0], ledger.now_ms)
            status, physical_offsets = one.status, [one.physical_offset]
        else:
            several = store.put_batch(batch(*messages), ledger.now_ms)
            status, physical_offsets = several.status, list(several.physical_offsets)
        assert status is PutMessageStatus.PUT_OK
        for message, physical_offset in zip(messages, physical_offsets, strict=True):
            record = store.record_at(physical_offset)
            assert record is not None
            ledger.records.append(record)
            ledger.keys.append(str(message.unique_key))
        ledger.is_behind = False

    for _ in range(steps):
        step = random.random()
        if step < 0.6:
            put(some_message(random, len(ledger.records)))
        elif step < 0.7:
            first = some_message(random, len(ledger.records))
            put(
                *(inner(first.topic, first.queue_id, b"%d" % k, unique_key=f"{first.unique_key}-{k}") for k in range(9))
            )
        elif step < 0.85:
            store.reput()
        elif step < 0.95:
            flush(store)
            ledger.durable = len(ledger.records)
        else:
            store.checkpoint()
            ledger.durable = len(ledger.records)
        disk.look()


def verify(store: MessageStore, ledger: Ledger) -> None:
    """Hold an opened store against the ledger, and cut the ledger to what came through."""
    offsets = [decode(record).physical_offset for record in ledger.records]
    found = [store.record_at(offset) for offset in offsets]
    count = found.index(None) if None in found else len(found)
    assert count >= ledger.durable, f"{ledger.durable} were on disk, {count} came back"
    assert found[:count] == ledger.records[:count], "the same bytes at the same places"
    assert found[count:] == [None] * (len(found) - count)
    ledger.cut(count)
    queues: dict[tuple[str, int], list[bytes]] = {}
    for record in ledger.records:
        message = decode(record)
        queues.setdefault((message.topic, message.queue_id), []).append(record)
    assert {name: (0, len(records)) for name, records in queues.items()} == {
        name: ends for name, ends in store.queues().items() if ends != (0, 0)
    }
    for name, records in queues.items():
        assert read(store, *name) == records, name
    for record, key in zip(ledger.records, ledger.keys, strict=True):
        message = decode(record)
        assert record in store.query(message.topic, key, 64).records, key


def read(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    records: list[bytes] = []
    begin = 0
    while (page := store.get(topic, queue_id, begin, 32)).status is GetMessageStatus.FOUND:
        records += page.records
        begin = page.next_begin_offset
    return records


SIZES: dict[str, dict[str, Any]] = {
    "tiny files": {},
    "files of some sectors": {
        "mapped_file_size_commit_log": 16384,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 30,
        "max_index_num": 120,
    },
}


def live(at: StoreConfig, ledger: Ledger, random: Random, crashes: Path, steps: int) -> list[tuple[Path, Ledger]]:
    """One life of a store, from its opening to its end; what several power cuts during it leave, with what must be
    there."""
    left: list[tuple[Path, Ledger]] = []
    root = at.store_path_root_dir
    root.mkdir(parents=True, exist_ok=True)

    def fail_perhaps() -> None:
        if not ledger.is_behind and random.random() < 0.06:
            to = crashes / str(len(left))
            disk.crash(random, to)
            left.append((to, ledger.copy()))

    with closing(Disk(root)) as disk:
        disk.on_call = fail_perhaps
        with disk.recording():
            store = MessageStore(at)
            store.open(ledger.now_ms)
            verify(store, ledger)
            work(store, ledger, random, steps, disk)
            if random.random() < 0.3:
                store.close()
                ledger.durable = len(ledger.records)
                fail_perhaps()
        to = crashes / str(len(left))
        disk.crash(random, to)
        left.append((to, ledger.copy()))
        store.close()
    assert check(root) == []
    return left


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_flushed_messages_survive_whatever_else_the_disk_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str, seed: int
) -> None:
    without_waiting(monkeypatch)  # for the true disk below
    monkeypatch.setattr(commit_log, "_WRITE_FROM", [4096, 4096, 300][seed])
    settings = SIZES[sizes] | {"flush_disk_type": list(FlushDiskType)[seed % 2]}  # by the mapping, by calls, by both
    random = Random(seed)
    (tmp_path / "first").mkdir()
    lives = live(config(tmp_path / "store", **settings), Ledger(), random, tmp_path / "first", 60)
    for number, (root, ledger) in enumerate(lives):
        # The recovery is a life too, in which the power may fail again.
        crashes = tmp_path / f"second{number}"
        crashes.mkdir()
        for again, after in live(config(root, **settings), ledger, random, crashes, 10):
            store = MessageStore(config(again, **settings))
            store.open(after.now_ms)
            verify(store, after)
            store.close()
            assert check(again) == []


@pytest.mark.parametrize(("is_flushed", "left"), [(False, []), (True, [b"sent"])], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_power_cut_loses_only_unflushed_messages(tmp_path: Path, is_flushed: bool, left: list[bytes]) -> None:
    """SYNC_FLUSH answers after the flush, ASYNC_FLUSH before; the worst that a disk can do lies between them."""
    root = tmp_path / "store"
    root.mkdir()
    with closing(Disk(root)) as disk:
        with disk.recording():
            store = MessageStore(config(root))
            store.open(1)
            store.put(inner(body=b"sent"), 1)
            if is_flushed:
                store.flush()
        disk.crash(Random(0), tmp_path / "after", "nothing more")
        store.close()
    with sound_store(tmp_path / "after") as after:
        assert [decode(record).body for record in read(after, "T", 0)] == left
        assert after.put(inner(body=b"next"), 1).queue_offset == len(left)


@pytest.mark.slow
def test_a_power_cut_during_retention_loses_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the names that were removed any may be there again, but no queue has forgotten what the log still has."""
    without_waiting(monkeypatch)  # for the true disk below
    root = tmp_path / "store"
    store = MessageStore(config(root))
    store.open(1)
    sent: list[tuple[int, int]] = []
    for number in range(60):
        put = store.put(inner(queue_id=number % 2, body=bytes(500), keys=f"k{number}"), 1000 * number)
        sent.append((put.physical_offset, number))
    store.reput()
    store.checkpoint()
    crashes = []

    def fail() -> None:
        for kind in ("nothing more", "everything", "any", "any"):
            crashes.append(tmp_path / str(len(crashes)))
            disk.crash(random, crashes[-1], kind)

    random = Random(5)
    with closing(Disk(root)) as disk:
        disk.on_call = fail
        with disk.recording():
            store.begin_retention_round(60_000, 12, [DiskUsage(root, 86, 100)])
            while store.expire(60_000):
                store.delete_expired()
        begin = store.min_physical_offset
        store.close()
    assert begin > 3 * 4096
    assert len(crashes) > 40
    for crash in crashes:
        with sound_store(crash) as after:
            assert after.min_physical_offset <= begin
            left = [number for at, number in sent if at >= after.min_physical_offset]
            found = sorted(
                offset * 2 + queue_id
                for (_, queue_id), (low, high) in after.queues().items()
                for offset in range(low, high)
            )
            assert found == left
            assert all(after.query("T", f"k{number}", 64).records for number in left)
            assert after.queues() == {
                ("T", 0): (after.min_offset("T", 0), 30),
                ("T", 1): (after.min_offset("T", 1), 30),
            }


def test_units_without_their_predecessors_are_erased(tmp_path: Path) -> None:
    """Pages reach the disk in any order: the first unit that was not flushed is missing, the second is there."""
    with MessageStore(config(tmp_path / "store", mapped_file_size_consume_queue=2000)) as store:
        store.put(inner(body=bytes(3500)), 1)
        store.put(inner(queue_id=1, body=bytes(1000)), 1)  # opens the file with which recovery begins
        store.put(inner(queue_id=1), 10_000)
        store.reput()
        store.checkpoint()
        lost = store.put(inner(body=b"lost"), 10_000).physical_offset
        store.put(inner(body=b"lost"), 10_000)
        store.reput()
        after = crashed_copy(store, tmp_path / "after")
    root = tmp_path / "after"
    unit = f"consumequeue/T/0/{file_name(0)}"
    for name, begin, end in ((f"commitlog/{file_name(4096)}", lost - 4096, 4096), (unit, 20, 40)):
        with open(root / name, "r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))
    with after:
        assert [decode(record).body for record in read(after, "T", 0)] == [bytes(3500)]
    assert check(root) == []


def test_file_names_that_a_killed_broker_did_not_sync_are_synced_at_the_next_start(tmp_path: Path) -> None:
    """What a kill leaves is there, but not on disk: neither bytes nor names, until the next broker flushes them."""
    bodies = [bytes(3900), b"in the second file"]
    root = tmp_path / "store"
    root.mkdir()
    with closing(Disk(root)) as disk:
        with disk.recording():
            killed = MessageStore(config(root))
            killed.open(1)
            for body in bodies:
                assert killed.put(inner(body=body), 1).status is PutMessageStatus.PUT_OK
            killed.reput()
            killed.write_state.fail("a kill")  # so that closing lets the lock go, and nothing else
            killed.close()
            store = MessageStore(config(root))
            store.open(2)
            store.flush()
        disk.crash(Random(0), tmp_path / "flushed", "nothing more")
        with disk.recording():
            store.checkpoint()
        disk.crash(Random(0), tmp_path / "vouched", "nothing more")
        store.close()
    assert (tmp_path / "vouched" / "consumequeue" / "T" / "0" / file_name(0)).read_bytes()[8:12] != bytes(4)
    for after in (tmp_path / "flushed", tmp_path / "vouched"):
        with sound_store(after) as again:
            assert [decode(record).body for record in read(again, "T", 0)] == bodies


def test_units_of_lost_messages_are_erased_on_disk(tmp_path: Path) -> None:
    """Units can reach the disk before their records. A checkpoint after the recovery vouches for their being zeros."""
    with MessageStore(config(tmp_path / "store")) as store:
        for number in range(11):
            store.put(inner(queue_id=number % 2), 10_000)
        store.reput()
        crashed_copy(store, tmp_path / "after")
    root = tmp_path / "after"
    for log in (root / "commitlog").iterdir():
        log.write_bytes(bytes(log.stat().st_size))
    with closing(Disk(root)) as disk:
        with disk.recording():
            store = MessageStore(config(root))
            store.open(20_000)
            assert set(store.queues().values()) == {(0, 0)}
            store.checkpoint()
        disk.crash(Random(0), tmp_path / "again", "nothing more")
        store.close()
    for queue_id in range(2):
        path = tmp_path / "again" / "consumequeue" / "T" / str(queue_id) / file_name(0)
        assert not path.exists() or not any(path.read_bytes())


@pytest.mark.parametrize("first_file", [0, 1 << 32])
@pytest.mark.parametrize("lacks", [slice(0, 4), slice(4, 20)], ids=["its first bytes", "its last bytes"])
def test_partly_written_unit_is_ignored(tmp_path: Path, first_file: int, lacks: slice) -> None:
    """Units lie across the edges of sectors and pages, and above 4 GiB the half of an address looks like an old one."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name(first_file)).write_bytes(bytes(4096))
    with MessageStore(config(root, mapped_file_size_consume_queue=2000)) as store:
        for number in range(51):  # the next unit begins four bytes before a sector does
            store.put(inner(body=b"%d" % number), 1)
        store.put(inner(queue_id=1, body=bytes(3900)), 2)  # opens the file with which recovery begins
        store.reput()
        store.put(inner(queue_id=2, body=bytes(3900)), 10_000)
        store.reput()
        store.checkpoint()
        lost = store.put(inner(body=b"lost"), 10_000).physical_offset
        store.reput()
        after = crashed_copy(store, tmp_path / "after")
    root = tmp_path / "after"
    with open(root / "commitlog" / file_name(lost - lost % 4096), "r+b") as log:
        log.seek(lost % 4096)
        log.write(bytes(4096 - lost % 4096))
    with open(root / "consumequeue" / "T" / "0" / file_name(0), "r+b") as units:
        units.seek(51 * 20 + lacks.start)
        units.write(bytes(lacks.stop - lacks.start))
    with after:
        assert after.queues() == {("T", 0): (0, 51), ("T", 1): (0, 1), ("T", 2): (0, 1)}
        assert after.put(inner(body=b"51"), 20_000).queue_offset == 51
        assert [decode(record).body for record in read(after, "T", 0)] == [b"%d" % number for number in range(52)]
    assert check(root) == []


def test_config_file_is_whole_after_a_power_cut(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    path = config_path(root, "topics")
    random = Random(3)
    count = 0
    written = -1

    def fail() -> None:
        nonlocal count
        to = tmp_path / f"after{count}"
        count += 1
        disk.crash(random, to)
        value = read_config(config_path(to, "topics"))
        assert value in ([None] if written < 0 else []) + [{"v": k} for k in (written, written + 1) if k >= 0]

    with closing(Disk(root)) as disk:
        disk.on_call = fail
        with disk.recording():
            for version in range(4):
                write_config(path, {"v": version})
                written = version
    assert count > 20
