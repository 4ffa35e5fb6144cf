"""JSON bodies, decoded by pyarrow in one call for a batch.

pyarrow reads a batch as one stream of objects. Each body must therefore begin and end with a brace, and the stream must
have as many objects as there are bodies: then each body is one object. Only if that fails are bodies examined one by
one. pyarrow alone decides which of them are valid; msgspec finds suspects, and has the better reasons.
"""

from __future__ import annotations

from typing import Any, Final, Optional

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from rucola.spark.bodies.decoded import Decoded, Values, aliases_of, fields_of, reason
from rucola.spark.bodies.json_schemas import infer_type
from rucola.spark.source.array_conversions import Array

_NOTHING: Final = pa.struct([])


class JsonBodies:
    """JSON objects of a schema. Without one, every field that bodies have becomes a column."""

    def __init__(self, kind: pa.StructType | None = None) -> None:
        self._kind = kind

    def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Decoded:
        """Decode a batch without nulls."""
        if not len(bodies):
            return Decoded()
        kind = self._kind
        if kind is None:
            kind = known or _NOTHING
            try:
                return Decoded([Values(np.arange(len(bodies)), _parse(bodies, kind, "error"), kind)])
            except pa.ArrowException:
                kind = infer_type(bodies.to_pylist(), known)
        decoding = _Decoding(kind, Decoded())
        decoding.decode(bodies, np.arange(len(bodies)))
        return decoding.result


class _Decoding:
    """Bodies that are decoded by one type, into `result`."""

    def __init__(self, kind: pa.StructType, result: Decoded) -> None:
        self._kind = kind
        self._parsed = _with_aliases(kind)
        self.result = result

    def decode(self, bodies: pa.BinaryArray, rows: Array) -> None:
        if self._append(bodies, rows) is None:
            return
        check = msgspec.json.Decoder(_python_type(self._parsed))
        suspects = {}
        for index, body in enumerate(bodies.to_pylist()):
            try:
                check.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                suspects[index] = reason(error)
        for index, why in suspects.items():
            if self._append(bodies.slice(index, 1), rows[index : index + 1]) is not None:
                self.result.errors[int(rows[index])] = why
        left = np.setdiff1d(np.arange(len(bodies)), [*suspects])
        self._bisect(bodies.take(pa.array(left)), rows[left])

    def _bisect(self, bodies: pa.BinaryArray, rows: Array) -> None:
        if not len(bodies):
            return
        why = self._append(bodies, rows)
        if why is not None and len(bodies) == 1:
            self.result.errors[int(rows[0])] = why
        elif why is not None:
            half = len(bodies) // 2
            self._bisect(bodies.slice(0, half), rows[:half])
            self._bisect(bodies.slice(half), rows[half:])

    def _append(self, bodies: pa.BinaryArray, rows: Array) -> str | None:
        """Decode bodies together; the reason if one of them is invalid."""
        try:
            self.result.values.append(Values(rows, _parse(bodies, self._parsed, "ignore"), self._kind))
        except pa.ArrowException as error:
            return reason(error)
        return None


def _parse(bodies: pa.BinaryArray, kind: pa.StructType, unexpected: str) -> pa.StructArray:
    """Return one struct for each body. Raises ArrowException."""
    texts = bodies.cast(pa.string())  # of which pyarrow does not check the encoding again
    if not (_all(pc.starts_with(texts, "{")) and _all(pc.ends_with(texts, "}"))):
        texts = pc.ascii_trim_whitespace(texts)
        if not (_all(pc.starts_with(texts, "{")) and _all(pc.ends_with(texts, "}"))):
            raise pa.ArrowInvalid("the body is not a JSON object")
    data = b"\n".join(bodies.to_pylist())
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=pa.schema([*kind]), unexpected_field_behavior=unexpected),
    )
    if kind.num_fields and len(table) != len(bodies):
        raise pa.ArrowInvalid("the body is more than one JSON object")
    arrays = [table.column(each.name).combine_chunks() for each in kind]
    if not arrays:
        return pa.array([{}] * len(bodies), kind)
    return pa.StructArray.from_arrays(arrays, fields=[*kind])


def _all(flags: pa.BooleanArray) -> bool:
    return bool(pc.all(flags).as_py())


def _with_aliases(kind: pa.DataType) -> pa.DataType:
    """Return a type that has the former names of fields as well."""
    if pa.types.is_list(kind):
        return pa.list_(_with_aliases(kind.value_type))
    if not pa.types.is_struct(kind):
        return kind
    fields = {}
    for each in fields_of(kind):
        inner = _with_aliases(each.type)
        fields[each.name] = each.with_type(inner)
        for alias in aliases_of(each):
            fields.setdefault(alias, pa.field(alias, inner))
    return pa.struct([*fields.values()])


def _python_type(kind: pa.DataType) -> Any:
    """Return the type with which msgspec decodes a value; of a time any string, which pyarrow examines."""
    if pa.types.is_struct(kind):
        names = {f"f{number}": each.name for number, each in enumerate(fields_of(kind))}
        fields = [(f"f{number}", _python_type(each.type), None) for number, each in enumerate(fields_of(kind))]
        return Optional[msgspec.defstruct("object", fields, rename=names)]  # noqa: UP045 - of a value at run time
    if pa.types.is_list(kind):
        return Optional[list[_python_type(kind.value_type)]]  # type: ignore[misc]  # noqa: UP045
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_integer(kind):
        return int | None
    return float | None if pa.types.is_floating(kind) else str | None
