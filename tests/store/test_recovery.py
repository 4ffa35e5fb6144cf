"""Opening a store: what is said meanwhile. What comes of it is in `tests/faults` and beside the golden stores."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

import pytest

from rucola.errors import StoreCorrupt
from rucola.store import recovery
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from support.stores import OpenStore, all_bodies, crashed_copy, files_of, inner


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
