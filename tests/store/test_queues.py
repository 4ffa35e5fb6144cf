"""ConsumeQueues, found and opened: where each ends, and what thousands of them take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.errors import StoreCorrupt
from rucola.message import sysflag
from rucola.store import consume_queue, mapped_file
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import PutMessageStatus
from rucola.store.consume_queue import UNIT_SIZE, ConsumeQueue, MappingPool, open_queues, pack_unit
from rucola.store.dispatch import CommitLogDispatcher, ConsumeQueues, TopicArrivals
from rucola.store.dispatch_request import DispatchRequest
from rucola.store.mapped_file import PAGE_SIZE, MappedFileQueue, file_name
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from simulation.disk import mapped_path
from support.examples import examples
from support.stores import OpenStore, config, crashed_copy, inner, sound_store

PER_FILE = 3 * PAGE_SIZE // 4


def _units(count: int) -> bytes:
    return b"".join(pack_unit(100 * number, 100, 0) for number in range(count))


@settings(max_examples=examples(150))
@given(count=st.integers(0, PER_FILE), written=st.sampled_from(["sparse", "with blocks", "whole", "a page more"]))
def test_the_end_of_a_queue_is_found_wherever_its_holes_are(
    tmp_path_factory: pytest.TempPathFactory, count: int, written: str
) -> None:
    """Apache's files have holes behind the units, copies may have none, and ours have blocks that were asked for."""
    directory = tmp_path_factory.mktemp("queues") / "T" / "0"
    directory.mkdir(parents=True)
    path, size = directory / file_name(0), PER_FILE * UNIT_SIZE
    units = _units(count)
    with path.open("wb") as file:
        file.write(units)
        if written == "whole":
            file.write(bytes(size - len(units)))
        elif written == "a page more":
            file.write(bytes(min(PAGE_SIZE, size - len(units))))
        file.truncate(size)
        if written == "with blocks":
            os.posix_fallocate(file.fileno(), 0, size)
    queue = ConsumeQueue("T", 0, MappedFileQueue.open(directory))
    assert (queue.min_offset, queue.max_offset) == (0, count)
    assert count == 0 or queue.unit(count - 1) == (100 * (count - 1), 100, 0)
    for physical_offset in (0, 100 * count // 2, 100 * count - 100, 100 * count):
        first = queue.first_at_or_after(physical_offset)
        assert (first, count - first) == (max(-(-physical_offset // 100), 0), queue.count_at_or_after(physical_offset))
    queue.files.close()


UNITS_PER_FILE = 5


def _naive_search(times: list[int], begin: int, timestamp_ms: int) -> int:
    """What a search by time returns, found by looking at every message from `begin` on."""
    at = [offset for offset in range(begin, len(times)) if times[offset] == timestamp_ms]
    before = [offset for offset in range(begin, len(times)) if times[offset] < timestamp_ms]
    after = [offset for offset in range(begin, len(times)) if times[offset] > timestamp_ms]
    if at:
        return at[0]
    return min([*before[-1:], *after[:1]], key=lambda offset: abs(times[offset] - timestamp_ms))


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=4 * UNITS_PER_FILE),
    gone=st.integers(0, 4 * UNITS_PER_FILE - 1),
    timestamp_ms=st.integers(-1, 45),
)
def test_search_by_time_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], gone: int, timestamp_ms: int
) -> None:
    """Equal times may continue in the next file, and the log may have lost the first messages."""
    times = [1 + sum(steps[: number + 1]) for number in range(len(steps))]
    begin = min(gone, len(times) - 1)
    directory = tmp_path_factory.mktemp("queues") / "T" / "0"
    directory.mkdir(parents=True)
    queue = ConsumeQueue("T", 0, MappedFileQueue(directory, UNITS_PER_FILE * UNIT_SIZE, []))
    queue.append(0, _units(len(times)))
    queue.raise_min_offset(100 * begin)
    found = queue.nearest_offset(timestamp_ms, lambda physical_offset: times[physical_offset // 100])
    assert found == _naive_search(times, begin, timestamp_ms)
    queue.files.close()


def test_search_by_time_does_not_pass_a_record_that_the_log_lacks(tmp_path: Path) -> None:
    (tmp_path / "T" / "0").mkdir(parents=True)
    queue = ConsumeQueue("T", 0, MappedFileQueue(tmp_path / "T" / "0", UNITS_PER_FILE * UNIT_SIZE, []))
    queue.append(0, _units(9))
    times = [10, 20, 30, 40, -1, 60, 70, 80, 90]
    found = {at: queue.nearest_offset(at, lambda offset: times[offset // 100]) for at in (10, 20, 40, 80)}
    assert found == {10: 0, 20: 1, 40: 3, 80: 4}
    queue.files.close()


def test_idle_queue_takes_no_descriptor_and_busy_one_takes_one(open_store: OpenStore, tmp_path: Path) -> None:
    """A process has a thousand descriptors where nobody asked for more, and a broker may have ten thousand queues."""
    names = [(f"Topic{number // 8}", number % 8) for number in range(200)]
    sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 6000}
    store = open_store(config(tmp_path / "store", **sizes))
    for topic, queue_id in names:
        store.put(inner(topic, queue_id), 1)
    for _ in range(40):
        store.put(inner("Busy", body=bytes(8000)), 1)
    store.close()
    before = _descriptors()
    store = open_store(config(tmp_path / "store", **sizes))
    opened = _descriptors() - before
    assert opened < 30, "the log, the index and what is in the log's last file"
    assert store.queues() == {**dict.fromkeys(names, (0, 1)), ("Busy", 0): (0, 40)}
    for topic, queue_id in names:
        store.put(inner(topic, queue_id), 2)
    store.checkpoint()
    assert _descriptors() - before <= opened + len(names)
    store.close()
    assert _descriptors() == before


def test_the_checkpoint_advances_after_all_queues_were_flushed(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()

    def vouched_ms() -> tuple[int, int]:
        point = Checkpoint(tmp_path / "store" / "checkpoint")
        return point.physic_timestamp, point.logics_timestamp

    for queue_id in range(5):
        store.put(inner(queue_id=queue_id), 10_000 + queue_id)
    store.reput()
    store.checkpoint(2)
    store.put(inner(queue_id=7), 20_000)
    store.put(inner(queue_id=8), 20_001)
    store.reput()
    store.checkpoint(2)
    assert vouched_ms() == (20_001, 0), "one of the five queues has not been flushed"
    store.checkpoint(2)
    assert vouched_ms() == (20_001, 10_004), "nobody has flushed the sixth"
    store.checkpoint(1)
    assert vouched_ms() == (20_001, 10_004)
    store.put(inner(queue_id=9), 30_000)
    store.checkpoint()
    assert vouched_ms() == (30_000, 20_001), "what is not dispatched is in no queue"
    store.reput()
    store.checkpoint()
    assert vouched_ms() == (30_000, 30_000)


def test_recovery_does_not_write_to_intact_queues(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand queues most are whole after a crash, and each file that is made anew or synced takes a while."""
    store = open_store()
    for number in range(60):
        store.put(inner(queue_id=number % 4), number)
    store.reput()
    after = crashed_copy(store, tmp_path / "after")
    files = list((tmp_path / "after" / "consumequeue").glob("*/*/*"))
    for number, file in enumerate(files):
        os.link(file, tmp_path / f"{number}")
        os.utime(file, (1, 1))
    synced = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(mapped_file, "sync_pages", lambda mapped, begin, end: synced.append(mapped_path(mapped)))
    with after:
        assert {path for path in synced if "consumequeue/T/" in path} == set()
        assert {file.stat().st_mtime for file in files} == {1}
        assert after.queues() == {("T", queue_id): (0, 15) for queue_id in range(4)}
        for queue_id in range(4):
            after.put(inner(queue_id=queue_id), 99)
        after.checkpoint()
        assert {str(file) for file in files} <= set(synced), "a process that is killed has synced nothing"
    assert (len(files), {file.stat().st_nlink for file in files}) == (8, {2})
    assert check(tmp_path / "after") == []


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(
    begin=st.sampled_from([0, 3, 10, 25]),
    count=st.integers(0, 35),
    rewound=st.integers(0, 60),
    again_at=st.sampled_from([0, 3, 10, 25, 40]),
    again=st.integers(0, 35),
    same=st.integers(0, 35),
    limit=st.sampled_from([0, 1, 100]),
)
def test_a_rewound_queue_equals_one_written_that_far(
    tmp_path_factory: pytest.TempPathFactory,
    begin: int,
    count: int,
    rewound: int,
    again_at: int,
    again: int,
    same: int,
    limit: int,
) -> None:
    """Whatever comes after a rewind, the same units for a while, others then: nothing of before is left behind it."""
    directory, pool = tmp_path_factory.mktemp("queues") / "T" / "0", MappingPool(limit)
    before = [(1000 + number, 10, number) for number in range(begin, begin + count)]
    queue = ConsumeQueue("T", 0, MappedFileQueue(directory, 200, []), pool=pool)
    if before:
        queue.append(begin, b"".join(pack_unit(*unit) for unit in before))
    queue.files.close()
    queue = ConsumeQueue("T", 0, MappedFileQueue.open(directory, writable=True, file_size=200), pool=pool)
    queue.rewind(rewound)
    kept = [unit for unit in before if rewound > begin and unit[2] < rewound]
    first = kept[-1][2] + 1 if kept else again_at
    after = [(1000 if number - first < same else 5000, 10, number) for number in range(first, first + again)]
    after = [(address + number, size, number) for address, size, number in after]
    for unit in after:
        queue.append(unit[2], pack_unit(*unit))
        queue.unmap_if_idle()
    queue.finish_rewind()
    queue.flush()
    queue.files.close()
    queue = ConsumeQueue("T", 0, MappedFileQueue.open(directory))
    units = kept + after
    assert [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)] == units
    assert (queue.min_offset, queue.max_offset) == ((units[0][2], units[-1][2] + 1) if units else (0, 0))
    for file in queue.files:
        assert file.is_zero_from(min(max(queue.max_offset * UNIT_SIZE - file.begin, 0), file.size))
    queue.files.close()


@pytest.mark.parametrize("setting", ["LimitNOFILE", "vm.max_map_count"])
def test_a_full_pool_names_the_setting_that_limits_it(
    setting: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consume_queue, "descriptor_limit", lambda: 8 if setting == "LimitNOFILE" else 9)
    monkeypatch.setattr(consume_queue, "mapping_limit", lambda: 17 - consume_queue.descriptor_limit())
    store = open_store()
    for queue_id in range(3):
        assert store.put(inner(queue_id=queue_id), 1).status is PutMessageStatus.PUT_OK
        store.reput()
    pool = store.mapping_pool
    assert (pool.limited_by, pool.limit, pool.count) == (setting, 2, 2)
    pool.unmap_idle()
    assert [record.args for record in caplog.records] == [(2, setting, setting)]
    pool.unmap_idle()
    assert (pool.count, len(caplog.records)) == (0, 1), "idle queues give way"


def test_files_of_idle_queues_are_unmapped_and_flushed_all_the_same(tmp_path: Path) -> None:
    pool = MappingPool(4)
    queues = [
        ConsumeQueue("T", number, MappedFileQueue(tmp_path / "T" / str(number), 200, []), pool=pool)
        for number in range(6)
    ]

    def mapped() -> list[bool]:
        return [file.is_mapped for queue in queues for file in queue.files]

    for queue in queues:
        queue.append(0, pack_unit(1000, 10, 1))
    assert mapped() == [True] * 4 + [False] * 2
    pool.unmap_idle()
    queues[0].append(1, pack_unit(1010, 10, 2))
    assert queues[1].unit(0) == (1000, 10, 1)
    held = queues[2].files.files[0]
    held.hold()  # by a flush in another thread
    pool.unmap_idle()
    assert mapped() == [True, True, True, False, False, False]
    held.release()
    for queue in queues:
        queue.append(queue.max_offset, pack_unit(2000, 10, 3))
        queue.flush()
    assert mapped() == [True] * 4 + [False] * 2
    for queue in queues:
        queue.files.close()
        again = ConsumeQueue("T", queue.queue_id, MappedFileQueue.open(queue.files.directory))
        assert again.units(0, 9)["tags_code"].tolist() == ([1, 2, 3] if queue is queues[0] else [1, 3])


def test_a_large_backlog_is_dispatched_in_parts(open_store: OpenStore) -> None:
    store = open_store()
    prepared = inner("Half", 0, sys_flag=sysflag.TRANSACTION_PREPARED)
    for message in (inner(queue_id=0), inner(queue_id=0), inner(queue_id=1), prepared, inner(queue_id=2), inner()):
        assert store.put(message, 1).status is PutMessageStatus.PUT_OK
    assert (store.reput(None, 2), store.has_pending) == (4, True)
    assert store.put(inner(queue_id=3), 1).status is PutMessageStatus.PUT_OK
    assert (store.reput(9, 1), store.has_pending) == (2, True), "the third queue, and one that is there"
    assert (store.reput(9, 1), store.has_pending) == (1, False)
    for queue_id in range(10, 20):
        store.put(inner(queue_id=queue_id), 1)
    assert (store.reput(3), store.has_pending) == (3, True)
    assert (store.reput(3, 1), store.has_pending) == (1, True)
    assert store.max_offset("T", 19) == 1, "who reads does not wait for turns"
    assert not store.has_pending
    assert store.queues() == {("T", queue_id): (0, 1 + 2 * (queue_id == 0)) for queue_id in [*range(4), *range(10, 20)]}


def test_arrivals_of_a_part_can_be_read_in_the_callback(open_store: OpenStore) -> None:
    """A held pull reads when it hears of a message; that must not dispatch what follows before its turn."""
    seen: list[tuple[int, int]] = []

    def arrive(topics: Mapping[str, TopicArrivals]) -> None:
        for queue in topics["T"][0]:
            seen.append((queue.queue_id, store.max_offset("T", queue.queue_id)))

    store = open_store(on_arrival=arrive)
    for queue_id in (0, 1, 1, 0):
        store.put(inner(queue_id=queue_id), 1)
    assert (store.reput(2), store.has_pending) == (2, True)
    assert (store.reput(), store.has_pending) == (2, False)
    assert seen == [(0, 1), (1, 1), (1, 2), (0, 2)]


def test_arrivals_are_equal_for_one_queue_and_many(open_store: OpenStore) -> None:
    """A batch is written one by one or queue by queue, as the one before it had many queues or few."""
    told: list[dict[str, tuple[dict[int, int], list[int]]]] = []
    sizes: list[int] = []
    put: list[int] = []

    def arrive(topics: Mapping[str, TopicArrivals]) -> None:
        told.append({})
        for topic, (queues, tags_codes, sizes_of_topic) in topics.items():
            told[-1][topic] = {queue.queue_id: queue.max_offset for queue in queues}, sorted(tags_codes)
            sizes.extend(sizes_of_topic)

    store = open_store(on_arrival=arrive)
    for queue_count in (16, 16, 2, 2, 16):
        for number in range(16):
            put.append(store.put(inner("TU"[number % 2], number % queue_count, tags="AB"[number // 8]), 1).size)
        store.reput()
    codes = [65] * 4 + [66] * 4
    assert told == [
        {topic: ({queue_id: end for queue_id, end in enumerate(ends) if end}, codes) for topic, ends in of.items()}
        for of in (
            {"T": [1, 0] * 8, "U": [0, 1] * 8},
            {"T": [2, 0] * 8, "U": [0, 2] * 8},
            {"T": [10], "U": [0, 10]},
            {"T": [18], "U": [0, 18]},
            {"T": [19, 0, *[3, 0] * 7], "U": [0, 19, *[0, 3] * 7]},
        )
    ]
    assert sorted(sizes) == sorted(put)


def test_a_recreated_queue_gets_its_units(tmp_path: Path) -> None:
    queues = ConsumeQueues(tmp_path, PER_FILE * UNIT_SIZE)
    dispatcher = CommitLogDispatcher(queues, None, ())
    pending = [DispatchRequest("T", k, 0, 100 * k, 100, 1, 0, 0, None, None, b"") for k in range(8)]
    for batch in (pending, pending[:1]):
        dispatcher.add_units(batch, set())
        for (_, queue_id), queue in list(queues.items()):
            assert queue.max_offset == 1
            queue.delete()
            del queues["T", queue_id]
    assert not queues
    assert not list(tmp_path.iterdir())


def test_queues_are_opened_in_the_order_of_topic_and_number(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for topic in ("b", "a", "c"):
        for queue_id in (10, 9, 0):
            store.put(inner(topic, queue_id), 1)
    store.close()
    (tmp_path / "store" / "consumequeue" / "a" / "file").touch()
    queues = open_queues(tmp_path / "store" / "consumequeue")
    assert list(queues) == [(topic, queue_id) for topic in "abc" for queue_id in (0, 9, 10)]
    assert {queue.max_offset for queue in queues.values()} == {1}
    (tmp_path / "store" / "consumequeue" / "a" / "file").unlink()
    assert open_queues(tmp_path / "nowhere") == {}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_queue_with_few_messages_takes_one_block(tmp_path: Path) -> None:
    """Thousands of topics with one message each took 64 KiB each."""
    store = MessageStore(config(tmp_path, mapped_file_size_consume_queue=6_000_000))
    sizes: list[int] = []
    with store:
        for number in range(9_000):
            store.put(inner(body=b""), 1)
            if number in (0, 204, 205, 8_999):
                store.reput()
                (file,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
                sizes.append(file.stat().st_blocks * 512)
        assert file.stat().st_size == 6_000_000
    assert sizes[:3] == [4096, 8192, 8192]
    assert 180_000 <= sizes[3] <= 4 * 65536
    assert check(tmp_path) == []


def test_a_queue_file_that_is_truncated_under_the_broker_is_refused_and_not_mapped(tmp_path: Path) -> None:
    """A mapping beyond the end of its file would end the process."""
    root = tmp_path / "store"
    with MessageStore(config(root, mapped_file_size_consume_queue=4000)) as store:
        for _ in range(900):
            store.put(inner(body=b""), 1)
    file = root / "consumequeue" / "T" / "0" / file_name(0)
    whole = file.read_bytes()
    with MessageStore(store.config) as store:
        os.truncate(file, 1000)
        with pytest.raises(StoreCorrupt):
            store.get("T", 0, 100, 1)
        file.write_bytes(whole)
        assert len(store.get("T", 0, 100, 1).records) == 1
    assert check(root) == []


def test_the_end_before_a_physical_offset_is_behind_the_last_record_that_ends_there(tmp_path: Path) -> None:
    with sound_store(tmp_path / "s") as store:
        ends = []
        for number in range(20):
            store.put(inner("T", 0, bytes(7 * number)), 1000)
            ends.append(store.max_physical_offset)
        store.reput()
        (queue,) = store.consume_queues()
        for end in range(0, ends[-1] + 50, 3):
            assert queue.end_before(end) == len([one for one in ends if one <= end])
        assert queue.end_before(None) == len(ends)
