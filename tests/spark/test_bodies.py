"""Bodies decoded into Arrow structs: JSON, Avro and Protobuf, with schemas of files and of a registry."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import ConfigError, RemotingConnectError
from rucola.spark.bodies import Decoded, infer, parse_decoding
from rucola.spark.bodies.json_bodies import JsonBodies
from rucola.spark.bodies.json_schemas import MAX_FIELDS, struct_type
from support.errors import raises
from support.schema_registry import SchemaRegistry

INTEGER = {"type": "integer"}
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "price": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"flag": {"type": "boolean"}}},
    },
}
ORDER = {
    "id": 7,
    "name": "é\n",
    "price": 1.5,
    "at": "2026-01-02T03:04:05+02:00",
    "tags": ["a"],
    "inner": {"flag": True},
}


def decode(decoder: Any, *bodies: bytes, known: pa.StructType | None = None) -> Decoded:
    result: Decoded = decoder.decode(pa.array(bodies, pa.binary()), known)
    return result


def rows(decoded: Decoded) -> dict[int, Any]:
    """The values by row; None for a body that was not decoded. Every row is there once."""
    found = dict.fromkeys(decoded.errors)
    for each in decoded.values:
        for row, value in zip(each.rows.tolist(), each.structs.to_pylist(), strict=True):
            assert row not in found
            found[row] = value
    return found


def test_json_objects_become_structs_of_their_schema() -> None:
    decoder = JsonBodies(struct_type(SCHEMA))
    [found, empty, nulls] = rows(
        decode(decoder, json.dumps(ORDER, indent=1).encode(), b" {} ", b'{"id":null,"unknown":[{}]}')
    ).values()
    assert found == {**ORDER, "at": datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)}
    assert {*empty.values()} == {*nulls.values()} == {None}


PIECES = [b'{"id":1}', b'{"id":2,"name":"x"}', b'{"id":"no"}', b'{"id":1', b"}", b"{}{}", b"{}", b"", b" ", b"\n",
          b"no", b"[1]", b'{"name":"\xff"}', b'{"name":"}', b'{"id":1.0}', b'{"id":9e99}', b'{"id":9e20}',
          b'{"id":99999999999999999999}', b'{"price":NaN}', b'{"at":"soon"}', b'{"at":"2026-01-02T03:04:05Z"}',
          b'{"id":1,"id":2}', b'{"x":{"y":}}',
          b'{"name":"\\ud800"}', b"null", b'{"tags":["a",1]}', b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=9), min_size=1, max_size=12))
def test_a_body_is_decoded_in_a_batch_as_alone(bodies: list[bytes]) -> None:
    """Neighbours change neither the value nor its row, whatever they are."""
    decoder = JsonBodies(struct_type(SCHEMA))
    together = rows(decode(decoder, *bodies))
    assert {*together} == {*range(len(bodies))}
    for row, body in enumerate(bodies):
        alone = rows(decode(decoder, body))[0]
        assert str(together[row]) == str(alone)  # NaN differs from itself
        if alone is not None and b"[[" not in body:
            assert alone["id"] == json.loads(body).get("id")


def test_json_without_a_schema_has_the_fields_of_the_bodies() -> None:
    decoder = JsonBodies()
    [first] = decode(decoder, b'{"id":1,"at":"2026-01-02T03:04:05Z"}', b'{"id":2,"x":null,"a":[]}').values
    assert first.declared == pa.struct([("id", pa.int64()), ("at", pa.string())])
    later = decode(decoder, b'{"id":1.5}', b'{"id":3,"new":{"b":[true]}}', b'{"id":4}', known=first.declared)
    assert rows(later)[1] == {"id": 3, "at": None, "new": {"b": [True]}}
    assert {*later.errors} == {0}
    # The type of most bodies is the column's.
    assert {*decode(decoder, b'{"id":1}', b'{"id":"a"}', b'{"id":2}').errors} == {1}
    # What cannot be a column stays in the body: no names, or too many or too deep fields.
    hostile = {"": 1, "a.b": 1, "id": 1, "ID": 2, "none": {}, **{f"k{n}": n for n in range(2 * MAX_FIELDS)}}
    deep = b'{"id":1,"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
    for body in (json.dumps(hostile).encode(), deep):
        [kind] = [each.declared for each in decode(decoder, body, b'{"id":1}').values[:1]] or [first.declared]
        assert kind.num_fields <= MAX_FIELDS
        assert not {"", "a.b", "none", "ID"} & {field.name for field in kind}


def test_the_schema_of_a_sample_decodes_the_sample() -> None:
    bodies = [
        json.dumps(ORDER).encode(),
        b'{"id":8.5,"mixed":1,"tags":[],"null":null}',
        b'{"mixed":"x"}',
        b'{"mixed":2}',
        b"no",
    ]
    found = infer(bodies)
    assert (found.bodies, found.invalid) == (5, 1)
    assert found.schema["properties"] | {"id": {"type": "integer"}} == {
        **SCHEMA["properties"],  # type: ignore[dict-item]
        "name": {"type": "string"}, "mixed": {"type": "integer"},
    }  # fmt: skip
    assert found.schema["properties"]["id"] == {"type": "number"}
    assert [note.partition(":")[0] for note in found.notes] == ["$.mixed", "$.null"]
    assert {*decode(JsonBodies(struct_type(found.schema)), *bodies).errors} == {2, 4}


def test_a_json_schema_has_a_column_for_each_property_that_can_be_one() -> None:
    left_out: list[str] = []
    schema = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": INTEGER}}},
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/node"}, "maybe": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "either": {"type": ["string", "integer"]}, "a.b": {"type": "string"}, "map": {"type": "object"},
            "id": {"type": "integer"}, "Id": {"type": "integer"}, "lost": {"$ref": "#/nowhere"},
        },
    }  # fmt: skip
    kind = struct_type(schema, left_out)
    assert [(field.name, str(field.type)) for field in kind] == [
        ("node", "struct<v: int64>"), ("maybe", "double"), ("id", "int64"),
    ]  # fmt: skip
    assert len(left_out) == 6
    for wrong in (None, [], {"type": "string"}, {"type": "object", "properties": {"a": {}}}):
        with pytest.raises(ConfigError):
            struct_type(wrong)


AVRO = {
    "type": "record", "name": "shop.Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "either", "type": ["null", "string", "int"]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "n", "type": "int"}, {"name": "part", "type": ["null", "Line"]}]}}},
        {"name": "labels", "type": {"type": "map", "values": "State"}},
        {"name": "nothing", "type": "null"},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "large", "type": {"type": "bytes", "logicalType": "decimal", "precision": 50}},
        {"name": "pair", "type": {"type": "fixed", "size": 2, "name": "Pair"}},
    ],
}  # fmt: skip
AVRO_VALUE = {
    "id": 1, "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, tzinfo=UTC), "amount": Decimal("1.25"),
    "state": "PAID", "either": 5, "lines": [{"n": 1, "part": {"n": 2, "part": None}}], "labels": {"a": "NEW"},
    "nothing": None, "key": UUID(int=1), "large": Decimal(10**40), "pair": b"ab",
}  # fmt: skip


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_records_become_structs(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO))
    topic, decoder = parse_decoding(f"Orders=avro:{path}")
    body = avro(AVRO, AVRO_VALUE)
    found = decode(decoder, body, body[:-1], body + b"x", b"")
    assert topic == "Orders"
    assert {*found.errors} == {1, 2, 3}
    assert rows(found)[0] == {
        **{name: value for name, value in AVRO_VALUE.items() if name != "nothing"},
        "key": str(UUID(int=1)), "large": str(10**40), "either": "5",
        "lines": [{"n": 1, "part": '{"n": 2, "part": null}'}], "labels": [("a", "NEW")],
    }  # fmt: skip


def test_an_avro_array_of_nothing_is_refused(tmp_path: Path) -> None:
    """Ten bytes of it could be 2**60 items."""
    items = {"type": "record", "name": "Empty", "fields": [{"name": "nothing", "type": "null"}]}
    path = tmp_path / "schema"
    for each in ("null", items):
        fields = [{"name": "id", "type": "int"}, {"name": "list", "type": {"type": "array", "items": each}}]
        path.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
        with raises(ConfigError, subject="schema"):
            parse_decoding(f"Orders=avro:{path}")


def field(name: str, number: int, kind: str, label: str = "optional", type_name: str = "", **more: Any) -> Any:
    if type_name:
        more["type_name"] = type_name
    kinds: Any = {"type": f"TYPE_{kind.upper()}", "label": f"LABEL_{label.upper()}"}
    return FieldDescriptorProto(name=name, number=number, **kinds, **more)


def order_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name])
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.extend([field("key", 1, "string"), field("value", 2, "int64")])
    order.oneof_decl.add(name="_note")
    order.field.extend(
        [
            field("id", 1, "uint64"),
            field("state", 2, "enum", type_name=".shop.State"),
            field("at", 3, "message", type_name=".google.protobuf.Timestamp"),
            field("parts", 4, "message", "repeated", ".shop.Order"),
            field("labels", 5, "message", "repeated", ".shop.Order.LabelsEntry"),
            field("count", 6, "message", type_name=".google.protobuf.Int32Value"),
            field("note", 7, "string", oneof_index=0, proto3_optional=True),
            field("data", 8, "bytes"),
        ]
    )
    file.message_type.add(name="Other").field.append(field("n", 1, "int32"))
    return file


def message_class(file: FileDescriptorProto, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def an_order() -> bytes:
    order = message_class(order_file(), "shop.Order")(id=2**64 - 1, state=1, labels={"a": 1}, data=b"\xff")
    order.at.seconds = 1_767_312_000
    order.parts.add(id=3)
    order.count.value = 0
    body: bytes = order.SerializeToString()
    return body


ORDER_VALUE = {
    "id": Decimal(2**64 - 1), "state": "PAID", "at": datetime(2026, 1, 2, tzinfo=UTC), "parts": ['{"id": "3"}'],
    "labels": [("a", 1)], "count": 0, "note": None, "data": b"\xff",
}  # fmt: skip


def test_protobuf_messages_become_structs(tmp_path: Path) -> None:
    path = tmp_path / "order.desc"
    path.write_bytes(FileDescriptorSet(file=[order_file()]).SerializeToString())
    _, decoder = parse_decoding(f"Orders=protobuf:{path}#shop.Order")
    found = decode(decoder, an_order(), b"", b"\xff")
    assert {*found.errors} == {2}
    assert rows(found)[0] == ORDER_VALUE
    assert rows(found)[1]["at"] is None
    with raises(ConfigError, subject=str(path)):
        parse_decoding(f"Orders=protobuf:{path}")  # which has two messages
    with raises(ConfigError, subject=str(path)):
        parse_decoding(f"Orders=protobuf:{path}#shop.None")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + struct.pack(">i", number) + body


def test_bodies_name_schemas_of_a_registry(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", "me:secret")
    line = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}
    registry.add(1, json.dumps(line), subject="line", version=3)
    registry.add(2, json.dumps(order), references=[{"name": "Line", "subject": "line", "version": 3}])
    registry.add(3, json.dumps(SCHEMA), "JSON")
    _, decoder = parse_decoding(f"Orders=avro:{registry.url}")
    bodies = [
        framed(2, b"\x02"),
        framed(1, b"\x04"),
        framed(2, b"\x06"),
        framed(9, b""),
        framed(3, b"{}"),
        b"\x01",
        b"",
    ]
    for _ in range(2):
        found = decode(decoder, *bodies)
        assert rows(found) == {0: {"line": {"n": 1}}, 1: {"n": 2}, 2: {"line": {"n": 3}}, **dict.fromkeys(range(3, 7))}
    # Each once, except for the one that is missing; with the credentials.
    assert sorted(path for path in registry.paths if "/9" not in path) == [
        "/schemas/ids/1", "/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/3", "/subjects/line/versions/3",
    ]  # fmt: skip
    assert {*registry.authorizations} == {"Basic " + base64.b64encode(b"me:secret").decode()}
    _, decoder = parse_decoding(f"Orders=json:{registry.url}/")
    assert rows(decode(decoder, framed(3, b'{"id":5}')))[0]["id"] == 5


def test_protobuf_bodies_name_the_message_of_their_schema(registry: SchemaRegistry) -> None:
    text = base64.b64encode(order_file().SerializeToString()).decode()
    registry.add(7, text, "PROTOBUF")
    _, decoder = parse_decoding(f"Orders=protobuf:{registry.url}")
    first, second, wrong = framed(7, b"\0" + an_order()), framed(7, b"\x02\x02\x08\x05"), framed(7, b"\x02\x08\x08\x05")
    found = decode(decoder, first, second, wrong, framed(7, b""))
    assert rows(found) == {0: ORDER_VALUE, 1: {"n": 5}, 2: None, 3: None}
    assert registry.paths == ["/schemas/ids/7?format=serialized"]


@pytest.mark.parametrize("status", [500, 302, 200])
def test_a_registry_without_an_answer_is_not_a_reason_for_a_body(registry: SchemaRegistry, status: int) -> None:
    """It is asked again: nothing is decoded, and nothing counts as not decodable."""
    registry.add(1, json.dumps(AVRO), status=status, raw=b"<html>")
    _, decoder = parse_decoding(f"Orders=avro:{registry.url}")
    with raises(RemotingConnectError, subject=registry.url):
        decode(decoder, framed(1, b""))
    registry.add(1, json.dumps(AVRO))
    assert {*decode(decoder, framed(1, b"")).errors} == {0}


@pytest.mark.parametrize(
    "text",
    ["Orders", "=json", "Orders=xml", "Orders=json:", "Orders=avro", "Orders=protobuf", "Orders=avro:http://",
     "Orders=avro:http://user:pass@host", "Orders=json:/none", "Orders=json:{wrong}", "Orders=avro:{wrong}",
     "Orders=protobuf:{wrong}"],
)  # fmt: skip
def test_a_wrong_format_or_schema_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong").write_text('{"type": "record"')
    with pytest.raises(ConfigError):
        parse_decoding(text.replace("{wrong}", str(tmp_path / "wrong")))
