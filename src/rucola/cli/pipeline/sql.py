"""`rucola pipeline sql`: a query of a lake by DuckDB."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.cli.lake_options import catalog_option
from rucola.cli.output import print_json, print_table, wide_option
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, require_spark

if TYPE_CHECKING:
    from rucola.spark.archive import Archive

LIMIT = 1000
TIMEOUT_S = 60.0
_BAR_WIDTH = 40


@click.command()
@click.argument("query")
@lake_option
@catalog_option
@click.option("-t", "--topic", "topics", multiple=True, help="Only read this topic. Can be repeated.")
@click.option("-m", "--limit", type=click.IntRange(1), default=LIMIT, show_default=True, help="Maximum number of rows.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=TIMEOUT_S, show_default=True,
    help="Seconds after which the query ends.",
)  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV, with the names of the columns.")
@click.option("--chart", "as_chart", is_flag=True, help="Show the last column of numbers as bars, too.")
@json_option
@wide_option
def sql(
    query: str,
    lake: Path | Archive,
    topics: Sequence[str],
    limit: int,
    timeout_s: float,
    as_csv: bool,
    as_chart: bool,
    as_json: bool,
) -> None:
    """Query the messages of a lake in DuckDB's SQL.

    The table `messages` has the columns of the data source, and `date`, the UTC day of storeTimestamp. Conditions on
    topic, date and storeTimestamp, and -t, save reading. Bodies are binary: decode(body) is their text, and
    TRY_CAST(decode(body) AS JSON) ->> 'name' a member of JSON, NULL if a body is none. In CSV, a text that a
    spreadsheet would run as a formula begins with an apostrophe.

    \b
    Examples:
      rucola pipeline sql --lake lake "SELECT topic, date, count(*) FROM messages GROUP BY ALL ORDER BY ALL"
      rucola pipeline sql --lake lake "SELECT date, count(*) FROM messages GROUP BY ALL ORDER BY date" --chart
      rucola pipeline sql --lake lake "SELECT TRY_CAST(decode(body) AS JSON) ->> 'price' FROM messages" --csv
    """
    if as_csv + as_chart + as_json > 1:
        raise click.UsageError("give one of --csv, --chart and --json")
    with require_spark():
        from rucola.spark.jobs.sql import run
    found = run(lake, query, topics=topics or None, limit=limit, timeout_s=timeout_s)
    if as_json:
        print_json({"rows": found.json_rows(), "cut": found.is_cut})
    elif as_csv:
        click.echo(found.csv(), nl=False)
    elif as_chart:
        bars = _bars(found.rows)
        print_table((*found.columns, "#Chart"), [[*cells, bar] for cells, bar in zip(found.cells(), bars, strict=True)])
    else:
        print_table(found.columns, found.cells())
    if found.is_cut:
        click.echo(f"these are the first {limit} of more rows; raise the limit with -m", err=True)


def _bars(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a bar for each row, as long as the number in the last column of numbers; none for negative ones."""
    for column in reversed([*zip(*rows, strict=True)]):
        numbers = [value for value in column if value is not None]
        if numbers and all(
            isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in numbers
        ):
            lengths = [0.0 if value is None or not math.isfinite(value) else float(value) for value in column]
            unit = _BAR_WIDTH / (max(lengths) if max(lengths) > 0 else 1)
            return ["█" * round(length * unit) for length in lengths]
    if rows:
        raise click.ClickException("--chart needs a column of numbers: select one, such as count(*)")
    return []
