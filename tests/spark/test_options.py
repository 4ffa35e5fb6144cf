from __future__ import annotations

import json
from pathlib import Path

import pytest

from rucola.errors import ConfigError
from rucola.spark.source import options
from rucola.spark.source.columns import SCHEMA
from rucola.spark.source.option_values import EARLIEST
from rucola.spark.source.options import CorruptRecords, parse_read_options
from support.errors import raises
from support.small_store import SmallStore


def test_names_ignore_case_and_defaults_read_everything(small_store: SmallStore) -> None:
    parsed = parse_read_options({"storepath": str(small_store.path)})
    assert parsed.stores == {str(small_store.path): str(small_store.path)}
    assert parsed.columns == tuple(SCHEMA.names)
    assert not parsed.by_queue
    assert not parsed.include_system_topics
    assert parsed.corrupt_records is CorruptRecords.FAIL


def test_every_option_is_understood(small_store: SmallStore) -> None:
    parsed = parse_read_options(
        {
            "storePath": str(small_store.path),
            "brokerName": "a",
            "assign": json.dumps({"T": [0, 1], "U": {"a": [2]}}),
            "includeSystemTopics": "True",
            "startingOffsets": json.dumps({"T": {"a": {"0": 5, "1": -2}}}),
            "endingOffsets": "latest",
            "startingTimestamp": "1",
            "endingTimestamp": "2",
            "columns": "topic, body",
            "corruptRecords": "skip",
            "minPartitions": "3",
        }
    )
    assert parsed.assigned == {("T", None, 0), ("T", None, 1), ("U", "a", 2)}
    assert parsed.starting_offsets == {("T", "a", 0): 5, ("T", "a", 1): EARLIEST}
    assert parsed.ending_offsets is None
    assert (parsed.starting_timestamp, parsed.ending_timestamp) == (1, 2)
    assert parsed.columns == ("topic", "body")
    assert (parsed.include_system_topics, parsed.corrupt_records, parsed.min_partitions) == (
        True,
        CorruptRecords.SKIP,
        3,
    )
    of_corrupt = parse_read_options(
        {"storePath": str(small_store.path), "columns": "topic", "corruptRecords": "column"}
    )
    assert of_corrupt.columns == ("topic", "_corrupt")
    by_sql = parse_read_options(
        {"storePath": str(small_store.path), "subExpression": "a > 3", "expressionType": "SQL92"}
    )
    assert (by_sql.tags, by_sql.expression) == (None, "a > 3")
    assert "body" not in parse_read_options({"storePath": str(small_store.path), "includeBody": "false"}).columns


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"storePaht": "x"}, "no option 'storepaht' for a read; it has storePath, path, paths"),
        ({"storePath": ""}, "it is empty"),
        ({"storePath": "/nowhere"}, "/nowhere is not a store directory: it holds no commitlog/"),
        ({"brokerName": "a,b"}, "names 1 stores"),
        ({"subscribe": "A", "subscribePattern": "B"}, "subscribe and subscribePattern contradict"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"assign": "[1]"}, "assign"),
        ({"assign": '{"T":["x"]}'}, "assign"),
        ({"subscribe": "A", "startingOffsets": "last"}, "it must be earliest, latest or JSON"),
        ({"nameServer": "127.0.0.1:9876"}, "storePath and nameServer contradict"),
        ({"startingOffsets": "latest", "startingCommitLogOffset": "0"}, "contradict each other"),
        ({"maxOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"subExpression": "a > 3"}, "SQL92"),
        ({"subExpression": "A || "}, "is not a tag"),
        ({"consumerGroup": "a b"}, "consumerGroup"),
        ({"subscribe": "A", "endingOffsets": '{"A":{"b":{"0":-2}}}'}, "-2 is not a queue offset"),
        ({"startingOffsets": '{"A":{"b":{"0":1}}}'}, "need subscribe"),
        ({"startingOffsetsByTimestamp": '{"A":{"b":{"0":1}}}'}, "need subscribe"),
        ({"subscribe": "A", "startingOffsetsByTimestamp": "now"}, "it must be JSON such as"),
        ({"subscribe": "A", "endingOffsetsByTimestamp": '{"A":{"b":{"0":-1}}}'}, "-1 is not a time in milliseconds"),
        (
            {"subscribe": "A", "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"A":{"b":{"0":1}}}'},
            "startingOffsets and startingOffsetsByTimestamp contradict each other",
        ),
        ({"subscribe": "A", "startingCommitLogOffset": "0"}, "cannot be used with topics"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "later than"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"minPartitions": "-1"}, "must not be negative"),
        ({"columns": "topic,bdy"}, "names 'bdy'; the columns are topic, flag, body"),
        ({"columns": "topic,topic"}, "twice"),
        ({"columns": "topic,body", "includeBody": "false"}, "contradict"),
        ({"includeBody": "no"}, "true or false"),
        ({"corruptRecords": "drop"}, "fail, skip or column"),
        ({"columns": "_corrupt"}, "names '_corrupt'"),
        ({"expressionType": "SQL"}, "TAG or SQL92"),
        ({"requiredBrokers": "a"}, "storePath and requiredBrokers contradict"),
        ({"failOnMissingBroker": "false"}, "storePath and failOnMissingBroker contradict"),
        ({"commitGroup": "g"}, "storePath and commitGroup contradict"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "5 is more than maxOffsetsPerTrigger 4"),
        ({"maxTriggerDelay": "1s"}, "give both"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "a duration such as 500ms, 30s, 15m"),
        ({"subscribe": "A", "startingOffsets": '{"A":{"0":1,"b":{"1":1}}}'}, "with and without the name of a broker"),
        ({"expressionType": "sql92", "subExpression": "a >"}, "filter 'a >', position"),
    ],
)
def test_invalid_options_are_refused(small_store: SmallStore, given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_read_options({"storePath": str(small_store.path), **given})
    assert says in str(raised.value)


def test_a_commit_log_offset_belongs_to_one_store(small_store: SmallStore, tmp_path: Path) -> None:
    other = SmallStore(tmp_path / "other")
    with pytest.raises(ConfigError):
        parse_read_options({"storePath": f"{small_store.path},{other.path}", "endingCommitLogOffset": "1"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nameServer": "localhost:x"}, "is not host:port"),
        ({"nameServer": ";"}, "it is empty"),
        ({"nameServer": "h:1", "brokerName": "a"}, "nameServer and brokerName contradict"),
        ({"nameServer": "h:1", "startingCommitLogOffset": "0"}, "nameServer and startingCommitLogOffset contradict"),
    ],
)
def test_invalid_options_of_live_brokers_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_read_options(given)
    assert says in str(raised.value)


def test_live_brokers_are_read_by_queue() -> None:
    parsed = parse_read_options(
        {"nameServer": " a:1 ; b:2 ", "subExpression": "x || y z", "keys": "1,2", "failOnDataLoss": "false"}
    )
    assert (parsed.name_server, parsed.stores, parsed.by_queue) == ("a:1;b:2", {}, True)
    assert (parsed.tags, parsed.keys, parsed.fail_on_data_loss) == ({"x", "y z"}, {"1", "2"}, False)
    assert parse_read_options({"nameServer": "a:1", "subExpression": "*"}).tags is None


def test_batches_need_a_beginning_and_refuse_options_of_streams(small_store: SmallStore) -> None:
    store = {"storePath": str(small_store.path), "subscribe": "T"}
    for begin in ("latest", '{"T":{"b":{"0":-1}}}'):
        parsed = parse_read_options({**store, "startingOffsets": begin})
        options.check_for_stream(parsed)
        with raises(ConfigError, subject="startingOffsets"):
            options.check_for_batch(parsed)
    with raises(ConfigError, subject="maxOffsetsPerTrigger"):
        options.check_for_batch(parse_read_options({**store, "maxOffsetsPerTrigger": "1"}))
    with raises(ConfigError, subject="minOffsetsPerTrigger"):
        options.check_for_batch(parse_read_options({**store, "minOffsetsPerTrigger": "1"}))
    with raises(ConfigError, subject="commitGroup"):
        options.check_for_batch(parse_read_options({"nameServer": "h:1", "commitGroup": "g"}))
    for name, end in (("endingOffsets", '{"T":{"b":{"0":1}}}'), ("endingTimestamp", "1")):
        parsed = parse_read_options({**store, name: end})
        options.check_for_batch(parsed)
        with raises(ConfigError, subject=name):
            options.check_for_stream(parsed)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("0", 0), ("250 ms", 250), ("30s", 30_000), ("15m", 900_000), ("2min", 120_000), ("1d", 86_400_000)],
)
def test_durations_are_parsed(small_store: SmallStore, text: str, delay_ms: int) -> None:
    given = {"storePath": str(small_store.path), "minOffsetsPerTrigger": "1", "maxTriggerDelay": text}
    assert parse_read_options(given).max_trigger_delay_ms == delay_ms


def test_offsets_can_omit_the_broker(small_store: SmallStore) -> None:
    parsed = parse_read_options(
        {"storePath": str(small_store.path), "subscribe": "T", "startingOffsets": '{"T":{"0":5,"1":-2}}'}
    )
    assert parsed.starting_offsets == {("T", None, 0): 5, ("T", None, 1): EARLIEST}


def test_a_source_must_be_named() -> None:
    with raises(ConfigError, subject="storePath"):
        parse_read_options({})


def rows_of(section: str) -> list[str]:
    """The first cells of the table in a section of docs/spark.md."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    text = page.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in lines[1:]]


def test_the_page_documents_every_option_and_column() -> None:
    assert sorted(rows_of("Options of a read")) == sorted(options.READ_OPTION_NAMES)
    assert sorted(rows_of("Options and columns of a write")) == sorted(options.SINK_OPTION_NAMES)
    assert rows_of("Columns") == list(SCHEMA.names)
