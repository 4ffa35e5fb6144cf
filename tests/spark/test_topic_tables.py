"""Tables of single topics: derived from the messages of a lake once, with decoded bodies and schemas that change."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

from rucola.cli.main import main
from rucola.errors import RemotingError
from rucola.spark.archive import Archive
from rucola.spark.bodies import Decoder
from rucola.spark.bodies.decoded import column
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.bodies.json_schemas import struct_type
from rucola.spark.lake import local_io, storage, tables, topic_tables
from rucola.spark.lake.compaction import MIN_FILES
from rucola.spark.lake.snapshot import ArchiveProgress
from rucola.spark.lake.staging import stage_in_process
from rucola.spark.lake.tables import LakeInUse, Tables, TopicTableError, open_tables, partition_of
from rucola.spark.lake.topic_tables import Incompatible, adapt_schema
from rucola.spark.lake.writer import locked, open_lake
from rucola.spark.source.columns import SCHEMA
from support.errors import raises
from support.killing import Deadly, Killed
from support.schema_registry import SchemaRegistry
from support.small_store import SmallStore

pytestmark = pytest.mark.slow

DAY_US = 86_400_000_000
NOON_US = 1_700_049_600_000_000  # 2023-11-15 12:00 UTC


def archive(root: Path, bodies: Sequence[bytes], begin: int = 0, *, topic: str = "Orders", **changes: Any) -> None:
    """Archive messages of one queue of broker `a`, at the physical offsets from `begin` on."""
    numbers = dict.fromkeys(
        ("flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset", "queueId", "storeSize"), 0
    )
    rows = [
        {
            **dict.fromkeys(SCHEMA.names), **numbers, "topic": topic, "body": body, "brokerName": "a",
            "queueOffset": offset, "commitLogOffset": offset, "bornTimestamp": NOON_US, "storeTimestamp": NOON_US,
            "properties": [("UNIQ_KEY", f"U{offset}")], "msgId": f"U{offset}", **changes,
        }
        for offset, body in enumerate(bodies, begin)
    ]  # fmt: skip
    progress = ArchiveProgress(begin + len(bodies))
    if changes.get("brokerName") == "live":
        progress = ArchiveProgress(0, queues={topic: {"0": begin + len(bodies)}}, is_live=True)
    with open_lake(root) as lake:
        staged = stage_in_process(lake, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
        lake.publish(staged.files, {changes.get("brokerName", "a"): progress})


def objects(numbers: Iterable[int]) -> list[bytes]:
    return [json.dumps({"id": number}).encode() for number in numbers]


def opened(root: Path) -> Tables:
    """The tables without the lock, as another program has them."""
    found = open_tables(root).__enter__()
    assert found is not None
    return found


def table_of(root: Path, topic: str = "Orders") -> Any:
    return opened(root).topic(topic)


def rows(root: Path, topic: str = "Orders") -> list[dict[str, Any]]:
    """The rows of a table as pyiceberg reads them, in the order of the log."""
    found: list[dict[str, Any]] = table_of(root, topic).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["commitLogOffset"])


def values(root: Path, topic: str = "Orders") -> list[Any]:
    return [row.get("value") for row in rows(root, topic)]


def schema(**properties: Any) -> Decoder:
    return JsonBodies(struct_type({"type": "object", "properties": properties}))


INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def test_bodies_become_columns_and_what_does_not_decode_is_kept(tmp_path: Path) -> None:
    archive(tmp_path, [b'{"id":1,"name":"x"}', b"no", b'{"id":"1"}'])
    archive(tmp_path, [b"\xff"], 3, bodyError="damaged")
    archive(tmp_path, [b"other"], 4, topic="Other")
    [result] = Archive(tmp_path).derive({"Orders": schema(id=INTEGER, name=STRING), "None": JsonBodies()})
    assert (result.topic, result.rows, result.errors) == ("Orders", 4, 3)
    first, *others = rows(tmp_path)
    assert (first["value"], first["body"], first["_decode_error"]) == ({"id": 1, "name": "x"}, None, None)
    assert [(row["value"], row["body"]) for row in others] == [(None, b"no"), (None, b'{"id":"1"}'), (None, b"\xff")]
    assert all(row["_decode_error"] for row in others)
    assert others[2]["_decode_error"] == "damaged"
    assert (first["msgId"], first["properties"]) == ("U0", [("UNIQ_KEY", "U0")])
    assert table_of(tmp_path, "None") is table_of(tmp_path, "Other") is None


def test_every_topic_has_a_table_of_its_own(tmp_path: Path) -> None:
    for number, topic in enumerate(["Orders", "%RETRY%g", "messages"]):
        archive(tmp_path, [b'{"id":1}'], number, topic=topic)
    found = Archive(tmp_path).derive({"Orders": JsonBodies()}, every_topic=True)
    assert [(each.topic, each.rows) for each in found] == [("%RETRY%g", 1), ("Orders", 1), ("messages", 1)]
    assert [(row["topic"], row["body"]) for row in rows(tmp_path, "%RETRY%g")] == [("%RETRY%g", b'{"id":1}')]
    assert values(tmp_path) == [{"id": 1}]
    # A table with decoded bodies waits for its decoder.
    archive(tmp_path, [b'{"id":2}', b'{"id":3}'], 3)
    assert Archive(tmp_path).derive({}, every_topic=True) == []
    assert [each.rows for each in Archive(tmp_path).derive({"Orders": JsonBodies()})] == [2]


def test_partitions_are_in_the_manifests_and_statistics_complete(tmp_path: Path) -> None:
    archive(tmp_path, objects([1]))
    archive(tmp_path, objects([2]), 1, storeTimestamp=NOON_US + DAY_US)
    archive(tmp_path, objects([3]), 2, storeTimestamp=None)
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    table = table_of(tmp_path)
    days = {task.file.partition[0]: task.file for task in table.scan().plan_files()}
    assert {*days} == {partition_of("", "2023-11-15")[0], partition_of("", "2023-11-16")[0], None}
    number = table.schema().find_field("value.id").field_id
    assert all(file.value_counts[number] == 1 and file.null_value_counts[number] == 0 for file in days.values())
    [summary] = {each.upper_bound for m in table.current_snapshot().manifests(table.io) for each in m.partitions}
    assert summary is not None
    assert len([*table.scan("storeTimestamp >= '2023-11-16T00:00:00+00:00'").plan_files()]) == 1


# -- schemas that change -----------------------------------------------------------------------------------------------


def test_a_schema_changes_without_a_stop(tmp_path: Path) -> None:
    """Fields are added, widened and renamed; a column keeps its id and its values under its new name."""
    int32 = {"type": "integer", "format": "int32"}
    archive(tmp_path, [b'{"id":1,"customer":"x","lines":[{"n":1}]}'])
    lines = {"type": "array", "items": {"type": "object", "properties": {"n": int32}}}
    Archive(tmp_path).derive({"Orders": schema(id=int32, customer=STRING, lines=lines)})
    before = {name: table_of(tmp_path).schema().find_field(name).field_id for name in ("value.id", "value.customer")}
    archive(
        tmp_path, [b'{"id":5000000000,"client":"y","lines":[{"no":2,"text":"t"}]}', b'{"id":2,"customer":"old"}'], 1
    )
    inner = {"no": {**INTEGER, "aliases": ["n"]}, "text": STRING}
    lines = {"type": "array", "items": {"type": "object", "properties": inner}}
    later = schema(id=INTEGER, client={**STRING, "aliases": ["customer"]}, lines=lines)
    Archive(tmp_path).derive({"Orders": later})
    assert [(each["id"], each["client"]) for each in values(tmp_path)] == [(1, "x"), (5_000_000_000, "y"), (2, "old")]
    assert [each["lines"] for each in values(tmp_path)][:2] == [[{"no": 1, "text": None}], [{"no": 2, "text": "t"}]]
    found = table_of(tmp_path).schema()
    assert {"value.id": before["value.id"], "value.client": before["value.customer"]} == {
        name: found.find_field(name).field_id for name in ("value.id", "value.client")
    }
    # An older schema changes nothing, and its fields are the columns that they have become.
    archive(tmp_path, [b'{"id":6,"customer":"z"}'], 3)
    Archive(tmp_path).derive({"Orders": schema(id=int32, customer=STRING)})
    assert table_of(tmp_path).schema() == found
    assert [(each["id"], each["client"]) for each in values(tmp_path)][3] == (6, "z")


def test_a_schema_of_other_types_stops_nothing(tmp_path: Path) -> None:
    """Its bodies are kept with the reason; those before and after it are decoded."""
    versions = [schema(id=INTEGER), schema(id=STRING, name=STRING), schema(ID=INTEGER), schema(id=INTEGER, name=STRING)]
    bodies = [b'{"id":1}', b'{"id":"x"}', b'{"ID":3}', b'{"id":4,"name":"n"}']
    for number, (decoder, body) in enumerate(zip(versions, bodies, strict=True)):
        archive(tmp_path, [body], number)
        [result] = Archive(tmp_path).derive({"Orders": decoder})
        assert (result.rows, result.errors) == (1, int(number in (1, 2)))
    assert values(tmp_path) == [{"id": 1, "name": None}, None, None, {"id": 4, "name": "n"}]
    assert [row["body"] for row in rows(tmp_path)] == [None, bodies[1], bodies[2], None]
    assert "value.id" in rows(tmp_path)[1]["_decode_error"]


def test_schemas_of_a_registry_may_change_within_a_run(tmp_path: Path) -> None:
    def body(number: int, version: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
        stream = io.BytesIO(b"\0" + struct.pack(">i", number))
        stream.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(stream, fastavro.parse_schema(version), value)
        return stream.getvalue()

    def record(*fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": "Order", "fields": [*fields]}

    first = record({"name": "id", "type": "int"}, {"name": "who", "type": "string"})
    second = record({"name": "id", "type": "long"}, {"name": "name", "type": "string", "aliases": ["who"]})
    with SchemaRegistry() as registry:
        registry.add(1, json.dumps(first))
        registry.add(2, json.dumps(second))
        decoder = topic_decoder(f"Orders=avro:{registry.url}")
        archive(tmp_path, [body(1, first, {"id": 1, "who": "a"}), body(2, second, {"id": 2**40, "name": "b"}),
                           body(1, first, {"id": 3, "who": "c"}), body(7, first, {"id": 4, "who": "d"})])  # fmt: skip
        Archive(tmp_path).derive(decoder)
        expected = [{"id": 1, "name": "a"}, {"id": 2**40, "name": "b"}, {"id": 3, "name": "c"}, None]
        assert values(tmp_path) == expected
        # A registry that is away delays this table, and neither another one nor the archive.
        archive(tmp_path, [body(5, second, {"id": 5, "name": "e"})], 4)
        archive(tmp_path, [b"{}"], 5, topic="Zebra")
        registry.add(5, "", status=503)
        with pytest.raises(RemotingError):
            Archive(tmp_path).derive({**topic_decoder(f"Orders=avro:{registry.url}"), "Zebra": schema(id=INTEGER)})
        assert values(tmp_path) == expected
        assert values(tmp_path, "Zebra") == [{"id": None}]
        registry.add(5, json.dumps(second))
        Archive(tmp_path).derive(topic_decoder(f"Orders=avro:{registry.url}"))
        assert values(tmp_path) == [*expected, {"id": 5, "name": "e"}]


def topic_decoder(text: str) -> dict[str, Decoder]:
    from rucola.spark.bodies import parse_decoding

    return dict([parse_decoding(text)])


def test_a_table_that_cannot_be_continued_delays_no_other(tmp_path: Path) -> None:
    class Broken(JsonBodies):
        def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Any:
            raise ValueError("broken")

    archive(tmp_path, objects([0]))
    archive(tmp_path, objects([1]), 1, topic="Zebra")
    with raises(TopicTableError, subject="Orders"):
        Archive(tmp_path).derive({"Orders": Broken(), "Zebra": JsonBodies()})
    assert values(tmp_path, "Zebra") == [{"id": 1}]
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    assert values(tmp_path) == [{"id": 0}]


def test_the_number_of_a_field_identifies_its_column(tmp_path: Path) -> None:
    archive(tmp_path, objects([1]))
    Archive(tmp_path).derive({"Orders": JsonBodies(pa.struct([column("id", pa.int64(), number=1)]))})
    archive(tmp_path, [b'{"key":2,"id":"new"}'], 1)
    kind = pa.struct([column("key", pa.int64(), number=1), column("text", pa.string(), number=2)])
    Archive(tmp_path).derive({"Orders": JsonBodies(kind)})
    assert values(tmp_path) == [{"key": 1, "text": None}, {"key": 2, "text": None}]


def test_two_runs_change_a_schema_at_the_same_time(tmp_path: Path) -> None:
    """Each looks at what the other has done; neither change is lost."""
    archive(tmp_path, objects([1]))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    one, other, third = (table_of(tmp_path) for _ in range(3))
    adapt_schema(one, pa.struct([("id", pa.int64()), column("a", pa.string(), ["b"])]))
    adapt_schema(other, pa.struct([("id", pa.int64()), column("c", pa.string(), ["d"]), ("e", pa.int32())]))
    with pytest.raises(Incompatible):
        adapt_schema(third, pa.struct([("e", pa.string())]))
    found = table_of(tmp_path)
    assert [field.name for field in found.schema().find_field("value").field_type.fields] == ["id", "a", "c", "e"]
    archive(tmp_path, [b'{"b":"x","d":"y"}'], 1)
    Archive(tmp_path).derive({"Orders": schema(b=STRING, d=STRING)})
    assert values(tmp_path)[1] == {"id": None, "a": "x", "c": "y", "e": None}


@pytest.mark.parametrize("lands", [True, False])
def test_a_change_whose_answer_is_lost_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    archive(tmp_path, objects([1]))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    archive(tmp_path, [b'{"id":2,"new":"x"}'], 1)
    commit_table, answers = SqlCatalog.commit_table, iter([False])

    def lose(*arguments: Any) -> Any:
        is_lost = next(answers, None) is False
        if lands or not is_lost:
            answer = commit_table(*arguments)
        if is_lost:
            raise ConnectionError("lost")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lose)
        with suppress(tables.StoreError):
            Archive(tmp_path).derive({"Orders": JsonBodies()})
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    assert values(tmp_path) == [{"id": 1, "new": None}, {"id": 2, "new": "x"}]


# -- exactly once ------------------------------------------------------------------------------------------------------


def test_a_message_is_derived_once_whoever_compacts(tmp_path: Path) -> None:
    decoders = {"Orders": JsonBodies()}
    archive(tmp_path, objects([0]))
    archive(tmp_path, objects([1]), 1)
    Archive(tmp_path).derive(decoders)
    archive(tmp_path, objects([2]), 2)
    Archive(tmp_path).compact(min_files=2, keep_replaced_ms=0)
    assert [each.rows for each in Archive(tmp_path).derive(decoders)] == [1]
    assert Archive(tmp_path).derive(decoders) == []
    # The queue is made again in the same log, and begins at 0.
    archive(tmp_path, objects([3]), 3, queueOffset=0)
    Archive(tmp_path).derive(decoders)
    # Of a live broker, messages are known by their queue.
    archive(tmp_path, objects([4, 5]), 4, brokerName="live")
    Archive(tmp_path).derive(decoders)
    archive(tmp_path, objects([6]), 6, brokerName="live")
    Archive(tmp_path).compact(min_files=2, keep_replaced_ms=0)
    Archive(tmp_path).derive(decoders)
    assert values(tmp_path) == [{"id": number} for number in range(7)]


def test_of_two_runs_one_derives(tmp_path: Path) -> None:
    archive(tmp_path, objects([0]))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    archive(tmp_path, objects([1]), 1)
    with locked(tmp_path), pytest.raises(LakeInUse):
        Archive(tmp_path).derive({"Orders": JsonBodies()})
    # Without the lock, too, as in a catalog that several machines share.
    one, other = opened(tmp_path), opened(tmp_path)
    late = other.topic("Orders")
    assert late is not None
    topic_tables._Derivation(one, "Orders", JsonBodies(), again=False).run(0)
    with pytest.raises(LakeInUse):
        other.commit(late, [], progress={"a": ArchiveProgress(3)})
    assert values(tmp_path) == [{"id": 0}, {"id": 1}]


def test_a_run_notices_that_another_has_continued_the_table(tmp_path: Path) -> None:
    """Also if it looks at the table anew, because both change the schema."""
    archive(tmp_path, objects([0]))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    archive(tmp_path, [b'{"id":1,"new":1}'], 1)
    other = opened(tmp_path)
    table = other.topic("Orders")
    assert table is not None

    class Between(JsonBodies):
        def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Any:
            adapt_schema(table, pa.struct([("other", pa.string())]))
            other.commit(table, [], progress={"a": ArchiveProgress(2)})
            return super().decode(bodies, known)

    with pytest.raises(LakeInUse):
        Archive(tmp_path).derive({"Orders": Between()})
    assert values(tmp_path) == [{"id": 0, "other": None, "new": None}]


def data_files(root: Path) -> set[str]:
    return {str(path) for path in (root / "topics").rglob("*.parquet")}


def named_files(root: Path) -> set[str]:
    return {task.file.file_path for task in table_of(root).scan().plan_files()}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (storage, "sync_directory"),
        (local_io, "sync_all"),
        (SqlCatalog, "commit_table"),
        (storage.Directory, "writing"),
        (storage.Directory, "delete_directory"),
    ],
)
def test_a_run_that_is_killed_anywhere_counts_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    """At every call that changes the disk. The message of each run has a field that is new."""
    archive(tmp_path, objects([0]))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    for number in range(1, 30):
        archive(tmp_path, [json.dumps({"id": number, f"n{number}": 1}).encode()], number)
        deadly = Deadly(getattr(owner, name), number, after=after)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, deadly)
            with suppress(Killed):
                Archive(tmp_path).derive({"Orders": JsonBodies()})
        assert [each["id"] for each in values(tmp_path)] in ([*range(number)], [*range(number + 1)])
        Archive(tmp_path).derive({"Orders": JsonBodies()})
        assert [each["id"] for each in values(tmp_path)] == [*range(number + 1)]
        assert values(tmp_path)[number][f"n{number}"] == 1
        if deadly.calls > 0:
            break
    assert data_files(tmp_path) == named_files(tmp_path)


def test_a_table_is_written_again_with_another_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(tmp_path, [b'{"id":1,"name":"x"}', b'{"id":2}'])
    Archive(tmp_path).derive({"Orders": schema(id=STRING)})
    assert values(tmp_path) == [None, None]
    with monkeypatch.context() as patched:
        patched.setattr(Tables, "commit", Deadly(Tables.commit, 1, after=False))
        with pytest.raises(Killed):
            Archive(tmp_path).derive({"Orders": schema(id=INTEGER)}, again=True)
    assert rows(tmp_path) == []
    Archive(tmp_path).derive({"Orders": schema(id=INTEGER)})
    assert values(tmp_path) == [{"id": 1}, {"id": 2}]
    [result] = Archive(tmp_path).derive({"Orders": schema(id=INTEGER, name=STRING)}, again=True, keep_replaced_ms=0)
    assert (result.rows, result.errors) == (2, 0)
    assert values(tmp_path) == [{"id": 1, "name": "x"}, {"id": 2, "name": None}]
    assert data_files(tmp_path) == named_files(tmp_path)
    assert Archive(tmp_path).derive({"Orders": schema(id=INTEGER)}) == []


def test_small_files_are_merged_across_schemas(tmp_path: Path) -> None:
    """A day has few files; a null list stays null, which pyiceberg's own reader makes an empty one."""
    bodies = [b'{"id":0,"who":"a"}', b'{"id":1,"tags":["x"]}', b"no"]
    bodies += [json.dumps({"id": number, "name": "n"}).encode() for number in range(3, MIN_FILES + 2)]
    for number, body in enumerate(bodies):
        archive(tmp_path, [body], number, storeTimestamp=NOON_US + (number == 2) * DAY_US)
        decoder = schema(id=INTEGER, name={**STRING, "aliases": ["who"]}, tags={"type": "array", "items": STRING})
        first = schema(id=INTEGER, who=STRING)
        Archive(tmp_path).derive({"Orders": decoder if number else first}, keep_replaced_ms=0)
    assert len(data_files(tmp_path)) == 3
    assert data_files(tmp_path) == named_files(tmp_path)
    found = [row for path in data_files(tmp_path) for row in pq.read_table(path, partitioning=None).to_pylist()]
    found.sort(key=lambda row: row["commitLogOffset"])
    assert [row["value"] for row in found] == [
        {"id": 0, "name": "a", "tags": None}, {"id": 1, "name": None, "tags": ["x"]}, None,
        *({"id": number, "name": "n", "tags": None} for number in range(3, MIN_FILES + 2)),
    ]  # fmt: skip
    assert [row["keys"] for row in found] == [None] * len(bodies)
    assert [row["properties"] for row in found] == [[("UNIQ_KEY", f"U{number}")] for number in range(len(bodies))]


