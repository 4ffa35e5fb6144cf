"""The lake alone: commits that count once or not at all, and what readers see of them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from rucola.errors import ConfigError, DirectoryNotShared, StoreCorrupt, StoreError
from rucola.message.record import decode_many
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, sql
from rucola.spark.lake import catalogs, local_io, storage, tables, writer
from rucola.spark.lake.archived_queues import COUNTED, CountedMessages, queues_of
from rucola.spark.lake.data_files import MESSAGES
from rucola.spark.lake.snapshot import STAGING_DIRECTORY, ArchiveProgress
from rucola.spark.lake.staging import stage_in_process
from rucola.spark.lake.storage import Directory
from rucola.spark.lake.tables import (
    ARCHIVED,
    KEPT_SNAPSHOTS,
    LakeInUse,
    Tables,
    open_tables,
    partition_of,
    read_snapshot,
)
from rucola.spark.lake.tiered_reader import QueueReader
from rucola.spark.lake.writer import LakeWriter, StagedFiles, open_lake
from rucola.spark.session import LazySession
from rucola.tiered_reads import Chunk, FindFirst, FindOffset, FindTime, Place, Places, ReadQueue
from support.errors import raises
from support.killing import Deadly, Killed
from support.lake_entries import lake_entries
from support.lake_messages import MIDNIGHT_US, added, messages
from support.older_lake import write_older_lake
from support.small_store import SmallStore

pytestmark = pytest.mark.slow


def stage(lake: LakeWriter, offsets: Iterable[int]) -> StagedFiles:
    """Write messages and their keys, to be committed."""
    return stage_in_process(lake, [messages(offsets)]).files


def seen(root: Path) -> tuple[list[int], int]:
    """What a reader sees now: the messages, all of which have keys, and how far the store is archived."""
    batches = Archive(root).scan().batches(["commitLogOffset"])
    rows = sorted(offset for batch in batches for offset in batch[0].to_pylist())
    assert {*rows} <= {entry["commitLogOffset"] for entry in lake_entries(root)}
    return rows, read_snapshot(root).progress["a"].physical_offset


def data_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet")}


def published(root: Path) -> int:
    """How far a store is told that it is archived."""
    progress = json.loads((root / "_rucola" / "progress.json").read_bytes())
    return int(progress["a"]["physical_offset"])


BEFORE = [0, 1], 2
AFTER = [1, 2, 3, 4], 5


def first_commit(root: Path) -> None:
    with open_lake(root) as lake:
        lake.publish(stage(lake, [0, 1]), {"a": ArchiveProgress(2)})


def second_commit(root: Path) -> None:
    """Adds messages, and replaces a file of each kind."""
    with open_lake(root) as lake:
        staged, old = stage(lake, [1, 2, 3, 4]), lake.snapshot()
        replaced = [file.path for file in old.rows], [file.path for file in old.keys]
        lake.publish(staged, {"a": ArchiveProgress(5)}, *replaced, keep_replaced_ms=0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (writer, "replace_file"),
        (storage, "sync_directory"),
        (storage, "sync_file"),
        (local_io, "sync_all"),
        (SqlCatalog, "commit_table"),
        (Directory, "delete_directory"),
        (Path, "unlink"),
    ],
)
def test_a_run_that_is_killed_anywhere_counts_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    """At every call that changes the disk: readers see all of the run or nothing, what the store is told is never ahead
    of that, and the next run deletes what did not count."""
    for calls in range(1, 100):
        root = tmp_path / str(calls)
        first_commit(root)
        deadly = Deadly(getattr(owner, name), calls, after=after)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, deadly)
            with suppress(Killed):
                second_commit(root)
        left = read_snapshot(root)
        rows = sorted(
            row for batch in Archive(root).scan().batches(["commitLogOffset"]) for row in batch[0].to_pylist()
        )
        assert (rows, left.progress["a"].physical_offset) in (BEFORE, AFTER)
        assert published(root) <= left.progress["a"].physical_offset
        with open_lake(root):
            assert not [*(root / STAGING_DIRECTORY).glob("*")]
            assert published(root) == left.progress["a"].physical_offset
        second_commit(root) if rows == BEFORE[0] else Archive(root).compact(keep_replaced_ms=0)
        assert seen(root) == AFTER
        assert published(root) == 5
        live = read_snapshot(root)
        assert data_files(root) == {file.path for file in (*live.rows, *live.keys)}
        if deadly.calls > 0:
            break
    assert calls > 1
    assert deadly.calls > 0


@pytest.mark.parametrize(("rows", "entries"), [(4, 3), (3, 4), (2, 3), (0, 0)])
def test_a_run_counts_only_if_its_files_hold_what_was_written(tmp_path: Path, rows: int, entries: int) -> None:
    """As if a task had written elsewhere: nothing is published, and the next run begins where the last one ended."""
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        staged = replace(stage(lake, [2, 3, 4]), row_count=rows, entry_count=entries)
        with pytest.raises(DirectoryNotShared):
            lake.publish(staged, {"a": ArchiveProgress(5)})
    with open_lake(tmp_path):
        assert seen(tmp_path) == BEFORE
        assert published(tmp_path) == 2


# -- other writers -----------------------------------------------------------------------------------------------------


def opened(root: Path) -> Tables:
    """The tables without the lock, as another program has them."""
    context = open_tables(root)
    found = context.__enter__()
    assert found is not None
    return found


def rows_in(table: Any) -> list[int]:
    """The messages as pyiceberg reads them."""
    return sorted(table.scan(selected_fields=("commitLogOffset",)).to_arrow()["commitLogOffset"].to_pylist())


def test_of_two_commits_of_the_same_messages_one_counts(tmp_path: Path) -> None:
    """Both have read the same progress. Commits of other stores do not concern them."""
    first_commit(tmp_path)
    one, other, third, last = (opened(tmp_path) for _ in range(4))
    one.commit(one.messages, added(one, "one", [2, 4]), progress={"a": ArchiveProgress(5)})
    with pytest.raises(LakeInUse):
        other.commit(other.messages, added(other, "other", [2, 4, 6]), progress={"a": ArchiveProgress(7)})
    third.commit(third.messages, added(third, "third", [11]), progress={"b": ArchiveProgress(12)})
    assert rows_in(opened(tmp_path).messages) == [0, 1, 2, 4, 11]
    progress = {name: each.physical_offset for name, each in read_snapshot(tmp_path).progress.items()}
    assert progress == {"a": 5, "b": 12}
    # Nor does one without messages go back.
    with pytest.raises(LakeInUse):
        last.commit(last.messages, [], progress={"a": ArchiveProgress(3)})


def test_a_lake_can_be_read_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of its first commit it is empty, or has all of it."""
    found: list[int] = []

    def looking(function: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if (tmp_path / "_rucola").is_dir():
                found.append(sum(file.rows for file in read_snapshot(tmp_path).rows))
            return result

        return look

    steps: list[tuple[Any, str]] = [(SqlCatalog, "create_table"), (SqlCatalog, "commit_table"), (local_io, "sync_all")]
    for owner, name in (*steps, (catalogs, "sync_directory"), (storage, "make_directory")):
        monkeypatch.setattr(owner, name, looking(getattr(owner, name)))
    first_commit(tmp_path)
    assert {*found} == {0, 2}
    assert found == sorted(found)


def test_many_writers_lose_no_commit(tmp_path: Path) -> None:
    first_commit(tmp_path)
    together = threading.Barrier(4)
    failures: list[Exception] = []

    def write(number: int) -> None:
        try:
            own = opened(tmp_path)
            together.wait()
            for step in range(3):
                offset = 100 * number + 2 * step
                files = added(own, f"{number}-{step}", [offset])
                own.commit(own.messages, files, progress={f"store {number}": ArchiveProgress(offset)})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_in(opened(tmp_path).messages) == [0, 1, *(100 * n + 2 * step for n in range(1, 5) for step in range(3))]


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize(
    ("lands", "error"),
    [
        (True, ConnectionError),
        (False, ConnectionError),
        (True, CommitFailedException),  # something on the way has repeated it, and met its own commit
    ],
)
def test_a_commit_whose_answer_is_lost_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool, error: type[Exception], is_compacted: bool
) -> None:
    first_commit(tmp_path)
    commit_table = SqlCatalog.commit_table

    def lose(*arguments: Any) -> None:
        if lands:
            commit_table(*arguments)
        if is_compacted:  # and expired, by another engine, before it is looked for
            with monkeypatch.context() as patched:
                patched.setattr(SqlCatalog, "commit_table", commit_table)
                compact_elsewhere(tmp_path)
        raise error("lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    own = opened(tmp_path)

    def commit() -> None:
        own.commit(own.messages, added(own, "new", [2, 4]), progress={"a": ArchiveProgress(5)})

    if lands:
        commit()
    else:
        with pytest.raises(StoreError):
            commit()
    assert rows_in(opened(tmp_path).messages) == [0, 1, *([2, 4] if lands else [])]


def test_a_run_that_cannot_tell_whether_it_counts_fails_and_the_next_one_looks(
    tmp_path: Path, small_store: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the commit is lost, and the catalog away after that: nothing is reported as archived."""
    session = LazySession("tests", use_spark=False)
    lake = Archive(tmp_path / "lake")
    small_store.put(KEYS="k0")
    archive.run(session, small_store.path, lake)
    small_store.put(KEYS="k1")
    commit_table = SqlCatalog.commit_table

    def lose(self: SqlCatalog, table: Table, *others: Any) -> None:
        commit_table(self, table, *others)
        if table.name()[-1] == "messages":
            patched.setattr(SqlCatalog, "load_table", away)
            raise ConnectionError("lost")

    def away(*_: object) -> None:
        raise ConnectionError("away")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lose)
        with pytest.raises(StoreError):
            archive.run(session, small_store.path, lake)
    assert archive.run(session, small_store.path, lake).rows == 0
    assert [len(lake.by_key([key]).messages) for key in ("k0", "k1")] == [1, 1]


def test_metadata_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    first_commit(tmp_path)
    for path in [*(tmp_path / "metadata").iterdir()]:
        if path.name != "version-hint.text":
            with pytest.raises(FileExistsError):
                local_io.LocalFileIO().new_output(str(path)).create()


def test_the_catalog_waits_for_other_processes(tmp_path: Path) -> None:
    """Readers do not keep a writer away, and writers wait for each other longer than a commit takes."""
    first_commit(tmp_path)
    engine = opened(tmp_path).catalog.engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "busy_timeout")]
    assert pragmas[0] == "wal"
    assert pragmas[1] >= 30_000


def test_a_compaction_marks_what_it_replaces(tmp_path: Path) -> None:
    """An engine that expires snapshots finds the files by the snapshot that deleted them."""
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        lake.publish(stage(lake, [2, 3]), {"a": ArchiveProgress(4)})
    before = data_files(tmp_path)
    assert Archive(tmp_path).compact(min_files=2).rows > 0
    table = opened(tmp_path).messages
    snapshots = {each.snapshot_id: each for each in table.metadata.snapshots}
    deleted = {
        entry.data_file.file_path: snapshots[entry.snapshot_id]
        for snapshot in snapshots.values()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED
    }
    replaced = {str(Path(path).relative_to(tmp_path)) for path in deleted}
    assert replaced == {path for path in before if not path.startswith("_rucola")}
    assert all(each.summary and each.summary.operation == Operation.OVERWRITE for each in deleted.values())


def compact_elsewhere(root: Path) -> None:
    """Compact and expire as another engine does: it knows neither our properties nor our names of files."""
    catalog = SqlCatalog("rucola", uri=f"sqlite:///{root}/_rucola/catalog.db", warehouse=str(root))
    table = catalog.load_table("rucola.messages")
    old = [task.file for task in table.scan(row_filter="topic = 'T0'").plan_files()]
    path = root / "data" / "00000-1-elsewhere.parquet"
    pq.write_table(pa.concat_tables(pq.read_table(file.file_path, partitioning=None) for file in old), path)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for file in old:
            update.delete_data_file(file)
        update.append_data_file(opened(root).data_file(table, f"data/{path.name}", partition_of("T0", "2023-11-15")))
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    others = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in named]
    table.maintenance.expire_snapshots().by_ids(others).commit()
    catalog.close()


def test_progress_survives_compaction_and_expiry_by_another_engine(tmp_path: Path) -> None:
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        lake.publish(stage(lake, [2, 3, 4, 5]), {"a": ArchiveProgress(6)})
    compact_elsewhere(tmp_path)
    assert seen(tmp_path) == ([0, 1, 2, 3, 4, 5], 6)
    with open_lake(tmp_path) as lake:
        assert lake.progress()["a"].physical_offset == 6
        # In between, too: the commit is repeated on the table as it has become.
        staged = stage(lake, [6, 7])
        compact_elsewhere(tmp_path)
        lake.publish(staged, {"a": ArchiveProgress(8)})
    assert seen(tmp_path) == ([*range(8)], 8)
    # A compaction of files that another one has replaced is given up.
    with open_lake(tmp_path) as lake:
        old = [file.path for file in lake.snapshot().rows if file.topic == "T0"]
        compact_elsewhere(tmp_path)
        with pytest.raises(LakeInUse):
            lake.publish(stage(lake, [0, 2, 4, 6]), replaces=old)
    assert Archive(tmp_path).compact(min_files=2).rows > 0
    assert seen(tmp_path) == ([*range(8)], 8)


def test_a_snapshot_that_another_engine_has_named_keeps_its_files(tmp_path: Path) -> None:
    first_commit(tmp_path)
    own = opened(tmp_path)
    snapshot = own.messages.current_snapshot()
    assert snapshot is not None
    own.messages.manage_snapshots().create_tag(snapshot.snapshot_id, "kept").commit()
    second_commit(tmp_path)
    for _ in range(2):
        Archive(tmp_path).compact(min_files=2, keep_replaced_ms=0)
    table = opened(tmp_path).messages
    assert rows_in(table) == AFTER[0]
    rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["commitLogOffset"]
    assert sorted(rows.to_pylist()) == BEFORE[0]


def test_the_snapshot_of_the_last_run_has_a_tag(tmp_path: Path) -> None:
    def tagged() -> tuple[Table, list[int]]:
        table = opened(tmp_path).messages
        rows = table.scan(snapshot_id=table.metadata.refs[ARCHIVED].snapshot_id).to_arrow()["commitLogOffset"]
        return table, sorted(rows.to_pylist())

    first_commit(tmp_path)
    table, rows = tagged()
    assert rows == BEFORE[0]
    with open_lake(tmp_path) as lake:
        lake.publish(stage(lake, [2, 3]), {"a": ArchiveProgress(4)})
    following, rows = tagged()
    assert rows == [0, 1, 2, 3]
    # In one commit with the messages, which writes the metadata once.
    assert len(following.metadata.metadata_log) == len(table.metadata.metadata_log) + 1
    # A compaction has the same rows: nothing keeps the files that it replaces.
    before = data_files(tmp_path)
    assert Archive(tmp_path).compact(min_files=2, keep_replaced_ms=0).rows > 0
    assert tagged()[1] == [0, 1, 2, 3]
    assert not before & data_files(tmp_path)


def test_the_metadata_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit writes every snapshot that is kept; files that no snapshot needs any longer are deleted."""
    monkeypatch.setattr(tables, "_METADATA_GRACE_MS", 0)
    for number in range(2 * KEPT_SNAPSHOTS + 5):
        with open_lake(tmp_path) as lake:
            lake.publish(stage(lake, [number]), {"a": ArchiveProgress(number + 1)})
    own = opened(tmp_path)
    assert all(len(table.metadata.snapshots) <= 1.5 * KEPT_SNAPSHOTS for table in (own.keys, own.messages))
    assert len([*(tmp_path / "metadata").iterdir()]) <= 5 * KEPT_SNAPSHOTS
    assert len(own._manifests(own.messages, [own.messages.current_snapshot()])) < 2 * KEPT_SNAPSHOTS  # type: ignore[list-item]
    assert seen(tmp_path) == ([*range(2 * KEPT_SNAPSHOTS + 5)], 2 * KEPT_SNAPSHOTS + 5)


def test_a_commit_does_as_much_after_a_hundred_as_after_ten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the files of metadata that a commit, with the compaction after it, opens and writes, and their bytes."""
    monkeypatch.setattr(tables, "_METADATA_GRACE_MS", 0)
    did: list[Counter[str]] = []
    open_file, close_file = local_io._LocalFile.open, local_io._DurableWriter.close

    def counting_open(file: Any, seekable: bool = True) -> Any:
        did[-1].update(opened=1, read=len(file))
        return open_file(file, seekable)

    def counting_close(stream: Any) -> None:
        if not stream.closed:
            did[-1].update(written=1, size=stream.tell())
        close_file(stream)

    monkeypatch.setattr(local_io._LocalFile, "open", counting_open)
    monkeypatch.setattr(local_io._DurableWriter, "close", counting_close)
    for number in range(100):
        did.append(Counter())
        with open_lake(tmp_path) as lake:
            lake.publish(stage(lake, [2 * number, 2 * number + 1]), {"a": ArchiveProgress(2 * number + 2)})
        Archive(tmp_path).compact(keep_replaced_ms=0)
    for name in ("opened", "read", "written", "size"):
        # A round in which expiry or a merge is due does more than the one before it, so rounds are added up.
        early, late = (sum(each[name] for each in did[begin : begin + 30]) for begin in (5, 70))
        assert 0 < late <= 1.5 * early, name
    assert seen(tmp_path) == ([*range(200)], 200)


# -- a lake of an earlier version --------------------------------------------------------------------------------------


def older_lake(root: Path, second_offsets: Sequence[int] = (2, 3)) -> None:
    """Write a lake of four messages as earlier versions did, with two commits and a pending one."""
    first, second = messages([0, 1]), messages([2, 3])
    second = second.set_column(second.schema.get_field_index("queueOffset"), "queueOffset", pa.array(second_offsets))
    progress = {"physical_offset": 4, "last_physical_offset": 3, "last_msg_id": "U3", "queues": {"T0": {"0": 3}}}
    write_older_lake(root, [[first], [second]], {"a": progress})


def test_a_lake_of_an_earlier_version_is_adopted_as_it_is(tmp_path: Path) -> None:
    older_lake(tmp_path)
    content = {name: (tmp_path / name).read_bytes() for name in data_files(tmp_path)}
    with raises(StoreError, subject=str(tmp_path)):
        read_snapshot(tmp_path)
    told: list[tuple[int, int]] = []
    Archive(tmp_path).compact(min_files=9, progress=lambda *numbers: told.append(numbers))
    assert told == [(number, 4) for number in range(4)]
    with open_lake(tmp_path) as lake:
        assert lake.progress()["a"] == ArchiveProgress(4, 3, "U3", {"T0": {"0": 3}})
        lake.publish(stage(lake, [4, 5]), {"a": ArchiveProgress(6)})
    assert {name: (tmp_path / name).read_bytes() for name in content} == content
    assert not [*(tmp_path / "_rucola").glob("[ps][en]*.json*")]
    assert seen(tmp_path) == ([*range(6)], 6)
    assert rows_in(opened(tmp_path).messages) == [*range(6)]
    found = opened(tmp_path).messages.scan(row_filter="topic = 'T1'").to_arrow()
    assert sorted(found["msgId"].to_pylist()) == ["U1", "U3", "U5"]
    assert {*found["topic"].to_pylist()} == {"T1"}
    assert [each.message.topic for each in Archive(tmp_path).by_key(["U3"]).messages] == ["T1"]
    query = "SELECT topic, msgId, date FROM messages WHERE topic = 'T1' AND bodyError IS NULL ORDER BY msgId"
    assert sql.run(tmp_path, query).rows == [("T1", name, date(2023, 11, 15)) for name in ("U1", "U3", "U5")]
    # A compaction makes them files like all others.
    Archive(tmp_path).compact(min_files=2)
    with open_lake(tmp_path) as lake:
        lake.publish(stage(lake, [6]), {"a": ArchiveProgress(7)}, keep_replaced_ms=0)
    assert not data_files(tmp_path) & {*content}
    assert seen(tmp_path) == ([*range(7)], 7)


def test_queues_of_an_older_lake_that_were_created_again_have_their_own_messages(tmp_path: Path) -> None:
    older_lake(tmp_path, [0, 0])
    with open_lake(tmp_path) as lake:
        assert lake.progress()["a"].recreated == {"T0": {"0": (2,)}, "T1": {"0": (3,)}}
    reader = QueueReader(tmp_path, "a")
    time_ms = MIDNIGHT_US // 1000
    first = Places([Place(0, time_ms)])
    # The message at offset 1 was of the deleted queue: a consumer that began there would miss the one at 0.
    assert reader.answer(FindOffset("T1", 0, 1)) == Places([])
    assert reader.answer(FindTime("T1", 0, time_ms, 10)) == first
    assert reader.answer(FindFirst("T1", 0)) == first
    chunk = reader.answer(ReadQueue("T0", 0, 0))
    assert isinstance(chunk, Chunk)
    assert [each.physical_offset for each in decode_many(bytes(chunk.records))] == [2]


@pytest.mark.parametrize(("offsets", "recreated"), [([[0, 2], [1, 3]], ()), ([[0, 1], [0, 2]], (20,))])
def test_files_by_day_may_overlap_in_the_log_as_lives_of_a_queue_do_not(
    offsets: Sequence[Sequence[int]], recreated: tuple[int, ...]
) -> None:
    """Messages whose store times go back and forth over midnight are in the files of two days."""
    counted = CountedMessages()
    for number, of_file in enumerate(offsets):
        physical = [10 * offset + 20 * number * bool(recreated) for offset in of_file]
        columns = [["a"] * 2, ["T"] * 2, pa.array([0, 0], pa.int32()), of_file, physical, [10] * 2]
        batch = pa.record_batch(columns, names=list(COUNTED))
        assert list(counted.passing([batch])) == [batch]
    (queue,) = queues_of(counted.counts())
    assert (queue.rows, queue.end_queue_offset, queue.recreated) == (4, max(offsets[1]) + 1, recreated)


@pytest.mark.parametrize("calls", range(1, 5))
@pytest.mark.parametrize("after", [False, True])
def test_an_adoption_that_is_killed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, after: bool
) -> None:
    older_lake(tmp_path)
    owner: Any = SqlCatalog if calls < 3 else Path
    name = "commit_table" if calls < 3 else "unlink"
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(owner, name, Deadly(getattr(owner, name), calls if calls < 3 else calls - 2, after=after))
        with open_lake(tmp_path):
            pass
    # Readers see everything or an error.
    with suppress(StoreError):
        assert seen(tmp_path) == ([0, 1, 2, 3], 4)
    with open_lake(tmp_path):
        pass
    assert seen(tmp_path) == ([0, 1, 2, 3], 4)


@pytest.mark.parametrize("path", ["../victim", "topic=a/../../victim", "/victim", ""])
@pytest.mark.parametrize("kind", ["rows", "keys"])
def test_an_older_lake_that_names_files_outside_is_refused(tmp_path: Path, kind: str, path: str) -> None:
    root = tmp_path / "lake"
    older_lake(root)
    old = root / "_rucola" / "snapshot.json"
    snapshot = json.loads(old.read_bytes())
    snapshot[kind][0]["path"] = path
    old.write_text(json.dumps(snapshot))
    with pytest.raises(StoreCorrupt), open_lake(root):
        pass
    assert old.exists()


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_directory_without_a_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        read_snapshot(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} is not a lake; give a directory into which `rucola pipeline archive` has written"
    )
    with open_lake(tmp_path / "lake"):
        assert read_snapshot(tmp_path / "lake").number == 0
    (tmp_path / "lake" / "_rucola" / "catalog.db").write_text("SQLite no more")
    with pytest.raises(StoreCorrupt):
        read_snapshot(tmp_path / "lake")


def read(root: Path) -> None:
    """Read everything, and find it by its keys."""
    rows = [row for batch in Archive(root).scan().batches(["msgId"]) for row in batch[0].to_pylist()]
    assert sorted(rows) == ["U1", "U2", "U3", "U4"]
    assert len(Archive(root).by_key(rows).messages) == 4


def refusal(use: Callable[[Path], object], root: Path) -> StoreCorrupt | None:
    try:
        use(root)
    except StoreCorrupt as error:
        return error
    return None


@pytest.mark.parametrize("damage", ["removed", "truncated", "overwritten"])
def test_damage_of_each_file_is_reported_or_does_no_harm(tmp_path: Path, damage: str) -> None:
    """Readers and writers name the file, or see every message; no message is archived or deleted because of it."""
    made = tmp_path / "lake"
    first_commit(made)
    second_commit(made)
    kept = tmp_path / "kept"
    rows = [file.path for file in read_snapshot(made).rows]
    shutil.copytree(made, kept)
    change: Callable[[Path], object] = {
        "removed": lambda path: path.unlink(),
        "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "overwritten": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    }[damage]
    reported = set()
    for name in sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()):
        shutil.rmtree(made)
        shutil.copytree(kept, made)
        change(made / name)
        for error in filter(None, map(refusal, (read, first_commit), [made] * 2)):
            assert str(made) in str(error)
            assert "\n" not in str(error)
            reported.add(re.sub(r"snap.*|[0-9a-f-]{10,}", "", name.rpartition("/")[2]))
        assert all((made / path).exists() or path == name for path in rows)
    assert {"catalog.db", ".parquet", "", "m0.avro"} <= reported


def test_a_damaged_key_index_is_written_anew(tmp_path: Path) -> None:
    first_commit(tmp_path)
    second_commit(tmp_path)
    entries = lake_entries(tmp_path)
    (tmp_path / read_snapshot(tmp_path).keys[0].path).unlink()
    with pytest.raises(StoreCorrupt):
        Archive(tmp_path).compact()
    assert Archive(tmp_path).reindex() == len(entries)
    assert lake_entries(tmp_path) == entries
    read(tmp_path)


@pytest.mark.parametrize("left", ["metadata", "topic=T0"])
def test_a_lake_without_its_catalog_is_an_error(tmp_path: Path, left: str) -> None:
    """An archive would begin anew, and messages be lost for good."""
    first_commit(tmp_path) if left == "metadata" else older_lake(tmp_path)
    shutil.rmtree(tmp_path / "_rucola")
    with pytest.raises(StoreCorrupt), open_lake(tmp_path):
        pass
    if left == "metadata":
        (tmp_path / "_rucola").mkdir()
        for open_again in (lambda: read_snapshot(tmp_path), lambda: open_lake(tmp_path).__enter__()):
            with pytest.raises(StoreCorrupt):
                open_again()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_lake_that_was_moved_or_copied_says_so(tmp_path: Path, move: Callable[[Path, Path], object]) -> None:
    """A commit to the copy would change the tables of the original."""
    first_commit(tmp_path / "lake")
    move(tmp_path / "lake", tmp_path / "moved")
    for use in (seen, first_commit):
        with pytest.raises(StoreCorrupt) as raised:
            use(tmp_path / "moved")
        assert str(raised.value.path) == str(tmp_path / "moved")
        # Where to mount it, which is not a file of its metadata.
        assert f"{tmp_path}/lake" in str(raised.value)
        assert f"{tmp_path}/lake/" not in str(raised.value)
    if move is shutil.move:
        shutil.move(tmp_path / "moved", tmp_path / "lake")
    assert seen(tmp_path / "lake") == BEFORE


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_lake_that_was_moved_or_copied_gets_its_new_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path, Path], object]
) -> None:
    """All of its tables and snapshots, whatever is killed on the way; the original of a copy is as it was."""
    former, root = tmp_path / "lake", tmp_path / "moved"
    first_commit(former)
    Archive(former).derive({}, every_topic=True)
    with open_lake(former) as lake:
        lake.publish(stage(lake, [2]), {"a": ArchiveProgress(3)})
    Archive(former).forget(Archive(former).messages_of_files([read_snapshot(former).rows[0].path]))
    before = read_snapshot(former)
    move(former, root)
    calls, is_moved = 0, False
    while not is_moved:
        calls += 3
        with monkeypatch.context() as patched:
            patched.setattr(local_io, "sync_all", Deadly(local_io.sync_all, calls, after=calls % 2 == 0))
            with suppress(Killed):
                is_moved = Archive(root).relocate() == str(former)
        if not is_moved:
            with pytest.raises(StoreCorrupt):
                read_snapshot(root)
    assert calls > 10
    assert read_snapshot(root) == before
    assert Archive(root).relocate() == str(root)  # once more changes nothing
    with open_tables(root) as own:
        assert own is not None
        of_topics = [own.catalog.load_table(name) for name in own.catalog.list_tables("topics")]
        assert [len(table.metadata.snapshots) for table in (own.messages, own.keys, *of_topics)] == [3, 2, 1, 1]
        for table in (own.messages, own.keys, *of_topics):
            for snapshot in table.metadata.snapshots:
                tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
                assert {Path(task.file.file_path).is_relative_to(root) for task in tasks} == {True}
    assert (root / "metadata" / "version-hint.text").read_text() in own.messages.metadata_location
    # Runs go on, and derive no message twice.
    second_commit(root)
    assert [(each.topic, each.rows) for each in Archive(root).derive({}, every_topic=True)] == [("T0", 2), ("T1", 1)]
    assert read_snapshot(root).forgotten == before.forgotten
    if move is shutil.copytree:
        assert read_snapshot(former) == before
    with pytest.raises(ConfigError):
        Archive("s3://bucket/lake", "prod").relocate()


def test_replaced_files_are_kept_for_running_readers(tmp_path: Path) -> None:
    first_commit(tmp_path)
    with open_lake(tmp_path) as lake:
        old = lake.snapshot().rows[0].path
        lake.publish(replaces=[old])
        lake.expire(60_000)
        assert (tmp_path / old).exists()
        lake.expire(0)
        assert not (tmp_path / old).exists()


def test_to_open_a_lake_writes_no_metadata(tmp_path: Path) -> None:
    first_commit(tmp_path)
    before = sorted(tmp_path.rglob("*.metadata.json"))
    with open_lake(tmp_path):
        assert sorted(tmp_path.rglob("*.metadata.json")) == before


def test_a_lake_has_one_writer(tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake"), pytest.raises(StoreError), open_lake(tmp_path / "lake"):
        pass
    with open_lake(tmp_path / "lake"):
        pass
    descriptor = os.open(tmp_path / "lake" / "_rucola" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_lake_is_created_only_in_an_empty_local_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with raises(ConfigError, subject=str(tmp_path)), open_lake(tmp_path):
        pass
    with raises(ConfigError, subject=str(tmp_path / "file")), open_lake(tmp_path / "file"):
        pass
    with pytest.raises(ConfigError), open_lake("s3a://bucket/lake"):
        pass
    first_commit(tmp_path / "lake")
    monkeypatch.setattr(catalogs, "_NETWORK_FILE_SYSTEMS", {catalogs._file_system(tmp_path)})
    for name in ("new", "lake"):
        with raises(ConfigError, subject=str(tmp_path / name)), open_lake(tmp_path / name):
            pass


def test_a_lake_is_private_and_one_that_every_user_can_change_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    first_commit(root)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, *root.iterdir())} == {0o700}
    root.chmod(0o777)
    with raises(StoreError, subject=str(root)), open_lake(root):
        pass


def test_the_columns_of_the_files_are_those_of_the_table(tmp_path: Path) -> None:
    """By their ids, on which readers rely."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    first_commit(tmp_path)
    own = opened(tmp_path)
    assert own.messages.schema().as_struct() == pyarrow_to_schema(MESSAGES).as_struct()
    for table in (own.keys, own.messages):
        for file in own.files(table):
            assert pyarrow_to_schema(pq.read_schema(file.file_path)).as_struct() == table.schema().as_struct()


def test_a_lake_of_a_newer_rucola_is_neither_read_nor_written(tmp_path: Path) -> None:
    with open_lake(tmp_path) as lake:
        lake.publish(stage(lake, range(3)), {"a": ArchiveProgress(3)})
    with open_tables(tmp_path) as opened:
        assert opened is not None
        opened.messages.transaction().set_properties({"rucola.format": "2"}).commit_transaction()
    for opening in (lambda: read_snapshot(tmp_path), lambda: open_lake(tmp_path).__enter__()):
        with raises(StoreError, subject=str(tmp_path)):
            opening()
