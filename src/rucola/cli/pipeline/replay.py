"""`rucola pipeline replay`: send messages of a store directory or a lake again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.cli.extras import otel_option
from rucola.cli.lake_options import LakeType, catalog_option
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.output import optional, print_json, print_table, progress_bar, whole, wide_option
from rucola.cli.pipeline.command import json_option, master_option, require_spark, skip_corrupt_option, spark_option
from rucola.cli.pipeline.selection_options import selection_options
from rucola.name_server_addresses import NAMESRV_VARIABLES

if TYPE_CHECKING:
    from rucola.spark.archive import Archive
    from rucola.spark.jobs.replay import ReplayResult


@click.command()
@click.option(
    "-f",
    "--from",
    "source",
    type=LakeType(),
    required=True,
    help="Store directory or lake to read.",
)
@catalog_option
@selection_options
@click.option("--to", "target", help="Topic to send to; by default each message goes to its own topic.")
@namesrv_option("name_server", "Name servers of the brokers to send to.")
@click.option(
    "--ledger",
    type=PathType(file_okay=False),
    help="Directory that records acknowledged messages. The same directory continues an interrupted replay.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Limit of messages per second.")
@click.option("--dry-run", is_flag=True, help="Count the messages that would be sent, and send nothing.")
@otel_option
@skip_corrupt_option
@master_option
@spark_option
@json_option
@wide_option
@click.pass_context
def replay(
    ctx: click.Context,
    source: Path | Archive,
    conditions: dict[str, Any],
    target: str | None,
    name_server: str | None,
    ledger: Path | None,
    rate: float | None,
    dry_run: bool,
    otel: bool,
    skip_corrupt: bool,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Send messages of a store directory or a lake to live brokers again.

    Messages of one queue are sent to one queue in order, each at least once and under its original unique key. An
    interrupted replay continues when it is started again with the same options and the same ledger. The exit code is 1
    if messages were deleted from the source before they could be sent.

    \b
    Examples:
      rucola pipeline replay --from lake -t Orders -b 2013-01-01T05:00 --dry-run
      rucola pipeline replay --from lake -t Orders --to Copy -n 127.0.0.1:9876 --ledger replay-1 --rate 500
    """
    if not dry_run and (name_server is None or ledger is None):
        raise click.UsageError(f"--namesrvAddr (or {NAMESRV_VARIABLES[0]}) and --ledger are needed, or --dry-run")
    with require_spark():
        from rucola.spark.jobs.replay import ReplayOptions, run
        from rucola.spark.jobs.selection import Selection
        from rucola.spark.session import LazySession
    options = ReplayOptions(
        name_server=None if dry_run else name_server,
        ledger=None if dry_run else ledger,
        topic=target,
        rate=rate,
        corrupt_records="skip" if skip_corrupt else "fail",
        otel=otel,
    )
    selection = Selection(**conditions)
    session = LazySession("rucola pipeline replay", master, use_spark=use_spark)
    with progress_bar("replay") as progress:
        result = run(session, source, options, selection=selection, progress=progress)
    if as_json:
        print_json(result.to_json())
    else:
        _print_result(result)
    ctx.exit(1 if result.missing else 0)


def _print_result(result: ReplayResult) -> None:
    if result.queues:
        rows = [
            (each.broker_name, each.topic, each.queue_id, each.rows, each.size, result.acknowledged_of(each))
            for each in result.queues
        ]
        print_table(("#Broker", "#Topic", whole("#QID"), "#Messages", optional("#Bytes"), "#Acknowledged"), rows)
    target = f"to {result.topic}" if result.topic else "to their own topics"
    if result.is_dry:
        click.echo(f"{result.rows} messages of {result.source} would be sent {target}")
    else:
        click.echo(f"{result.sent} messages sent {target}, {result.acknowledged} of {result.rows} acknowledged")
    if result.unsafe:
        click.echo(f"{result.unsafe} of them were stored, but not flushed or replicated in time", err=True)
    if result.missing:
        click.echo(f"{result.missing} messages were deleted from {result.source} before they were sent", err=True)
