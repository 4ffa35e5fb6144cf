"""Bytes of the log that are read in place: valid until they are released, whatever happens to their file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rucola.message.record import decode
from rucola.store.held_bytes import HeldBytes
from rucola.store.message_store import MessageStore
from rucola.store.read_batch import LARGE_SIZE
from rucola.store.tools.check import check
from support.stores import config, inner

LARGE = random.Random(1).randbytes(LARGE_SIZE)


def test_a_large_record_is_held_and_others_are_copied(tmp_path: Path) -> None:
    store = MessageStore(config(tmp_path, mapped_file_size_commit_log=1 << 20))
    store.open()
    for body, tag in ((b"small", 1), (LARGE, 2), (b"small", 1)):
        store.put(inner(body=body, tags_code=tag), 1)
    first = store.get("T", 0, 0, 32, max_bytes=1, may_hold=True)
    assert (first.joined.__class__, first.count) == (bytes, 1)
    second = store.get("T", 0, 1, 32, max_bytes=1, may_hold=True)
    assert isinstance(second.joined, HeldBytes)
    assert (second.count, second.next_begin_offset) == (1, 2)
    with second.joined as held:
        assert decode(bytes(held.view)).body == LARGE
    # One that is not wanted, or not as large as a batch, is not held.
    assert store.get("T", 0, 1, 32, max_bytes=1, may_hold=True, accepts={1}.__contains__).count == 1
    assert store.get("T", 0, 1, 32, max_bytes=1, may_hold=True, matches=lambda pairs: False).count == 0
    assert isinstance(store.get("T", 0, 1, 32, max_bytes=1 << 20, may_hold=True).joined, bytes)
    assert isinstance(store.get("T", 0, 1, 32, max_bytes=1).joined, bytes)
    store.close()
    assert check(tmp_path) == []


@pytest.mark.parametrize("ends", ["closed", "deleted"])
def test_held_bytes_stay_when_their_file_goes(tmp_path: Path, ends: str) -> None:
    store = MessageStore(config(tmp_path, mapped_file_size_commit_log=1 << 20, file_reserved_time=0))
    store.open()
    for _ in range(20):
        store.put(inner(body=LARGE), 1)
    held = store.get("T", 0, 0, 1, max_bytes=1, may_hold=True).joined
    assert isinstance(held, HeldBytes)
    if ends == "deleted":
        store.begin_retention_round(1 << 50, 4, [])
        while store.expire(1 << 50):  # after so long a time, held files are deleted as well
            store.delete_expired()
        assert store.min_physical_offset > 0
    store.close()
    assert decode(bytes(held.view)).body == LARGE
    held.release()
    assert check(tmp_path) == []
