"""The read-only door, on the stores that a real broker left."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rucola.errors import StoreCorrupt, StoreError
from rucola.store.consume_queue import UNIT
from rucola.store.directory_reader import StoreReader
from rucola.store.scan import RecordRun, ScanEnd
from support.errors import raises
from support.small_store import SmallStore


def expected_messages(golden: Path, name: str) -> list[dict[str, Any]]:
    with open(golden / name / "expected.jsonl") as lines:
        return [json.loads(line) for line in lines]


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything that a writer would change: names, sizes, times and bytes."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_the_whole_store_is_read_and_nothing_written(golden: Path, name: str) -> None:
    store = golden / name / "store"
    summary = json.loads((golden / name / "summary.json").read_text())
    expected = expected_messages(golden, name)
    before = snapshot(store)
    with StoreReader(store) as reader:
        assert [message.physical_offset for message in reader.walk()] == [row["commitLogOffset"] for row in expected]
        assert reader.max_physical_offset == summary["commitLogEnd"]
        assert {f"{topic}/{queue_id}": ends for (topic, queue_id), ends in reader.queues().items()} == {
            queue: (ends["first"], ends["last"] + 1) for queue, ends in summary["consumequeue"].items()
        }
        headers = [
            (
                file.file.path.name,
                file.begin_timestamp,
                file.end_timestamp,
                file.begin_physical_offset,
                file.end_physical_offset,
                file.slots_used,
                file.count,
            )
            for file in reader.index.files
        ]
        assert headers == [tuple(value for name, value in row.items() if name != "length") for row in summary["index"]]
    assert snapshot(store) == before


def test_units_are_those_of_the_queue(golden: Path) -> None:
    rows = [row for row in expected_messages(golden, "g1-clean") if row["cq"].startswith("GA|2|")]
    with StoreReader(golden / "g1-clean" / "store") as reader:
        units = reader.units("GA", 2)
        assert units.dtype == UNIT
        assert units.tolist() == [(row["commitLogOffset"], row["storeSize"], row["tagsCode"]) for row in rows]
        assert reader.units("GA", 2, 5, 9).tolist() == units[5:9].tolist()
        assert reader.units("GA", 2, -5, 99999).tolist() == units.tolist()
        assert reader.units("GA", 2, 9, 5).shape == (0,)
        assert reader.units("GA", 99).shape == (0,)


def test_records_are_read_by_offset(golden: Path) -> None:
    rows = expected_messages(golden, "g1-clean")
    with StoreReader(golden / "g1-clean" / "store") as reader:
        for row in rows[::100]:
            assert reader.record(row["commitLogOffset"]).msg_id == row["msgId"]
        with raises(StoreCorrupt, position=1):
            reader.record(1)
        for outside in (-1, 1 << 21, 1 << 40):
            with raises(StoreError, subject=str(outside)):
                reader.record(outside)


def test_a_scan_can_begin_and_end_anywhere(golden: Path) -> None:
    offsets = [row["commitLogOffset"] for row in expected_messages(golden, "g1-clean")]
    with StoreReader(golden / "g1-clean" / "store") as reader:
        walked = [message.physical_offset for message in reader.walk(offsets[1500], offsets[2300])]
        assert walked == offsets[1500:2300]
        assert list(reader.walk(offsets[7], offsets[7])) == []


def test_runs_cover_all_records_in_columns(golden: Path) -> None:
    rows = expected_messages(golden, "g2-crash")
    with StoreReader(golden / "g2-crash" / "store") as reader:
        *runs, stop = reader.runs()
        assert stop == ScanEnd(342692, None)
        columns = [run for run in runs if isinstance(run, RecordRun)]
        assert len(columns) == 6, "one a file"
        assert np.concatenate([run.heads["queue_offset"] for run in columns]).tolist() == [
            row["queueOffset"] for row in rows
        ]
        assert np.concatenate([run.store_timestamps for run in columns]).tolist() == [
            row["storeTimestamp"] for row in rows
        ]


def test_buffer_maps_the_file(golden: Path) -> None:
    with StoreReader(golden / "g1-clean" / "store") as reader:
        first, second = reader.commit_log_files
        assert (first.begin, second.begin, first.size) == (0, 1048576, 1048576)
        with reader.buffer(second) as buffer:
            assert buffer.readonly
            assert buffer == second.path.read_bytes()


def test_keys_with_equal_hashes_are_told_apart(golden: Path) -> None:
    queries = json.loads((golden / "g1-clean" / "expected_queries.json").read_text())
    with StoreReader(golden / "g1-clean" / "store") as reader:
        for query in queries["keyQueries"]:
            found = reader.query(query["topic"], query["key"], query["maxNum"])
            assert [message.physical_offset for message in found] == query.get("exact", [])


def test_config_files_are_read(golden: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden / "g1-clean" / "store" / "config", store / "config")
    with StoreReader(store) as reader:
        assert reader.config("consumerOffset")["offsetTable"]["GRetry@G_g_retry"] == {0: 2, 1: 2}
        assert reader.config("nothing") is None
        (store / "config" / "topics.json").write_bytes(b"{")
        assert "GA" in reader.config("topics")["topicConfigTable"], "from .bak"
        (store / "config" / "topics.json.bak").write_bytes(b"")
        with pytest.raises(StoreCorrupt):
            reader.config("topics")


def test_an_empty_directory_is_an_empty_store(tmp_path: Path) -> None:
    with StoreReader(tmp_path) as reader:
        assert (reader.commit_log_files, reader.queues(), list(reader.walk())) == ([], {}, [])
        assert (reader.max_physical_offset, reader.query("T", "k")) == (0, [])
    with raises(StoreError, subject=str(tmp_path / "missing")):
        StoreReader(tmp_path / "missing")


def copy_of(golden: Path, tmp_path: Path, name: str = "g2-crash") -> Path:
    return Path(shutil.copytree(golden / name / "store", tmp_path / "store"))


def test_an_empty_last_file_is_read_as_nothing(golden: Path, tmp_path: Path) -> None:
    store = copy_of(golden, tmp_path)
    os.truncate(store / "commitlog" / f"{393216:020d}", 0)
    with StoreReader(store) as reader:
        assert len(list(reader.walk())) == 879
        assert reader.max_physical_offset == 342692


@pytest.mark.parametrize(
    "number",
    [
        1,
        3,
    ],
)
def test_a_missing_file_is_named(golden: Path, tmp_path: Path, number: int) -> None:
    store = copy_of(golden, tmp_path)
    (store / "commitlog" / f"{65536 * number:020d}").unlink()
    with pytest.raises(StoreCorrupt):
        StoreReader(store)


def test_damage_ends_a_scan_with_its_offset(golden: Path, tmp_path: Path) -> None:
    store = copy_of(golden, tmp_path)
    row = expected_messages(golden, "g2-crash")[300]
    number, position = divmod(row["commitLogOffset"], 65536)
    path = store / "commitlog" / f"{number * 65536:020d}"
    data = bytearray(path.read_bytes())
    data[position + 90] ^= 1
    path.write_bytes(data)
    with StoreReader(store) as reader:
        seen = []
        with pytest.raises(StoreCorrupt) as caught:
            seen.extend(message.physical_offset for message in reader.walk())
        assert (caught.value.path, caught.value.position) == (str(path), position)
        assert len(list(reader.walk(end=row["commitLogOffset"]))) == 300


def test_units_beyond_the_log_are_not_counted(golden: Path, tmp_path: Path) -> None:
    """Apache's recovery leaves the units of what it cut off; here the log loses its last file's content."""
    store = copy_of(golden, tmp_path)
    last = store / "commitlog" / f"{327680:020d}"
    last.write_bytes(bytes(65536))
    kept = [row for row in expected_messages(golden, "g2-crash") if row["commitLogOffset"] < 327680]
    with StoreReader(store) as reader:
        assert sum(end - begin for begin, end in reader.queues().values()) == len(kept)
        assert reader.max_physical_offset == 327680


def test_files_that_expire_at_the_opening_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker deletes the oldest file, which was listed, before it is opened."""
    small = SmallStore(tmp_path / "store")
    offsets = [small.put(body=b"x" * 1000) for _ in range(12)]
    first, second, *_ = sorted((tmp_path / "store" / "commitlog").iterdir())
    open_file = os.open

    def open_after_retention(path: Any, *arguments: Any, **keywords: Any) -> int:
        if Path(path).name == first.name and first.exists() and "consumequeue" not in str(path):
            first.unlink()
        return open_file(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", open_after_retention)
    with StoreReader(tmp_path / "store") as reader:
        begin = int(second.name)
        assert not first.exists()
        assert reader.min_physical_offset == begin
        assert [message.physical_offset for message in reader.walk()] == [each for each in offsets if each >= begin]
