"""Parquet export of the reliability tables `stub`, `receipt` and `done`, without message contents.

    DIR/offset/*.parquet     the consumer offsets, read first
    DIR/receipt/*.parquet
    DIR/done/*.parquet
    DIR/stub/*.parquet       read last
    DIR/export.json          the database's clock when the stubs were read; marks a complete export

An export is not a snapshot, which would keep the database from removing old row versions. Its order makes up for that:
a message below a group's offset was delivered before, so the group has a receipt of it, or it is done. A consumer
deletes the receipt in the transaction that inserts `done` and confirms the stub, and stubs are read last. Therefore no
stub appears unconfirmed, passed by the group's offset and without receipt, unless it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import BigInteger, Connection, Integer, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rucola.errors import ConfigError, StoreError
from rucola.files import DIRECTORY_MODE, local_path, make_directory, read_inside, replace_file
from rucola.reliable import ReliableError, Tables, migration, table_ranges
from rucola.reliable.database import engine_of
from rucola.reliable.schema import now_ms
from rucola.reliable.table_ranges import COLUMNS, TableRange
from rucola.spark.jobs.progress import ProgressCallback
from rucola.spark.jobs.reconciled_log import COMMITS, Commit

ORDER: Final = ("receipt", "done", "stub")
"""The order in which the tables are read."""

OFFSET: Final = "offset"

MARK: Final = "export.json"

_COMMITS: Final = pa.schema(
    [
        ("brokerName", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("committed", pa.int64()),
    ]
)
_ARROW: Final = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}


@dataclass(frozen=True)
class TableSource:
    """A database with reliability tables: its URL of SQLAlchemy, the tables' prefix and schema."""

    url: str
    prefix: str = "rucola_"
    schema: str | None = None

    @property
    def tables(self) -> Tables:
        """The tables. ReliableError for an invalid prefix."""
        return Tables(self.prefix, self.schema)


class ExportMark(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of export.json."""

    read_at: int
    """The database's time in milliseconds since 1970, before the first stub was read."""
    format: int = 1


def source_of(source: TableSource) -> TableSource:
    """Return a valid source, or raise ReliableError."""
    source.tables  # noqa: B018 - raises for an invalid prefix
    engine_of(source.url)
    return source


def ddl(table: str) -> str:
    """Return the columns of an exported table as DDL of Spark SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in _types(table).items())


def _types(table: str) -> dict[str, str]:
    tables = Tables()
    columns = {"stub": tables.stub, "receipt": tables.receipt, "done": tables.done}[table].c
    kinds = {name: columns[name].type for name in COLUMNS[table]}
    return {
        name: "bigint" if isinstance(kind, BigInteger) else "int" if isinstance(kind, Integer) else "string"
        for name, kind in kinds.items()
    }


def _schema(table: str) -> pa.Schema:
    return pa.schema([(name, _ARROW[kind]) for name, kind in _types(table).items()])


def check_target(directory: Path) -> None:
    """Raise ConfigError unless a directory is absent or empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not empty: name a new directory for the export", subject=directory)


def write(
    source: TableSource,
    directory: Path,
    commits: Callable[[], Sequence[Commit]] = list,
    progress: ProgressCallback | None = None,
    *,
    consumers: Sequence[TableSource] = (),
) -> dict[str, int]:
    """Export the tables in bounded memory; return the number of rows by table.

    `consumers` have more `done` rows. Raises ConfigError if the directory is not empty, SchemaError if the tables are
    missing or of another version.
    """
    check_target(directory := local_path(directory))
    sources = {"receipt": [source], "done": [source, *consumers], "stub": [source]}
    parts = {table: [(each, _plan(each, table)) for each in sources[table]] for table in ORDER}  # before any writing
    counts = dict.fromkeys(ORDER, 0)
    _write_commits(directory, commits())
    done, total = 0, sum(len(ranges) for table in ORDER for _, ranges in parts[table])
    read_at = 0
    for table in ORDER:
        (directory / table).mkdir(DIRECTORY_MODE)
        read_at = _clock(source)
        with pq.ParquetWriter(directory / table / "part-00000.parquet", _schema(table)) as target:
            for each, ranges in parts[table]:
                with connected(each) as connection:
                    for part in ranges:
                        for batch in _batches(connection, each.tables, part):
                            target.write_batch(batch)
                            counts[table] += batch.num_rows
                        connection.commit()  # a transaction must not outlive its range
                        done += 1
                        if progress is not None:
                            progress(done, total)
    replace_file(directory / MARK, msgspec.json.encode(ExportMark(read_at)))
    return counts


def load(session: SparkSession, directory: Path) -> tuple[dict[str, DataFrame], int]:
    """Return a complete export's tables and offsets, and the database's time of the stubs; else StoreError."""
    directory = local_path(directory).absolute()
    mark = directory / MARK
    try:
        read = msgspec.json.decode(read_inside(directory, mark), type=ExportMark)
    except FileNotFoundError:
        raise StoreError(
            f"{directory} is no complete export: it has no {MARK}; write one with `rucola reliable export DIR`"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{mark} is damaged: {error}; write the export again") from None
    columns = {table: ddl(table) for table in ORDER} | {OFFSET: COMMITS}
    frames = {name: session.read.schema(kind).parquet(str(directory / name)) for name, kind in columns.items()}
    return frames, read.read_at


def _write_commits(directory: Path, commits: Sequence[Commit]) -> None:
    # A broker that is read twice, as a store and live, has one offset: the smaller one, which was read first.
    unique: dict[tuple[str, str, str, int], int] = {}
    for *queue, committed in commits:
        key: Any = tuple(queue)
        unique[key] = min(committed, unique.get(key, committed))
    columns = list(zip(*((*key, committed) for key, committed in unique.items()), strict=True)) or [()] * 5
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _COMMITS, strict=True)]
    make_directory(directory)
    (directory / OFFSET).mkdir(DIRECTORY_MODE)
    pq.write_table(pa.Table.from_arrays(arrays, schema=_COMMITS), directory / OFFSET / "part-00000.parquet")


@contextmanager
def connected(source: TableSource) -> Iterator[Connection]:
    """Connect; errors of the database become ReliableErrors. The caller commits."""
    engine = engine_of(source.url)
    if isinstance(engine, AsyncEngine):
        raise ReliableError("an asyncio driver cannot be used here: name one such as psycopg, pymysql or sqlite3")
    try:
        if engine.dialect.name != "sqlite":  # as in `Database`
            engine = engine.execution_options(isolation_level="READ COMMITTED")
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise ReliableError(f"database error: {error.orig}") from None
    finally:
        engine.dispose()


def _clock(source: TableSource) -> int:
    with connected(source) as connection:
        return int(connection.scalar(select(now_ms())) or 0)


def _plan(source: TableSource, table: str) -> list[TableRange]:
    with connected(source) as connection:
        migration.check(connection, source.tables)
        return table_ranges.plan(connection, source.tables, table)


def _batches(connection: Connection, tables: Tables, part: TableRange) -> Iterator[pa.RecordBatch]:
    schema = _schema(part.table)
    for rows in table_ranges.read(connection, tables, part):
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
