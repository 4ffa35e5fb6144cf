"""Records of several puts that are written together: found by every read, and no part of a flush before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.message.record import decode
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import FlushDiskType, PutMessageStatus
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import OpenStore, batch, config, crashed_copy, inner

LARGE = bytes(5000)


def log_bytes(root: Path) -> bytes:
    """The files of the log as another process reads them."""
    return b"".join(path.read_bytes() for path in sorted(root.glob("commitlog/*")))


def test_records_are_written_at_the_end_and_acknowledged_after_that(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(inner(body=b"before"), 1)
    store.collect_puts(True)
    results = [store.put(inner(body=b"collected %d" % number), 2) for number in range(3)]
    assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 3
    found = log_bytes(tmp_path / "store")
    assert b"before" in found
    assert b"collected" not in found
    store.collect_puts(False)
    found = log_bytes(tmp_path / "store")
    assert all(b"collected %d" % number in found for number in range(3))
    assert store.max_physical_offset == results[-1].physical_offset + results[-1].size
    store.put(inner(body=b"at once"), 3)
    assert b"at once" in log_bytes(tmp_path / "store")


def test_every_read_finds_collected_records(open_store: OpenStore) -> None:
    store = open_store()
    store.collect_puts(True)
    store.put(inner(body=b"0", unique_key="u0"), 1)
    assert [decode(record).body for record in store.get("T", 0, 0, 32).records] == [b"0"]
    store.put(inner(body=b"1", unique_key="u1"), 1)
    assert [decode(record).body for record in store.query("T", "u1", 32).records] == [b"1"]
    result = store.put(inner(body=b"2"), 7)
    record = store.record_at(result.physical_offset)
    assert record is not None
    assert decode(record).body == b"2"
    result = store.put(inner(body=b"3"), 8)
    held = store.hold_bytes(result.physical_offset, 1 << 20)
    assert held is not None
    with held:
        assert decode(bytes(held.view)).body == b"3"
    store.put(inner(body=b"4"), 9)
    assert store.store_time("T", 0, 4) == 9
    assert len(store.get("T", 0, 0, 32, matches=lambda pairs: True).records) == 5
    store.collect_puts(False)


@pytest.mark.parametrize("flush_disk_type", FlushDiskType)
def test_a_flush_leaves_collected_records_out(
    open_store: OpenStore, tmp_path: Path, flush_disk_type: FlushDiskType
) -> None:
    store = open_store(config(tmp_path / "store", flush_disk_type=flush_disk_type, mapped_file_size_commit_log=1 << 16))
    store.put(inner(body=b"before"), 1000)
    store.flush()
    end = store.flushed_physical_offset
    assert end == store.max_physical_offset
    store.collect_puts(True)
    store.put(inner(body=b"collected"), 2000)
    store.flush()
    store.checkpoint()
    assert store.flushed_physical_offset == end < store.max_physical_offset
    assert Checkpoint(tmp_path / "store" / "checkpoint").physic_timestamp == 1000
    large = store.put(inner(body=LARGE), 3000)
    store.put(inner(body=b"collected, too"), 4000)
    store.flush()
    assert end <= store.flushed_physical_offset <= large.physical_offset + large.size
    store.collect_puts(False)
    store.flush()
    store.checkpoint()
    assert store.flushed_physical_offset == store.max_physical_offset
    assert Checkpoint(tmp_path / "store" / "checkpoint").physic_timestamp == 4000


def test_what_was_collected_survives_a_crash_once_it_is_written(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config(tmp_path / "store", mapped_file_size_commit_log=1 << 16))
    store.put(inner(body=b"before"), 1)
    store.collect_puts(True)
    for number in range(20):  # without rolling the file, which would write them
        store.put(inner(body=b"%d" % number), 1)
    in_between = crashed_copy(store, tmp_path / "in between")
    store.collect_puts(False)
    after = crashed_copy(store, tmp_path / "after")
    for copy, count in ((in_between, 1), (after, 21)):
        with copy as again:
            assert again.max_offset("T", 0) == count
        assert check(copy.config.store_path_root_dir) == []


STEPS = st.lists(
    st.one_of(
        st.integers(0, 4500).map(lambda size: ("put", size)),
        st.lists(st.integers(0, 2000), min_size=1, max_size=4).map(lambda sizes: ("batch", sizes)),
        st.sampled_from([("collect", True), ("collect", True), ("collect", False)]),
        st.sampled_from([("read", 0), ("flush", 0), ("checkpoint", 0)]),
    ),
    max_size=25,
)


def _run(root: Path, steps: list[Any], *, collects: bool, is_sync: bool) -> tuple[list[Any], bytes]:
    settings = config(
        root,
        mapped_file_size_commit_log=16_384,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if is_sync else FlushDiskType.ASYNC_FLUSH,
    )
    found: list[Any] = []
    with MessageStore(settings) as store:
        for number, (what, value) in enumerate(steps):
            if what == "put":
                found.append(store.put(inner(body=bytes([number]) * value), number))
            elif what == "batch":
                made = [inner(body=bytes([number]) * size) for size in value]
                found.append(store.put_batch(batch(*made), number))
            elif what == "collect":
                if collects:
                    store.collect_puts(value)
            elif what == "read":
                found.append((store.get("T", 0, 0, 1000, max_bytes=1 << 20), store.max_physical_offset))
            elif what == "flush":
                store.flush()
            else:
                store.checkpoint()
        store.collect_puts(False)
        found.append(store.max_physical_offset)
        written = log_bytes(root)
        store.flush()
        assert store.flushed_physical_offset == store.max_physical_offset
    assert check(root) == []
    return found, written


@given(STEPS, st.booleans())
def test_the_log_is_the_same_as_without(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], is_sync: bool
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    plain = _run(folder / "plain", steps, collects=False, is_sync=is_sync)
    assert _run(folder / "collecting", steps, collects=True, is_sync=is_sync) == plain
