"""`rucola pipeline`: the Spark jobs of `rucola.spark.jobs`, started on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from rucola.cli.output import print_json, print_table


@click.group()
def pipeline() -> None:
    """Spark jobs over a store directory."""


@pipeline.command()
@click.option(
    "--store", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True, help="The store directory."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The lake's directory.")
@click.option("--json", "as_json", is_flag=True, help="What was archived, as JSON.")
def archive(store: Path, out: Path, as_json: bool) -> None:
    """Write what is new in a store to Parquet, partitioned by topic and date.

    The store may be in use. A second run adds what has come since; nothing is ever archived twice.

    \b
    Examples:
      rucola pipeline archive --store data --out lake
      rucola pipeline archive --store data --out lake --json
    """
    try:
        from rucola.spark.jobs.archive import run  # here, since Spark is an extra and takes a second to load
        from rucola.spark.session import local_session
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: install `rucola[spark]`") from None
    summary = run(local_session("rucola pipeline archive"), store, out)
    if as_json:
        print_json(summary.to_json())
        return
    if summary.rows:
        print_table(("#Topic", "#Messages"), summary.rows_by_topic.items())
    click.echo(f"{summary.rows} messages of {store} archived in {summary.lake}, in {summary.file_count} files")
