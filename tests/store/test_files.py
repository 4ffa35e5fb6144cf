"""Config files, index files, consume queues and mapped files on their own."""

from __future__ import annotations

import errno
import os
import re
from contextlib import AbstractContextManager, closing
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola import slices
from rucola.errors import StoreCorrupt
from rucola.message.hashing import index_hash
from rucola.store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rucola.store.config_files import ConfigFile, config_path, read_config, write_config
from rucola.store.consume_queue import FILLER_SIZE, ConsumeQueue, pack_unit, queue_directories
from rucola.store.index import Index, IndexFile, index_file_name, index_key, index_paths
from rucola.store.mapped_file import MappedFile, MappedFileQueue
from rucola.store.tools.check import check
from simulation.disk import Disk
from support.errors import raises
from support.examples import examples
from support.stores import OpenStore

# config files --------------------------------------------------------------------------------------------------------


def test_config_files_of_apache_round_trip_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset"):
        source = config_path(golden / "g1-clean" / "store", name)
        target = config_path(tmp_path, name)
        write_config(target, read_config(source))
        assert target.read_bytes() == source.read_bytes(), name


def test_the_last_requested_content_stays_in_a_config_file(tmp_path: Path) -> None:
    file = ConfigFile(config_path(tmp_path, "consumerOffset"))
    first, second, third = (file.prepare_write(lambda n=n: {"offsetTable": {"T@G": {0: n}}}) for n in range(3))
    first()
    third()
    second()  # a thread that came late
    assert file.read() == {"offsetTable": {"T@G": {0: 2}}}
    first()
    assert ConfigFile(file.path).read() == {"offsetTable": {"T@G": {0: 2}}}


def test_opening_removes_temporary_files_of_a_crash(open_store: OpenStore, tmp_path: Path) -> None:
    path = config_path(tmp_path / "store", "topics")
    write_config(path, {"a": 1})
    path.with_name("topics.json.0123456789abcdef.tmp").write_text("{")
    path.with_name("consumerOffset.json.bak.0123456789abcdef.tmp").touch()
    for name in ("epochFileCheckpoint.0123456789abcdef.tmp", "epochFileCheckpoint.bak.0123456789abcdef.tmp"):
        (tmp_path / "store" / name).touch()
    open_store().close()
    assert check(tmp_path / "store") == []
    assert {item.name for item in path.parent.iterdir()} == {"topics.json"}
    assert read_config(path) == {"a": 1}


def test_the_previous_content_is_kept(tmp_path: Path) -> None:
    path = config_path(tmp_path, "delayOffset")
    assert read_config(path) is None
    write_config(path, {"offsetTable": {1: 1}})
    assert not path.with_name("delayOffset.json.bak").exists()
    write_config(path, {"offsetTable": {1: 2}})
    write_config(path, {"offsetTable": {1: 2}})
    assert read_config(path) == {"offsetTable": {1: 2}}
    path.unlink()
    assert read_config(path) == {"offsetTable": {1: 1}}
    assert sorted(file.name for file in path.parent.iterdir()) == ["delayOffset.json.bak"]


