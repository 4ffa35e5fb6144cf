"""What a read sees, from options to rows, without a Spark session: planning and reading are plain Python."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rucola.errors import ConfigError, MQError, StoreCorrupt
from rucola.message import MessageInner
from rucola.message.topics import TRANS_HALF_TOPIC, is_system_topic
from rucola.spark.source import batch_reader as reader
from rucola.spark.source import log_splits
from rucola.spark.source.batch_reader import plan
from rucola.spark.source.options import parse_read_options
from rucola.store.config import StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.message_store import MessageStore
from support.apache_stores import with_ext, with_lmq
from support.errors import raises
from support.golden_messages import Row, expected, keys_of
from support.small_store import FILE_SIZE, HOST, SmallStore

pytestmark = pytest.mark.slow


def read(store: Path, **given: str) -> list[Row]:
    """The rows of a read, in the order of its partitions; each partition goes through pickle as Spark sends it."""
    options = parse_read_options({"storePath": str(store), **given})
    splits = pickle.loads(pickle.dumps(plan(options)))
    batches = [batch for split in splits for batch in reader.read(split, options, options.columns)]
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def offsets(rows: list[Row]) -> list[int]:
    return [row["commitLogOffset"] for row in rows]


@pytest.fixture
def g1(golden: Path) -> Path:
    return golden / "g1-clean" / "store"


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_the_whole_log_is_read_in_order(golden: Path, name: str) -> None:
    store = golden / name / "store"
    wanted = expected(golden, name)
    assert offsets(read(store, includeSystemTopics="true")) == [row["commitLogOffset"] for row in wanted]
    users = [row["commitLogOffset"] for row in wanted if not is_system_topic(row["topic"])]
    assert offsets(read(store)) == users
    assert offsets(read(store, subscribePattern=".*", includeSystemTopics="true")) == [
        row["commitLogOffset"] for row in wanted if row["tagsCode"] is not None
    ]


def test_undispatched_messages_are_only_in_the_log(small_store: SmallStore) -> None:
    first = small_store.put()
    last = small_store.put(dispatch=False)
    half = small_store.put(sys_flag=4, dispatch=False)
    assert offsets(read(small_store.path)) == [first, last]
    assert offsets(read(small_store.path, subscribe="T")) == [first]
    assert half > last


def test_half_messages_are_read_only_on_request(golden: Path, g1: Path) -> None:
    half = [row["commitLogOffset"] for row in expected(golden, "g1-clean") if row["topic"] == TRANS_HALF_TOPIC]
    assert len(half) == 20
    assert not set(half) & set(offsets(read(g1)))
    assert not set(half) & set(offsets(read(g1, subscribePattern=".*")))
    assert offsets(read(g1, subscribe=TRANS_HALF_TOPIC)) == half
    assert offsets(read(g1, assign=json.dumps({TRANS_HALF_TOPIC: [0]}))) == half


TOPICS = ["GA", "GB", "GSpam", "GTx", "GUnicode", "%RETRY%G_g_retry", "RMQ_SYS_TRANS_HALF_TOPIC"]


@settings(max_examples=60)
@given(data=st.data())
def test_pruning_equals_filtering_afterwards(golden: Path, data: st.DataObject) -> None:
    store = golden / "g1-clean" / "store"
    everything = expected(golden, "g1-clean")
    given: dict[str, str] = {"columns": "commitLogOffset", "brokerName": "b"}
    given["minPartitions"] = str(data.draw(st.integers(0, 40)))
    moments = st.integers(everything[0]["storeTimestamp"] - 5, everything[-1]["storeTimestamp"] + 5)
    wanted = everything
    if data.draw(st.booleans()):
        begin, end = sorted(data.draw(st.tuples(moments, moments)))
        given |= {"startingTimestamp": str(begin), "endingTimestamp": str(end)}
        wanted = [row for row in wanted if begin <= row["storeTimestamp"] < end]
    if data.draw(st.booleans()):
        topics = data.draw(st.sets(st.sampled_from(TOPICS), min_size=1))
        given["subscribe"] = ",".join(topics)
        wanted = [row for row in wanted if row["topic"] in topics]
        with StoreReader(store) as reader:
            queues = {queue: bounds for queue, bounds in reader.queues().items() if queue[0] in topics}
        for option in ("startingOffsets", "endingOffsets"):
            chosen: dict[str, dict[str, dict[str, int]]] = {}
            for topic, queue_id in data.draw(st.sets(st.sampled_from(sorted(queues)))):
                offset = data.draw(st.integers(*queues[topic, queue_id]))
                chosen.setdefault(topic, {"b": {}})["b"][str(queue_id)] = offset
                wanted = [
                    row
                    for row in wanted
                    if (row["topic"], row["queueId"]) != (topic, queue_id)
                    or (row["queueOffset"] >= offset) == (option == "startingOffsets")
                ]
            given[option] = json.dumps(chosen)
    else:
        wanted = [row for row in wanted if not is_system_topic(row["topic"])]
        begins = data.draw(st.sampled_from(everything))["commitLogOffset"]
        end = data.draw(st.integers(begins, 1_393_350))
        given |= {"startingCommitLogOffset": str(begins), "endingCommitLogOffset": str(end)}
        wanted = [row for row in wanted if begins <= row["commitLogOffset"] < end]
    if data.draw(st.booleans()):
        present = sorted({row["properties"]["TAGS"] for row in everything if "TAGS" in row["properties"]})
        tags = data.draw(st.sets(st.sampled_from([*present, "none"]), min_size=1, max_size=3))
        given["subExpression"] = " || ".join(tags)
        wanted = [row for row in wanted if row["properties"].get("TAGS") in tags]
    if data.draw(st.booleans()):
        present = sorted({key for row in everything for key in keys_of(row) if "," not in key})
        keys = data.draw(st.sets(st.sampled_from([*present, "none"]), min_size=1, max_size=30))
        given["keys"] = ",".join(keys)
        wanted = [row for row in wanted if not keys.isdisjoint(keys_of(row))]
    assert offsets(read(store, **given)) == [row["commitLogOffset"] for row in wanted]


def planned(store: Path, **given: str) -> int:
    """How many messages a read of queues looks at."""
    splits = plan(parse_read_options({"storePath": str(store), **given}))
    return sum(each.end - each.begin for split in splits for each in split.queues)


def test_keys_are_looked_up_in_the_index(golden: Path, tmp_path: Path) -> None:
    wanted = [row for row in expected(golden, "g1-clean") if row["topic"] in ("GA", "GSpam")]
    given = {"subscribe": "GA,GSpam", "keys": "single-1,user-6,spam-7,Nobody", "includeBody": "false"}
    asked = set(given["keys"].split(","))
    hits = [row["commitLogOffset"] for row in wanted if keys_of(row) & asked]
    assert 2 < len(hits) < 20

    def store_with(change: str) -> Path:
        store = Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / change))
        files = sorted((store / "index").iterdir())
        if change in ("first", "last"):
            files[0 if change == "first" else -1].unlink()
        elif change == "none":
            shutil.rmtree(store / "index")
        elif change == "unsound":
            data = bytearray(files[0].read_bytes())
            data[36:40] = (17).to_bytes(4, "big")  # the number of entries
            files[0].write_bytes(data)
        return store

    counts = {}
    for change in ("whole", "first", "last", "none", "unsound"):
        store = store_with(change)
        assert offsets(read(store, **given)) == hits
        counts[change] = planned(store, **given)
    # The first message of the index and the last one are looked at in any case.
    assert len(hits) <= counts["whole"] <= len(hits) + 2
    assert counts["whole"] < counts["first"] < counts["none"]
    assert counts["whole"] < counts["last"] < counts["none"]
    assert counts["unsound"] == counts["none"] == len(wanted)


def test_a_time_range_prunes_whole_splits(small_store: SmallStore) -> None:
    hour = 3_600_000
    places = [small_store.put(at_ms=hour * n) for n in range(100)]
    for choice in ({}, {"subscribe": "T"}):
        given = {"storePath": str(small_store.path), "minPartitions": "20", **choice}
        window = {"startingTimestamp": str(50 * hour), "endingTimestamp": str(52 * hour)}
        assert len(plan(parse_read_options(given))) == 20
        assert len(plan(parse_read_options(given | window))) <= 3
        assert offsets(read(small_store.path, **choice, **window)) == places[50:52]


def test_a_clock_that_was_set_back_loses_nothing(small_store: SmallStore) -> None:
    minute = 60_000
    times = [n * minute - (9 * minute if n == 50 else 0) for n in range(100)]
    places = [small_store.put(at_ms=1_700_000_000_000 + time) for time in times]
    for end in range(30, 70):
        bound = 1_700_000_000_000 + end * minute
        wanted = [place for place, time in zip(places, times, strict=True) if time < end * minute]
        assert offsets(read(small_store.path, endingTimestamp=str(bound), minPartitions="50")) == wanted


@pytest.mark.parametrize("choice", [{}, {"subscribePattern": "G.*"}])
def test_partitions_are_near_equal_and_small(g1: Path, choice: dict[str, str]) -> None:
    splits = plan(parse_read_options({"storePath": str(g1), "minPartitions": "8", **choice}))
    assert len(splits) == 8
    for earlier, later in pairwise(splits):
        assert earlier.end <= later.begin
    sizes = [split.end - split.begin for split in splits]
    if not choice:
        assert max(sizes) < 1.2 * min(sizes)
    assert all(len(pickle.dumps(split)) < 2000 for split in splits)


def test_queues_are_read_between_times(small_store: SmallStore) -> None:
    """Eight messages a millisecond, two to each of four queues; the first of a time begins or ends a queue."""
    places = [small_store.put("T", n % 4, at_ms=1_700_000_000_000 + n // 8) for n in range(80)]
    given = {"subscribe": "T", "brokerName": "b"}

    def found(**times: dict[str, int]) -> list[int]:
        options = {name: json.dumps({"T": {"b": each}}) for name, each in times.items()}
        return offsets(read(small_store.path, **given, **options))

    begin, end = 1_700_000_000_003, 1_700_000_000_007
    assert found(startingOffsetsByTimestamp={str(n): begin for n in range(4)}) == places[24:]
    assert found(endingOffsetsByTimestamp={str(n): end for n in range(4)}) == places[:56]
    both = found(startingOffsetsByTimestamp={"0": begin}, endingOffsetsByTimestamp={"0": end, "1": 0, "2": 0, "3": 0})
    assert both == places[24:56:4]
    late = found(startingOffsetsByTimestamp={"0": 2_000_000_000_000, "1": 0})
    assert late == [place for n, place in enumerate(places) if n % 4]
    with pytest.raises(ConfigError):
        found(startingOffsetsByTimestamp={"7": 0})


def test_large_logs_are_cut_at_the_target_size(small_store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [small_store.put(body=bytes(600)) for _ in range(60)]
    options = parse_read_options({"storePath": str(small_store.path)})
    assert len(plan(options)) == 1
    monkeypatch.setattr(log_splits, "SMALL_SIZE", 5000)
    assert len(plan(options)) == 4  # so that a few cores have something to do
    monkeypatch.setattr(log_splits, "TARGET_SIZE", 5000)
    splits = plan(parse_read_options({"storePath": str(small_store.path)}))
    assert [split.begin for split in splits] == [0, *[split.end for split in splits[:-1]]]
    assert len(splits) == 8  # 9.6 times the target: the power of two next to it
    assert all(split.end - split.begin < 5000 + FILE_SIZE for split in splits)
    assert offsets(read(small_store.path)) == places


def test_the_end_is_frozen_when_the_read_is_planned(small_store: SmallStore) -> None:
    places = [small_store.put() for _ in range(3)]
    for choice in ({}, {"subscribe": "T"}):
        options = parse_read_options({"storePath": str(small_store.path), **choice})
        splits = plan(options)
        small_store.put()
        batches = [batch for split in splits for batch in reader.read(split, options, ["commitLogOffset"])]
        assert [place for batch in batches for place in batch["commitLogOffset"].to_pylist()] == places
        places = offsets(read(small_store.path))


def test_a_store_is_read_while_it_is_written(tmp_path: Path) -> None:
    message = MessageInner("T", 0, b"body", b"", 0, 0, 1, HOST)
    config = StoreConfig(tmp_path / "store", HOST, mapped_file_size_commit_log=FILE_SIZE)
    with MessageStore(config) as store:
        places = [store.put(message, 1_700_000_000_000 + n).physical_offset for n in range(100)]
        assert offsets(read(tmp_path / "store")) == places
        store.reput()
        assert offsets(read(tmp_path / "store", subscribe="T")) == places
        places.append(store.put(message, 1_700_000_001_000).physical_offset)
        assert offsets(read(tmp_path / "store")) == places
    assert offsets(read(tmp_path / "store", subscribe="T")) == places


def test_several_stores_have_several_names(small_store: SmallStore, tmp_path: Path) -> None:
    other = SmallStore(tmp_path / "other")
    small_store.put("A", body=b"1")
    other.put("A", body=b"2")
    other.put("B", 3, body=b"3")
    both = {"storePath": f"{small_store.path},{other.path}", "brokerName": "a,b"}
    found = [(row["brokerName"], row["body"]) for row in read(small_store.path, **both)]
    assert found == [("a", b"1"), ("b", b"2"), ("b", b"3")]
    found = [
        (row["brokerName"], row["body"]) for row in read(small_store.path, **both, assign='{"A":{"b":[0]},"B":[3]}')
    ]
    assert found == [("b", b"2"), ("b", b"3")]
    skip = json.dumps({"A": {"b": {"0": 1}}})
    found = [
        (row["brokerName"], row["body"]) for row in read(small_store.path, **both, subscribe="A", startingOffsets=skip)
    ]
    assert found == [("a", b"1")]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "Nowhere"}, "topic 'Nowhere' is not in"),
        ({"assign": '{"T":[7]}'}, "queue 7 of topic 'T' is not in"),
        ({"subscribe": "T", "startingOffsets": '{"T":{"x":{"0":0}}}'}, "offsets name broker 'x'"),
        ({"subscribe": "T", "startingOffsets": '{"U":{"b":{"0":0}}}'}, "which this read does not include"),
        ({"subscribe": "T", "startingOffsets": '{"T":{"b":{"0":9}}}'}, "it holds 0 to 1"),
        ({"startingCommitLogOffset": "9999"}, "holds 0 to "),
    ],
)
def test_missing_topics_queues_and_offsets_are_errors(
    small_store: SmallStore, given: dict[str, str], says: str
) -> None:
    small_store.put("T")
    with pytest.raises(ConfigError) as raised:
        read(small_store.path, brokerName="b", **given)
    assert says in str(raised.value)


@pytest.mark.parametrize("topics", [{"subscribePattern": ".*", "startingOffsets": "earliest"}, {}])
def test_messages_of_light_message_queues_are_read_once_in_their_own_topic(
    tmp_path: Path, topics: dict[str, str]
) -> None:
    rows = [row for row in read(with_lmq(tmp_path), **topics) if "lmq" in row["topic"].lower()]
    assert [row["topic"] for row in rows] == ["S_lmq"] * 50
    with pytest.raises(ConfigError):
        read(tmp_path / "lmq3.orig", subscribe="%LMQ%a")


def test_tags_are_pushed_down_to_units_with_an_address_in_consumequeue_ext(tmp_path: Path) -> None:
    assert len(read(with_ext(tmp_path), subscribe="S_tag", subExpression="A")) == 100


@pytest.mark.parametrize("choice", [{}, {"subscribe": "T,U"}])
def test_a_sql92_filter_selects_by_properties(small_store: SmallStore, choice: dict[str, str]) -> None:
    pairs = [{"price": "4"}, {"price": "5.5"}, {"price": "6"}, {}, {"price": "é"}, {"region": "eu"}]
    places = [small_store.put("TU"[n % 2], **each) for n, each in enumerate(pairs)]
    wanted = {"price > 5.1": [1, 2], "price IS NULL": [3, 5], "region IN ('eu') OR price = 'é'": [4, 5]}
    for expression, numbers in wanted.items():
        given = {"subExpression": expression, "expressionType": "SQL92", **choice}
        assert offsets(read(small_store.path, **given)) == [places[number] for number in numbers]


def test_an_empty_store_has_no_rows(small_store: SmallStore) -> None:
    assert read(small_store.path) == []
    assert read(small_store.path, subscribePattern=".*") == []


def test_unicode_round_trips(small_store: SmallStore) -> None:
    small_store.put("T", body="häßlich 😀".encode(), KEYS="ключ 鍵", TAGS="têtu", naïve="ﷺ")
    ((row),) = read(small_store.path)
    assert row["body"].decode() == "häßlich 😀"
    assert row["keys"] == ["ключ", "鍵"]
    assert row["tags"] == "têtu"
    assert row["properties"] == {"KEYS": "ключ 鍵", "TAGS": "têtu", "naïve": "ﷺ"}


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [{}, {"subscribe": "T"}])
@pytest.mark.parametrize("position", [0, 4, 28, 84, 88])
def test_a_damaged_record_ends_the_read_or_is_skipped(
    small_store: SmallStore, choice: dict[str, str], position: int, caplog: pytest.LogCaptureFixture
) -> None:
    places = [small_store.put(body=b"%04d" % n * 100) for n in range(12)]
    damaged = places[8]
    small_store.overwrite(damaged + position, b"\x7f\x7f\x7f\x7f")
    with pytest.raises(StoreCorrupt) as raised:
        read(small_store.path, **choice)
    assert damaged == int(Path(raised.value.path).name) + raised.value.position
    with caplog.at_level(logging.WARNING, "rucola.spark.source.record_decoder"):
        assert offsets(read(small_store.path, corruptRecords="skip", **choice)) == [p for p in places if p != damaged]
    assert "left out 1 damaged records" in caplog.text
    assert str(raised.value) in caplog.text
    rows = read(small_store.path, corruptRecords="column", **choice)
    (corrupt,) = (row for row in rows if row["_corrupt"] is not None)
    assert corrupt["_corrupt"] == raised.value.why
    known = {name: value for name, value in corrupt.items() if value is not None and name != "_corrupt"}
    assert known == {"brokerName": str(small_store.path), "commitLogOffset": damaged}
    assert sorted(offsets(rows)) == places


def test_damage_in_an_unread_body_is_not_reported(small_store: SmallStore) -> None:
    place = small_store.put(body=b"body")
    small_store.overwrite(place + 88, b"X")
    assert offsets(read(small_store.path, includeBody="false")) == [place]


def test_units_that_point_at_messages_of_other_queues_are_damage(small_store: SmallStore) -> None:
    first, second, third = (small_store.put("T", queue_id) for queue_id in (0, 1, 0))
    size = second - first
    small_store.put("T", 0)
    small_store.put_unit("T", 0, 1, second, size)
    with pytest.raises(StoreCorrupt):
        read(small_store.path, subscribe="T")
    with pytest.raises(StoreCorrupt):
        read(small_store.path, assign='{"T":[0]}')
    assert third not in offsets(read(small_store.path, assign='{"T":[0]}', corruptRecords="skip"))


def test_a_unit_that_points_at_no_record_is_damage(small_store: SmallStore) -> None:
    places = [small_store.put() for _ in range(4)]
    for nowhere in (1 << 60, small_store.end + FILE_SIZE):
        small_store.put_unit("T", 0, 1, nowhere, 100)
        with pytest.raises(StoreCorrupt):
            read(small_store.path, subscribe="T")
        left = offsets(read(small_store.path, subscribe="T", corruptRecords="skip"))
        assert left == [places[0], *places[2:]]


def test_damage_outside_every_queue_does_not_end_the_log(small_store: SmallStore) -> None:
    places = [small_store.put(body=bytes(500), dispatch=False) for _ in range(20)]
    small_store.overwrite(places[2], bytes(8))
    with raises(StoreCorrupt, position=places[2]):
        read(small_store.path)
    # Nothing tells where the chain goes on before the next file begins.
    left = offsets(read(small_store.path, corruptRecords="skip"))
    assert left == [place for place in places if place < places[2] or place >= FILE_SIZE]


def test_a_torn_record_at_the_end_is_not_read(small_store: SmallStore) -> None:
    places = [small_store.put(body=bytes(500)) for _ in range(3)]
    torn = small_store.put(body=bytes(500), dispatch=False)
    small_store.overwrite(torn + 300, bytes(300))
    (small_store.path / "commitlog" / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    assert offsets(read(small_store.path)) == places


def test_damaged_stores_yield_rows_or_a_store_error(golden: Path, tmp_path: Path) -> None:
    """The golden stores that a real broker had to recover: none may bring the reader down."""
    variants = sorted(path.parent for path in (golden / "recovery").glob("*/store"))
    assert len(variants) >= 10
    for variant in variants:
        copy = tmp_path / variant.name
        shutil.copytree(variant / "store", copy)
        for choice in ({}, {"subscribePattern": ".*"}):
            try:
                rows = read(copy, corruptRecords="skip", includeSystemTopics="true", **choice)
            except MQError:
                continue
            assert len(set(offsets(rows))) == len(rows)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_queues_only_speed_up_reading_the_log(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever units say, true or false, the log is read as without them: from record to record."""
    store = SmallStore(tmp_path_factory.mktemp("store") / "store")
    places = [
        store.put("T", data.draw(st.integers(0, 2)), bytes(data.draw(st.integers(1, 300))), dispatch=dispatch)
        for dispatch in data.draw(st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=40))
    ]
    options = parse_read_options({"storePath": str(store.path), "corruptRecords": "skip"})
    for queue_id, offset in data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=4)):
        address = data.draw(st.one_of(st.sampled_from(places), st.integers(0, store.end + 5000)))
        store.put_unit("T", queue_id, offset, address, data.draw(st.integers(0, 500)))
    if data.draw(st.booleans()):
        store.overwrite(data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 90)), b"\xff\x00\xff")
    splits = plan(options)

    def rows() -> list[list[Row]]:
        found = [batch for split in splits for batch in reader.read(split, options, ("commitLogOffset", "body"))]
        return [row for batch in found for row in batch.to_pylist()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rucola.spark.source.record_layout.BATCH_ROWS", data.draw(st.sampled_from([3, 16 * 1024])))
        with_queues = rows()
        patch.setattr("rucola.spark.source.log_reader.MAX_HINT_QUEUES", -1)
        assert rows() == with_queues
