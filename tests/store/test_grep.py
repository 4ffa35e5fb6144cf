"""grep finds what a look at every message finds, by whatever way it goes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import StoreCorrupt
from rucola.message import MessageExt
from rucola.message.compression import decompress
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.grep import SearchQuery, grep


@pytest.fixture(scope="module")
def store(golden: Path) -> Path:
    return golden / "g1-clean" / "store"


@pytest.fixture(scope="module")
def messages(store: Path) -> list[MessageExt]:
    with StoreReader(store) as reader:
        return list(reader.walk())


def found(store: Path, query: SearchQuery) -> list[int]:
    with StoreReader(store) as reader:
        return [message.physical_offset for message in grep(reader, query)]


BEGIN, END = 1795217264761, 1795217270000

QUERIES: list[tuple[SearchQuery, Callable[[MessageExt], bool]]] = [
    (SearchQuery(topic="GA"), lambda m: m.topic == "GA"),
    (SearchQuery(topic="GA", queue_id=2), lambda m: (m.topic, m.queue_id) == ("GA", 2)),
    (SearchQuery(topic="GA", tag="TagB"), lambda m: (m.topic, m.tags) == ("GA", "TagB")),
    (SearchQuery(tag="TagB"), lambda m: m.tags == "TagB"),
    (SearchQuery(queue_id=1), lambda m: m.queue_id == 1),
    (SearchQuery(topic="GA", key="order-6"), lambda m: m.topic == "GA" and "order-6" in (m.keys or "").split(" ")),
    (SearchQuery(key="order-6"), lambda m: "order-6" in (m.keys or "").split(" ")),
    (SearchQuery(topic="GA", begin_ms=BEGIN), lambda m: m.topic == "GA" and m.store_timestamp >= BEGIN),
    (SearchQuery(begin_ms=BEGIN, end_ms=END), lambda m: BEGIN <= m.store_timestamp < END),
    (SearchQuery(topic="SCHEDULE_TOPIC_XXXX", tag="x"), lambda m: (m.topic, m.tags) == ("SCHEDULE_TOPIC_XXXX", "x")),
    (SearchQuery(topic="GUnicode"), lambda m: m.topic == "GUnicode"),
    (SearchQuery(pattern=re.compile(rb"[0-9]{3}$")), lambda m: re.search(rb"[0-9]{3}$", m.body) is not None),
    (SearchQuery(text="order"), lambda m: b"order" in m.body),
    (SearchQuery(topic="nowhere"), lambda m: False),
]


@pytest.mark.parametrize("exhaustive", [False, True])
@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_every_search_path_finds_the_same(
    store: Path, messages: list[MessageExt], number: int, exhaustive: bool
) -> None:
    query, fits = QUERIES[number]
    expected = [message.physical_offset for message in messages if fits(message)]
    query.exhaustive = exhaustive
    assert sorted(found(store, query)) == expected


def test_compressed_bodies_are_searched_decompressed(store: Path, messages: list[MessageExt]) -> None:
    compressed = next(message for message in messages if message.stored_size != len(message.body))
    text = compressed.body.decode()[:20]
    assert compressed.physical_offset in found(store, SearchQuery(topic=compressed.topic, text=text))
    with StoreReader(store) as reader:
        stored = next(grep(reader, SearchQuery(key=compressed.unique_key)))
    assert stored.body != compressed.body
    assert decompress(stored.body, stored.sys_flag) == compressed.body


def test_a_key_search_reads_only_indexed_records(golden: Path, tmp_path: Path) -> None:
    """With damage in another message the index still answers; without an index the damage is met."""
    store = Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store"))
    with StoreReader(store) as reader:
        other = next(message for message in reader.walk() if message.topic == "GA" and message.keys is None)
    log = store / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[other.physical_offset + 88] ^= 1
    log.write_bytes(content)
    query = SearchQuery(topic="GA", key="order-6")
    assert found(store, query)
    shutil.rmtree(store / "index")
    with pytest.raises(StoreCorrupt):
        found(store, query)


def test_a_lagging_index_is_not_trusted(golden: Path, tmp_path: Path, messages: list[MessageExt]) -> None:
    store = Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store"))
    *_, last = sorted((store / "index").iterdir())
    last.unlink()
    late = next(m for m in reversed(messages) if m.unique_key and m.queue_offset and m.topic.startswith("G"))
    assert found(store, SearchQuery(topic=late.topic, key=late.unique_key)) == [
        message.physical_offset
        for message in messages
        if message.topic == late.topic and message.unique_key == late.unique_key
    ]


def test_progress_ends_at_the_total(store: Path) -> None:
    for query in (SearchQuery(), SearchQuery(topic="GA")):
        seen: list[tuple[int, int]] = []
        with StoreReader(store) as reader:
            for _ in grep(reader, query, lambda *far, seen=seen: seen.append(far)):
                pass
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1]


def test_a_store_without_consume_queues_is_searched_by_its_log(
    golden: Path, tmp_path: Path, messages: list[MessageExt]
) -> None:
    """As the tail of a log is, which was cut off because no other broker has it."""
    store = Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store"))
    shutil.rmtree(store / "consumequeue")
    expected = [message.physical_offset for message in messages if message.topic == "GA"]
    assert found(store, SearchQuery(topic="GA")) == expected != []
