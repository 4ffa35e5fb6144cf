"""The lake alone: commits that count once or not at all, and what readers see of them."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rucola.errors import ConfigError, DirectoryNotShared, StoreCorrupt, StoreError
from rucola.spark.lake import writer
from rucola.spark.lake.snapshot import ArchiveProgress, read_snapshot
from rucola.spark.lake.writer import LakeWriter, open_lake
from support.errors import raises
from support.killing import Deadly, Killed

pytestmark = pytest.mark.slow


def stage(lake: LakeWriter, offsets: Iterable[int]) -> None:
    """Put a file of one message, and one of its key, into staging for each physical offset."""
    lake.staged_keys.mkdir(parents=True)
    for offset in offsets:
        directory = lake.staged_rows / f"topic=T{offset % 2}" / "date=2023-11-15"
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"commitLogOffset": [offset]}), directory / f"part-{offset}.parquet")
        pq.write_table(pa.table({"hash": [offset]}), lake.staged_keys / f"part-{offset}.parquet")


def seen(root: Path) -> tuple[list[int], list[int], int]:
    """What a reader sees now: the messages, their keys, and how far the store is archived."""
    snapshot = read_snapshot(root)
    rows = [
        offset for file in snapshot.rows for offset in pq.read_table(root / file.path)["commitLogOffset"].to_pylist()
    ]
    keys = [value for file in snapshot.keys for value in pq.read_table(root / file.path)["hash"].to_pylist()]
    return sorted(rows), sorted(keys), snapshot.progress["a"].physical_offset


def published(root: Path) -> int:
    """How far a store is told that it is archived."""
    progress = json.loads((root / "_rucola" / "progress.json").read_bytes())
    return int(progress["a"]["physical_offset"])


BEFORE = [0, 1], [0, 1], 2
AFTER = [1, 2, 3, 4], [1, 2, 3, 4], 5


def first_commit(root: Path) -> None:
    with open_lake(root) as lake:
        stage(lake, [0, 1])
        lake.publish({"a": ArchiveProgress(2)}, rows=2, entries=2)


def second_commit(root: Path) -> None:
    """Adds messages, and replaces a file of each kind."""
    with open_lake(root) as lake:
        stage(lake, [2, 3, 4])
        old = lake.snapshot()
        replaced = [old.rows[0].path, old.keys[0].path]
        lake.publish({"a": ArchiveProgress(5)}, replaced, rows=3, entries=3, keep_replaced_ms=0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (writer, "replace_file"),
        (writer, "sync_directory"),
        (writer, "sync_file"),
        (Path, "replace"),
        (Path, "unlink"),
    ],
)
def test_a_run_that_is_killed_anywhere_counts_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    """At every call that changes the disk: readers see all of the run or nothing, what the store is told is never ahead
    of that, and the next run finishes what counted and drops what did not."""
    for calls in range(1, 100):
        root = tmp_path / str(calls)
        first_commit(root)
        deadly = Deadly(getattr(owner, name), calls, after=after)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, deadly)
            with suppress(Killed):
                second_commit(root)
        left = seen(root)
        assert left in (BEFORE, AFTER)
        assert published(root) <= left[2]
        with open_lake(root):
            assert not (root / "_rucola" / "staging").exists()
            assert seen(root) in (left, AFTER)
            if seen(root) == BEFORE:
                assert len(list(root.rglob("*.parquet"))) == 4
        second_commit(root) if seen(root) == BEFORE else None
        assert seen(root) == AFTER
        assert published(root) == 5
        if deadly.calls > 0:
            break
    assert calls > 1
    assert deadly.calls > 0


@pytest.mark.parametrize(("rows", "entries"), [(4, 3), (3, 4), (2, 3), (0, 0)])
def test_a_run_counts_only_if_its_files_hold_what_was_written(tmp_path: Path, rows: int, entries: int) -> None:
    """As if a task had written elsewhere: nothing is published, and the next run begins where the last one ended."""
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        stage(lake, [2, 3, 4])
        with pytest.raises(DirectoryNotShared):
            lake.publish({"a": ArchiveProgress(5)}, rows=rows, entries=entries)
    with open_lake(tmp_path):
        assert seen(tmp_path) == BEFORE
        assert published(tmp_path) == 2


def test_replaced_files_are_kept_for_running_readers(tmp_path: Path) -> None:
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        old = lake.snapshot().rows[0].path
        lake.publish(replaces=[old])
        assert (tmp_path / old).exists()
        assert [file.path for file in lake.snapshot().replaced] == [old]
        lake.publish()
        assert (tmp_path / old).exists()
        lake.publish(keep_replaced_ms=0)
        assert not (tmp_path / old).exists()
        assert not lake.snapshot().replaced


def test_a_directory_without_a_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        read_snapshot(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} is not a lake; give a directory into which `rucola pipeline archive` has written"
    )
    with open_lake(tmp_path / "lake"):
        assert read_snapshot(tmp_path / "lake").number == 0
    (tmp_path / "lake" / "_rucola" / "snapshot.json").write_text('{"number": "seven"}')
    with pytest.raises(StoreCorrupt):
        read_snapshot(tmp_path / "lake")


def test_a_lake_has_one_writer(tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake"), pytest.raises(StoreError), open_lake(tmp_path / "lake"):
        pass
    with open_lake(tmp_path / "lake"):
        pass
    descriptor = os.open(tmp_path / "lake" / "_rucola" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_lake_is_created_only_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(ConfigError, subject=str(tmp_path)), open_lake(tmp_path):
        pass
    with raises(ConfigError, subject=str(tmp_path / "file")), open_lake(tmp_path / "file"):
        pass
    with pytest.raises(ConfigError), open_lake("s3a://bucket/lake"):
        pass


def test_a_commit_never_overwrites_a_file(tmp_path: Path) -> None:
    """A file that no commit names may hold the only copy of messages."""
    first_commit(tmp_path)
    other = tmp_path / "topic=T0" / "date=2023-11-15" / "0000000002-00000.parquet"
    other.write_bytes(b"messages")
    with pytest.raises(StoreCorrupt):
        second_commit(tmp_path)
    assert other.read_bytes() == b"messages"
    assert seen(tmp_path) == BEFORE
    # It is noticed as well if it came between the decision and the move.
    other.unlink()
    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(writer, "replace_file", Deadly(writer.replace_file, 2, after=True))
        second_commit(tmp_path)
    other.write_bytes(b"messages")
    with pytest.raises(StoreCorrupt), open_lake(tmp_path):
        pass
    assert other.read_bytes() == b"messages"


def test_a_reader_sees_the_first_commit_of_a_lake(tmp_path: Path) -> None:
    """Until it is complete the lake is empty, and not damaged, though files of it are there."""
    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(writer.LakeWriter, "sync_parents", Deadly(writer.LakeWriter.sync_parents, 1, after=False))
        first_commit(tmp_path)
    assert len(list(tmp_path.glob("topic=*/*/*.parquet"))) == 2
    assert read_snapshot(tmp_path).number == 0
    with open_lake(tmp_path):
        assert seen(tmp_path) == BEFORE


@pytest.mark.parametrize("left", ["_rucola/progress.json", "_rucola/snapshot.json.bak", "_rucola/keys", "topic=T0"])
def test_a_lake_without_its_snapshot_is_an_error(tmp_path: Path, left: str) -> None:
    """Whatever else is left of it. An archive would begin anew, and messages be lost for good."""
    first_commit(tmp_path)
    second_commit(tmp_path)
    (tmp_path / "_rucola" / "snapshot.json").unlink()
    for path in [*tmp_path.rglob("*")]:
        name = str(path.relative_to(tmp_path))
        if path.is_file() and not name.startswith(left):
            path.unlink()
    with pytest.raises(StoreCorrupt) as raised:
        read_snapshot(tmp_path)
    said = str(raised.value)
    assert said.startswith(
        f"{tmp_path}/_rucola/snapshot.json at byte 0: the file is missing, but the lake holds {left}"
    )
    assert said.endswith(f"or run `rucola pipeline repair --lake {tmp_path} --dry-run` to see what is lost")
    with pytest.raises(StoreCorrupt), open_lake(tmp_path):
        pass


@pytest.mark.parametrize("path", ["../victim", "topic=a/../../victim", "/victim", ""])
@pytest.mark.parametrize("field", ["moves from", "moves to", "replaces", "removes", "asides to"])
def test_metadata_that_names_files_outside_the_lake_is_refused(tmp_path: Path, field: str, path: str) -> None:
    root = tmp_path / "lake"
    first_commit(root)
    victim = tmp_path / "victim"
    victim.write_text("not a file of the lake")
    name, _, side = field.partition(" ")
    value: Any = {"from": {path: "topic=a/x"}, "to": {"topic=a/x": path}}.get(side, [path])
    commit = {"number": 2, "at_ms": 1, "moves": {}, "rows": [], "keys": []} | {name: value}
    (root / "_rucola" / "pending.json").write_text(json.dumps(commit))
    with pytest.raises(StoreCorrupt), open_lake(root):
        pass
    assert victim.read_text() == "not a file of the lake"


@pytest.mark.parametrize("kind", ["rows", "keys", "replaced"])
def test_a_snapshot_that_names_files_outside_the_lake_is_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "lake"
    first_commit(root)
    path = root / "_rucola" / "snapshot.json"
    snapshot = json.loads(path.read_bytes())
    entry = snapshot[kind][0] if snapshot[kind] else {"at_ms": 1}
    snapshot[kind] = [entry | {"path": "../outside.parquet"}]
    path.write_text(json.dumps(snapshot))
    with pytest.raises(StoreCorrupt):
        read_snapshot(root)


def test_a_lake_is_private_and_one_that_every_user_can_change_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with open_lake(root):
        pass
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, *root.iterdir())} == {0o700}
    root.chmod(0o777)
    with raises(StoreError, subject=str(root)), open_lake(root):
        pass
