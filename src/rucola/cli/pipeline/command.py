"""What the commands of `rucola pipeline` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rucola.cli.extras import spark_needed
from rucola.cli.output import progress_bar
from rucola.spark.jobs.progress import tasks_told

if TYPE_CHECKING:
    from rucola.spark.session import LazySession

__all__ = ["json_option", "master_option", "spark_needed", "spark_option", "tasks_shown"]

master_option = click.option(
    "--master",
    metavar="URL",
    help="Where Spark works: local[4], spark://HOST:PORT, ...; by default on all cores of this machine.",
)

spark_option = click.option(
    "--spark/--no-spark",
    "use_spark",
    default=None,
    help="Always, or never, in Spark; by default if 128 MiB of messages or more are to be read.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="What was done or found, as JSON.")


@contextmanager
def tasks_shown(session: LazySession, title: str) -> Iterator[None]:
    """Show on a terminal how many tasks of Spark's active stages are done. Print nothing inside."""
    with progress_bar(title) as progress:
        if progress is None:
            yield
        else:
            with tasks_told(session, progress):
                yield
