"""Opening a store: what is said meanwhile. What comes of it is in `tests/faults` and beside the golden stores."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola import speed
from rucola.errors import StoreCorrupt
from rucola.store import index, mapped_file, recovery
from rucola.store.checkpoint import Checkpoint
from rucola.store.index import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, IndexFile, index_paths
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from support.stores import OpenStore, all_bodies, config, crashed_copy, files_of, inner


def test_a_long_recovery_logs_its_progress(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    for number in range(40):
        store.put(inner(body=bytes(900), queue_id=number % 2), 1)
    long, short = crashed_copy(store, tmp_path / "long"), crashed_copy(store, tmp_path / "short")
    caplog.set_level(logging.INFO, "rucola.store.recovery")
    with short:
        assert caplog.messages == [], "a second or so is not long"
    monkeypatch.setattr(recovery, "_STEP", 9000)
    with long:
        assert long.max_physical_offset == store.max_physical_offset
        end = -(-store.max_physical_offset // 4096) * 4096
    told = [re.fullmatch(r"(.*): read up to (\d+); the log ends before (\d+)", message) for message in caplog.messages]
    assert [(line[1], line[3]) for line in told if line] == [(str(tmp_path / "long" / "commitlog"), str(end))] * len(
        told
    )
    places = [int(line[2]) for line in told if line]
    assert len(places) >= 3
    assert places[0] >= 9000
    assert all(after - before >= 9000 for before, after in itertools.pairwise(places))


def test_a_queue_whose_first_files_have_expired_recovers_from_a_crash(open_store: OpenStore, tmp_path: Path) -> None:
    """The recovery scans all of the log, so that it rewinds the queue to a place before its first file."""
    store = open_store()
    for number in range(45):
        store.put(inner(body=b"%04d" % number * 150), 1_000)
    store.reput()
    store.checkpoint()
    now_ms = 1 << 50
    for _ in range(20):
        store.begin_retention_round(now_ms, 4, [DiskUsage(tmp_path, 1, 2)])
        while store.expire(now_ms):
            store.delete_expired()
    begin, end = store.queues()["T", 0]
    files = sorted((tmp_path / "store" / "consumequeue" / "T" / "0").iterdir())
    assert int(files[0].name) > 0, "the first file of the queue is gone"
    with crashed_copy(store, tmp_path / "copy") as after:
        assert after.queues() == {("T", 0): (begin, end)}
        assert len(after.get("T", 0, begin, 32).records) == end - begin > 0
        after.put(inner(body=b"next"), 1_001)
        assert after.max_offset("T", 0) == end + 1
    assert check(tmp_path / "copy") == []


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("missing", [[1], [2], [1, 2]])
def test_a_queue_of_which_a_file_in_the_middle_is_missing_is_rebuilt(
    open_store: OpenStore, tmp_path: Path, missing: list[int], is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    for number in range(35):
        store.put(inner(body=b"%d" % number), 1_000 + number)
        store.put(inner("U", body=b"%d" % number), 1_000 + number)
    store.reput()
    store.checkpoint()
    if is_clean:
        store.close()
    again = crashed_copy(store, tmp_path / "copy")
    for number in missing:
        (tmp_path / "copy" / "consumequeue" / "T" / "0" / f"{number * 200:020d}").unlink()
    assert len(check(tmp_path / "copy")) > (not is_clean)
    with again:
        assert all_bodies(again, "T", 0) == all_bodies(again, "U", 0) == [b"%d" % number for number in range(35)]
        again.put(inner(body=b"next"), 2_000)
        assert again.max_offset("T", 0) == 36
    assert f"{missing[0] * 200:020d}" in caplog.text
    assert check(tmp_path / "copy") == []


def test_a_queue_with_a_missing_file_stays_as_it_is_if_the_log_cannot_tell_its_units(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    for number in range(80):
        store.put(inner(body=b"%d" % number), 1_000 + number)
    store.close()
    again = crashed_copy(store, copy := tmp_path / "copy")
    (copy / "consumequeue" / "T" / "0" / f"{200:020d}").unlink()
    first = copy / "commitlog" / f"{0:020d}"
    first.write_bytes(b"\xff" * 200 + first.read_bytes()[200:])
    before = files_of(copy / "consumequeue")
    with pytest.raises(StoreCorrupt):
        again.open(1)
    assert files_of(copy / "consumequeue") == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("files", range(8))
def test_a_killed_rebuild_goes_on_after_the_last_log_file_that_it_read(
    open_store: OpenStore, tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    # Eight messages a file. The scan after a crash, of the last file, has no message of U, and a unit of T follows it.
    for number in range(60):
        topic = "U" if 12 <= number < 56 else "T"
        store.put(inner(topic, body=bytes(400), unique_key=f"K{number}"), 1_000 + 1_000 * number)
    store.reput()
    store.checkpoint()
    again = crashed_copy(store, copy := tmp_path / "copy")
    shutil.rmtree(copy / "consumequeue")
    monkeypatch.setattr(recovery, "_MAX_UNITS", 1)
    read: list[int] = []

    def on_progress(end: int, _: int) -> None:
        if len(read) == files:
            raise Killed
        read.append(end // 4096)

    monkeypatch.setattr(again, "_on_recovery", on_progress)
    with pytest.raises(Killed):
        again.open(1)
    assert read == list(range(files))
    read.clear()
    monkeypatch.setattr(again, "_on_recovery", lambda end, _: read.append(end // 4096))
    with again:
        assert [again.max_offset(topic, 0) for topic in "TU"] == [16, 44]
        # From the last file that was read as a whole on, because of the three seconds of the checkpoint.
        assert read == list(range(max(files - 1, 0), 8))
    assert check(copy) == []


INDEX = {"max_hash_slot_num": 20, "max_index_num": 300}
COUNT = 100


def crashed_with_index(open_store: OpenStore, tmp_path: Path, **settings: int) -> tuple[MessageStore, Path]:
    """A store with an index file that is not full, as a kill leaves it; and the index of one that was closed."""
    store = open_store(config(tmp_path / "store", **{**INDEX, **settings}))
    for number in range(COUNT):
        keys = None if number % 7 == 3 else f"k{number} all"
        store.put(inner(queue_id=number % 3, body=bytes(150), keys=keys, unique_key=f"U{number}"), 1000 * number)
        if number == 60:
            store.reput()
            store.checkpoint()
    store.reput()
    again = crashed_copy(store, tmp_path / "copy")
    store.close()
    return again, Path(store.config.store_path_root_dir) / "index"


def index_of(store: MessageStore) -> IndexFile:
    (path,) = index_paths(Path(store.config.store_path_root_dir) / "index")
    return IndexFile.open(path, store.config.max_hash_slot_num, writable=True)


def finds_all(store: MessageStore) -> None:
    for number in range(COUNT):
        assert len(store.query("T", f"U{number}", 8).records) == 1, number
    assert len(store.query("T", "all", COUNT).records) == min(
        store.config.max_msgs_num_batch, COUNT - len(range(3, COUNT, 7))
    )


def test_a_crash_costs_no_index_entries_of_messages_before_the_scan(open_store: OpenStore, tmp_path: Path) -> None:
    again, whole = crashed_with_index(open_store, tmp_path)
    (path,) = index_paths(tmp_path / "copy" / "index")
    inode = path.stat().st_ino
    with again:
        finds_all(again)
    assert path.stat().st_ino == inode
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []


def lose_entries(file: IndexFile, number: int) -> None:
    """A page that the disk did not get, while it got later ones."""
    at = HEADER_SIZE + file.slot_count * SLOT_SIZE + number * ENTRY_SIZE
    file.file.map[at : at + 3 * ENTRY_SIZE] = bytes(3 * ENTRY_SIZE)


def tear_entry(file: IndexFile, number: int) -> None:
    """A page that the disk did not get, in the middle of an entry."""
    at = HEADER_SIZE + file.slot_count * SLOT_SIZE + number * ENTRY_SIZE
    file.file.map[at + 12 : at + 4 * ENTRY_SIZE] = bytes(4 * ENTRY_SIZE - 12)


def lose_slots(file: IndexFile, number: int) -> None:
    file.file.map[HEADER_SIZE : HEADER_SIZE + number // 2 * SLOT_SIZE] = bytes(number // 2 * SLOT_SIZE)


def keep_old_header(file: IndexFile, number: int) -> None:
    file.file.map[36:40] = number.to_bytes(4, "big")


@pytest.mark.parametrize("step", [7, 1000])
@pytest.mark.parametrize("number", [1, 2, 25, 26, 27, 60, 150])
@pytest.mark.parametrize("damage", [lose_entries, tear_entry, lose_slots, keep_old_header])
def test_index_entries_that_the_disk_did_not_get_are_written_again(
    open_store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    damage: Callable[[IndexFile, int], None],
    step: int,
) -> None:
    monkeypatch.setattr(index, "_ENTRIES_PER_CHECK", step)
    again, whole = crashed_with_index(open_store, tmp_path)
    file = index_of(again)
    damage(file, number)
    file.file.close()
    with again:
        finds_all(again)
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []


def test_full_index_files_that_no_checkpoint_covers_are_kept_as_far_as_they_are_certain(
    open_store: OpenStore, tmp_path: Path
) -> None:
    again, whole = crashed_with_index(open_store, tmp_path, max_index_num=40)
    assert len(index_paths(tmp_path / "copy" / "index")) > 4
    checkpoint = Checkpoint(tmp_path / "copy" / "checkpoint")
    checkpoint.index_timestamp = 0
    checkpoint.write()
    first = index_paths(tmp_path / "copy" / "index")[0]
    inode = first.stat().st_ino
    with again:
        finds_all(again)
    assert first.stat().st_ino == inode
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []


def test_an_index_that_lacks_messages_at_its_start_is_written_again(open_store: OpenStore, tmp_path: Path) -> None:
    """Apache leaves one: it deletes the last file after a crash, and the next one begins with the scan."""
    again, whole = crashed_with_index(open_store, tmp_path)
    before = index_of(again)
    entries = before.entries()[50:]
    before.file.delete()
    later = IndexFile.create(before.file.path, before.slot_count, 300)
    for hash_, physical_offset, seconds, _ in entries.tolist():
        later.put(hash_, physical_offset, before.begin_timestamp + 1000 * seconds)
    later.file.close()
    with again:
        finds_all(again)
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []


def test_a_full_index_file_that_ends_before_the_flushed_one_is_checked(open_store: OpenStore, tmp_path: Path) -> None:
    """The clock was set back, so its times do not tell whether the checkpoint covers it."""
    store = open_store(config(tmp_path / "store"))
    for number in range(COUNT):
        seconds = number + 100 if number < 20 else number
        store.put(inner(body=bytes(150), keys=f"k{number} all", unique_key=f"U{number}"), 1000 * seconds)
    store.reput()
    store.checkpoint()
    again = crashed_copy(store, tmp_path / "copy")
    store.close()
    first, second, *_ = (IndexFile.open(path, 10, writable=True) for path in index_paths(tmp_path / "copy" / "index"))
    assert second.end_timestamp < first.end_timestamp
    checkpoint = Checkpoint(tmp_path / "copy" / "checkpoint")
    checkpoint.index_timestamp = first.end_timestamp
    checkpoint.write()
    lose_entries(second, 10)
    for file in (first, second):
        file.file.close()
    with again:
        for number in range(COUNT):
            assert len(again.query("T", f"U{number}", 8).records) == 1, number
    assert files_of(tmp_path / "copy" / "index") == files_of(tmp_path / "store" / "index")
    assert check(tmp_path / "copy") == []


def test_an_index_that_begins_before_the_log_is_kept(open_store: OpenStore, tmp_path: Path) -> None:
    """Retention has deleted the messages of its first entries."""
    again, whole = crashed_with_index(open_store, tmp_path)
    for path in sorted((tmp_path / "copy" / "commitlog").iterdir())[:2]:
        path.unlink()
    (path,) = index_paths(tmp_path / "copy" / "index")
    inode = path.stat().st_ino
    with again:
        begin = again.min_physical_offset
        for number in range(COUNT):
            for record in again.query("T", f"U{number}", 8).records:
                assert int.from_bytes(record[28:36], "big") >= begin
        assert len(again.query("T", f"U{COUNT - 1}", 8).records) == 1
    assert begin > 0
    assert path.stat().st_ino == inode
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []


def test_a_long_search_for_keys_logs_its_progress(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the records before those that the index begins with."""
    store = open_store(config(tmp_path / "store", **INDEX))
    for number in range(COUNT):
        store.put(inner(body=bytes(150), unique_key=f"U{number}" if number >= 60 else None), 1000 * number)
    store.reput()
    store.checkpoint()
    again = crashed_copy(store, tmp_path / "copy")
    file = index_of(again)
    first = file.begin_physical_offset
    file.file.close()
    monkeypatch.setattr(recovery, "_STEP", 1000)
    with caplog.at_level(logging.INFO), again:
        assert len(again.query("T", "U60", 8).records) == 1
    ends = [int(end) for end in re.findall(r"read up to (\d+)", caplog.text)]
    assert any(1000 <= end < first for end in ends)
    assert check(tmp_path / "copy") == []


