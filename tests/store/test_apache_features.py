"""Stores that Apache's broker wrote with features which are off by default: read right, rebuilt, or refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rucola.message.hashing import tags_code
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump
from rucola.store.tools.grep import SearchQuery, grep
from rucola.store.tools.rebuild import rebuild
from support.apache_stores import settings, with_ext
from support.stores import OpenStore, crashed_copy, inner


def pulled(store: MessageStore, topic: str, tag: str | None = None) -> int:
    """The number of messages of a topic that a consumer of a tag gets."""
    accepts = None if tag is None else frozenset({tags_code(tag)}).__contains__
    count = 0
    for (name, queue_id), (begin, end) in store.queues().items():
        while name == topic and begin < end:
            result = store.get(topic, queue_id, begin, 32, accepts=accepts)
            count, begin = count + result.count, result.next_begin_offset
    return count


@pytest.mark.parametrize("has_ext_files", [True, False])
def test_units_with_an_ext_address_are_read_with_the_tags_code_of_their_record(
    tmp_path: Path, open_store: OpenStore, has_ext_files: bool
) -> None:
    root = with_ext(tmp_path)
    if not has_ext_files:
        shutil.rmtree(root / "consumequeue_ext")
    assert check(root) == []
    with StoreReader(root) as reader:
        found = list(grep(reader, SearchQuery(topic="S_tag", tag="A")))
        delayed = reader.units("SCHEDULE_TOPIC_XXXX", 4)["tags_code"].tolist()
    assert len(found) == 100
    expected = {row["cq"]: tags_code(row["properties"].get("TAGS")) for row in dump(root) if row["topic"] == "S_tag"}
    assert {row["cq"]: row["tagsCode"] for row in dump(root) if row["topic"] == "S_tag"} == expected
    store = open_store(settings(root))
    assert (
        [code for _, _, code in store.units("SCHEDULE_TOPIC_XXXX", 4, 0, 9)]
        == delayed
        == [
            1795717560548,
            1795717560569,
        ]
    )
    assert (pulled(store, "S_tag", "A"), pulled(store, "S_tag")) == (100, 201)
    # A crash, after which units are written again, and new units beside the old ones.
    store.put(inner("S_tag", tags="A"), 1_800_000_000_000)
    assert pulled(store, "S_tag", "A") == 101
    again = crashed_copy(store, tmp_path / "crashed")
    with again:
        assert (pulled(again, "S_tag", "A"), pulled(again, "S_tag")) == (101, 202)
    assert check(tmp_path / "crashed") == []


def test_a_rebuild_replaces_ext_addresses(tmp_path: Path) -> None:
    root = with_ext(tmp_path)
    rebuild(root, tmp_path / "rebuilt")
    units = (tmp_path / "rebuilt" / "consumequeue" / "S_tag" / "1" / f"{0:020d}").read_bytes()[: 50 * 20]
    assert {units[at + 12 : at + 16] for at in range(0, len(units), 20)} == {bytes(4)}
