"""Searching the lake: with Spark and without, by the index and row by row, always the same messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.errors import InvalidMessage
from rucola.message import MessageExt
from rucola.message.record import body_crc
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, search
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import read_lake
from rucola.spark.lake.key_index import key_hash
from rucola.spark.lake.lookup import DEFAULT_LIMIT, SearchResult
from rucola.spark.session import LazySession
from rucola.store.directory_reader import StoreReader
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)
MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC
COLLIDING = "plumless", "buckeroo"  # two words with one CRC-32


class Searched:
    """A lake, and the messages in it as the store had them."""

    def __init__(self, lake: Path, messages: list[MessageExt]) -> None:
        self.lake = lake
        self.messages = messages


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Two stores over three days and several topics, in four commits of which some are compacted."""
    path = tmp_path_factory.mktemp("searched")
    stores = [SmallStore(path / name) for name in ("store-a", "store-b")]
    for round_number in range(2):
        for n in range(40):
            stores[n % 2].put(
                ["T", "%RETRY%g", "é"][n % 3],
                n % 2,
                b"body %d" % n,
                at_ms=MIDNIGHT_MS + (n - 20) * 3_600_000 + round_number,
                KEYS=f"k{n % 7} {COLLIDING[n % 2]} 漢字",
                **({"TAGS": "AB"[n % 2]} if n % 5 else {}),
                **({"UNIQ_KEY": f"U{round_number}-{n}"} if n % 4 else {}),
            )
        for store in stores:
            archive.run(HERE, store.path, path / "lake", broker_name=store.path.name)
        if round_number == 0:
            Archive(path / "lake").compact(min_files=2)
    messages = []
    for store in stores:
        with StoreReader(store.path) as reader:
            messages += list(reader.walk())
    return Searched(path / "lake", messages)


def ids(found: SearchResult | None) -> list[tuple[str, str]]:
    assert found is not None
    return [(each.broker_name, each.message.offset_msg_id) for each in found.messages]


SELECTIONS = {
    "one key": Selection(keys=("k3",)),
    "a key of a topic": Selection(keys=("k3",), topics=("é",)),
    "several keys and a unique key": Selection(keys=("k1", "k2", "U0-7")),
    "a unique key": Selection(keys=("U1-9",)),
    "a key that shares its hash": Selection(keys=(COLLIDING[0],)),
    "a key beyond ASCII, of a time": Selection(
        keys=("漢字",), starting_timestamp=MIDNIGHT_MS - 3_600_000, ending_timestamp=MIDNIGHT_MS + 7_200_000
    ),
    "a key with a tag": Selection(keys=("k5",), tags="A || none"),
    "a key with a filter": Selection(keys=("k5", "k6"), expression="TAGS = 'B'"),
    "a key that none has": Selection(keys=("k33",)),
}
SCANS = {
    "time": Selection(starting_timestamp=MIDNIGHT_MS - 1000, ending_timestamp=MIDNIGHT_MS + 9_000_000),
    "tags of a topic": Selection(topics=("%RETRY%g",), tags="B"),
    "a topic that is not there": Selection(topics=("none",)),
    "a filter": Selection(expression="TAGS = 'B'"),
    "everything": Selection(),
}


def expected(searched: Searched, selection: Selection) -> list[str]:
    """The offsetMsgIds of the messages asked for, by the plain rules."""
    begin, end = selection.starting_timestamp or 0, selection.ending_timestamp or 1 << 62
    tags = None if selection.tags is None else selection.tags.split(" || ")
    if selection.expression is not None:
        tags = ["B"]
    return sorted(
        message.offset_msg_id
        for message in searched.messages
        if (selection.keys is None or {message.unique_key, *(message.keys or "").split()} & set(selection.keys))
        and (selection.topics is None or message.topic in selection.topics)
        and (tags is None or message.tags in tags)
        and begin <= message.store_timestamp < end
    )


@pytest.mark.spark
@pytest.mark.parametrize("name", [*SELECTIONS, *SCANS])
def test_all_search_paths_find_the_same(spark: SparkSession, searched: Searched, name: str) -> None:
    selection = (SELECTIONS | SCANS)[name]
    found = search.run(spark, searched.lake, selection, limit=1000)
    assert sorted(id for _, id in ids(found)) == expected(searched, selection)
    assert not found.is_cut
    times = [each.message.store_timestamp for each in found.messages]
    assert times == sorted(times, reverse=True)
    assert search.run(HERE, searched.lake, selection, limit=1000) == found
    few = search.run(HERE, searched.lake, selection, limit=3)
    assert [each.message.store_timestamp for each in few.messages] == times[:3]
    assert few.is_cut == (len(times) > 3)
    if name == "everything":
        assert search.run(spark, searched.lake, selection, limit=3) == few


def test_the_test_keys_collide() -> None:
    assert key_hash(COLLIDING[0]) == key_hash(COLLIDING[1])


@pytest.mark.spark
def test_a_found_message_equals_the_stored_one(spark: SparkSession, searched: Searched) -> None:
    for wanted in searched.messages[::9]:
        found = Archive(searched.lake).by_offset_msg_id(wanted.offset_msg_id)
        # Both stores say they are the same host, so an address is there twice; with its body it is one of them.
        assert found is not None
        assert found.message.offset_msg_id == wanted.offset_msg_id
        by_spark = search.run(spark, searched.lake, Selection(), wanted.offset_msg_id.lower())
        assert found in by_spark.messages
        assert wanted in [each.message for each in by_spark.messages]
        assert found.message.body_crc == body_crc(found.message.body)
    assert Archive(searched.lake).by_offset_msg_id(searched.messages[0].offset_msg_id[:-1] + "5") is None
    with pytest.raises(InvalidMessage):
        Archive(searched.lake).by_offset_msg_id("U0-7")


@pytest.mark.spark
def test_only_files_named_by_the_index_are_read(spark: SparkSession, searched: Searched) -> None:
    every = set(read_lake(spark, searched.lake).inputFiles())
    one = set(search.find(spark, searched.lake, Selection(keys=("U1-9",))).inputFiles())
    assert one < every
    assert len(one) <= 2  # of one topic and day, for each store
    assert search.find(spark, searched.lake, Selection(keys=("no such key",))).inputFiles() == []


def test_a_hot_key_returns_the_newest_messages(searched: Searched) -> None:
    found = Archive(searched.lake).by_key(["漢字"], topics=["T"])
    times = sorted((each.store_timestamp for each in searched.messages if each.topic == "T"), reverse=True)
    assert [each.message.store_timestamp for each in found.messages] == times
    assert len(times) < DEFAULT_LIMIT
    assert not found.is_cut
    found = Archive(searched.lake).by_key(["漢字"], most=5, matches=lambda message: message.tags == "B")
    times = sorted((each.store_timestamp for each in searched.messages if each.tags == "B"), reverse=True)
    assert [each.message.store_timestamp for each in found.messages] == times[:5]
    assert found.is_cut
