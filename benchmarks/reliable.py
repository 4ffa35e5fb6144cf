"""Business reliability on a PostgreSQL and a MariaDB that this benchmark starts: relay, consumption, tables."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from effects import measure_consumption, measure_selection, measure_size
from figures import Figure
from floors import Options
from outbox import mariadb, postgresql
from relaying import measure_idle, measure_rates
from servers import standalone


def measure(options: Options) -> list[Figure]:
    """Everything on one PostgreSQL; the selection on MariaDB as well."""
    with postgresql() as database:
        with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
            figures = measure_rates(database, broker, options) + measure_idle(database, broker, options)
        figures += measure_consumption(database, options)
        figures += measure_size(database, options)
        figures += measure_selection(database, options)
    with mariadb() as database:
        return figures + measure_selection(database, options)
