"""check finds each kind of damage, where it is, and nothing in a sound store."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import StoreError
from rucola.files import temporary_path
from rucola.store.directory_reader import StoreReader
from rucola.store.index import HEADER_SIZE
from rucola.store.message_store import MessageStore
from rucola.store.tools import check as check_module
from rucola.store.tools import check_index
from rucola.store.tools.check import MAX_FINDINGS, check
from rucola.store.tools.rebuild import rebuild
from support.errors import raises
from support.stores import OpenStore, config, crashed_copy, derived_files, inner

LOG = Path("commitlog") / f"{0:020d}"
QUEUE = Path("consumequeue") / "T" / "0" / f"{0:020d}"


def flip(path: Path, position: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def write_checkpoint(store: Path, *times: int) -> None:
    (store / "checkpoint").write_bytes(struct.pack(">qqq", *times) + bytes(4072))


@pytest.fixture(params=[1, 1 << 20])
def block_count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the log with the queues and the index in one step, and in as many as there are runs of records."""
    monkeypatch.setattr(check_module, "_BLOCK_COUNT", request.param)
    monkeypatch.setattr(check_index, "_STEP", request.param)


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Path:
    """A copy of a closed store with 15 messages of 109 bytes, three queue files and an index of 14 entries."""
    engine = open_store()
    sizes = [engine.put(inner(body=b"%04d" % k, keys=f"key-{k % 7:04d}"), 1_000_000 + k * 1000).size for k in range(15)]
    assert set(sizes) == {109}
    engine.close()
    crashed_copy(engine, tmp_path / "copy")
    assert check(tmp_path / "copy") == []
    return tmp_path / "copy"


def index_file(store: Path) -> Path:
    return next((store / "index").iterdir())


SECOND_QUEUE_FILE = QUEUE.with_name(f"{200:020d}")
CHECKPOINT = Path("checkpoint")


@pytest.mark.usefixtures("block_count")
@pytest.mark.parametrize(
    ("damage", "where", "position", "what"),
    [
        (lambda store: flip(store / LOG, 3 * 109 + 3), LOG, 3 * 109, "do not add up"),
        (lambda store: flip(store / LOG, 3 * 109, 0x80), LOG, 3 * 109, "size is -"),
        (lambda store: flip(store / LOG, 3 * 109 + 4), LOG, 3 * 109, "magic is"),
        (lambda store: flip(store / LOG, 3 * 109 + 8), LOG, 3 * 109, "CRC"),
        (lambda store: flip(store / LOG, 3 * 109 + 88), LOG, 3 * 109, "CRC"),
        (lambda store: flip(store / LOG, 3 * 109 + 35), LOG, 3 * 109, "states physical offset"),
        (lambda store: flip(store / LOG, 3 * 109 + 27), LOG, 3 * 109, "queueOffset is 2"),
        (lambda store: flip(store / LOG, 3 * 109 + 15), QUEUE, 60, "no such message"),
        (lambda store: flip(store / LOG, 15 * 109 + 50), LOG, 15 * 109, "other than zeros"),
        (lambda store: flip(store / QUEUE, 5 * 20 + 7), QUEUE, 100, "points at"),
        (lambda store: flip(store / QUEUE, 5 * 20 + 11), QUEUE, 100, "points at"),
        (lambda store: flip(store / SECOND_QUEUE_FILE, 199), SECOND_QUEUE_FILE, 100, "after the last unit"),
        (lambda store: (store / QUEUE).write_bytes(bytes(200)), QUEUE, 0, "points at"),
        (lambda store: write_checkpoint(store, 1, 2_000_000, 3), CHECKPOINT, 8, "logicsMsgTimestamp is 2000000"),
        (lambda store: (store / CHECKPOINT).write_bytes(b""), CHECKPOINT, 0, "4096"),
        (lambda store: (store / CHECKPOINT).unlink(), CHECKPOINT, 0, "no checkpoint"),
        (lambda store: (store / "abort").touch(), Path("abort"), 0, "not closed cleanly"),
        (lambda store: (store / "notes.txt").touch(), Path("notes.txt"), 0, "belongs in"),
        (lambda store: (store / "commitlog" / "x.tmp").touch(), Path("commitlog") / "x.tmp", 0, "belongs in"),
        (lambda store: (store / QUEUE).with_name("x").touch(), QUEUE.with_name("x"), 0, "belongs in"),
    ],
)
def test_damage_is_found_at_its_offset(
    store: Path, damage: Callable[[Path], object], where: Path, position: int, what: str
) -> None:
    damage(store)
    findings = check(store)
    assert any(
        (finding.path, finding.position) == (store / where, position) and what in finding.what for finding in findings
    ), "\n".join(map(str, findings))


@pytest.mark.usefixtures("block_count")
@pytest.mark.parametrize(
    ("at", "bits", "what"),
    [
        ((0, 39), 0x40, "indexCount"),
        ((0, 35), 1, "hashSlotCount"),
        ((0, 31), 1, "endPhyOffset"),
        ((3, 7), 1, "points at no record"),
        ((3, 12), 0x80, "time difference is negative"),
        ((3, 0), 0x80, "hash is negative"),
        ((3, 16), 0x80, "does not lead back"),
        ((3, 19), 0x0F, "lead"),
        ((3, 3), 1, "chain"),
    ],
)  # fmt: skip
def test_damage_in_the_index_is_found(store: Path, at: tuple[int, int], bits: int, what: str) -> None:
    entry, byte = at
    position = HEADER_SIZE + 10 * 4 + entry * 20 + byte if entry else byte
    flip(index_file(store), position, bits)
    findings = check(store)
    assert findings
    assert any(what in finding.what or "chain" in finding.what for finding in findings), "\n".join(map(str, findings))


