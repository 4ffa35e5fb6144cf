"""Which files go, when and why; what is read of a log that begins later; and a disk that is full."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.errors import ConfigError
from rucola.message.record import decode
from rucola.store import mapped_file
from rucola.store.config import GetMessageStatus, PutMessageStatus, StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.retention import MANUAL_ROUNDS, MAX_FILES_A_ROUND, DiskUsage
from rucola.store.tools.check import check
from support.errors import raises
from support.examples import examples
from support.faults import patch_sync_pages
from support.stores import OpenStore, batch, config, crashed_copy, inner

HOUR_MS = 3_600_000
DAY = 4  # an hour at which nothing is deleted is any other
DISK = Path("disk")


def disk(percent: float) -> list[DiskUsage]:
    """A disk of a thousand bytes."""
    return [DiskUsage(DISK, round(percent * 10), 1000)]


def fill(store: MessageStore, files: int, *, hours_apart: float = 1, queues: int = 2) -> int:
    """Put three records into each of so many files of the log, file k at hour k; returns the time of the last."""
    now_ms = 0
    for k in range(files):
        now_ms = 1 + round(k * hours_apart * HOUR_MS)
        for n in range(3):
            number = 3 * k + n
            message = inner(queue_id=number % queues, body=b"%04d" % number * 300, keys=f"k{number}")
            assert store.put(message, now_ms).status is PutMessageStatus.PUT_OK
    store.reput()
    return now_ms


def run_round(store: MessageStore, now_ms: int, *, hour: int = 12, percent: float = 50) -> int:
    """One round to its end; returns how many files of the log went."""
    before = len(names(store, "commitlog/*"))
    store.begin_retention_round(now_ms, hour, disk(percent))
    while store.expire(now_ms):
        store.delete_expired()
    return before - len(names(store, "commitlog/*"))


def names(store: MessageStore, pattern: str) -> list[str]:
    """Files under the store's directory, in order."""
    return sorted(path.name for path in Path(store.config.store_path_root_dir).glob(pattern))


def bodies(store: MessageStore) -> list[str]:
    """The numbers of all messages that the queues lead to."""
    found = []
    for (topic, queue_id), (begin, end) in store.queues().items():
        offset = begin
        while offset < end:
            result = store.get(topic, queue_id, offset, 32)
            assert result.status is GetMessageStatus.FOUND
            found += [decode(record).body[:4].decode() for record in result.records]
            offset = result.next_begin_offset
    return sorted(found)


# when ----------------------------------------------------------------------------------------------------------------


def test_files_are_deleted_when_all_their_messages_have_expired(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 6)
    # A file is as young as the first record behind it: file k is of hour k, and was full at hour k + 1.
    assert run_round(store, 75 * HOUR_MS, hour=DAY) == 2
    assert store.min_physical_offset == 2 * 4096
    assert bodies(store) == [f"{k:04d}" for k in range(6, 18)]
    assert run_round(store, 75 * HOUR_MS, hour=DAY) == 0


@pytest.mark.parametrize(
    ("when", "hour", "gone"), [("04", 4, 5), ("04", 5, 0), ("04;16", 16, 5), ("4", 4, 5), ("00", 0, 5), ("23", 22, 0)]
)
def test_expired_files_are_deleted_at_the_configured_hour(
    open_store: OpenStore, tmp_path: Path, when: str, hour: int, gone: int
) -> None:
    store = open_store(config(tmp_path / "store", delete_when=when))
    fill(store, 6)
    assert run_round(store, 999 * HOUR_MS, hour=hour) == gone


def test_the_hour_99_means_never(tmp_path: Path) -> None:
    """Apache's brokers are configured so where files shall go only by hand or when the disk is full."""
    with MessageStore(config(tmp_path / "store", delete_when="99")) as store:
        assert store.write_state.is_writable


@pytest.mark.parametrize("when", ["", "four", "04:00", "-1", "24", "25", "04;25", "004"])
def test_an_invalid_hour_is_refused(tmp_path: Path, when: str) -> None:
    with raises(ConfigError, subject="deleteWhen"):
        config(tmp_path / "store", delete_when=when)


