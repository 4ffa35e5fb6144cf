"""`rucola pipeline audit`: traffic statistics of stores and lakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.cli.lake_options import LakeType, catalog_option
from rucola.cli.option_types import PathType
from rucola.cli.output import optional, print_json, print_table, wide_option
from rucola.cli.pipeline.command import (
    json_option,
    master_option,
    require_spark,
    show_tasks,
    skip_corrupt_option,
    spark_option,
)
from rucola.cli.pipeline.selection_options import selection_options

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.command()
@click.option(
    "-f",
    "--from",
    "sources",
    type=LakeType(),
    required=True,
    multiple=True,
    help="Store directory or lake to read. Can be repeated.",
)
@catalog_option
@selection_options
@click.option(
    "--out",
    type=PathType(file_okay=False),
    help="Directory for report.html and one Parquet file per table.",
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Number of hot keys per topic.")
@click.option("--delay-levels", metavar="LEVELS", help="messageDelayLevel of the brokers, if it is not the default.")
@skip_corrupt_option
@master_option
@spark_option
@json_option
@wide_option
def audit(
    sources: Sequence[Path | Archive],
    conditions: dict[str, Any],
    out: Path | None,
    top: int,
    delay_levels: str | None,
    skip_corrupt: bool,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Count the messages of stores and lakes, and write tables and a report.

    The tables are traffic, backlogs, retries, dead letters, repeats, latencies, hot keys and record sizes. All sources
    are counted together. Backlogs need a store directory, which has the consumer offsets.

    \b
    Examples:
      rucola pipeline audit --from store --out audit
      rucola pipeline audit --from lake -t Orders -b 2013-01-01 -e 2013-02-01 --out audit --json
    """
    with require_spark():
        from rucola.spark.jobs.audit import run
        from rucola.spark.jobs.selection import Selection
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline audit", master, use_spark=use_spark)
    with show_tasks(session, "audit"):
        result = run(
            session,
            sources,
            out,
            selection=Selection(**conditions),
            corrupt_records="skip" if skip_corrupt else "fail",
            hottest=top,
            delay_levels=delay_levels,
        )
    if as_json:
        print_json(result.to_json())
        return
    if result.messages:
        names = ("topic", "messages", "bytes", "p50", "p99", "repeatedIds", "repeatedBodies")
        titles = (
            "#Topic", "#Messages", optional("#Bytes"), "#ms p50", "#ms p99", optional("#Repeated Ids"),
            optional("#Repeated Bodies"),
        )  # fmt: skip
        print_table(titles, [row.values() for row in result.tables["topics"].select(names).to_pylist()])
    click.echo(f"{result.messages} messages audited" + (f"; the report is {out / 'report.html'}" if out else ""))
