"""Entries of the index: many at once are what they are one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.message import sysflag
from rucola.store.dispatch import CommitLogDispatcher, ConsumeQueues, index_entries_of, index_keys
from rucola.store.dispatch_request import DispatchRequest
from rucola.store.index import Index

keys = st.sampled_from([None, "", "key", "a b", " a  b ", "Aa", "BB", "\u00e9", "nul\0"])
flags = st.sampled_from([0, 0, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK])


@st.composite
def batches(draw: st.DrawFn) -> list[DispatchRequest]:
    """Messages with more, fewer or no keys; all of one kind, or each of its own."""
    count = draw(st.integers(1, 24))
    alike = draw(st.booleans())
    topic, unique_key, words, flag = draw(st.sampled_from("TU")), draw(keys), draw(keys), draw(flags)
    batch: list[DispatchRequest] = []
    for number in range(count):
        if not alike:
            topic, unique_key, words, flag = draw(st.sampled_from("TU")), draw(keys), draw(keys), draw(flags)
        time_ms = 1_000_000 + 700 * number
        fields = (topic, 0, number, 100 * number, 100, time_ms, flag, 0, unique_key, words, b"")
        batch.append(DispatchRequest(*fields))
    return batch


def index_of(directory: Path, pieces: list[list[DispatchRequest]], skip: int) -> list[tuple[str, bytes]]:
    """The files of an index that gets the entries of some batches, but for the first `skip`."""
    index = Index.open(directory, 13, 40, writable=True)
    dispatcher = CommitLogDispatcher(ConsumeQueues(directory, 20), index, ())
    for piece in pieces:
        dispatcher.add_entries(piece, skip)
        skip = max(skip - sum(map(len, map(index_keys, piece))), 0)
    files = [(file.file.path.name, bytes(file.file.map)) for file in index.files]
    index.close()
    return files


@given(batch=batches(), data=st.data())
def test_many_index_entries_equal_single_ones(
    tmp_path_factory: pytest.TempPathFactory, batch: list[DispatchRequest], data: st.DataObject
) -> None:
    hashes, physical_offsets, store_timestamps = index_entries_of(batch)
    assert len(hashes) == len(physical_offsets) == len(store_timestamps) == sum(map(len, map(index_keys, batch)))
    skip = data.draw(st.integers(0, len(hashes)))
    together = index_of(tmp_path_factory.mktemp("together"), [batch], skip)
    alone = index_of(tmp_path_factory.mktemp("alone"), [[item] for item in batch], skip)
    assert together == alone
