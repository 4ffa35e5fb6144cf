"""SQL job: one query of a lake by DuckDB, in this process.

The view `messages` has the columns of the data source, and `date`, the UTC day of storeTimestamp. A query can read
nothing else: DuckDB gets no access to files, other databases or the network.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from rucola.errors import ConfigError, StoreError
from rucola.spark.archive import Archive

DEFAULT_ROWS: Final = 1000
DEFAULT_TIMEOUT_S: Final = 60.0

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


def run(
    lake: str | Path | Archive,
    query: str,
    *,
    topics: Collection[str] | None = None,
    limit: int = DEFAULT_ROWS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> QueryResult:
    """Return the first `limit` rows of a query of the current messages.

    Raises ConfigError for a query that is wrong, no SELECT, or takes longer than the timeout; StoreError if there is no
    lake, StoreCorrupt if a file is missing or truncated.
    """
    dataset = Archive(lake).scan(topics).dataset()
    with (
        duckdb.connect(config={"autoload_known_extensions": False, "enable_external_access": False}) as connection,
        _interrupted(connection, timeout_s),
    ):
        connection.register("rows", dataset)
        connection.execute(_VIEW)
        connection.execute("SET lock_configuration = true")
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in _READS:
            raise ConfigError("give one query, such as SELECT topic, count(*) FROM messages GROUP BY topic")
        found = connection.execute(statements[0])
        rows = found.fetchmany(limit + 1)
        return QueryResult(tuple(column[0] for column in found.description), rows[:limit], len(rows) > limit)


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
        raise ConfigError(f"the query has taken more than {timeout_s:g} s; give it more time by --timeout") from None
    except duckdb.OutOfMemoryException as error:
        raise StoreError(f"the query needs more memory: {error}") from None
    except duckdb.Error as error:
        raise ConfigError(str(error).rstrip()) from None
    finally:
        done.set()
        thread.join()
