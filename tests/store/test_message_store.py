"""The engine: what is put can be got, found and read, on and over the edges of files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import pairwise
from mmap import mmap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.errors import ConfigError, StoreCorrupt, StoreLocked
from rucola.message import MessageInner, MessageInnerBatch, sysflag
from rucola.message.hashing import string_hash
from rucola.message.record import decode
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.store import mapped_file
from rucola.store.config import GetMessageStatus, GetResult, PutMessageStatus
from rucola.store.consume_queue import UNIT_SIZE
from rucola.store.directory_reader import StoreReader
from rucola.store.dispatch import TopicArrivals
from rucola.store.mapped_file import file_name
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild
from support.errors import raises
from support.examples import examples
from support.stores import OpenStore, batch, config, crashed_copy, inner


def bodies(records: list[bytes]) -> list[bytes]:
    return [decode(record).body for record in records]


def queue_bodies(store: MessageStore, queue_id: int = 0, topic: str = "T") -> list[bytes]:
    """The bodies of a whole queue, page by page: a get looks into one ConsumeQueue file only."""
    found: list[bytes] = []
    begin = store.min_offset(topic, queue_id)
    while (page := store.get(topic, queue_id, begin, 7)).status is GetMessageStatus.FOUND:
        found += bodies(page.records)
        begin = page.next_begin_offset
    assert page.status in (GetMessageStatus.OFFSET_OVERFLOW_ONE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
    return found


def test_a_put_message_can_be_read(open_store: OpenStore) -> None:
    store = open_store()
    results = [store.put(inner(body=b"%d" % k, queue_id=k % 2), 1000 + k) for k in range(6)]
    assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 6
    assert [result.queue_offset for result in results] == [0, 0, 1, 1, 2, 2]
    assert results[1].physical_offset == results[0].size
    got = store.get("T", 1, 0, 32)
    assert (got.status, got.next_begin_offset, got.min_offset, got.max_offset) == (GetMessageStatus.FOUND, 3, 0, 3)
    assert bodies(got.records) == [b"1", b"3", b"5"]
    assert (b"".join(got.records), len(got.records)) == (got.joined, got.count)
    message = decode(got.records[1])
    assert (message.store_timestamp, message.queue_offset, message.physical_offset) == (
        1003,
        1,
        results[3].physical_offset,
    )
    assert store.record_at(results[3].physical_offset) == got.records[1]
    assert store.queues() == {("T", 0): (0, 3), ("T", 1): (0, 3)}


def test_files_roll_without_moving_messages(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put = [
        store.put(inner(body=bytes([k]) * (100 + 37 * k % 300), keys=f"k{k}", unique_key=f"u{k}"), k)
        for k in range(100)
    ]
    assert all(result.status is PutMessageStatus.PUT_OK for result in put)
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 5
    for result in put:
        first, last = result.physical_offset // 4096, (result.physical_offset + result.size + 7) // 4096
        assert first == last, "no record spans two files or leaves no room for a blank"
    got = queue_bodies(store)
    assert got == [bytes([k]) * (100 + 37 * k % 300) for k in range(100)]
    assert [store.query("T", f"k{k}", 64).physical_offsets for k in (0, 50, 99)] == [
        [put[k].physical_offset] for k in (0, 50, 99)
    ]
    assert store.query("T", "u99", 64).index_last_update_physical_offset == put[99].physical_offset
    store.close()
    with StoreReader(tmp_path / "store") as reader:
        assert [message.body for message in reader.walk()] == got
        assert [message.keys for message in reader.query("T", "k77")] == ["k77"]
        assert reader.queues() == {("T", 0): (0, 100)}


def test_a_reopened_store_continues(open_store: OpenStore) -> None:
    for k in range(5):
        store = open_store()
        assert store.put(inner(body=b"%d" % k, keys="key"), 1000 + k).queue_offset == k
        store.close()
        assert store.put(inner(), 1).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        store.close()
    store = open_store()
    assert bodies(store.get("T", 0, 0, 32).records) == [b"%d" % k for k in range(5)]
    assert bodies(store.query("T", "key", 64).records) == [b"%d" % k for k in range(5)]
    assert store.flushed_physical_offset == store.max_physical_offset


def test_records_that_only_the_disk_has_are_found(open_store: OpenStore, tmp_path: Path) -> None:
    """With one key, over several files, of which the page cache has none; on tmpfs it has all."""
    store = open_store()
    put = [store.put(inner(body=bytes([k]) * 900, keys="key"), k).physical_offset for k in range(30)]
    store.close()
    for path in (tmp_path / "store" / "commitlog").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    store = open_store()
    found = store.query("T", "key", 64)
    assert (found.physical_offsets, bodies(found.records)) == (put, [bytes([k]) * 900 for k in range(30)])


# puts that are turned away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (inner(topic="t" * 128), PutMessageStatus.MESSAGE_ILLEGAL),
        (inner(topic=""), PutMessageStatus.MESSAGE_ILLEGAL),
        (inner(topic="../x"), PutMessageStatus.MESSAGE_ILLEGAL),
        (inner(queue_id=-1), PutMessageStatus.MESSAGE_ILLEGAL),
        (inner(flag=1 << 40), PutMessageStatus.MESSAGE_ILLEGAL),
        (inner(properties=b"p" * 32768), PutMessageStatus.PROPERTIES_SIZE_EXCEEDED),
        (inner(properties=b"p" * 4000), PutMessageStatus.MESSAGE_ILLEGAL),
    ],
)
def test_illegal_messages_leave_the_store_unchanged(
    open_store: OpenStore, tmp_path: Path, message: MessageInner, status: PutMessageStatus
) -> None:
    store = open_store(config(tmp_path / "store", max_message_size=3))
    assert store.put(inner(), 1).status is PutMessageStatus.PUT_OK, "the limit is the broker's, for what it admits"
    end = store.max_physical_offset
    assert store.put(message, 2).status is status
    assert store.put_batch(batch(message, message), 2).status is status
    assert store.max_physical_offset == end
    assert store.put(inner(), 3).queue_offset == 1


def test_batches_are_contiguous_and_atomic(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(body=bytes(3000)), 1)
    result = store.put_batch(batch(*(inner(body=b"%d" % k, keys=f"k{k}") for k in range(10))), 2)
    assert (result.status, result.queue_offsets) == (PutMessageStatus.PUT_OK, list(range(1, 11)))
    assert result.physical_offsets[0] == 4096, "the batch did not fit behind the first message"
    records = [store.record_at(physical_offset) or b"" for physical_offset in result.physical_offsets]
    assert all(b == a + len(record) for (a, b), record in zip(pairwise(result.physical_offsets), records, strict=False))
    assert sum(map(len, records)) == result.size
    assert queue_bodies(store)[1:] == [b"%d" % k for k in range(10)]
    half = inner(sys_flag=sysflag.TRANSACTION_PREPARED)
    nothing = MessageInnerBatch([], [], [], [], [], [], [], [], bytes(8), [], [], [])
    for bad in (nothing, batch(half, half), batch(inner(), inner(body=bytes(5000)))):
        assert store.put_batch(bad, 3).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.max_offset("T", 0) == 11


def test_messages_of_several_queues_are_put_together(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(topic="U", queue_id=1), 1)
    queues = [("T", 0), ("U", 1), ("T", 0), ("U", 0), ("T", 0)]
    messages = [inner(topic=topic, queue_id=queue_id, body=b"%d" % k) for k, (topic, queue_id) in enumerate(queues)]
    result = store.put_batch(batch(*messages), 2)
    assert result.queue_offsets == [0, 1, 1, 0, 2]
    assert [decode(store.record_at(at) or b"").body for at in result.physical_offsets] == [b"%d" % k for k in range(5)]
    assert queue_bodies(store) == [b"0", b"2", b"4"]
    end = store.max_physical_offset
    assert store.put_batch(batch(inner(), inner(topic="../x")), 3).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert (store.max_physical_offset, store.put(inner(), 4).queue_offset) == (end, 3)


def test_only_plain_and_committed_messages_take_a_queue_offset(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(body=b"plain"), 1)
    half = store.put(inner(body=b"half", keys="h", sys_flag=sysflag.TRANSACTION_PREPARED), 2)
    back = store.put(inner(body=b"back", keys="r", sys_flag=sysflag.TRANSACTION_ROLLBACK), 3)
    done = store.put(
        inner(body=b"done", keys="c", sys_flag=sysflag.TRANSACTION_COMMIT, prepared_transaction_offset=7), 4
    )
    assert (half.queue_offset, back.queue_offset, done.queue_offset) == (0, 0, 1)
    assert bodies(store.get("T", 0, 0, 32).records) == [b"plain", b"done"]
    assert [len(store.query("T", key, 64).records) for key in "hrc"] == [1, 0, 1]


def test_delayed_messages_keep_their_due_time(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(inner(topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\x013\x02TAGS\x01A"), 5_000)
    store.put(inner(topic=SCHEDULE_TOPIC, queue_id=17, properties=b"DELAY\x0199"), 5_000)
    store.put(inner(topic=SCHEDULE_TOPIC, queue_id=17, tags="A"), 5_000)
    store.close()
    with StoreReader(tmp_path / "store") as reader:
        assert reader.units(SCHEDULE_TOPIC, 2)["tags_code"].tolist() == [15_000]
        assert reader.units(SCHEDULE_TOPIC, 17)["tags_code"].tolist() == [7_205_000, string_hash("A")]
    with raises(ConfigError, subject="messageDelayLevel"):
        MessageStore(config(tmp_path / "other", message_delay_level="soon")).open(1)


# dispatch ------------------------------------------------------------------------------------------------------------


def test_arrivals_are_notified_once_before_a_read(open_store: OpenStore) -> None:
    arrived: list[tuple[str, dict[int, int], list[int]]] = []
    sizes: list[int] = []

    def arrive(topics: Mapping[str, TopicArrivals]) -> None:
        for topic, (queues, tags_codes, sizes_of_topic) in topics.items():
            arrived.append((topic, {queue.queue_id: queue.max_offset for queue in queues}, tags_codes))
            sizes.extend(sizes_of_topic)

    store = open_store(on_arrival=arrive)
    for k in range(3):
        store.put(inner(queue_id=k % 2, tags="A" if k else None), 1)
    assert arrived == []
    assert store.max_offset("T", 0) == 2
    assert arrived == [("T", {0: 2, 1: 1}, [0, 65, 65])]
    assert store.reput() == 0
    store.put(inner(topic="U"), 1)
    assert store.reput() == 1
    assert arrived[1:] == [("U", {0: 1}, [0])]
    assert sum(sizes) == store.max_physical_offset


def test_the_first_put_after_each_dispatch_is_notified(open_store: OpenStore) -> None:
    told: list[int] = []
    store = open_store(on_pending=lambda: told.append(store.max_physical_offset))
    store.put(inner(topic=""), 1)  # refused
    assert told == []
    ends = []
    for put in (
        lambda: store.put(inner(), 1),
        lambda: store.put_batch(batch(inner(), inner()), 1),
        lambda: store.put(inner(sys_flag=sysflag.TRANSACTION_PREPARED), 1),
    ):
        put()
        ends.append(store.max_physical_offset)
        store.put(inner(), 1)
        store.put_batch(batch(inner(), inner()), 1)
        assert told == ends
        assert store.reput(2) == 2
        store.put(inner(), 1)  # while some are pending still
        assert told == ends
        store.reput()


messages = st.lists(
    st.tuples(
        st.sampled_from(["A", "Bb", "Ünder"]),
        st.integers(0, 2),
        st.binary(max_size=200),
        st.sampled_from(["", "k1", "k1 k2", "Aa BB  Aa", "polygenelubricants"]),
        st.booleans(),
        st.integers(0, 20_000),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(messages, st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_batched_dispatch_equals_single_dispatch(
    tmp_path_factory: pytest.TempPathFactory, put: list[tuple[str, int, bytes, str, bool, int]], batches: list[int]
) -> None:
    root = tmp_path_factory.mktemp("dispatch")
    stores = []
    for name, sizes in (("one", [1]), ("many", batches)):
        store = MessageStore(config(root / name))
        store.open(1)
        now_ms, left = 1_000_000, 0
        for number, (topic, queue_id, body, keys, unique, later) in enumerate(put):
            now_ms += later
            unique_key = f"U{number}" if unique else None
            store.put(inner(topic, queue_id, body, keys=keys or None, unique_key=unique_key), now_ms)
            if not left:
                store.reput()
                left = sizes[number % len(sizes)]
            left -= 1
        store.close()
        assert check(root / name) == []
        stores.append(
            {
                str(path.relative_to(root / name)): path.read_bytes()
                for path in (root / name).rglob("*")
                if path.is_file()
            }
        )
    assert stores[0] == stores[1]


# reading -------------------------------------------------------------------------------------------------------------


def test_get_answers_as_apache_does(open_store: OpenStore) -> None:
    store = open_store()
    page = store.get("T", 0, 5, 32)
    assert page == GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, b"", 0)
    for k in range(12):
        store.put(inner(tags="odd" if k % 2 else "even", body=b"%d" % k), k)
    small, one, badly = (store.get("T", 0, queue_offset, 32) for queue_offset in (-1, 12, 13))
    assert (small.status, small.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 0)
    assert (one.status, one.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 12)
    assert (badly.status, badly.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 12)
    odd = string_hash("odd")
    page = store.get("T", 0, 0, 2, accepts=lambda code: code == odd)
    assert (bodies(page.records), page.next_begin_offset) == ([b"1", b"3"], 4)
    page = store.get("T", 0, 4, 32, accepts=lambda code: code == 1)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 10), "to the end of the file"
    page = store.get("T", 0, 0, 2, accepts=lambda code: code == odd, matches=lambda pairs: pairs == {"TAGS": "odd"})
    assert (bodies(page.records), page.next_begin_offset) == ([b"1", b"3"], 4)
    page = store.get("T", 0, 0, 2, accepts=lambda code: code == odd, matches=lambda pairs: "TAGS" not in pairs)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 10)
    size = len(store.get("T", 0, 0, 1).records[0])
    assert len(store.get("T", 0, 0, 32, max_bytes=3 * size).records) == 3
    assert len(store.get("T", 0, 0, 32, max_bytes=1).records) == 1, "one always goes"
    assert len(store.get("T", 0, 0, 0).records) == 1


@pytest.mark.parametrize(("byte", "bit"), [(0, 7), (2, 0), (6, 1), (7, 0), (8, 7), (9, 0), (11, 0), (11, 6)])
def test_a_unit_that_points_elsewhere_is_skipped(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, byte: int, bit: int
) -> None:
    """Who reads gets the messages of the queue and no other bytes, and the store says where one is missing."""
    store = open_store()
    for number in range(9):
        store.put(inner(queue_id=number % 2, body=b"%d" % number), 1)
    store.reput()
    with (tmp_path / "store" / "consumequeue" / "T" / "0" / file_name(0)).open("r+b") as file:
        file.seek(2 * UNIT_SIZE + byte)
        (value,) = file.read(1)
        file.seek(2 * UNIT_SIZE + byte)
        file.write(bytes([value ^ 1 << bit]))
    for _ in range(2):
        page = store.get("T", 0, 0, 32)
        found, end = bodies(page.records), page.next_begin_offset
        while (page := store.get("T", 0, end, 32)).status is not GetMessageStatus.OFFSET_OVERFLOW_ONE:
            found, end = found + bodies(page.records), page.next_begin_offset
        assert (found, end) == ([b"0", b"2", b"6", b"8"], 5)
    page = store.get("T", 0, 2, 1)
    assert (page.status, bodies(page.records), page.next_begin_offset) == (GetMessageStatus.FOUND, [b"6"], 4)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told.startswith("T-0: the unit at queue offset 2 does not point at its message")
    store.close()
    rebuild(tmp_path / "store", settings=store.config)
    with MessageStore(store.config) as again:
        assert bodies(again.get("T", 0, 0, 32).records) == [b"0", b"2", b"4", b"6", b"8"]
    assert check(tmp_path / "store") == []


def test_a_read_from_disk_is_smaller_than_one_from_memory(open_store: OpenStore) -> None:
    store = open_store()
    store.config.max_transfer_count_on_message_in_disk, store.config.access_message_in_memory_max_ratio = 3, 0
    for k in range(9):
        store.put(inner(body=b"%d" % k), k)
    size = len(store.get("T", 0, 0, 1).records[0])
    assert bodies(store.get("T", 0, 0, 32).records) == [b"0", b"1", b"2"]
    store.config.max_transfer_bytes_on_message_in_disk = 2 * size
    assert bodies(store.get("T", 0, 0, 32).records) == [b"0", b"1"]
    store.config.access_message_in_memory_max_ratio = 40
    assert len(store.get("T", 0, 0, 32).records) == 9
    store.config.max_transfer_count_on_message_in_memory = 4
    assert len(store.get("T", 0, 0, 32).records) == 4
    store.config.max_transfer_bytes_on_message_in_memory = 3 * size
    assert len(store.get("T", 0, 0, 32).records) == 3


def test_search_by_time_finds_offsets(open_store: OpenStore) -> None:
    store = open_store()
    assert (store.offset_by_time("T", 0, 5), store.earliest_store_time("T", 0), store.store_time("T", 0, 0)) == (
        0,
        -1,
        -1,
    )
    for now_ms in range(1000, 1000 + 25 * 10, 10):
        store.put(inner(), now_ms)
    assert store.earliest_store_time("T", 0) == 1000
    assert [store.store_time("T", 0, k) for k in (0, 24, 25, -1)] == [1000, 1240, -1, -1]
    expected = {0: 0, 1000: 0, 1004: 0, 1005: 0, 1006: 1, 1100: 10, 1239: 24, 1240: 24, 9999: 24}
    assert {time_ms: store.offset_by_time("T", 0, time_ms) for time_ms in expected} == expected


# to disk -------------------------------------------------------------------------------------------------------------


def test_flush_returns_the_flushed_offset(open_store: OpenStore) -> None:
    store = open_store()
    assert store.flushed_physical_offset == 0
    for k in range(50):
        store.put(inner(body=bytes(200)), k)
    assert store.flushed_physical_offset == 0
    end = store.max_physical_offset
    thread = threading.Thread(target=store.flush)
    thread.start()
    store.put(inner(), 99)
    thread.join()
    assert end <= store.flushed_physical_offset <= store.max_physical_offset
    store.flush()
    assert store.flushed_physical_offset == store.max_physical_offset


def test_a_flush_syncs_only_pages_written_since_the_last(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    sync_pages = mapped_file.sync_pages
    flushed: list[tuple[int, int]] = []

    def note(mapped: mmap, begin: int, end: int) -> None:
        flushed.append((begin, end))
        sync_pages(mapped, begin, end)

    monkeypatch.setattr(mapped_file, "sync_pages", note)
    first = store.put(inner(), 1)
    store.warm()
    store.flush()
    second = store.put(inner(), 2)
    store.flush()
    assert flushed == [(0, first.size), (first.size, first.size + second.size)]
    flushed.clear()
    size = store.config.mapped_file_size_commit_log
    while (last := store.put(inner(), 3)).physical_offset < size:
        pass
    store.flush()
    assert flushed == [(first.size + second.size, size), (0, last.size)], "with the blank, and the file behind it"


def test_warming_changes_no_content(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config(tmp_path / "store", mapped_file_size_commit_log=1 << 20))
    store.warm()
    for k in range(20):
        store.put(inner(body=bytes([k]) * 1000), k)
        store.warm()
    assert queue_bodies(store) == [bytes([k]) * 1000 for k in range(20)]


# one broker a directory ----------------------------------------------------------------------------------------------


def test_a_second_store_on_a_directory_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    with pytest.raises(StoreLocked):
        MessageStore(config(tmp_path / "store")).open(1)
    program = (
        "import sys; from rucola.store.directory_lock import DirectoryLock; from pathlib import Path; "
        "DirectoryLock(Path(sys.argv[1]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert "StoreLocked" in other.stderr, "not even after the attempt within this process"
    store.close()
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], check=False).returncode == 0


def test_file_sizes_other_than_configured_are_named(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(inner(keys="k"), 1)
    store.put(inner(body=bytes(3900)), 1)
    store.close()
    for setting in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_hash_slot_num"):
        with pytest.raises(StoreCorrupt):
            MessageStore(config(tmp_path / "store", **{setting: 2000})).open(1)
    assert queue_bodies(open_store()) == [b"body", bytes(3900)]


# crashes -------------------------------------------------------------------------------------------------------------


def test_a_crash_loses_nothing_written_to_the_kernel(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for k in range(60):
        store.put(inner(body=b"%d" % k, queue_id=k % 3, keys=f"k{k} all"), 10_000 * k)
        if k == 30:
            store.checkpoint()
        if k % 7 == 0:
            store.reput()
    after = crashed_copy(store, tmp_path / "crashed")
    assert check(tmp_path / "crashed") != []
    after.open(700_000)
    assert after.queues() == {("T", k): (0, 20) for k in range(3)}
    assert queue_bodies(after, 1) == [b"%d" % k for k in range(1, 60, 3)]
    assert len(after.query("T", "all", 64).records) == 60
    assert [len(after.query("T", f"k{k}", 64).records) for k in range(60)] == [1] * 60
    assert after.put(inner(queue_id=2), 700_000).queue_offset == 20
    after.close()
    assert check(tmp_path / "crashed") == []


def test_a_clock_that_was_set_back_does_not_advance_the_checkpoint(open_store: OpenStore, tmp_path: Path) -> None:
    """Files that begin before the time of the checkpoint are taken for flushed, so it goes back with the clock."""
    store = open_store()
    for k in range(5):
        store.put(inner(body=bytes(500)), 1_000_000 + k)
    store.reput()
    store.checkpoint()
    for k in range(12):
        store.put(inner(body=bytes(500)), 10_000 + k)
    store.put(inner(), 14_000)
    store.reput()
    store.checkpoint()
    lost = [store.put(inner(body=bytes(500)), 15_000 + k).physical_offset for k in range(20)]
    store.reput()
    after = crashed_copy(store, tmp_path / "crashed")
    with (tmp_path / "crashed" / "commitlog" / f"{lost[0] // 4096 * 4096:020d}").open("r+b") as file:
        file.seek(lost[0] % 4096)
        file.write(bytes(500))
    after.open(20_000)
    assert after.max_physical_offset == lost[0]
    assert after.queues() == {("T", 0): (0, 18)}
    after.close()
    assert check(tmp_path / "crashed") == []


@pytest.mark.slow
def test_a_log_cut_at_any_byte_keeps_all_earlier_records(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    results = [store.put(inner(body=b"%d" % k, keys=f"k{k}"), 1000 * k) for k in range(3)]
    store.reput()
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    whole = log.read_bytes()
    last = results[-1]
    for cut in range(last.physical_offset, last.physical_offset + last.size):
        after = crashed_copy(store, tmp_path / f"cut{cut}")
        (tmp_path / f"cut{cut}" / "commitlog" / log.name).write_bytes(whole[:cut].ljust(len(whole), b"\0"))
        after.open(9000)
        assert after.max_physical_offset == last.physical_offset
        assert after.queues() == {("T", 0): (0, 2)}
        assert after.put(inner(body=b"new"), 9000).queue_offset == 2
        after.close()
        assert check(tmp_path / f"cut{cut}") == []


def test_stale_records_behind_a_truncation_never_reappear(open_store: OpenStore, tmp_path: Path) -> None:
    """Five records of one size, the second damaged: what lies behind must not continue a new second one."""
    store = open_store()
    results = [store.put(inner(body=b"old %d" % k), 1000 * k) for k in range(5)]
    after = crashed_copy(store, tmp_path / "crashed")
    log = tmp_path / "crashed" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[results[1].physical_offset + 90] ^= 1
    log.write_bytes(data)
    after.open(9000)
    assert after.put(inner(body=b"new 1"), 9000).size == results[1].size
    again = crashed_copy(after, tmp_path / "again")
    again.open(9001)
    assert bodies(again.get("T", 0, 0, 32).records) == [b"old 0", b"new 1"]
    for one in (after, again):
        one.close()
    assert check(tmp_path / "crashed") == check(tmp_path / "again") == []


def test_a_recreated_topic_starts_at_offset_zero(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for k in range(30):
        store.put(inner(body=b"%d" % k), k)
    store.close()
    for file in (tmp_path / "store" / "consumequeue" / "T" / "0").iterdir():
        file.unlink()
    (tmp_path / "store" / "consumequeue" / "T" / "0").rmdir()
    (tmp_path / "store" / "consumequeue" / "T").rmdir()
    store = open_store()
    assert store.queues() == {("T", 0): (0, 30)}, "the log remembers"


def test_contradicting_queues_are_rebuilt_even_after_a_clean_stop(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for k in range(8):
        store.put(inner(body=b"%d" % k, keys=f"k{k}"), 1000 * k)
    store.close()
    path = tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[7 * 20 + 8 : 7 * 20 + 12] = (50).to_bytes(4, "big")
    path.write_bytes(data)
    assert queue_bodies(open_store()) == [b"%d" % k for k in range(8)]


def test_the_next_record_is_found_from_every_place(open_store: OpenStore) -> None:
    """Within records, whose bodies contain the magic, and in the blanks at the ends of files."""
    store = open_store()
    bodies = [b"\xda\xa3\x20\xa7" * size for size in (10, 700, 40, 900, 1, 500)]
    begins = [store.put(inner(body=body), 1000).physical_offset for body in bodies]
    assert begins == sorted(set(begins))
    end = store.max_physical_offset
    assert store.next_record(end) == end
    for physical_offset in range(0, end, 3):
        expected = min([begin for begin in begins if begin >= physical_offset], default=end)
        assert store.next_record(physical_offset) == expected


def test_a_read_dispatches_only_what_its_own_queue_needs(open_store: OpenStore) -> None:
    store = open_store()
    store.put(inner(topic="other"), 1)
    store.put(inner(queue_id=1), 2)
    assert store.max_offset("T", 0) == 0
    assert store.pending_count == 2
    assert store.max_offset("T", 1) == 1
    assert store.pending_count == 0
    store.put(inner(queue_id=1), 3)
    last = store.put(inner(queue_id=1), 4)
    names = [("T", 0), ("T", 1), ("other", 0)]
    assert store.visible_ends(names) == [0, 3, 1]
    store.visible_end = last.physical_offset
    assert store.visible_ends(names) == [store.max_offset(*name, visible=True) for name in names] == [0, 2, 1]
