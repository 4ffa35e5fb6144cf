"""JSON Schema as an Arrow type, and the schema of a sample of bodies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from rucola.errors import ConfigError
from rucola.spark.bodies.decoded import TIMESTAMP, column, fields_of, usable

MAX_FIELDS: Final = 1000
"""Fields of a schema that is inferred, so that objects with ever new keys do not make ever more columns."""
MAX_DEPTH: Final = 20
"""Levels of objects and arrays of a schema."""

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)")
_LEAVES: Final = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def struct_type(schema: Any, left_out: list[str] | None = None) -> pa.StructType:
    """Return the type of a JSON Schema's objects, and add to `left_out` why properties have no column.

    Raises ConfigError if it has no property that can be a column.
    """
    reasons = [] if left_out is None else left_out
    kind = _Conversion(schema, reasons).kind(schema, "$", 0)
    if kind is None or not pa.types.is_struct(kind) or not kind.num_fields:
        why = "; ".join(reasons) or "it needs an object with `properties`"
        raise ConfigError(f"the JSON Schema has no property that can be a column: {why}", subject="schema")
    return kind


class _Conversion:
    def __init__(self, root: Any, left_out: list[str]) -> None:
        self._root = root
        self._left_out = left_out
        self._open: list[str] = []

    def kind(self, schema: Any, path: str, depth: int) -> pa.DataType | None:
        """Return the Arrow type of a schema, or None after a reason."""
        if depth > MAX_DEPTH:
            return self._without(path, "deeper than a column can be")
        if not isinstance(schema, Mapping):
            return self._without(path, "it has no type")
        if "$ref" in schema:
            name = str(schema["$ref"])
            if name in self._open:
                return self._without(path, f"{name} contains itself")
            self._open.append(name)
            try:
                return self.kind(self._target(name), path, depth + 1)
            finally:
                self._open.pop()
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), Sequence):
                choices = [each for each in schema[key] if each != {"type": "null"}]
                if len(choices) == 1:
                    return self.kind(choices[0], path, depth + 1)
        names = schema.get("type")
        chosen = [name for name in ([names] if isinstance(names, str) else names or ()) if name != "null"]
        if len(chosen) != 1:
            return self._without(path, f"a column cannot be of the types {', '.join(map(str, chosen))}")
        return self._of(str(chosen[0]), schema, path, depth)

    def _of(self, name: str, schema: Mapping[str, Any], path: str, depth: int) -> pa.DataType | None:
        if name == "object":
            found = schema.get("properties")
            properties = found if isinstance(found, Mapping) else {}
            if not properties:
                return self._without(path, "an object without `properties`")
            fields = []
            for key, each in properties.items():
                kind = self.kind(each, f"{path}.{key}", depth + 1)
                if kind is not None:
                    aliases = each.get("aliases", ())
                    fields.append(column(key, kind, [name for name in aliases if isinstance(name, str)]))
            return pa.struct(usable(fields, self._left_out, path))
        if name == "array":
            kind = self.kind(schema.get("items"), f"{path}[]", depth + 1)
            return None if kind is None or (pa.types.is_struct(kind) and not kind.num_fields) else pa.list_(kind)
        if name == "string" and schema.get("format") == "date-time":
            return TIMESTAMP
        if name == "integer" and schema.get("format") == "int32":
            return pa.int32()
        return _LEAVES.get(name) or self._without(path, f"the type {name} is unknown")

    def _target(self, reference: str) -> Any:
        found: Any = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def _without(self, path: str, why: str) -> pa.DataType | None:
        """Add a reason, and return no type."""
        self._left_out.append(f"{path}: {why}")
        return None


@dataclass
class _Seen:
    """The types of the values at one place of a sample."""

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, _Seen] = field(default_factory=dict)
    items: _Seen | None = None
    has_times: bool = True

    def add(self, value: Any, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            self.kinds["deeper object"] += 1
        elif isinstance(value, dict):
            self.kinds["object"] += 1
            for key, inner in value.items():
                if key in self.fields or len(self.fields) < MAX_FIELDS:
                    self.fields.setdefault(key, _Seen()).add(inner, depth + 1)
        elif isinstance(value, list):
            self.kinds["array"] += 1
            self.items = self.items or _Seen()
            for inner in value:
                self.items.add(inner, depth + 1)
        elif isinstance(value, str):
            self.kinds["string"] += 1
            self.has_times = self.has_times and _TIME.fullmatch(value) is not None
        elif value is not None:
            self.kinds["boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "number"] += 1

    def schema(self, path: str, times: bool, notes: list[str], room: Iterator[int]) -> dict[str, Any] | None:
        """Return the JSON Schema, or None after a note; each field takes one of `room`."""
        kinds = dict(self.kinds)
        if "number" in kinds and "integer" in kinds:
            kinds["number"] += kinds.pop("integer")
        if not kinds:
            notes.append(f"{path}: always null or empty, and left out")
            return None
        name = max(kinds, key=lambda name: (kinds[name], name))
        if len(kinds) > 1:
            others = ", ".join(f"{other} in {kinds[other]}" for other in sorted(kinds) if other != name)
            notes.append(f"{path}: {name} in {kinds[name]} values, but {others}, which will not be decoded")
        if name == "object":
            fields = {}
            for key, each in self.fields.items():
                inner = each.schema(f"{path}.{key}", times, notes, room)
                if inner is None:
                    continue
                if next(room, None) is None:
                    notes.append(f"{path}.{key}: left out, since there are more than {MAX_FIELDS} fields")
                    break
                fields[key] = inner
            return {"type": "object", "properties": fields}
        if name == "array":
            items = (self.items or _Seen()).schema(f"{path}[]", times, notes, room)
            return items and {"type": "array", "items": items}
        if name not in _LEAVES:
            notes.append(f"{path}: left out, a {name}")
            return None
        return (
            {"type": name, "format": "date-time"} if name == "string" and times and self.has_times else {"type": name}
        )


@dataclass(frozen=True)
class InferredSchema:
    """The JSON Schema of a sample, numbers of its bodies, and notes on fields that are left out or mixed."""

    schema: dict[str, Any]
    bodies: int
    invalid: int
    notes: tuple[str, ...]


def infer(bodies: Iterable[bytes], *, times: bool = True) -> InferredSchema:
    """Infer the schema of JSON objects. With `times`, strings that are times with a zone become timestamps."""
    seen, count, invalid = _Seen(), 0, 0
    for body in bodies:
        count += 1
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            seen.add(value)
        else:
            invalid += 1
    notes: list[str] = []
    schema = {"$schema": _DRAFT, "type": "object", "properties": {}}
    schema |= seen.schema("$", times, notes, iter(range(MAX_FIELDS))) or {} if seen.kinds else {}
    return InferredSchema(schema, count, invalid, tuple(notes))


def infer_type(bodies: Iterable[bytes], known: pa.StructType | None) -> pa.StructType:
    """Return the type of JSON objects, which has all fields of `known` as they are."""
    try:
        found = struct_type(infer(bodies, times=False).schema)
    except ConfigError:
        found = pa.struct([])
    return _merged(known or pa.struct([]), found)


def _merged(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_merged(known.value_type, found.value_type))
    if not (pa.types.is_struct(known) and pa.types.is_struct(found)):
        return known
    fields = {each.name: each for each in fields_of(known)}
    for each in fields_of(found):
        if each.name in fields:
            fields[each.name] = fields[each.name].with_type(_merged(fields[each.name].type, each.type))
        elif _size(known) + len(fields) < MAX_FIELDS:
            fields[each.name] = each
    return pa.struct(usable(fields.values(), []))


def _size(kind: pa.DataType) -> int:
    if pa.types.is_list(kind):
        return _size(kind.value_type)
    return sum(1 + _size(each.type) for each in fields_of(kind)) if pa.types.is_struct(kind) else 0
