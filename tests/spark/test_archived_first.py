"""What the archive says of its progress is what the store asks before it lets a file go (deleteOnlyArchived)."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from rucola.errors import MQError
from rucola.message.record import decode
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake import writer
from rucola.spark.lake.parquet_files import read_rows
from rucola.spark.lake.snapshot import ArchiveProgress
from rucola.spark.lake.storage import Directory
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.session import LazySession
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from support.killing import Deadly, Killed
from support.stores import config, inner

SESSION = LazySession("tests", use_spark=False)


def begin_after_a_round(store: MessageStore) -> int:
    """The first physical offset after a disk that is too full has had everything deleted that may be."""
    store.begin_retention_round(1, 12, [DiskUsage(Path("disk"), 86, 100)])
    while store.expire(1):
        store.delete_expired()
    return store.min_physical_offset


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_retention_reads_the_progress_that_the_lake_publishes(tmp_path: Path, is_elsewhere: bool) -> None:
    """In the lake, or in a directory beside the broker if a catalog has the lake."""
    told = tmp_path / "told" if is_elsewhere else tmp_path / "lake"
    catalog = f"sqlite:///{tmp_path / 'catalog.db'}" if is_elsewhere else None
    lake = Archive(tmp_path / "lake", catalog, progress_directory=told if is_elsewhere else None)
    settings = config(
        tmp_path / "store", delete_only_archived=True, archive_progress_path=told / "_rucola" / "progress.json"
    )
    with MessageStore(settings) as store:
        last = [store.put(inner(body=bytes(1200)), 1) for _ in range(9)][2]
        end = last.physical_offset + last.size
        msg_id = decode(store.record_at(last.physical_offset) or b"").msg_id

        assert begin_after_a_round(store) == 0
        store.checkpoint()
        archive.run(SESSION, settings.store_path_root_dir, lake, broker_name="files")
        assert begin_after_a_round(store) == 0  # archived under another name
        for archived, begin in ((end, 0), (4096, 4096), (store.max_physical_offset, 8192)):
            progress = ArchiveProgress(archived, last.physical_offset, msg_id, {"T": {"0": 3}})
            with lake.open() as opened:
                opened.commit({str(settings.store_path_root_dir): progress})
            assert begin_after_a_round(store) == begin
    # Its files are compared where they can be seen.
    listed = msgspec.json.decode((told / "_rucola" / "files.json").read_bytes())
    assert listed.get("location") == (str(lake) if is_elsewhere else None)


@pytest.mark.parametrize("error", [Killed, OSError])
def test_no_message_is_deleted_that_the_table_lacks_while_catalog_and_storage_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """At every write of the archive to storage and catalog, in turn; the disk of the broker is always full."""
    lake = tmp_path / "lake"
    settings = config(
        tmp_path / "store",
        delete_only_archived=True,
        archive_progress_path=lake / "_rucola" / "progress.json",
        archive_name="a",
    )
    steps: list[tuple[Any, str, bool]] = [(SqlCatalog, "commit_table", False), (SqlCatalog, "commit_table", True)]
    steps += [(Directory, "writing", False), (Directory, "sync", False), (writer, "_replace_if_changed", False)]
    begins = []
    with MessageStore(settings) as store:
        for owner, name, after in steps:
            for calls in range(1, 20):
                for _ in range(4):
                    store.put(inner(body=bytes(1200)), 1)
                store.checkpoint()
                failing = Deadly(getattr(owner, name), calls, after=after, error=error)
                with monkeypatch.context() as patched:
                    patched.setattr(owner, name, failing)
                    with suppress(Killed, OSError, MQError):
                        archive.run(SESSION, settings.store_path_root_dir, lake, broker_name="a")
                begins.append(begin_after_a_round(store))
                snapshot = read_snapshot(lake)
                rows = [batch[0].to_pylist() for batch in read_rows(snapshot.storage, snapshot.rows, ["queueOffset"])]
                archived = sorted(itertools.chain.from_iterable(rows))
                assert archived == [*range(len(archived))]
                assert store.min_offset("T", 0) <= len(archived)
                if not failing.killed:
                    break
            assert calls > 1
    assert begins[-1] > begins[0]
