"""SQL job: one query of a lake by DuckDB, in this process.

The view `messages` has the columns of the data source, and `date`, the UTC day of storeTimestamp. A query can read
nothing else: DuckDB gets no access to files, other databases or the network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb

from rucola.errors import ConfigError, StoreError
from rucola.presentation import csv_text, time_text
from rucola.spark.archive import Archive

DEFAULT_ROWS: Final = 1000
DEFAULT_TIMEOUT_S: Final = 60.0
DEFAULT_BYTES: Final = 1 << 30
DEFAULT_MEMORY: Final = "80%"

_FETCHED_ROWS: Final = 100
_INTERRUPT_EVERY_S: Final = 0.1
_READS: Final = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})
_VIEW: Final = (
    "CREATE VIEW messages AS "
    "SELECT *, DATE '1970-01-01' + CAST(epoch_ms(storeTimestamp) // 86400000 AS INTEGER) AS date FROM rows"
)


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query. If it `is_cut`, there are more."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    is_cut: bool

    def cells(self) -> list[list[object]]:
        """Return numbers, and texts for all other values, to be shown."""
        return [[_cell(value) for value in row] for row in self.rows]

    def json_rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, map(_json_value, row), strict=True)) for row in self.rows]

    def csv(self) -> str:
        """Return the rows as CSV, with the names of the columns."""
        cells = ([value if _is_number(value) else None if value is None else _text(value) for value in row]
                 for row in self.rows)  # fmt: skip
        return csv_text([self.columns, *cells])


def run(
    lake: str | Path | Archive,
    query: str,
    *,
    topics: Collection[str] | Callable[[str], bool] | None = None,
    limit: int = DEFAULT_ROWS,
    max_bytes: int = DEFAULT_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory: str = DEFAULT_MEMORY,
) -> QueryResult:
    """Return the first `limit` rows of a query of the current messages, or fewer of about `max_bytes`.

    Raises ConfigError for a query that is wrong, no SELECT, or takes longer than the timeout; StoreError if there is no
    lake, StoreCorrupt if a file is missing or truncated.
    """
    config: dict[str, Any] = {
        "autoload_known_extensions": False, "enable_external_access": False, "memory_limit": memory,
        "temp_directory": "",  # what does not fit into the memory fails, and fills no disk
    }  # fmt: skip
    dataset = Archive(lake).scan(topics).dataset()
    with (
        duckdb.connect(config=config) as connection,
        _interrupted(connection, timeout_s),
    ):
        connection.register("rows", dataset)
        connection.execute(_VIEW)
        connection.execute("SET lock_configuration = true")
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in _READS:
            raise ConfigError("give one query, such as SELECT topic, count(*) FROM messages GROUP BY topic")
        found = connection.execute(statements[0])
        rows: list[tuple[Any, ...]] = []
        size = 0
        count = 1  # of the next rows, by the size of the last one
        while len(rows) <= limit and size < max_bytes:
            some = found.fetchmany(min(count, _FETCHED_ROWS, limit + 1 - len(rows)))
            if not some:
                break
            rows += some
            size += sum(map(_size, some))
            count = max(1, (max_bytes - size) // max(1, _size(some[-1])))
        is_cut = len(rows) > limit or size >= max_bytes
        return QueryResult(tuple(column[0] for column in found.description), rows[:limit], is_cut)


def _size(value: Any) -> int:
    match value:
        case str() | bytes():
            return len(value)
        case list() | tuple():
            return sum(map(_size, value))
        case dict():
            return sum(map(_size, value.keys())) + sum(map(_size, value.values()))
    return 8


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cell(value: Any) -> object:
    match value:
        case None:
            return ""
        case datetime():
            return time_text(round(value.timestamp() * 1000))
        case int() | float() if not isinstance(value, bool):
            return value
    return _text(value)


def _text(value: Any) -> str:
    match value:
        case bytes():
            return value.decode(errors="backslashreplace")
        case datetime():
            return value.isoformat()
        case list():
            return " ".join(map(_text, value))
        case dict():
            return ", ".join(f"{_text(key)}={_text(each)}" for key, each in value.items())
    return str(value)


def _json_value(value: Any) -> Any:
    match value:
        case bytes() | datetime():
            return _text(value)
        case list() | tuple():
            return [_json_value(each) for each in value]
        case dict():
            return {_text(key): _json_value(each) for key, each in value.items()}
        case None | bool() | int() | float() | str():
            return value
    return str(value)


@contextmanager
def _interrupted(connection: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[None]:
    done = threading.Event()

    def interrupt() -> None:
        wait_s = timeout_s
        # Again and again, since an interruption between two statements has no effect.
        while not done.wait(wait_s):
            connection.interrupt()
            wait_s = _INTERRUPT_EVERY_S

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    except duckdb.InterruptException:
        raise ConfigError(f"the query has taken more than {timeout_s:g} s: restrict it by topic or date") from None
    except duckdb.OutOfMemoryException as error:
        raise StoreError(f"the query needs more memory: {error}") from None
    except duckdb.Error as error:
        raise ConfigError(str(error).rstrip()) from None
    finally:
        done.set()
        thread.join()