def test_every_significant_flipped_bit_of_log_and_queue_is_found(store: Path) -> None:
    """All bytes of a unit and of the sizes, addresses and body of a record; the CRC ends with the body."""
    for path, positions in (
        (store / LOG, [*range(12), *range(12, 16), *range(20, 36), *range(84, 93)]),
        (store / QUEUE, range(40, 52)),
    ):
        for position in positions:
            flip(path, position)
            assert check(store) != [], (path, position)
            flip(path, position)
    assert check(store) == []


def test_a_lost_file_and_a_wrong_size_are_found(store: Path) -> None:
    (store / QUEUE).unlink()
    assert any("have no unit" in f.what or "has no unit" in f.what for f in check(store))
    index_file(store).write_bytes(bytes(39))
    assert any(f.path == index_file(store) for f in check(store))
    (store / LOG).rename((store / LOG).with_name(f"{5000:020d}"))
    assert check(store) != []


@pytest.mark.usefixtures("block_count")
def test_units_from_before_a_topic_was_created_again_are_found(store: Path, tmp_path: Path) -> None:
    log = bytearray((store / LOG).read_bytes())
    for k in range(10, 15):
        struct.pack_into(">q", log, k * 109 + 20, k - 10)
    (store / LOG).write_bytes(log)
    rebuild(store, tmp_path / "rebuilt")
    shutil.copytree(store / "commitlog", tmp_path / "rebuilt" / "commitlog")
    shutil.copy(store / CHECKPOINT, tmp_path / "rebuilt")
    assert check(tmp_path / "rebuilt") == []
    shutil.copy(store / QUEUE, tmp_path / "rebuilt" / QUEUE)
    findings = [finding for finding in check(tmp_path / "rebuilt") if finding.path == tmp_path / "rebuilt" / QUEUE]
    assert [finding.position for finding in findings] == list(range(0, 200, 20))


def test_findings_are_bounded(store: Path) -> None:
    for number in range(MAX_FINDINGS + 10):
        (store / f"stray{number}").touch()
    findings = check(store)
    assert len(findings) == MAX_FINDINGS + 1
    assert "there are more" in findings[-1].what


def test_golden_stores_are_sound(golden: Path, tmp_path: Path) -> None:
    assert check(golden / "g1-clean" / "store") == []
    assert check(golden / "g2-crash" / "store-after-restart") == []
    findings = check(golden / "g2-crash" / "store")
    assert [finding.what.split(";")[0] for finding in findings] == [
        "the store is open, or was not closed cleanly",
        "message 154 of GSpam-2 has no unit",
    ]
    assert check(tmp_path) == []
    with raises(StoreError, subject=str(tmp_path / "missing")):
        check(tmp_path / "missing")


def test_a_changed_body_hides_no_later_damage(open_store: OpenStore, tmp_path: Path) -> None:
    """One byte of one body is one finding, and so is the next, files later."""
    store = open_store()
    offsets = [store.put(inner(body=bytes(500), keys=f"k{k}"), 1000 * k + 1).physical_offset for k in range(30)]
    store.close()
    crashed_copy(store, tmp_path / "damaged")
    places = []
    for physical_offset in (offsets[2], offsets[3], offsets[-1]):
        begin = physical_offset // 4096 * 4096
        places.append((tmp_path / "damaged" / "commitlog" / f"{begin:020d}", physical_offset - begin))
        flip(places[-1][0], places[-1][1] + 100)
    findings = check(tmp_path / "damaged")
    assert [(finding.path, finding.position) for finding in findings] == places
    assert all("CRC" in finding.what for finding in findings)


@pytest.mark.parametrize(("slots", "entries"), [(10, 25), (31, 7), (1, 100), (100, 3), (7, 28)])
def test_an_index_of_any_size_is_read_and_rebuilt_without_its_settings(
    open_store: OpenStore, tmp_path: Path, slots: int, entries: int
) -> None:
    engine = open_store(config(tmp_path / "store", max_hash_slot_num=slots, max_index_num=entries))
    for k in range(60):
        engine.put(inner(body=b"%d" % k, keys=f"key-{k}"), 1_000_000 + k * 1000)
    engine.close()
    assert check(tmp_path / "store") == []
    with StoreReader(tmp_path / "store") as reader:
        assert {file.slot_count for file in reader.index.files} == {slots}
        assert [message.body for message in reader.query("T", "key-7")] == [b"7"]
    rebuild(tmp_path / "store", tmp_path / "rebuilt")
    assert derived_files(tmp_path / "rebuilt") == derived_files(tmp_path / "store")


@pytest.mark.parametrize("name", ["epochFileCheckpoint", "config/topics.json"])
def test_temporary_files_of_a_crash_are_found_and_removed(store: Path, name: str) -> None:
    left = temporary_path(store / name)
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"part")
    assert [finding.path for finding in check(store)] == [left]
    engine = MessageStore(config(store))
    engine.open(1)
    assert not left.exists()
    engine.close()
    assert check(store) == []
