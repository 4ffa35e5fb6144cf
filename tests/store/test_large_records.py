"""Messages with a large body, which are written in parts, without a copy of the body."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rucola.message.record import LARGE_BODY, decode
from rucola.store.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import OpenStore, config, crashed_copy, inner

LARGE = random.Random(1).randbytes(LARGE_BODY)
FILE_SIZE = 1 << 20


def test_large_and_small_messages_follow_one_another(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config(tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE))
    bodies = [b"first", LARGE, LARGE[:-1], b"between", LARGE + b"x", LARGE, LARGE, b"last"]  # two files
    for number, body in enumerate(bodies):
        assert store.put(inner(body=body, keys=f"k{number}"), 1).queue_offset == number
    assert store.max_physical_offset > FILE_SIZE
    found = store.get("T", 0, 0, 32, max_bytes=4 * FILE_SIZE).records
    assert [decode(record).body for record in found] == bodies
    assert [decode(record).body for record in store.query("T", "k4", 32).records] == [LARGE + b"x"]
    units = store.units("T", 0, 0, 32)
    store.close()
    store = open_store(config(tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE))
    first, _ = sorted((tmp_path / "store/commitlog").iterdir())
    for number, ((physical_offset, size, _), body) in enumerate(zip(units, bodies, strict=True)):
        (record,) = store.query("T", f"k{number}", 32).records
        assert (len(record), decode(record).body, store.record_at(physical_offset)) == (size, body, record)
        assert store.record_at(physical_offset + 1) is None
    assert [store.record_at(at) for at in (-1, store.max_physical_offset, 1 << 50)] == [None] * 3
    assert str(first) not in Path("/proc/self/maps").read_text(), "single records of an earlier file are not mapped"
    assert [path.samefile(first) for path in Path("/proc/self/fd").iterdir() if path.exists()].count(True) == 1
    store.begin_retention_round(1, 12, [])
    assert not any(path.samefile(first) for path in Path("/proc/self/fd").iterdir() if path.exists())


@pytest.mark.parametrize("written", [0, 1, 2, 3, 4])
def test_a_process_that_dies_in_between_leaves_no_part_of_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The begin of the record is written last, so that also readers of the log find its end before the record."""
    store = MessageStore(config(tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE))
    store.open()
    store.put(inner(body=b"before"), 1)
    store.flush()
    before = store.max_physical_offset
    write, calls = MappedFile.write, []

    def write_and_die(file: MappedFile, position: int, data: bytes) -> None:
        if len(calls) == written:
            raise KeyboardInterrupt
        calls.append(len(data))
        write(file, position, data)

    monkeypatch.setattr(MappedFile, "write", write_and_die)
    with pytest.raises(KeyboardInterrupt):
        store.put(inner(body=LARGE, tags="a"), 1)
    monkeypatch.undo()
    with crashed_copy(store, tmp_path / "copy") as recovered:
        log = next(iter(sorted((tmp_path / "copy").glob("commitlog/*")))).read_bytes()
        assert log[before : before + 8] == bytes(8)
        assert recovered.max_physical_offset == before
        assert recovered.put(inner(body=b"after"), 2).physical_offset == before
    assert check(tmp_path / "copy") == []
    store.close()
