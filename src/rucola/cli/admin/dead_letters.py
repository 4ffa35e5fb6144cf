"""Export of dead letters, which may need another package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from rucola.admin import AdminClient, DeadLetter
from rucola.admin.commands.command import BeginTime, EndTime, Option, Result, check_window, command
from rucola.admin.commands.dead_letters import DeadGroup, ShowAll, letter_json, selected_letters
from rucola.errors import ConfigError, missing_extra
from rucola.files import replacing

FORM = "One JSON object per line, or Parquet (needs the extra `spark`)."
PARQUET_ROWS = 4096
"""Rows per row group of a Parquet file, all of which are held in memory."""


@command("exportDlq")
async def export_dlq(
    client: AdminClient,
    group: DeadGroup,
    output: Annotated[Path, Option("-o --output", "File to write.", format="new file")],
    form: Annotated[str, Option("-f --format", FORM, choices=("jsonl", "parquet"))] = "jsonl",
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    show_all: ShowAll = False,
) -> Result:
    """Write the dead letters of a group to a file, without re-driven ones.

    The messages stay on the brokers. A Parquet file has the columns of the Spark data source, and originTopic and
    redriven.

    \b
    Examples:
      rucola admin exportDlq -g billing -o billing.jsonl
      rucola admin exportDlq -g billing -o billing.parquet -f parquet -a
    """
    check_window(begin_ms, end_ms)
    count = 0
    with _replacing(output) as file, (_parquet if form == "parquet" else _json_lines)(file) as add:
        async for letter in selected_letters(client, group, begin_ms, end_ms, show_all):
            add(letter)
            count += 1
    value = {"group": group, "output": output, "format": form, "count": count}
    return Result(value, [f"{count} dead letters of group {group} written to {output}"])


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None


@contextmanager
def _json_lines(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    def add(letter: DeadLetter) -> None:
        file.write(msgspec.json.encode(letter_json(letter)) + b"\n")

    yield add


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    try:
        import pyarrow as pa  # imported here: Arrow is an extra
        from pyarrow.parquet import ParquetWriter

        from rucola.spark.source.columns import SCHEMA
    except ModuleNotFoundError as error:
        raise ConfigError(f"Parquet: {missing_extra(error, 'spark')}") from None
    # A dead letter was pulled from the wire, and has no broker name.
    columns = [column for column in SCHEMA if column.name != "brokerName"]
    schema = pa.schema([*columns, ("originTopic", pa.string()), ("redriven", pa.bool_())])
    rows: list[dict[str, Any]] = []
    with ParquetWriter(file, schema) as writer:

        def write() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def add(letter: DeadLetter) -> None:
            rows.append(_parquet_row(letter))
            if len(rows) == PARQUET_ROWS:
                write()

        yield add
        write()


def _parquet_row(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    # JSON fields have the names of the columns. Columns of other types replace theirs.
    return letter_json(letter) | {
        "body": message.body,
        "keys": message.keys.split() if message.keys else None,
        "properties": list(message.properties.items()),
        **_times("bornTimestamp", message.born_timestamp),
        **_times("storeTimestamp", message.store_timestamp),
    }


def _times(name: str, timestamp_ms: int) -> dict[str, int | None]:
    """A timestamp in microseconds, or null and the number as stored if it is no time."""
    from rucola.spark.source.schema import LAST_TIME_MS

    if 0 <= timestamp_ms <= LAST_TIME_MS:
        return {name: timestamp_ms * 1000}
    return {name: None, f"{name}Raw": timestamp_ms}
