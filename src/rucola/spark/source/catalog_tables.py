"""Tables of Spark's catalog over the data source: `CREATE TABLE messages USING rocketmq OPTIONS (...)`.

Spark passes a table's options to a Python data source only when a table is created without columns. Therefore the
options are stored as JSON in the metadata of the first column, which later reads and writes pass. Metadata travels with
a DataFrame, so stored options are ignored if a query names its own source (`storePath`, `nameServer`).
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
from rucola.name_server_addresses import name_servers_in_environment
from rucola.spark.source.options import READ_OPTION_NAMES, SINK_OPTION_NAMES, SOURCE_OPTION_NAMES, check_names
from rucola.spark.source.schema import TYPES

_METADATA: Final = "rocketmq.options"
_PREFIX: Final = "option."
_SOURCES: Final = frozenset(name.lower() for name in SOURCE_OPTION_NAMES)

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
    """Return options of a table being created, without its properties; None if the call has another purpose."""
    # On creation Spark passes {"provider": "rocketmq", "option.storePath": "/var/...", "owner": ..., "path": ...}.
    lower = {name.lower(): value for name, value in given.items()}
    if lower.get("provider", "").lower() != provider:
        return None
    options = {name.removeprefix(_PREFIX): value for name, value in lower.items() if name.startswith(_PREFIX)}
    if "path" in lower:
        options["path"] = lower["path"]
    check_names(options, tuple(dict.fromkeys((*READ_OPTION_NAMES, *SINK_OPTION_NAMES))), "a table")
    return options


def readable(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that a read accepts."""
    return _within(options, READ_OPTION_NAMES)


def writable(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that a write accepts."""
    return _within(options, SINK_OPTION_NAMES)


def _within(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    known = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name.lower() in known}


def schema_of_table(columns: Sequence[str], options: Mapping[str, str]) -> StructType:
    """Return these columns, with the table's options in the metadata of the first; ConfigError for no columns."""
    if not columns:
        raise ConfigError("a table needs a column; leave out the option columns")
    fields: list[StructField] = []
    for name in columns:
        metadata: dict[str, Any] = {} if fields else {_METADATA: json.dumps(options)}
        fields.append(StructField(name, _TYPES[TYPES[name]], metadata=metadata))
    return StructType(fields)


def options_in(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the stored options, unless `given` names another source; ConfigError if there are neither."""
    if _SOURCES & {name.lower() for name in given}:
        return {}
    kept = next((field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), None)
    if kept is None and not given and name_servers_in_environment() is None:
        raise ConfigError(
            "this table has no options: Spark passes only those of tables that are created without columns. Create it "
            "by CREATE TABLE ... USING rocketmq OPTIONS (...) without columns and without a query, or give the options "
            "to the query: SELECT ... FROM the_table WITH (storePath '...')"
        )
    options: dict[str, str] = {} if kept is None else json.loads(kept)
    return options