@pytest.mark.parametrize(
    ("percent", "age_hours", "settings", "gone", "refuses"),
    [
        (75, 999, {}, 0, False),
        (75.1, 999, {}, 5, False),
        (75.1, 0, {}, 0, False),
        (85, 0, {}, 0, False),
        (85.1, 0, {}, 5, False),
        (85.1, 0, {"clean_file_forcibly_enable": False}, 0, False),
        (85.1, 999, {"clean_file_forcibly_enable": False}, 5, False),
        (90, 0, {}, 5, False),
        (90.1, 0, {}, 5, True),
        (90.1, 0, {"clean_file_forcibly_enable": False}, 0, True),
        (40, 999, {"disk_max_used_space_ratio": 30}, 5, False),
        (11, 999, {"disk_max_used_space_ratio": 0}, 5, False),
        (95, 999, {"disk_max_used_space_ratio": 100, "disk_space_clean_forcibly_ratio": 99}, 0, True),
    ],
)
def test_disk_usage_decides_what_is_deleted_and_refused(
    open_store: OpenStore,
    tmp_path: Path,
    percent: float,
    age_hours: int,
    settings: dict[str, Any],
    gone: int,
    refuses: bool,
) -> None:
    store = open_store(config(tmp_path / "store", **settings))
    last_ms = fill(store, 6)
    assert run_round(store, last_ms + age_hours * HOUR_MS, percent=percent) == gone
    assert (not store.write_state.is_writable) == refuses


def test_fullest_disk_decides(open_store: OpenStore) -> None:
    store = open_store()
    store.begin_retention_round(
        1, 12, [DiskUsage(Path("a"), 1, 100), DiskUsage(Path("b"), 95, 100), DiskUsage(DISK, 0, 0)]
    )
    assert "the disk of b is 95 % full" in str(store.write_state.reason)


def test_on_command_expired_files_are_deleted_at_any_hour(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 6)
    store.request_manual_deletion()
    assert run_round(store, 75 * HOUR_MS) == 2
    for _ in range(MANUAL_ROUNDS - 1):
        assert run_round(store, 75 * HOUR_MS) == 0
    assert run_round(store, 999 * HOUR_MS) == 0
    store.request_manual_deletion()
    assert run_round(store, 999 * HOUR_MS) == 3


def test_round_deletes_at_most_ten_files(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 15)
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == MAX_FILES_A_ROUND == 10
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 4


@pytest.mark.parametrize("percent", [50, 99])
def test_the_current_file_and_the_one_created_ahead_are_kept(open_store: OpenStore, percent: float) -> None:
    store = open_store()
    last_ms = fill(store, 3)
    store.warm()
    assert len(names(store, "commitlog/*")) == 4
    run_round(store, last_ms + 999 * HOUR_MS, hour=DAY, percent=percent)
    assert names(store, "commitlog/*") == [f"{2 * 4096:020d}", f"{3 * 4096:020d}"]
    store.begin_retention_round(last_ms, 12, disk(10))
    fill(store, 2)
    assert bodies(store) == sorted(["0006", "0007", "0008", *(f"{k:04d}" for k in range(6))])


# what is left --------------------------------------------------------------------------------------------------------


def test_queues_and_index_follow_the_log(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 40, queues=1)
    root = Path(store.config.store_path_root_dir)
    queue_files, index_files = names(store, "consumequeue/T/0/*"), names(store, "index/*")
    assert len(queue_files) == 12
    assert len(index_files) == 4
    while run_round(store, 999 * HOUR_MS, hour=DAY):
        pass
    assert len(names(store, "commitlog/*")) == 1
    assert names(store, "consumequeue/T/0/*") == queue_files[-1:]
    assert names(store, "index/*") == index_files[-1:]
    assert store.queues() == {("T", 0): (117, 120)}
    assert store.min_offset("T", 0) == 117
    assert store.earliest_store_time("T", 0) == 1 + 39 * HOUR_MS
    assert store.offset_by_time("T", 0, 0) == 117
    assert store.query("T", "k3", 10).records == []
    assert len(store.query("T", "k119", 10).records) == 1
    store.close()
    assert check(root) == []
    with StoreReader(root) as reader:
        assert [message.queue_offset for message in reader.walk()] == [117, 118, 119]


