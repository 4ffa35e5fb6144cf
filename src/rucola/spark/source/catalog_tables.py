"""Tables of Spark's catalog over the data source: `CREATE TABLE messages USING rocketmq OPTIONS (...)`.

Spark gives a Python data source the options of a table once, when it asks for the columns of a table that is created
without any. Later reads and writes of the table get its columns back, but of options only those of the query itself
(`SELECT ... FROM messages WITH (...)`). So the options are kept where the catalog keeps them for us: in the metadata
of the first column.

A query that names another source by its own options (`storePath`, `nameServer`) is none of the table: columns, and
their metadata with them, travel with a DataFrame into other reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rucola.errors import ConfigError
from rucola.spark.source.options import READ_OPTION_NAMES, SINK_OPTION_NAMES
from rucola.spark.source.schema import TYPES

_METADATA: Final = "rocketmq.options"
_PREFIX: Final = "option."
_SOURCES: Final = frozenset({"storepath", "nameserver", "path", "paths"})
"""ReadOptions, in lower case, that name the source or target."""

_TYPES: Final[Mapping[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def options_of_new_table(given: Mapping[str, str], provider: str) -> dict[str, str] | None:
    """Return the options of a table that is being created; None if Spark asks on behalf of anything else.

    Besides them Spark gives the table's properties, which are none of ours. Raises ConfigError for unknown options.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if lower.get("provider", "").lower() != provider:
        return None
    options = {name.removeprefix(_PREFIX): value for name, value in lower.items() if name.startswith(_PREFIX)}
    if "path" in lower:
        options["path"] = lower["path"]
    known = {name.lower() for name in (*READ_OPTION_NAMES, *SINK_OPTION_NAMES)}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"the data source {provider} has no option {name!r} for a table; it has "
                f"{', '.join(dict.fromkeys((*READ_OPTION_NAMES, *SINK_OPTION_NAMES)))}"
            )
    return options


def readable(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a table's options that a read knows."""
    return _within(options, READ_OPTION_NAMES)


def writable(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a table's options that a write knows."""
    return _within(options, SINK_OPTION_NAMES)


def _within(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    known = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name.lower() in known}


def schema_of_table(columns: Sequence[str], options: Mapping[str, str]) -> StructType:
    """Return these columns with the options of a table in the metadata of the first one. Raises ConfigError."""
    if not columns:
        raise ConfigError("a table needs a column; leave out the option columns")
    fields: list[StructField] = []
    for name in columns:
        metadata: dict[str, Any] = {} if fields else {_METADATA: json.dumps(options)}
        fields.append(StructField(name, _TYPES[TYPES[name]], metadata=metadata))
    return StructType(fields)


def options_in(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the table with these columns, unless the options that are `given` name another source."""
    if _SOURCES & {name.lower() for name in given}:
        return {}
    kept = next((field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), None)
    if kept is None and not given:
        raise ConfigError(
            "this table has no options: Spark hands on those of tables that are created without columns. Create it by "
            "CREATE TABLE ... USING rocketmq OPTIONS (...) without columns and without a query, or give the options to "
            "the query: SELECT ... FROM the_table WITH (storePath '...')"
        )
    options: dict[str, str] = {} if kept is None else json.loads(kept)
    return options
