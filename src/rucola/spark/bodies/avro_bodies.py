"""Avro bodies, decoded by fastavro: one datum each, without the schema.

Enums are strings. Unions other than with null, and records that contain themselves, are strings of JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa

from rucola.errors import ConfigError, missing_extra
from rucola.spark.bodies.decoded import TIMESTAMP, Decoded, column, decode_each, usable

_Convert: TypeAlias = Callable[[Any], Any]

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
}
_MAX_DEPTH: Final = 20


class AvroBodies:
    """Records of a schema, given as parsed JSON with the schemas that it refers to by name."""

    def __init__(self, schema: Any, named: Mapping[str, Any] | None = None) -> None:
        try:
            from fastavro import schemaless_reader
            from fastavro.schema import SchemaParseException, UnknownType, parse_schema
        except ModuleNotFoundError as error:
            raise ConfigError(missing_extra(error, "avro")) from error
        types: dict[str, Any] = {}
        try:
            for each in (named or {}).values():
                parse_schema(each, types)
            self._schema = parse_schema(schema, types)
        except (SchemaParseException, UnknownType, TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"the Avro schema is invalid: {error}", subject="schema") from error
        self._read = schemaless_reader
        conversion = _Conversion(types)
        found, self._convert = conversion.of(self._schema, ())
        if found is None or not pa.types.is_struct(found):
            raise ConfigError("the Avro schema is not a record with fields", subject="schema")
        self._kind = found

    def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Decoded:
        """Decode a batch without nulls."""
        return decode_each(bodies, self._kind, self._decode)

    def _decode(self, body: bytes) -> dict[str, Any]:
        stream = io.BytesIO(body)
        value = self._read(stream, self._schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the record")
        converted: dict[str, Any] = self._convert(value)
        return converted


class _Conversion:
    """Avro types as Arrow types, with functions that convert fastavro's values."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types

    def of(self, schema: Any, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
        """Return type and conversion of a schema; None for one that has no values."""
        if isinstance(schema, str) and schema not in _PRIMITIVES and schema != "null":
            schema = self._types[schema]
        if isinstance(schema, list):
            return self._union([each for each in schema if each != "null"], open_names)
        name = schema if isinstance(schema, str) else schema["type"]
        if isinstance(name, list | dict):
            return self.of(name, open_names)
        if name == "null":
            return None, _same
        if name in ("record", "error"):
            return self._record(schema, open_names)
        if name in ("array", "map"):
            return self._collection(name, schema, open_names)
        if name == "enum":
            return pa.string(), _same
        logical = None if isinstance(schema, str) else schema.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed") and schema["precision"] <= 38:
            return pa.decimal128(schema["precision"], schema.get("scale", 0)), _same
        if (logical, name) in (("uuid", "string"), ("decimal", "bytes"), ("decimal", "fixed")):
            return pa.string(), str
        if name == "fixed":
            return pa.binary(), _same
        return _LOGICAL.get(str(logical), _PRIMITIVES[name]), _same

    def _union(self, choices: list[Any], open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
        if len(choices) > 1:
            return pa.string(), _as_json
        if not choices:
            return None, _same
        kind, convert = self.of(choices[0], open_names)
        return kind, lambda value: None if value is None else convert(value)

    def _record(self, schema: Any, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
        if schema["name"] in open_names or len(open_names) > _MAX_DEPTH:
            return pa.string(), _as_json
        inner = (*open_names, schema["name"])
        fields, conversions = [], {}
        for each in schema["fields"]:
            kind, convert = self.of(each["type"], inner)
            if kind is not None:
                fields.append(column(each["name"], kind, each.get("aliases", ())))
                conversions[each["name"]] = convert
        chosen = pa.struct(usable(fields, []))
        names = [(each.name, conversions[each.name]) for each in chosen]
        if not names:
            return None, _same
        return chosen, lambda value: {name: convert(value[name]) for name, convert in names}

    def _collection(self, name: str, schema: Any, open_names: tuple[str, ...]) -> tuple[pa.DataType | None, _Convert]:
        inner, convert = self.of(schema["items" if name == "array" else "values"], open_names)
        if inner is None and name == "array":  # of which a few bytes could hold any number
            raise ConfigError("the Avro schema has an array of items without a value", subject="schema")
        if inner is None:
            return None, _same
        if name == "array":
            return pa.list_(inner), lambda value: [convert(each) for each in value]
        return pa.map_(pa.string(), inner), lambda value: [(key, convert(each)) for key, each in value.items()]


def _same(value: Any) -> Any:
    return value


def _as_json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str)