def test_reads_of_deleted_offsets_return_the_first_offset_left(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 6, queues=1)
    first = store.get("T", 0, 0, 1)
    physical_offset = decode(first.records[0]).physical_offset
    run_round(store, 999 * HOUR_MS, hour=DAY)
    gone = store.get("T", 0, 3, 32)
    assert (gone.status, gone.next_begin_offset, gone.min_offset, gone.max_offset) == (
        GetMessageStatus.OFFSET_TOO_SMALL,
        15,
        15,
        18,
    )
    assert store.get("T", 0, 15, 32).status is GetMessageStatus.FOUND
    assert store.record_at(physical_offset) is None
    assert store.store_time("T", 0, 3) == -1
    assert store.units("T", 0, 3, 1) == []


def test_a_queue_that_lost_all_its_messages_keeps_its_offsets(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(4):
        store.put(inner(topic="Old"), 1)
    fill(store, 6)
    run_round(store, 999 * HOUR_MS, hour=DAY)
    assert store.queues()["Old", 0] == (4, 4)
    assert store.get("Old", 0, 0, 32).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.get("Old", 0, 4, 32).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    store.close()
    store = open_store(store.config)
    assert store.queues()["Old", 0] == (4, 4)
    assert store.put(inner(topic="Old"), 1).queue_offset == 4
    assert store.get("Old", 0, 4, 32).status is GetMessageStatus.FOUND


def test_only_a_queue_without_messages_can_be_deleted(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(topic="Old"), 1)
    store.put(inner(topic="Old", queue_id=1), 1)
    fill(store, 6, queues=1)
    assert not store.delete_queue("Old", 0)
    assert not store.delete_queue("Never", 0)
    run_round(store, 999 * HOUR_MS, hour=DAY)
    assert not store.delete_queue("T", 0)
    assert store.delete_queue("Old", 0)
    assert names(store, "consumequeue/*") == ["Old", "T"]
    assert store.delete_queue("Old", 1)
    assert names(store, "consumequeue/*") == ["T"]
    store.checkpoint()
    assert store.put(inner(topic="Old"), 1).queue_offset == 0
    assert store.get("Old", 0, 0, 1).status is GetMessageStatus.FOUND


# on the way out ------------------------------------------------------------------------------------------------------


def first_file(store: MessageStore, monkeypatch: pytest.MonkeyPatch, held: Callable[[], None]) -> None:
    """Let a flush in another thread hold the first file of the log while `held` runs."""
    under_way, go_on = threading.Event(), threading.Event()
    sync = mapped_file.sync_pages

    def slow(mapped: mmap, begin: int, end: int) -> None:
        under_way.set()
        assert go_on.wait(20)
        sync(mapped, begin, end)

    monkeypatch.setattr(mapped_file, "sync_pages", slow)
    thread = threading.Thread(target=store.flush)
    thread.start()
    assert under_way.wait(20)
    try:
        held()
    finally:
        go_on.set()
        thread.join()
        monkeypatch.undo()


def test_a_file_in_use_is_deleted_after_the_forced_interval(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, 6)
    now_ms = 999 * HOUR_MS

    def held() -> None:
        assert run_round(store, now_ms, hour=DAY) == 0
        assert store.min_physical_offset == 4096  # it is read no more, and those behind it wait
        assert store.record_at(0) is None
        assert run_round(store, now_ms + 119_999, hour=DAY) == 0
        assert run_round(store, now_ms + 120_000, hour=DAY) == 5

    first_file(store, monkeypatch, held)
    assert store.write_state.is_writable
    store.flush()
    assert store.flushed_physical_offset == store.max_physical_offset


def waits(store: MessageStore) -> None:
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 0


def test_a_file_is_deleted_when_its_last_reader_ends(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    fill(store, 6)
    first_file(store, monkeypatch, lambda: waits(store))
    assert len(names(store, "commitlog/*")) == 6
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 5


def test_closing_does_not_wait_for_a_retention_round(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 6)
    store.begin_retention_round(999 * HOUR_MS, DAY, disk(50))
    assert store.expire(999 * HOUR_MS)
    store.close()
    assert names(store, "commitlog/*")[0] == f"{4096:020d}"
    assert check(store.config.store_path_root_dir) == []


def test_files_are_deleted_only_in_order(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    fill(store, 6)
    now_ms = 999 * HOUR_MS
    store.begin_retention_round(now_ms, DAY, disk(50))
    unlink = Path.unlink

    def fails(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "unlink", fails)
    for _ in range(3):
        assert store.expire(now_ms)
        with raises(OSError, errno=errno.EIO):
            store.delete_expired()
    assert len(names(store, "commitlog/*")) == 6
    monkeypatch.setattr(Path, "unlink", unlink)
    assert run_round(store, now_ms, hour=DAY) == 5


@pytest.mark.parametrize("calls", range(1, 12))
def test_crash_at_any_step_leaves_a_valid_store(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The process dies before the n-th file is removed: everything that was not expired is there after recovery."""
    store = open_store()
    fill(store, 12, queues=1)
    store.checkpoint()
    delete, left = MappedFile.delete, calls

    class Killed(Exception):
        pass

    def dies(file: MappedFile) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed
        delete(file)

    def rounds() -> None:
        while run_round(store, 82 * HOUR_MS, hour=DAY):
            pass

    monkeypatch.setattr(MappedFile, "delete", dies)
    with pytest.raises(Killed):
        rounds()
    monkeypatch.undo()
    copy = crashed_copy(store, tmp_path / "copy")
    copy.open(1)
    assert copy.max_offset("T", 0) == 36
    assert bodies(copy)[-len(bodies(store)) :] == bodies(store)
    run_round(copy, 82 * HOUR_MS, hour=DAY)
    assert bodies(copy) == [f"{k:04d}" for k in range(27, 36)]
    copy.close()
    assert check(tmp_path / "copy") == []


# a full disk ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_messages_until_there_is_space(open_store: OpenStore) -> None:
    store = open_store()
    put = store.put(inner(body=b"before"), 1)
    store.begin_retention_round(1, 12, [DiskUsage(Path("/data"), 95 << 30, 100 << 30)])
    refused = store.put(inner(), 1)
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.put_batch(batch(inner(), inner()), 1).status is refused.status
    why = str(store.write_state.reason)
    assert "the disk of /data is 95 % full: 95.00 of 100.00 GiB" in why
    assert "above 90 % (diskSpaceWarningLevelRatio)" in why
    assert store.write_state.failure is None
    assert store.get("T", 0, 0, 1).status is GetMessageStatus.FOUND
    store.begin_retention_round(1, 12, disk(90))
    assert store.write_state.is_writable
    assert store.put(inner(body=b"after"), 1).queue_offset == put.queue_offset + 1


def test_free_space_does_not_end_another_failure(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.put(inner(), 1)

    def fails(mapped: mmap, begin: int, end: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store.begin_retention_round(1, 12, disk(99))
    patch_sync_pages(monkeypatch, fails)
    with raises(OSError, errno=errno.EIO):
        store.flush()
    monkeypatch.undo()
    for percent in (50, 99, 50):
        store.begin_retention_round(1, 12, disk(percent))
        assert "the disk failed during a flush" in str(store.write_state.reason)
        assert store.put(inner(), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.close()
    root = Path(store.config.store_path_root_dir)
    assert (root / "abort").exists()
    open_store(store.config).close()


def test_store_on_a_full_disk_closes_cleanly(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(), 1)
    store.begin_retention_round(1, 12, disk(99))
    store.close()
    assert not (Path(store.config.store_path_root_dir) / "abort").exists()
    store = open_store(store.config)
    assert store.write_state.is_writable
    assert store.max_offset("T", 0) == 1


# archived first ------------------------------------------------------------------------------------------------------


def archiving(tmp_path: Path, **more: Any) -> StoreConfig:
    progress = tmp_path / "lake" / "_rucola" / "progress.json"
    return config(tmp_path / "store", delete_only_archived=True, archive_progress_path=progress, **more)


def archive_up_to(store: MessageStore, physical_offset: int, *, name: str | None = None, **more: Any) -> None:
    """Say as the archive does that everything before a physical offset is archived."""
    path = store.config.archive_progress_path
    assert path is not None
    entry: dict[str, Any] = {"physical_offset": physical_offset, "last_physical_offset": None, "last_msg_id": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name or str(store.config.store_path_root_dir): entry | more, "other": entry}))
    lake_of_one_file(path.parent.parent, store.max_physical_offset)


def lake_of_one_file(lake: Path, end: int, forgotten: Sequence[dict[str, Any]] = (), **more: Any) -> None:
    """Let a lake have one file with the messages of six files of the log, or more, and have lost others."""
    (lake / "rows.parquet").write_bytes(b"messages")
    entry = {"path": "rows.parquet", "size": 8, "topic": "T", "rows": 18, "least": 0, "most": end - 1} | more
    listed = {"rows": [entry], "forgotten": [entry | each for each in forgotten]}
    (lake / "_rucola" / "files.json").write_text(json.dumps(listed))


@pytest.mark.parametrize(
    "more", [{"rows": 0}, {"rows": 3, "most": 4095}, {"topic": "Other"}, {"least": 9999}, {"brokers": ["a", "b"]}]
)
def test_progress_that_the_files_do_not_cover_does_not_count(
    open_store: OpenStore, tmp_path: Path, more: dict[str, Any]
) -> None:
    """As a lake of a job whose workers wrote elsewhere: its progress is ahead of its files."""
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    end = store.max_physical_offset
    archive_up_to(store, end)
    lake_of_one_file(tmp_path / "lake", end, **more)
    covered = int(more.get("rows") == 3)  # the messages of the first file
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == covered
    lake_of_one_file(tmp_path / "lake", end)
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 5 - covered


def test_messages_that_a_lake_has_lost_are_kept(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though other files that reach into this part of the log have as many messages as the log."""
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    end = store.max_physical_offset
    archive_up_to(store, end)
    others = [{"brokers": ["a", "b"]}, {"topic": "Other"}, {"least": end, "most": end + 9}]
    lost = {"rows": 1, "least": 4097, "most": 9000, "path": "lost.parquet", "brokers": ["/", "0"]}
    lake_of_one_file(tmp_path / "lake", end, [*others, lost], rows=99)
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 1
    assert "lost.parquet" in caplog.text
    lake_of_one_file(tmp_path / "lake", end, others, rows=99)
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 4


def test_units_in_further_queues_are_no_messages_that_an_archive_lacks(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(archiving(tmp_path, enable_multi_dispatch=True, enable_lmq=True))
    stored = b"INNER_MULTI_DISPATCH\x01%LMQ%a"
    while store.max_physical_offset < 2 * 4096:
        store.put(inner(body=bytes(1000), properties=stored), 1)
    store.reput()
    assert store.max_offset("%LMQ%a", 0) == store.max_offset("T", 0)
    archive_up_to(store, store.max_physical_offset)
    assert run_round(store, 999 * HOUR_MS, hour=DAY) == 2


@pytest.mark.parametrize("percent", [50, 80, 88, 95])
def test_no_file_is_deleted_before_it_is_archived(open_store: OpenStore, tmp_path: Path, percent: float) -> None:
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    store.request_manual_deletion()
    assert run_round(store, 999 * HOUR_MS, hour=DAY, percent=percent) == 0
    archive_up_to(store, 2 * 4096 - 1)
    assert run_round(store, 999 * HOUR_MS, hour=DAY, percent=percent) == 1
    archive_up_to(store, store.max_physical_offset)
    assert run_round(store, 999 * HOUR_MS, hour=DAY, percent=percent) == 4


def test_archived_files_are_deleted_no_earlier_than_others(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(archiving(tmp_path, archive_name="mine"))
    fill(store, 6)
    archive_up_to(store, store.max_physical_offset, name="mine")
    assert run_round(store, 75 * HOUR_MS, hour=12) == 0
    assert run_round(store, 75 * HOUR_MS, hour=DAY) == 2


def test_an_archive_of_another_store_does_not_count(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    path = store.config.archive_progress_path
    assert path is not None
    end = store.max_physical_offset
    first = decode(store.record_at(0) or b"")

    def gone() -> int:
        return run_round(store, 999 * HOUR_MS, hour=DAY)

    archive_up_to(store, end, name="somebody")
    assert gone() == 0
    archive_up_to(store, end + 1)
    assert gone() == 0
    archive_up_to(store, end, last_physical_offset=0, last_msg_id="0" * 32)
    assert gone() == 0
    archive_up_to(store, end, last_physical_offset=1, last_msg_id=first.msg_id)
    assert gone() == 0
    for text in ("", "[]", "{", '{"x": 1}'):
        path.write_text(text)
        assert gone() == 0
    archive_up_to(store, end, last_physical_offset=0, last_msg_id=first.msg_id)
    assert gone() == 5


def test_a_damaged_lake_does_not_count(open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Progress outlives the files that it is about; deletion asks for these, too, as far as they matter."""
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    end = store.max_physical_offset
    archive_up_to(store, end)
    files = tmp_path / "lake" / "_rucola" / "files.json"
    rows = files.parent.parent / "rows.parquet"
    rows.write_bytes(b"messages")
    elsewhere = {"path": "gone", "size": 1, "topic": "T", "rows": 1, "least": end, "most": end + 9}

    def gone(**file: Any) -> int:
        entry = {"path": "rows.parquet", "size": 8, "topic": "T", "rows": 18, "least": 0, "most": end - 1} | file
        files.write_text(json.dumps({"rows": [elsewhere, entry]}))
        return run_round(store, 999 * HOUR_MS, hour=DAY)

    assert gone(size=9) == 0
    assert f"{rows} has 8 bytes instead of 9" in caplog.text
    assert gone(path="other.parquet") == 0
    assert "other.parquet: No such file" in caplog.text
    for content in (None, b"", b'{"rows": [{'):
        files.unlink(missing_ok=True)
        if content is not None:
            files.write_bytes(content)
        assert run_round(store, 999 * HOUR_MS, hour=DAY) == 0
    assert "nothing counts as archived" in caplog.text
    assert gone() == 5


def test_a_disk_full_of_unarchived_files_is_reported(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(archiving(tmp_path))
    fill(store, 6)
    archive_up_to(store, 5000)
    run_round(store, 1, percent=95)
    assert f"The log from 0 to {store.max_physical_offset} is archived up to 5000" in str(store.write_state.reason)


def test_archived_first_requires_an_archive_path(tmp_path: Path) -> None:
    with raises(ConfigError, subject="archiveProgressPath"):
        MessageStore(config(tmp_path / "store", delete_only_archived=True)).open(1)


# everything at once --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 40), st.sampled_from([4, 12]), st.integers(0, 100)), max_size=12
    ),
    crash=st.booleans(),
)
def test_everything_that_retention_leaves_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, int]], crash: bool
) -> None:
    """Puts and rounds in any order: queues hold exactly the records from the log's beginning on, also when reopened."""
    root = tmp_path_factory.mktemp("any") / "store"
    store = MessageStore(config(root))
    store.open(1)
    told: dict[tuple[int, int], tuple[int, int]] = {}
    now_ms = 1
    for count, hours, hour, percent in steps:
        now_ms += hours * HOUR_MS
        for n in range(count):
            message = inner(queue_id=n % 3, body=bytes(40 * n), keys=f"{n}")
            result = store.put(message, now_ms)
            if result.status is PutMessageStatus.PUT_OK:
                told[n % 3, result.queue_offset] = result.physical_offset, now_ms
            else:
                assert not store.write_state.is_writable
        begin = store.min_physical_offset
        run_round(store, now_ms, hour=hour, percent=percent)
        if hour != DAY and percent <= 75:
            assert store.min_physical_offset == begin
    if crash:
        store, left_open = crashed_copy(store, root.with_name("copy")), store
        left_open.close()
    else:
        store.close()
    store.open(1)
    begin = store.min_physical_offset
    expected = {place: offset for place, (offset, _) in told.items() if offset >= begin}
    found = {}
    for (topic, queue_id), (low, high) in store.queues().items():
        for queue_offset in range(low, high):
            (record,) = store.get(topic, queue_id, queue_offset, 1).records
            found[queue_id, queue_offset] = decode(record).physical_offset
        assert high == 1 + max(offset for number, offset in told if number == queue_id)
    assert found == expected
    store.close()
    assert check(store.config.store_path_root_dir) == []
