"""The result of a decoder: structs by row, and reasons for the rows that it could not decode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from rucola.spark.source.array_conversions import Array

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Values:
    """Structs for `rows`, which are indices of a batch, decoded by one schema.

    `declared` is the type of that schema; `structs` may have the aliases of its fields as well.
    """

    rows: Array
    structs: pa.StructArray
    declared: pa.StructType


@dataclass
class Decoded:
    """The values of a batch of bodies, by schema, and the reasons for the other rows."""

    values: list[Values] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, rows: Array, part: Decoded) -> None:
        """Add what was decoded of the bodies at `rows`."""
        self.values += [Values(rows[each.rows], each.structs, each.declared) for each in part.values]
        self.errors.update({int(rows[row]): why for row, why in part.errors.items()})


class Decoder(Protocol):
    """A format with its schema or its registry."""

    def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Decoded:
        """Decode a batch without nulls; `known` is the type that its topic has so far.

        Raises RemotingError if a registry does not answer.
        """


def column(name: str, kind: pa.DataType, aliases: Sequence[str] = (), number: int | None = None) -> pa.Field:
    """Return a field with its former names and its number."""
    metadata = {"aliases": json.dumps(list(aliases))} if aliases else {}
    return pa.field(name, kind, metadata=metadata | ({} if number is None else {"number": str(number)}) or None)


def aliases_of(each: pa.Field) -> list[str]:
    """Return the former names of a field."""
    found: list[str] = json.loads((each.metadata or {}).get(b"aliases", b"[]"))
    return found


def number_of(each: pa.Field) -> int | None:
    """Return the number of a Protobuf field."""
    found = (each.metadata or {}).get(b"number")
    return None if found is None else int(found)


def fields_of(kind: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct type."""
    return [kind.field(number) for number in range(kind.num_fields)]


def usable(fields: Iterable[pa.Field], left_out: list[str], path: str = "$") -> list[pa.Field]:
    """Return the fields that can be columns, and add to `left_out` why others cannot.

    Names differ by more than case, for engines that ignore it, and have no dots, which separate the names of a path.
    """
    chosen: dict[str, pa.Field] = {}
    for each in fields:
        if not each.name or "." in each.name:
            left_out.append(f"{path}: a column cannot be named {each.name!r}")
        elif each.name.lower() in chosen:
            left_out.append(f"{path}.{each.name}: there is {chosen[each.name.lower()].name}, too")
        elif pa.types.is_struct(each.type) and not each.type.num_fields:
            left_out.append(f"{path}.{each.name}: an object without fields")
        else:
            chosen[each.name.lower()] = each
    return [*chosen.values()]


def decode_each(bodies: pa.BinaryArray, kind: pa.StructType, decode: Callable[[bytes], dict[str, Any]]) -> Decoded:
    """Decode bodies one by one into dicts of a struct type; any exception is the reason for its row."""
    result = Decoded()
    values: list[tuple[int, dict[str, Any]]] = []
    for row, body in enumerate(bodies.to_pylist()):
        try:
            values.append((row, decode(body)))
        except Exception as error:
            result.errors[row] = reason(error)
    _append(values, kind, result)
    return result


def _append(values: Sequence[tuple[int, dict[str, Any]]], kind: pa.StructType, result: Decoded) -> None:
    if not values:
        return
    try:
        structs = pa.array([value for _, value in values], kind)
    except Exception as error:
        if len(values) == 1:
            result.errors[values[0][0]] = reason(error)
            return
        _append(values[: len(values) // 2], kind, result)
        _append(values[len(values) // 2 :], kind, result)
    else:
        result.values.append(Values(np.array([row for row, _ in values]), structs, kind))


def reason(error: Exception) -> str:
    """Return the first line of an error's text, or its type, within 500 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
