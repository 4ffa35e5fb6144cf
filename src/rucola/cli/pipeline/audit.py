"""`rucola pipeline audit`: what went through stores and lakes, counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.output import print_json, print_table
from rucola.cli.pipeline.command import json_option, master_option, spark_needed, spark_option, tasks_shown
from rucola.cli.pipeline.selection_options import selected, selecting


@click.command()
@click.option(
    "-f",
    "--from",
    "sources",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    multiple=True,
    help="A store directory, or a lake; may be given several times.",
)
@selecting
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Where report.html goes, and each table as Parquet."
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="So many hot keys of each topic.")
@click.option("--delay-levels", metavar="LEVELS", help="The brokers' messageDelayLevel, if it was changed.")
@click.option("--skip-corrupt", is_flag=True, help="Leave damaged records out instead of ending.")
@master_option
@spark_option
@json_option
def audit(
    sources: Sequence[Path],
    topics: Sequence[str],
    tags: str | None,
    keys: Sequence[str],
    sql: str | None,
    begin: int | None,
    end: int | None,
    out: Path | None,
    top: int,
    delay_levels: str | None,
    skip_corrupt: bool,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Count what went through stores and lakes: traffic, lag, retries, dead letters, repeats, latency, hot keys, sizes.

    \b
    Examples:
      rucola pipeline audit --from store --out audit
      rucola pipeline audit --from lake -t Orders -b 2013-01-01 -e 2013-02-01 --out audit --json
    """
    with spark_needed():
        from rucola.spark.jobs.audit import run
        from rucola.spark.jobs.selection import Selection
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline audit", master, use_spark=use_spark)
    with tasks_shown(session, "audit"):
        audited = run(
            session,
            sources,
            out,
            selection=Selection(**selected(topics, tags, keys, sql, begin, end)),
            corrupt_records="skip" if skip_corrupt else "fail",
            hottest=top,
            delay_levels=delay_levels,
        )
    if as_json:
        print_json(audited.to_json())
        return
    if audited.messages:
        names = ("topic", "messages", "bytes", "p50", "p99", "repeatedIds", "repeatedBodies")
        titles = ("#Topic", "#Messages", "#Bytes", "#ms p50", "#ms p99", "#Repeated Ids", "#Repeated Bodies")
        print_table(titles, [row.values() for row in audited.tables["topics"].select(names).to_pylist()])
    click.echo(f"{audited.messages} messages audited" + (f"; the report is {out / 'report.html'}" if out else ""))
