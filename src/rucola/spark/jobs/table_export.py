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

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from sqlalchemy import BigInteger, Connection, Dialect, Integer, func, select
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rucola.errors import ConfigError, StoreError
from rucola.files import DIRECTORY_MODE, local_path, make_directory, read_inside, replace_file
from rucola.reliable import ReliableError, Tables, migration, table_ranges
from rucola.reliable.database import engine_of
from rucola.reliable.schema import now_ms
from rucola.reliable.table_ranges import COLUMNS, TableRange
from rucola.spark.error_translation import without_tracebacks
from rucola.spark.jobs.progress import ProgressCallback
from rucola.spark.jobs.reconciled_log import COMMITS, Commit
from rucola.spark.shared_files import SharedPiece, write_parquet

ORDER: Final = ("receipt", "done", "stub")
"""The order in which the tables are read."""

OFFSET: Final = "offset"

MARK: Final = "export.json"
JDBC: Final = "jdbc:"

_COMMITS: Final = pa.schema(
    [
        ("brokerName", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("committed", pa.int64()),
    ]
)
_TASK: Final = "number int, part binary"
_ARROW: Final = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
_DIALECTS: Final[Mapping[str, tuple[Any, dict[str, str]]]] = {
    "postgresql": (postgresql, {"driver": "org.postgresql.Driver"}),
    # Spark writes column names in double quotes, which for MariaDB are texts unless its sql_mode has ANSI_QUOTES.
    "mariadb": (
        mysql,
        {
            "driver": "org.mariadb.jdbc.Driver",
            "sessionInitStatement": "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')",
        },
    ),
}
"""For each kind of `jdbc:` URL the dialect of its SQL, and Spark's options: the driver's class, a first statement."""

_JDBC_TASKS: Final = 8
_SQLITE_MAGIC_SIZE: Final = 16
"""Leading bytes of SQLite's files, which never change."""


@dataclass(frozen=True)
class TableSource:
    """A database with reliability tables: its SQLAlchemy or `jdbc:` URL, the tables' prefix and schema."""

    url: str
    prefix: str = "rucola_"
    schema: str | None = None

    @property
    def is_jdbc(self) -> bool:
        """Whether Spark's JDBC reader has to read it."""
        return self.url.startswith(JDBC)

    @property
    def tables(self) -> Tables:
        """The tables. ReliableError for an invalid prefix."""
        return Tables(self.prefix, self.schema)


class ExportMark(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of export.json."""

    read_at: int
    """The database's time in milliseconds since 1970, before the first stub was read."""
    format: int = 1


def source_of(source: TableSource, is_written: bool = False) -> TableSource:
    """Return a valid source, with `is_written` one whose stubs can be changed, or raise ReliableError."""
    source.tables  # noqa: B018 - raises for an invalid prefix
    if not source.is_jdbc:
        engine_of(source.url)
    elif is_written:
        raise ReliableError("stubs are changed through SQLAlchemy: give its URL of the database")
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
) -> dict[str, int]:
    """Export the tables in this process, in bounded memory; return the number of rows by table.

    Raises ConfigError if the directory is not empty, SchemaError if the tables are missing or of another version.
    """
    check_target(directory := local_path(directory))
    if source.is_jdbc:
        raise ConfigError("an export needs a URL of SQLAlchemy, as the other commands of `rucola reliable`")
    tables, counts = source.tables, dict.fromkeys(ORDER, 0)
    parts = {table: _plan(source, table) for table in ORDER}  # fails before anything is written
    _write_commits(directory, commits())
    done, total = 0, sum(map(len, parts.values()))
    read_at = 0
    for table in ORDER:
        (directory / table).mkdir(DIRECTORY_MODE)
        read_at = _clock(source)
        with (
            pq.ParquetWriter(directory / table / "part-00000.parquet", _schema(table)) as target,
            connected(source) as connection,
        ):
            for part in parts[table]:
                for batch in _batches(connection, tables, part):
                    target.write_batch(batch)
                    counts[table] += batch.num_rows
                connection.commit()  # a transaction must not outlive its range
                done += 1
                if progress is not None:
                    progress(done, total)
    _finish(directory, read_at)
    return counts


def write_in_spark(
    session: SparkSession,
    sources: Mapping[str, Sequence[TableSource]],
    directory: Path,
    commits: Callable[[], Sequence[Commit]],
) -> None:
    """Export tables in Spark tasks, which connect to the databases; `sources` has the databases of each table."""
    read_at = 0
    _write_commits(directory, commits())
    for table in ORDER:
        read_at = _read_at(session, sources["stub"][0])
        for number, source in enumerate(sources[table]):
            frame = _jdbc_frame(session, source, table) if source.is_jdbc else _frame(session, source, table)
            write_parquet(frame, directory / table, mode="append" if number else "error")
    _finish(directory, read_at)


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


def _finish(directory: Path, read_at: int) -> None:
    replace_file(directory / MARK, msgspec.json.encode(ExportMark(read_at)))


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


def _frame(session: SparkSession, source: TableSource, table: str) -> DataFrame:
    parts = [(number, pickle.dumps(part)) for number, part in enumerate(_plan(source, table))]
    tasks = session.createDataFrame(parts, _TASK).repartitionById(len(parts), "number")
    # Workers may run in another directory, and the URL with its password stays out of the rows and of query plans.
    there = TableSource(table_ranges.absolute_url(source.url), source.prefix, source.schema)
    file = table_ranges.database_file(there.url)
    header = None if file is None else SharedPiece.of(file, 0, _SQLITE_MAGIC_SIZE)
    return tasks.mapInArrow(_RangeReader(there, header).read, ddl(table))


@without_tracebacks
class _RangeReader:
    def __init__(self, source: TableSource, header: SharedPiece | None) -> None:
        self._source = source
        self._header = header

    def read(self, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._header is not None:
            self._header.check()  # SQLite itself would create an empty database
        tables = self._source.tables
        for batch in tasks:
            for pickled in batch["part"].to_pylist():
                with connected(self._source) as connection:
                    yield from _batches(connection, tables, pickle.loads(pickled))  # noqa: S301 - the driver's


def _read_at(session: SparkSession, source: TableSource) -> int:
    if not source.is_jdbc:
        return _clock(source)
    return int(_loaded(_jdbc(session, source, select(now_ms().label("now")))).collect()[0][0])


def _loaded(rows: DataFrameReader) -> DataFrame:
    """Return the rows that Spark reads over JDBC; ConfigError if it lacks the driver, else ReliableError."""
    try:
        return rows.load()
    except (Py4JJavaError, PySparkException) as error:
        said = str(error)
        if (missing := re.search(r"ClassNotFoundException: (\S+)", said)) is not None:
            raise ConfigError(f"Spark has no JDBC driver {missing[1]}: name its jar with --jars") from None
        if (failed := re.search(r"(?:SQL\w*Exception|PSQLException): (.*)", said)) is not None:
            raise ReliableError(f"database error: {failed[1].strip()}") from None
        raise


def _jdbc_frame(session: SparkSession, source: TableSource, table: str) -> DataFrame:
    whole = TableRange(table, None, None)
    query = table_ranges.query(source.tables, whole)
    key = {"stub": "seq", "receipt": "received_at", "done": "done_at"}[table]
    column = query.subquery("rows").c[key]
    bounds = select(func.min(column).label("least"), func.max(column).label("most"))
    least, most = _loaded(_jdbc(session, source, bounds)).collect()[0]
    rows = _jdbc(session, source, query)
    if least is not None and most > least:
        rows = rows.options(partitionColumn=key, lowerBound=least, upperBound=most, numPartitions=_JDBC_TASKS)
    return _loaded(rows).selectExpr(*(f"CAST({name} AS {kind}) AS {name}" for name, kind in _types(table).items()))


def _jdbc(session: SparkSession, source: TableSource, query: Any) -> DataFrameReader:
    kind = source.url.removeprefix(JDBC).split(":")[0]
    if kind not in _DIALECTS:
        raise ConfigError(
            f"jdbc:{kind} is not supported: write jdbc:postgresql://HOST/NAME or jdbc:mariadb://HOST/NAME"
        )
    module, options = _DIALECTS[kind]
    dialect: Dialect = module.dialect()
    sql = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    return session.read.format("jdbc").options(
        url=source.url, dbtable=f"({sql}) AS t", fetchsize=table_ranges.FETCH_ROWS, **options
    )
