"""Options and progress display shared by the commands of `rucola pipeline`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rucola.cli.extras import require_spark
from rucola.cli.output import progress_bar
from rucola.spark.jobs.progress import report_tasks

if TYPE_CHECKING:
    from rucola.cli.output import ProgressBar
    from rucola.spark.session import LazySession

__all__ = ["json_option", "master_option", "require_spark", "show_tasks", "skip_corrupt_option", "spark_option"]

master_option = click.option(
    "--master",
    metavar="URL",
    help="Spark master: local[4], spark://HOST:PORT, ...; by default all cores of this machine.",
)

spark_option = click.option(
    "--spark/--no-spark",
    "use_spark",
    default=None,
    help="Always or never use Spark; by default it is used for 128 MiB of messages or more.",
)

skip_corrupt_option = click.option(
    "--skip-corrupt", is_flag=True, help="Skip damaged records; without this option they end the run."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@contextmanager
def show_tasks(session: LazySession, title: str) -> Iterator[ProgressBar | None]:
    """Show on a terminal that Spark starts, then the tasks of its active stages. The block must not print.

    Yields the bar, on which a job without Spark shows its progress; None without a terminal.
    """
    with progress_bar(title) as progress:
        if progress is None:
            yield None
        else:
            with report_tasks(session, progress, progress.describe):
                yield progress