@pytest.mark.parametrize("is_accelerated", [True, False])
def test_an_index_with_its_last_message_twice_lacks_no_entries_of_the_next(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_accelerated: bool
) -> None:
    """Apache may leave one after a crash, since it indexes again what it scans."""
    if not is_accelerated:
        monkeypatch.setattr(speed, "read_run", None)
    again, _ = crashed_with_index(open_store, tmp_path)
    before = index_of(again)
    entries = before.entries()
    last = entries["physical_offset"].searchsorted(entries["physical_offset"][70])
    end = entries["physical_offset"].searchsorted(entries["physical_offset"][70], "right")
    before.file.delete()
    later = IndexFile.create(before.file.path, before.slot_count, 300)
    for hash_, physical_offset, seconds, _ in [*entries[:end].tolist(), *entries[last:end].tolist()]:
        later.put(hash_, physical_offset, before.begin_timestamp + 1000 * seconds)
    later.file.close()
    with again:
        found = [len(again.query("T", f"U{number}", 8).records) for number in range(COUNT)]
    assert 0 not in found
    assert sum(found) <= COUNT + 1
    assert check(tmp_path / "copy") == []


def test_a_disk_without_space_for_the_slots_lets_the_index_be_written_again(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again, whole = crashed_with_index(open_store, tmp_path)
    (path,) = index_paths(tmp_path / "copy" / "index")
    true = mapped_file.allocate
    refused: list[int] = []

    def allocate(fd: int, begin: int, size: int) -> None:
        if os.path.samestat(os.fstat(fd), inode) and not refused:
            refused.append(begin)
            raise OSError(errno.ENOSPC, "no space")
        true(fd, begin, size)

    inode = path.stat()
    monkeypatch.setattr(mapped_file, "allocate", allocate)
    with again:
        finds_all(again)
    assert refused
    assert str(path) in caplog.text
    assert files_of(tmp_path / "copy" / "index") == files_of(whole)
    assert check(tmp_path / "copy") == []