def test_an_interrupted_write_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config_path(tmp_path, "topics")
    write_config(path, {"v": 1})
    write_config(path, {"v": 2})
    real = {name: getattr(os, name) for name in ("write", "fsync")}
    for name, calls_before in (("write", 0), ("write", 1), ("fsync", 0), ("fsync", 1), ("fsync", 2), ("fsync", 3)):
        left = calls_before

        def failing(*arguments: object, name: str = name) -> object:
            nonlocal left
            if left == 0:
                raise OSError(28, "No space left on device")
            left -= 1
            return real[name](*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            with raises(OSError, errno=errno.ENOSPC):
                write_config(path, {"v": 3})
        assert read_config(path)["v"] in (2, 3)
        write_config(path, {"v": 2})
    assert read_config(path) == {"v": 2}


def test_a_damaged_file_without_a_backup_is_named(tmp_path: Path) -> None:
    path = config_path(tmp_path, "topics")
    write_config(path, {"v": 1})
    path.write_bytes(b'{"v":')
    with raises(StoreCorrupt, path=str(path)):
        read_config(path)
    path.write_bytes(b"  ")
    with raises(StoreCorrupt, path=str(path)):
        read_config(path)


# the index -----------------------------------------------------------------------------------------------------------


def put(index: Index, key_hash: int, physical_offset: int, time_ms: int) -> None:
    index.put_many(
        np.array([key_hash], np.int32), *(np.array([value], np.int64) for value in (physical_offset, time_ms))
    )


entries = st.lists(st.tuples(st.integers(0, 2**31 - 1) | st.integers(0, 9), st.integers(0, 5_000)), max_size=120)


@settings(max_examples=examples(60))
@given(entries, st.lists(st.integers(1, 50), min_size=1), st.sampled_from([0, 1_795_217_264_729]))
def test_many_index_entries_equal_single_ones(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]], sizes: list[int], begin_ms: int
) -> None:
    root = tmp_path_factory.mktemp("index")
    one, many = Index(root / "one", 7, 30, []), Index(root / "many", 7, 30, [])
    hashes = np.array([key_hash for key_hash, _ in rows], np.int32)
    times = begin_ms + np.cumsum(np.array([later for _, later in rows], np.int64))
    offsets = np.arange(len(rows), dtype=np.int64) * 100
    for key_hash, offset, time_ms in zip(hashes.tolist(), offsets.tolist(), times.tolist(), strict=True):
        put(one, key_hash, offset, time_ms)
    begin = number = 0
    while begin < len(rows):
        end = begin + sizes[number % len(sizes)]
        many.put_many(hashes[begin:end], offsets[begin:end], times[begin:end])
        begin, number = end, number + 1
    assert [file.file.path.name for file in one.files] == [file.file.path.name for file in many.files]
    assert [file.file.map[:] for file in one.files] == [file.file.map[:] for file in many.files]
    assert len(one.files) == -(-len(rows) // 29), "one entry of each file stays empty"
    for key_hash in set(hashes.tolist()):
        found = [offset for file in one.files for offset in slices.run(file.select_steps(key_hash, 1000, 0, 1 << 62))]
        assert sorted(found) == offsets[hashes == key_hash].tolist()
    one.close()
    many.close()


def test_index_files_are_named_in_order_after_the_clock_was_set_back(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", 1, 2, [])
    for time_ms in (5_000, 5_000, 1_000):
        put(index, 1, 0, time_ms)
    names = [file.file.path.name for file in index.files]
    assert names == [index_file_name(5_000), index_file_name(5_001), index_file_name(5_002)]
    index.close()


def test_a_flush_contains_the_index_file_that_fills_during_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries and its header: after a power cut the checkpoint covers their messages."""
    (tmp_path / "index").mkdir()
    index = Index(tmp_path / "index", 10, 30, [])
    flush_full_files = Index.flush_full_files

    def overtaken(self: Index) -> None:
        flush_full_files(self)
        for offset in range(25, 50):
            put(self, offset, offset, 1000)

    for offset in range(20):
        put(index, offset, offset, 1000)
    with closing(Disk(tmp_path)) as disk, disk.recording():
        for offset in range(20, 25):
            put(index, offset, offset, 1000)
        monkeypatch.setattr(Index, "flush_full_files", overtaken)
        index.flush_entries()
        disk.crash(Random(1), tmp_path.with_suffix(".cut"), "nothing more")
    assert len(index.files) == 2
    cut = IndexFile.open(tmp_path.with_suffix(".cut") / "index" / index.files[0].file.path.name, 10)
    assert cut.count == 30
    assert cut.entries()["physical_offset"].tolist() == [*range(29)]
    cut.file.close()
    index.close()


def test_a_circular_hash_chain_ends(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", 1, 10, [])
    for offset in range(5):
        put(index, 4, offset, 1000)
    file = index.files[0]
    file.file.map[44 + 20 * 2 + 16 : 44 + 20 * 3] = (5).to_bytes(4, "big")
    assert slices.run(file.select_steps(4, 100, 0, 9999)) == [4, 3, 2, 1]
    index.close()


def advice(path: Path) -> set[str]:
    """What the kernel was told of the mapping of a file in this process: `rr` for random reads."""
    found: set[str] = set()
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(f" {path}")
        elif here and line.startswith("VmFlags:"):
            found |= {*line.split()[1:]}
    return found


def test_an_index_is_mapped_with_random_access_advice(tmp_path: Path) -> None:
    """A key in a file of 420 MB costs a page or two then, and not what the kernel reads ahead."""
    index = Index(tmp_path, 10, 40, [])
    put(index, 1, 0, 1000)
    (path,) = index_paths(tmp_path)
    assert "rr" in advice(path)
    index.close()
    for writable in (False, True):
        again = Index.open(tmp_path, 10, 40, writable=writable)
        assert again.query("T", "key", 1, 0, 1 << 62) == []
        assert "rr" in advice(path)
        again.close()


def test_an_index_entry_is_found_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """Apache's readers take a negative difference for the end of the chain, and find nothing behind it."""
    for number, put_one in enumerate((IndexFile.put, None)):
        file = IndexFile.create(tmp_path / f"{number:017d}", 10, 40)
        times = [10_000, 12_000, 3_000, 13_000]
        if put_one is not None:
            for time_ms in times:
                put_one(file, 7, 100, time_ms)
        else:
            count = len(times)
            hashes, offsets = np.full(count, 7, np.int32), np.full(count, 100, np.int64)
            assert file.put_many(hashes, offsets, np.array(times, np.int64)) == count
        assert file.entries()["seconds"].tolist() == [0, 2, 0, 3]
        assert len(slices.run(file.select_steps(7, 10, 0, 1 << 62))) == len(times)
        file.file.close()


def test_an_index_file_of_an_impossible_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / index_file_name(0)
    path.write_bytes(bytes(40 + 84 * 3))
    assert IndexFile.open(path).slot_count == 3
    assert IndexFile.open(path, 8).max_count == 11
    for slots in (1, 1000):
        with pytest.raises(StoreCorrupt):
            IndexFile.open(path, slots)
    path.write_bytes(bytes(41))
    with pytest.raises(StoreCorrupt):
        IndexFile.open(path)
    with pytest.raises(StoreCorrupt):
        Index.open(tmp_path)


@pytest.mark.parametrize(("slots", "max_count"), [(20, 40), (100, 50), (10, 10)])
def test_slots_of_any_number_are_detected(tmp_path: Path, slots: int, max_count: int) -> None:
    """Also from the entries of a log that begins at 0, whose first one equals the zeros before it."""
    for count in range(3, max_count // 2):
        path = tmp_path / index_file_name(count)
        file = IndexFile.create(path, slots, max_count)
        for number in range(count):
            file.put(number + 1, 100 * (number // 2), 1_000 + number)
            file.put(number + 1, 100 * (number // 2), 1_000 + number)
        file.file.close()
        assert IndexFile.open(path).slot_count == slots


@pytest.mark.parametrize("now_ms", [-1, 0, 253_402_300_800_000, (1 << 63) - 1])
def test_an_impossible_time_still_names_an_index_file(tmp_path: Path, now_ms: int) -> None:
    index = Index.open(tmp_path / "index", 1, 3, writable=True)
    for k in range(6):
        put(index, k, 1000 * k, now_ms)
    index.close()
    names = [path.name for path in index_paths(tmp_path / "index")]
    assert len(names) == 3
    assert names == sorted({*names})
    assert names[0] == index_file_name(now_ms)


# consume queues and mapped files -------------------------------------------------------------------------------------


def test_a_queue_with_a_gap_is_filled(tmp_path: Path) -> None:
    queue = ConsumeQueue("T", 0, MappedFileQueue(tmp_path / "T" / "0", 200, []))
    queue.append(25, b"".join(pack_unit(1000 + k, 10, k) for k in range(20)))
    queue.files.close()
    again = ConsumeQueue("T", 0, MappedFileQueue.open(tmp_path / "T" / "0", writable=True))
    assert (again.min_offset, again.max_offset) == (25, 45)
    assert again.units(0, 99)["size"].tolist() == [FILLER_SIZE] * 5 + [10] * 20
    assert [file.begin for file in again.files] == [400, 600, 800]
    assert again.unit(44) == (1019, 10, 19)
    assert (again.first_at_or_after(1007), again.max_physical_offset) == (32, 1029)
    again.raise_min_offset(1012)
    assert again.min_offset == 37
    again.truncate(41)
    assert ([file.begin for file in again.files], again.max_offset) == ([400, 600, 800], 41)
    again.append(41, pack_unit(5000, 1, 0))
    assert again.unit(41) == (5000, 1, 0)
    again.truncate(0)
    assert (list(again.files), again.max_offset, list(queue_directories(tmp_path))) == (
        [],
        0,
        [("T", 0, tmp_path / "T" / "0")],
    )


def test_a_concurrently_created_directory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def made_by_another(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", made_by_another)
    file = MappedFile.create(tmp_path / "T" / "0" / "00000000000000000000", 4096)
    assert file.path.stat().st_size == 4096
    file.close()
    with pytest.raises(FileExistsError):
        MappedFile.create(file.path, 4096)


def test_reserve_and_erase_change_only_their_range(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / f"{0:020d}", 1 << 20)
    assert os.stat(file.path).st_blocks == 0, "sparse"
    file.reserve(10, 65536)
    assert os.stat(file.path).st_blocks * 512 >= 65536
    file.map[0:8192] = b"x" * 8192
    file.erase(5000)
    assert file.map[4990:5010] == b"x" * 10 + bytes(10)
    assert os.stat(file.path).st_size == 1 << 20
    file.warm(0, 1 << 20)
    assert file.map[4990:5010] == b"x" * 10 + bytes(10)
    with pytest.raises(FileExistsError):
        MappedFile.create(file.path, 1)
    view = memoryview(file.map)
    file.close()
    file.close()
    assert view[0] == ord("x"), "a view that is out keeps the bytes"
    view.release()


@pytest.mark.parametrize("taken", [None, 0, 1, 7000])
def test_bytes_written_by_a_call_are_visible_in_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int | None
) -> None:
    """Also what the system does not take, be it some of the bytes or, for want of a descriptor, all."""
    file = MappedFile.create(tmp_path / f"{0:020d}", 1 << 20)
    data = os.urandom(10_000)
    file.map[:3] = b"abc"
    if taken is not None:
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:taken], position))
    file.write(5000, data)
    assert file.map[:3] == b"abc"
    assert file.map[5000:15_000] == data == file.path.read_bytes()[5000:15_000]
    file.seal()
    monkeypatch.setattr(os, "open", _no_descriptor)
    file.write(4999, data)
    assert file.map[4999:15_000] == data + data[-1:]
    file.close()


def _no_descriptor(*_: object, **options: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_warming_pauses_between_its_steps(tmp_path: Path) -> None:
    """Its thread must not hold a core for milliseconds that the event loop waits for."""
    file = MappedFile.create(tmp_path / f"{0:020d}", 1 << 20)
    pauses = []
    for _ in range(2):
        file.warm(0, 1 << 20, lambda: pauses.append("a quarter is touched"))
        assert len(pauses) == 3, "the second time nothing is left to touch"
    file.close()


def test_blocks_allocated_by_warming_are_not_allocated_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that warms may overtake the writer just when that opens the file."""
    file = MappedFile.create(tmp_path / f"{0:020d}", 1 << 20)
    opened = MappedFile.opened

    def overtaken(self: MappedFile) -> AbstractContextManager[int]:
        monkeypatch.setattr(MappedFile, "opened", opened)
        self.warm(0, 1 << 19)
        return opened(self)

    monkeypatch.setattr(MappedFile, "opened", overtaken)
    file.reserve(10, 4096)
    assert file.reserved >= 4096
    assert os.stat(file.path).st_blocks * 512 >= 4096
    file.close()


def test_checkpoint_round_trips(tmp_path: Path) -> None:
    point = Checkpoint(tmp_path / "checkpoint")
    assert (point.physic_timestamp, point.queues_timestamp) == (0, 0)
    point.physic_timestamp, point.logics_timestamp, point.index_timestamp = 10_000, 9_000, 5
    point.write()
    again = Checkpoint(tmp_path / "checkpoint")
    assert (again.queues_timestamp, again.index_timestamp) == (6_000, 5)
    assert (tmp_path / "checkpoint").stat().st_size == CHECKPOINT_SIZE
    (tmp_path / "checkpoint").write_bytes(b"short")
    assert Checkpoint(tmp_path / "checkpoint").logics_timestamp == 0


def test_a_query_for_what_comes_after_an_offset_leaves_earlier_index_files_out(tmp_path: Path) -> None:
    index, key_hash = Index(tmp_path, 10, 40, []), index_hash(index_key("T", "key"))
    for number in range(200):
        put(index, key_hash, 100 * number, 1000 + number)
    assert len(index.files) == 6
    for after in (-1, 0, 5000, 19_899, 19_900):
        found = slices.run(index.query_steps("T", "key", 500, after_physical_offset=after))
        assert [at for at in found if at > after] == list(range(max(after // 100 + 1, 0) * 100, 20_000, 100))
        assert all(at > after - 39 * 100 for at in found)
    for begin_ms, searched in ((0, 6), (1190, 2)):  # a step for each file that may have messages of the time
        assert len(list(index.query_steps("T", "absent", 32, begin_ms=begin_ms))) == searched
    index.close()