def test_values_are_columns_of_the_parquet_files(tmp_path: Path) -> None:
    archive(tmp_path, objects(range(3)))
    Archive(tmp_path).derive({"Orders": JsonBodies()})
    [path] = (tmp_path / "topics").rglob("*.parquet")
    found = pq.read_table(path, columns=["value"], partitioning=None)["value"].to_pylist()
    assert found == [{"id": 0}, {"id": 1}, {"id": 2}]
    fields = {field.name: field for field in pq.read_schema(path)}
    assert (
        int(fields["value"].metadata[b"PARQUET:field_id"]) == table_of(tmp_path).schema().find_field("value").field_id
    )


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_schema_is_inferred_confirmed_and_used(tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "orders.json"
    archive(lake, [*objects(range(5)), b"no"])
    run = CliRunner()
    result = run.invoke(main, ["pipeline", "infer-schema", "--lake", str(lake), "-t", "Orders", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(out.read_text())
    decode = ["pipeline", "decode", "--lake", str(lake), "--decode", f"Orders=json:{out}", "--json"]
    result = run.invoke(main, decode)
    assert result.exit_code == 0, result.output
    [topic] = json.loads(result.stdout)["topics"]
    assert (topic["topic"], topic["rows"], topic["errors"]) == ("Orders", 6, 1)
    assert json.loads(run.invoke(main, decode).stdout)["topics"] == []
    assert json.loads(run.invoke(main, [*decode, "--again"]).stdout)["topics"] == [topic]
    for wrong in (
        ["decode", "--lake", str(lake)],
        ["infer-schema", "--lake", str(lake), "-t", "None"],
        [*decode[1:], "--decode", "Orders=json"],
    ):
        assert run.invoke(main, ["pipeline", *wrong]).exit_code != 0


def test_an_archive_goes_on_whatever_becomes_of_its_tables(tmp_path: Path, small_store: SmallStore) -> None:
    lake = tmp_path / "lake"
    run = CliRunner()
    command = ["pipeline", "archive", "--store", str(small_store.path), "--out", str(lake), "--json"]
    small_store.put("Orders", body=b'{"id":1}')
    result = run.invoke(main, [*command, "--decode", f"Orders=json:{tmp_path}/none"])
    assert result.exit_code == 1
    assert run.invoke(main, [*command, "--decode", "Orders=json", "--decode", "Orders=json"]).exit_code == 2
    assert not lake.exists()
    with SchemaRegistry() as registry:
        registry.add(0x22696422, "", status=500)
        small_store.put("Orders", body=b'\0"id":1}')
        result = run.invoke(main, [*command, "--decode", f"Orders=json:{registry.url}", "--table-per-topic"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"] == 2
    small_store.put("Other")
    result = run.invoke(main, [*command, "--decode", "Orders=json", "--table-per-topic"])
    assert result.exit_code == 0, result.output
    archived, derived = result.stdout.split("\n}\n", 1)
    assert json.loads(archived + "}")["rows"] == 1
    assert [(each["topic"], each["rows"]) for each in json.loads(derived)["topics"]] == [("Orders", 2), ("Other", 1)]
    assert [(row["value"], row["body"]) for row in rows(lake)] == [({"id": 1}, None), (None, b'\0"id":1}')]
    assert [row["body"] for row in rows(lake, "Other")] == [b"body"]
