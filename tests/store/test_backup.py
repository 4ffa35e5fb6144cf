"""backup and restore: everything that is complete, whatever the store does meanwhile; a damaged backup is refused."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from rucola.errors import StoreCorrupt, StoreError
from rucola.store.config_files import config_path, write_config
from rucola.store.directory_lock import DirectoryLock
from rucola.store.message_store import MessageStore
from rucola.store.tools.backup import MANIFEST, BackupDirectory, BackupResult, backup, restore
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild
from support.errors import raises
from support.small_store import UNITS_PER_FILE, SmallStore
from support.stores import (
    all_bodies,
    config,
    crashed_copy,
    derived_files,
    files_of,
    force_deletion,
    inner,
    log_of,
    sound_store,
)


def put(store: MessageStore, count: int, word: str = "a", now_ms: int = 1_700_000_000_000) -> list[bytes]:
    """Put messages, ten of which fill a log file."""
    bodies = [f"{word}{number}".encode().ljust(300, b".") for number in range(count)]
    for body in bodies:
        assert store.put(inner(body=body, keys="k"), now_ms).size
    store.reput()
    return bodies


def taken(path: Path, now_ms: int = 0) -> BackupResult:
    return backup(path / "store", BackupDirectory(path / "out"), now_ms=now_ms)


def restored(path: Path, name: str = "restored", **settings: int) -> list[bytes]:
    """What a store from the backup has in its queue."""
    done = restore(BackupDirectory(path / "out"), path / name)
    assert check(path / name) == []
    with sound_store(path / name, **settings) as store:
        assert (store.min_physical_offset, store.max_physical_offset) == (done.begin, done.end)
        return all_bodies(store)


@pytest.mark.parametrize("is_open", [True, False], ids=["served", "closed"])
def test_a_restored_store_is_the_one_that_was_backed_up(tmp_path: Path, is_open: bool) -> None:
    with sound_store(tmp_path / "store") as store:
        bodies = put(store, 25)
        write_config(config_path(tmp_path / "store", "topics"), {"topicConfigTable": {}})
        write_config(config_path(tmp_path / "store", "role"), {"current": "SLAVE"})
        if is_open:
            done = taken(tmp_path, 7)
    if not is_open:
        done = taken(tmp_path, 7)
    begin, end, log = log_of(tmp_path / "store")
    assert (done.begin, done.end, done.was_served, done.unchanged) == (begin, end, is_open, 0)
    result = restore(BackupDirectory(tmp_path / "out"), tmp_path / "copy")
    assert (result.taken_ms, result.rebuilt.messages) == (7, 25)
    assert result.files == ["config/topics.json"]
    assert log_of(tmp_path / "copy") == (begin, end, log)
    rebuild(tmp_path / "store")
    assert derived_files(tmp_path / "copy") == derived_files(tmp_path / "store")
    assert not (tmp_path / "copy" / "abort").exists()
    assert restored(tmp_path) == bodies


def test_the_next_backup_copies_what_came_since_then(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store") as store:
        bodies = put(store, 15)
        first = taken(tmp_path)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "commitlog").iterdir()}
        bodies += put(store, 15, "b")
        second = taken(tmp_path)
        assert (second.unchanged, second.begin + second.unchanged + second.copied) == (first.end, second.end)
        assert {path: path.stat().st_mtime_ns for path in before} == before
        assert (taken(tmp_path).copied, restored(tmp_path)) == (0, bodies)
        # What the store deletes is deleted, and a log file that it deletes too early is named.
        force_deletion(store)
        assert taken(tmp_path).begin == store.min_physical_offset == 4096
        assert not list((tmp_path / "out" / "commitlog").glob(f"{0:020}-*"))
        assert restored(tmp_path, "later") == all_bodies(store)
        put(store, 30, "c")
        for _ in range(4):
            force_deletion(store)
        last = taken(tmp_path)
        assert last.unsaved == (second.end, store.min_physical_offset)
        assert restored(tmp_path, "last") == all_bodies(store)


def test_an_end_that_the_log_has_lost_is_copied_again(tmp_path: Path) -> None:
    with sound_store(tmp_path / "before") as store:
        kept = put(store, 25)
        with crashed_copy(store, tmp_path / "store") as later:
            put(later, 4, "lost")
            assert taken(tmp_path).end > store.max_physical_offset
        shutil.rmtree(tmp_path / "store")
        with crashed_copy(store, tmp_path / "store") as later:
            kept += put(later, 9, "kept")
            assert taken(tmp_path).unchanged > 0
    assert restored(tmp_path) == kept


def test_the_backup_of_another_store_is_not_replaced(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store") as store:
        bodies = put(store, 5)
        taken(tmp_path)
    shutil.rmtree(tmp_path / "store")
    with sound_store(tmp_path / "store") as store:
        for another in (lambda: None, lambda: put(store, 20, "other")):
            another()
            with raises(StoreError, subject=str(tmp_path / "out")):
                taken(tmp_path)
    assert restored(tmp_path) == bodies


def test_an_empty_store_is_restored_empty(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store"):
        taken(tmp_path)
    assert restored(tmp_path) == []


def test_a_record_that_may_be_half_written_waits_for_the_next_backup(tmp_path: Path) -> None:
    small = SmallStore(tmp_path / "store")
    small.put(body=b"whole")
    end = small.end
    small.put(body=b"in no queue yet", dispatch=False)
    lock = DirectoryLock(tmp_path / "store")
    assert taken(tmp_path).end == end
    lock.release()
    assert taken(tmp_path).end == small.end
    bodies = restored(tmp_path, mapped_file_size_consume_queue=UNITS_PER_FILE * 20)
    assert bodies == [b"whole", b"in no queue yet"]


def test_a_damaged_log_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    small = SmallStore(tmp_path / "store")
    offsets = [small.put(body=b"body" * 100) for _ in range(20)]
    small.overwrite(offsets[3] + 100, b"damage")
    with raises(StoreCorrupt, position=offsets[3]):
        taken(tmp_path)
    assert not (tmp_path / "out" / MANIFEST).exists()


class FullDisk(BackupDirectory):
    """A place that has no space for the second piece."""

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        if path.startswith("commitlog/00000000000000004096"):
            raise OSError(28, "No space left on device")
        with super().writing(path) as file:
            yield file


def test_an_interrupted_backup_leaves_the_previous_one(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store") as store:
        bodies = put(store, 5)
        taken(tmp_path)
        put(store, 20, "later")
        with raises(OSError, errno=errno.ENOSPC):
            backup(tmp_path / "store", FullDisk(tmp_path / "out"), now_ms=0)
    assert restored(tmp_path) == bodies


def test_one_backup_runs_at_a_time(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store") as store:
        put(store, 5)
        with BackupDirectory(tmp_path / "out").locked(), raises(StoreError, subject=str(tmp_path / "out")):
            taken(tmp_path)
        assert taken(tmp_path).copied


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [change, cut, Path.unlink])
@pytest.mark.parametrize("which", [f"commitlog/{4096:020}-*", "files/*-topics.json"])
def test_a_damaged_backup_is_refused_by_name(tmp_path: Path, which: str, damage: Callable[[Path], None]) -> None:
    with sound_store(tmp_path / "store") as store:
        put(store, 25)
        write_config(config_path(tmp_path / "store", "topics"), {"topicConfigTable": {}})
        taken(tmp_path)
    (damaged,) = (tmp_path / "out").glob(which)
    damage(damaged)
    with raises(StoreError, subject=str(damaged.relative_to(tmp_path / "out"))):
        restored(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}


@pytest.mark.parametrize(
    "manifest",
    [None, b"", b'{"version":1', b"[]", {"version": 2}, {"begin": 1}, {"log": []}, {"files": [{"name": "../x"}]}],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, manifest: bytes | dict[str, object] | None) -> None:
    with sound_store(tmp_path / "store") as store:
        put(store, 5)
        write_config(config_path(tmp_path / "store", "topics"), {"topicConfigTable": {}})
        taken(tmp_path)
    path = tmp_path / "out" / MANIFEST
    if isinstance(manifest, dict):
        whole = json.loads(path.read_bytes())
        if "files" in manifest:
            whole["files"][0]["name"] = "../x"
        else:
            whole |= manifest
        path.write_text(json.dumps(whole))
    elif manifest is None:
        path.unlink()
    else:
        path.write_bytes(manifest)
    with raises(StoreError, subject=str(tmp_path / "out")):
        restored(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}


def test_nothing_is_restored_over_something(tmp_path: Path) -> None:
    with sound_store(tmp_path / "store") as store:
        put(store, 5)
        taken(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with raises(StoreError, subject=str(tmp_path / "full")):
        restore(BackupDirectory(tmp_path / "out"), tmp_path / "full")
    assert files_of(tmp_path / "full") == [("file", b"mine")]


def test_the_log_may_be_elsewhere(tmp_path: Path) -> None:
    settings = config(tmp_path / "store", store_path_commit_log=tmp_path / "log")
    with MessageStore(settings) as store:
        bodies = put(store, 25)
        backup(tmp_path / "store", BackupDirectory(tmp_path / "out"), settings=settings, now_ms=0)
    assert restored(tmp_path) == bodies


class Interrupted(Exception):
    pass


def test_a_backup_stays_whole_while_its_log_is_replaced_by_another(tmp_path: Path) -> None:
    """A log that was cut, as after a power failure, and filled again, has other bytes between the same offsets."""
    with sound_store(tmp_path / "store") as store:
        common = put(store, 10)
        former = common + put(store, 20, "b")
        taken(tmp_path)
    shutil.rmtree(tmp_path / "store")

    copied: list[int] = []

    def stop(done: int, total: int) -> None:
        if 2 * done > total:  # the second half is the copy
            copied.append(done)
        if len(copied) == 2:
            raise Interrupted

    with sound_store(tmp_path / "store") as store:
        latter = put(store, 10) + put(store, 20, "c")
        with pytest.raises(Interrupted):
            backup(tmp_path / "store", BackupDirectory(tmp_path / "out"), now_ms=0, progress=stop)
        assert restored(tmp_path, "before") == former
        taken(tmp_path)
    assert restored(tmp_path, "after") == latter
