"""What the archive says of its progress is what the store asks before it lets a file go (deleteOnlyArchived)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rucola.message.record import decode
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake.snapshot import ArchiveProgress
from rucola.spark.session import LazySession
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from support.stores import config, inner


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_retention_reads_the_progress_that_the_lake_publishes(tmp_path: Path, is_elsewhere: bool) -> None:
    """In the lake, or in a directory beside the broker if a catalog has the lake."""
    told = tmp_path / "told" if is_elsewhere else tmp_path / "lake"
    catalog = f"sqlite:///{tmp_path / 'catalog.db'}" if is_elsewhere else None
    lake = Archive(tmp_path / "lake", catalog, progress_directory=told if is_elsewhere else None)
    settings = config(
        tmp_path / "store", delete_only_archived=True, archive_progress_path=told / "_rucola" / "progress.json"
    )
    session = LazySession("tests", use_spark=False)
    with MessageStore(settings) as store:
        last = [store.put(inner(body=bytes(1200)), 1) for _ in range(9)][2]
        end = last.physical_offset + last.size
        msg_id = decode(store.record_at(last.physical_offset) or b"").msg_id

        def begin_after_a_round() -> int:
            store.begin_retention_round(1, 12, [DiskUsage(tmp_path, 95, 100)])
            while store.expire(1):
                store.delete_expired()
            return store.min_physical_offset

        assert begin_after_a_round() == 0
        store.checkpoint()
        archive.run(session, settings.store_path_root_dir, lake, broker_name="files")
        assert begin_after_a_round() == 0  # archived under another name
        for archived, begin in ((end, 0), (4096, 4096), (store.max_physical_offset, 8192)):
            progress = ArchiveProgress(archived, last.physical_offset, msg_id, {"T": {"0": 3}})
            with lake.open() as writer:
                writer.commit({str(settings.store_path_root_dir): progress})
            assert begin_after_a_round() == begin
    # Its files are compared where they can be seen.
    listed = msgspec.json.decode((told / "_rucola" / "files.json").read_bytes())
    assert listed.get("location") == (str(lake) if is_elsewhere else None)
