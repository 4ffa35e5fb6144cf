"""What C does with the files of a store: byte by byte what Python does, on files and units of any kind."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import slices, speed
from rucola.message import MessageExt, MessageInner, sysflag
from rucola.message.record import decode, decode_many, encode
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.store.commit_log import CommitLog
from rucola.store.consume_queue import first_unit, pack_unit
from rucola.store.dispatch import CommitLogDispatcher, ConsumeQueues, index_entries_of, read_run
from rucola.store.dispatch_request import DispatchRequest, read_dispatch_request, read_requests
from rucola.store.index import MAX_LONG, IndexFile
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.query import latest_records
from rucola.store.read_batch import read_batch, read_usual
from rucola.store.scan import RecordRun, ScanEnd, scan_file
from support.accelerator import assert_same, use

KEYS = st.sampled_from([None, "", "k", "a b", "  a  b ", "\u00e4 \U0001f355", "Aa BB", "\udcff", "x" * 40])
NUMBERS = st.sampled_from([0, 1, 300, 2**31, 2**40, 2**63 - 1])
REQUESTS = st.lists(
    st.builds(
        DispatchRequest,
        st.sampled_from(["T", "Topic", "\u00e4", SCHEDULE_TOPIC] + ["T"] * 6),
        st.integers(0, 2),
        NUMBERS,
        NUMBERS,
        st.sampled_from([91, 300, 2**31 - 1]),
        NUMBERS,
        st.sampled_from([0, 0, 0, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK]),
        st.integers(-(2**31), 2**31 - 1),
        KEYS,
        KEYS,
        st.just(b"DELAY\x011"),
    ),
    min_size=1,
    max_size=12,
)


@given(REQUESTS)
def test_units_by_queue(requests: list[DispatchRequest]) -> None:
    dispatcher = CommitLogDispatcher(ConsumeQueues(Path("none"), 20), None, [1000])
    assert_same(lambda: list(dispatcher.units_by_queue(requests).items()))


@given(REQUESTS)
def test_both_make_the_same_index_entries(requests: list[DispatchRequest]) -> None:
    columns = assert_same(lambda: [column.tolist() for column in index_entries_of(requests)])
    assert len(set(map(len, columns))) == 1


def test_the_usual_requests_are_dispatched_in_c() -> None:
    request = DispatchRequest("T", 1, 7, 300, 91, 5, 0, -3, "U", "a b", b"")
    if speed.units_by_queue is not None and speed.index_entries is not None:
        units = pack_unit(300, 91, -3)
        assert speed.units_by_queue([request], frozenset()) == {("T", 1): (7, units, [-3], [91])}
        assert speed.units_by_queue([request], frozenset({"T"})) is None
        assert speed.index_entries([request, object()]) is None
        assert speed.index_entries([request]) is not None


SLOTS, ENTRIES = 5, 12
HASHES = st.integers(0, 20) | st.sampled_from([2**31 - 1])
TIMES = st.sampled_from([-1, 0, 999, 1000, 5_500, 2**41, 2**62])
ENTRY_LISTS = st.lists(st.tuples(HASHES, NUMBERS, TIMES), max_size=ENTRIES)


def _twice(folder: Path, work: Callable[[IndexFile], Any]) -> tuple[Any, bytes]:
    """Do the same on two new files, with the accelerator and without; return the result and the file."""
    found = []
    for number, extension in enumerate((None, True)):
        path = folder / str(number)
        path.unlink(missing_ok=True)
        index = IndexFile.create(path, SLOTS, ENTRIES)
        try:
            if extension:
                result = work(index)
            else:
                with use(None):
                    result = work(index)
            found.append((result, index.file.map[:]))
        finally:
            index.file.close()
    assert found[0] == found[1]
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


@given(ENTRY_LISTS, ENTRY_LISTS, st.binary(max_size=8))
def test_both_write_the_same_index_files(folder: Path, first: list[Any], second: list[Any], damage: bytes) -> None:
    """Two blocks, between which slots may be overwritten, then a query for every hash."""

    def work(index: IndexFile) -> Any:
        for entries in (first, second):
            columns = list(zip(*entries, strict=True)) or [(), (), ()]
            kinds = (np.int32, np.int64, np.int64)
            index.put_many(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
            index.file.map[40 : 40 + len(damage)] = damage
        ranges = [(0, MAX_LONG, MAX_LONG), (1000, 5000, 2**40)]
        return [
            slices.run(index.select_steps(key, count, *each))
            for key in range(21)
            for count in (1, 32)
            for each in ranges
        ]

    _twice(folder, work)


def test_an_index_file_too_small_for_its_numbers_is_not_touched(tmp_path: Path) -> None:
    if speed.put_entries is not None and speed.select_entries is not None:
        index = IndexFile.create(tmp_path / "index", SLOTS, ENTRIES)
        before = index.file.map[:]
        one = np.array([1], np.int32), np.array([2], np.int64), np.array([3], np.int64)
        for slots, number in ((SLOTS, ENTRIES), (SLOTS, 0), (SLOTS, -1), (0, 1), (-1, 1), (2**40, 1), (60, 1)):
            assert speed.put_entries(index.file.map, slots, number, 0, *one) is None
        assert speed.put_entries(index.file.map, SLOTS, 1, 0, one[0], one[1], one[1][:0]) is None
        assert speed.put_entries(index.file.map, SLOTS, 1, 0, -one[0], *one[1:]) is None
        assert index.file.map[:] == before
        assert speed.select_entries(index.file.map, 2**30, 9, 0, 1, 1, 0, 1, 1) is None
        index.file.close()


LOG_FILE = 6000


def _record(queue_offset: int, physical_offset: int, body: bytes, host: bytes, string: bytes) -> bytes:
    message = MessageInner("T\u00e4", 0, body, string, 0, 0, 1, host)
    return encode(message, queue_offset, physical_offset, 2, bytes(20))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], CommitLog]:
    folder = tmp_path_factory.mktemp("log")
    for begin in (0, LOG_FILE):
        (folder / f"{begin:020}").write_bytes(bytes(LOG_FILE))
    files = MappedFileQueue.open(folder, writable=True, file_size=LOG_FILE)

    def fill(data: bytes) -> CommitLog:
        for file in files.files:
            file.map[:] = data[file.begin : file.end].ljust(LOG_FILE, b"\0")
        return CommitLog(files, len(data))

    return fill


RECORDS = st.lists(
    st.tuples(
        st.binary(max_size=60) | st.just(bytes(5000)), st.sampled_from([bytes(8), bytes(20)]), st.binary(max_size=9)
    ),
    max_size=8,
)
DAMAGE = st.lists(st.tuples(st.integers(0, 2 * LOG_FILE - 1), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), max_size=4)


@given(RECORDS, DAMAGE, st.lists(st.integers(-5, 2 * LOG_FILE + 100), max_size=4))
def test_records_of_a_log(
    logs: Callable[[bytes], CommitLog], records: list[Any], damage: list[tuple[int, int]], others: list[int]
) -> None:
    data, offsets = bytearray(), []
    for number, (body, host, string) in enumerate(records):
        offsets.append(len(data))
        data += _record(number, len(data), body, host, string)
    for at, byte in damage:
        if at < len(data):
            data[at] = byte
    log = logs(bytes(data))
    assert_same(lambda: slices.run(latest_records(log, offsets)))
    assert_same(lambda: slices.run(latest_records(log, [*offsets, *others])))


def test_a_read_that_fails_is_no_missing_record(tmp_path: Path) -> None:
    """Python repeats it, and raises the error."""
    if speed.read_records is not None:
        path = tmp_path / "file"
        record = _record(0, 0, bytes(5000), bytes(8), b"")
        path.write_bytes(record)
        with path.open("rb") as file:
            fd = file.fileno()
            assert speed.read_records(fd, 0, len(record), [0, 9], 9000) == [record, None]
            path.write_bytes(record[:4500])
            assert speed.read_records(fd, 0, len(record), [9, 0], 9000) is None
        assert speed.read_records(fd, 0, len(record), [0], 9000) is None


def _read(
    log: CommitLog,
    units: bytes,
    queue_offset: int,
    max_count: int,
    max_bytes: int,
    accepts: Callable[[int], bool] | None,
    on_damage: Callable[[int], None],
) -> Any:
    """Read as a QueueReader does: in one call if that has a result."""
    usual = None
    if units:
        usual = read_usual(log, units, first_unit(units)[0], queue_offset, max_count, max_bytes, accepts)
    return usual or read_batch(log, units, queue_offset, max_count, max_bytes, accepts, None, on_damage, ("T", 0))


@given(RECORDS, DAMAGE, st.integers(1, 40), st.integers(0, 900), st.sampled_from([None, (0,), (1, 2)]), st.data())
def test_both_read_the_same_records(
    logs: Callable[[bytes], CommitLog],
    records: list[Any],
    damage: list[tuple[int, int]],
    max_count: int,
    max_bytes: int,
    codes: tuple[int, ...] | None,
    data: st.DataObject,
) -> None:
    log_bytes, units = bytearray(), bytearray()
    for number, (body, host, string) in enumerate(records):
        record = _record(7 + number, len(log_bytes), body, host, string)
        units += pack_unit(len(log_bytes), len(record), data.draw(st.integers(0, 2)))
        log_bytes += record
        if data.draw(st.booleans()):
            log_bytes += bytes(data.draw(st.integers(0, 1500)))
    for at, byte in damage:
        if at < len(log_bytes):
            log_bytes[at] = byte
        if units:
            units[at % len(units)] = byte
    log = logs(bytes(log_bytes[: 2 * LOG_FILE]))
    accepts = None if codes is None else codes.__contains__

    def get() -> Any:
        damaged: list[int] = []
        found = _read(log, bytes(units), 7, max_count, max_bytes, accepts, damaged.append)
        return found, damaged

    assert_same(get)


def test_the_usual_get_is_read_in_c(logs: Callable[[bytes], CommitLog]) -> None:
    if speed.read_units is not None:
        first = _record(0, 0, b"a", bytes(8), b"")
        second = _record(1, len(first), b"bc", bytes(8), b"")
        third = _record(2, 1000, b"d", bytes(8), b"")
        log = logs((first + second).ljust(1000, b"\0") + third).files.files[0].map
        units = pack_unit(0, len(first), 5) + pack_unit(len(first), len(second), 6) + pack_unit(1000, len(third), 5)

        def read(written: int, max_count: int = 9, max_bytes: int = 2000, code: int | None = None) -> Any:
            accepts = None if code is None else {code}.__contains__
            return speed.read_units(units, 0, log, 0, written, max_count, max_bytes, accepts)  # type: ignore[misc]

        end = 1000 + len(third)
        assert read(end) == (first + second + third, 3, 3)
        assert read(end, code=5) == (first + third, 2, 3)
        assert read(end, max_count=2) == (first + second, 2, 2)
        assert read(end, max_bytes=len(first)) == read(end, max_count=0) == read(end, max_count=-1) == (first, 1, 1)
        assert read(end, code=7) == (b"", 0, 3)
        assert read(end - 1) is read(len(log) + 1) is None


def test_a_filter_that_raises_is_not_hidden(logs: Callable[[bytes], CommitLog]) -> None:
    record = _record(0, 0, b"", bytes(8), b"")

    def accepts(code: int) -> bool:
        raise ValueError(f"no {code}")

    log = logs(record)
    get = lambda: _read(log, pack_unit(0, len(record), 9), 0, 1, 1, accepts, logging.info)  # noqa: E731
    assert assert_same(get) == (ValueError, "no 9")


@given(
    RECORDS, DAMAGE, st.integers(0, 9), st.sampled_from([bytes(8), bytes(20), b"\x01\x02\xfe\xff" + b"\0\0\xff\xff"])
)
def test_both_decode_the_same_messages(
    records: list[Any], damage: list[tuple[int, int]], max_count: int, store_host: bytes
) -> None:
    data = bytearray()
    for body, host, string in records:
        message = MessageInner("T\u00e4", 3, body, string, -1, 0, 1, host, 2, 4)
        data += encode(message, 2**40, len(data), 2**62, store_host)
    for position, byte in damage if data else []:
        data[position % len(data)] = byte
    assert_same(lambda: decode_many(bytes(data), decompress=False, max_count=max_count))


def test_the_usual_messages_are_decoded_in_c() -> None:
    if speed.decode_records is not None:
        records = [
            encode(MessageInner("T", 0, b"a", b"k\x01v", 0, 0, 1, bytes(8)), i, 0, 2, bytes(8)) for i in range(3)
        ]
        rows = speed.decode_records(b"".join(records), 2)
        assert rows is not None
        assert [MessageExt(*row) for row in rows] == [decode(record) for record in records[:2]]
        assert speed.decode_records(b"".join(records)[:-1], 3) is None
        assert speed.decode_records(b"", 3) == []


STRINGS = st.lists(
    st.sampled_from([b"TAGS", b"UNIQ_KEY", b"KEYS", b"", b"k", b"a b", b"\xc3\xa4", b"\xf0\x9f", b"\x01", b"\x02"])
).map(b"\x01".join)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["T", "T", "T", "T\u00e4", "", ".", "..", "...", "a/b", "a\0"]),
            st.sampled_from([0, 0, 0, 7, -1]),
            st.sampled_from([0, sysflag.TRANSACTION_PREPARED, -(2**31)]),
            st.sampled_from([bytes(8), bytes(20)]),
            st.lists(STRINGS, max_size=4).map(b"\x02".join),
        ),
        max_size=5,
    ),
    DAMAGE,
    st.integers(0, 120),
)
def test_both_read_the_same_requests(records: list[Any], damage: list[tuple[int, int]], cut: int) -> None:
    data = bytearray()
    for number, (topic, queue_id, sys_flag, host, string) in enumerate(records):
        message = MessageInner(topic, queue_id, b"body", string, 0, sys_flag, 1, host)
        data += encode(message, number, len(data), 2**62, host)
    for position, byte in damage if data else []:
        data[position % len(data)] = byte
    found = assert_same(lambda: read_requests(bytes(data), 0, max(len(data) - cut, 0)))
    end = 0
    for request in found:
        assert request == read_dispatch_request(bytes(data), end)
        end += request.size
    assert end <= max(len(data) - cut, 0)


def scanned(folder: Path, data: bytes, *, check_crc: bool) -> list[Any]:
    """What a scan of one log file with these bytes yields, in plain types; runs that follow each other as one."""
    (folder / f"{0:020d}").write_bytes(data)
    files = MappedFileQueue.open(folder)
    rows: list[Any] = []
    for item in scan_file(files.files[0], 0, check_crc=check_crc):
        if isinstance(item, RecordRun):
            assert item.end == item.positions[-1] + item.heads["size"][-1]
            rows += zip(item.positions.tolist(), item.heads.tolist(), item.store_timestamps.tolist(), strict=True)
        else:
            rows.append(item)
    files.close()
    return rows


@given(RECORDS, DAMAGE, st.integers(0, 120), st.booleans())
def test_both_scan_a_file_to_the_same_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], damage: list[tuple[int, int]], cut: int, check: bool
) -> None:
    data = bytearray()
    for number, (body, host, string) in enumerate(records):
        data += _record(number, len(data), body, host, string)
    for at, byte in damage if data else []:
        data[at % len(data)] = byte
    folder = tmp_path_factory.getbasetemp()
    found = assert_same(lambda: scanned(folder, bytes(data[: len(data) - cut]) + bytes(40), check_crc=check))
    assert isinstance(found[-1], ScanEnd)
    if not damage and not cut:
        assert len(found) == len(records) + 1


def test_usual_records_are_scanned_in_c() -> None:
    if speed.scan_records is not None:
        record = _record(7, 100, b"body", bytes(20), b"")
        other = _record(8, 100 + len(record), b"", bytes(8), b"")
        found = speed.scan_records(record + other + record, 100, 1)
        assert found is not None
        assert np.frombuffer(found[0], np.int64).tolist() == [0, len(record)]
        assert found[1][:88] == record[:88]
        assert found[3] == len(record) + len(other)
        assert speed.scan_records(record, 99, 1) is None
        changed = record.replace(b"body", b"Body")
        assert speed.scan_records(changed, 100, 1) is None
        assert speed.scan_records(changed, 100, 0) is not None


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["T", "T", "U", "T\u00e4", SCHEDULE_TOPIC]),
        st.sampled_from([0, 0, 7]),
        st.sampled_from([0, 0, 0, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK, -(2**31)]),
        st.sampled_from([bytes(8), bytes(20)]),
        st.lists(STRINGS, max_size=4).map(b"\x02".join),
        st.sampled_from([0] * 20 + [1]),
    ),
    min_size=1,
    max_size=12,
)


def run_of(records: list[Any]) -> bytes:
    """Records of one log file, in queues that continue, except for a gap."""
    data, ends = bytearray(), Counter[tuple[str, int]]()
    for topic, queue_id, sys_flag, host, string, gap in records:
        ends[topic, queue_id] += gap
        message = MessageInner(topic, queue_id, b"body", string, 0, sys_flag, 1, host)
        data += encode(message, ends[topic, queue_id], len(data), 2**62, host)
        ends[topic, queue_id] += sysflag.is_dispatched(sys_flag)
    return bytes(data)


@given(RUNS)
def test_a_run_is_read_as_its_requests(records: list[Any]) -> None:
    data = run_of(records)
    if (found := read_run(data, 0, len(data))) is not None:
        requests = read_requests(data, 0, len(data))
        assert len(requests) == len(records)
        dispatcher = CommitLogDispatcher(ConsumeQueues(Path("none"), 20), None, [1000])
        units = dispatcher.units_by_queue(requests)
        assert found[0] == {name: columns[:2] for name, columns in units.items()}
        assert [column.tolist() for column in found[1]] == [column.tolist() for column in index_entries_of(requests)]


def test_runs_of_usual_records_are_read_in_c() -> None:
    usual = [
        ("T", 0, 0, bytes(8), b"KEYS\x01a b\x02TAGS\x01t", 0),
        ("U", 0, sysflag.TRANSACTION_ROLLBACK, bytes(20), b"", 0),
    ]
    data = run_of([*usual, *usual])
    if speed.read_run is not None:
        assert read_run(data, 0, len(data)) is not None
        assert read_run(data, 1, len(data)) is None
        assert read_run(data, 0, len(data) - 1) is None
        assert read_run(data, 0, len(data) + 1) is None
        assert read_run(data, len(data), len(data)) is None
        for unusual in (
            ("T", 0, 0, bytes(8), b"", 1),
            (SCHEDULE_TOPIC, 0, 0, bytes(8), b"", 0),
            ("T", 0, 0, bytes(8), b"KEYS\x01a\0", 0),
            ("T", 0, 0, bytes(8), b"KEYS\x01\xff", 0),
            ("T", 0, 0, bytes(8), b"INNER_MULTI_DISPATCH\x01U", 0),
            ("a/b", 0, 0, bytes(8), b"", 0),
        ):
            data = run_of([*usual, unusual])
            assert read_run(data, 0, len(data)) is None


def test_the_usual_requests_are_read_in_c() -> None:
    if speed.read_requests is not None:
        string = b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x01u"
        record = encode(MessageInner("T", 3, b"body", string, 0, 0, 1, bytes(8)), 7, 0, 2, bytes(8))
        row = ("T", 3, 7, 0, len(record), 2, 0, ord("t"), "u", "a b", string)
        assert speed.read_requests(b"#" + 2 * record, 1, 2 * len(record)) == [row]
        assert speed.read_requests(record, 0, len(record) + 1) is None
