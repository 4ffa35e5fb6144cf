"""`rucola pipeline replay`: messages of a store directory or a lake, sent again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.output import print_json, print_table, progress_bar
from rucola.cli.pipeline.command import json_option, master_option, spark_needed, spark_option
from rucola.cli.pipeline.selection_options import selected, selecting


@click.command()
@click.option(
    "-f",
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="A store directory, or a lake.",
)
@selecting
@click.option("--to", "target", help="The topic to send to. Without it each message goes to its own.")
@click.option("-n", "--namesrvAddr", "name_server", metavar="HOST:PORT[;...]", help="The name servers of the brokers.")
@click.option(
    "--ledger",
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory that keeps what was acknowledged. With the same one a replay goes on where it was.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many messages a second.")
@click.option("--dry-run", is_flag=True, help="Only count what would be sent.")
@click.option("--skip-corrupt", is_flag=True, help="Leave damaged records out instead of ending.")
@master_option
@spark_option
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    source: Path,
    topics: Sequence[str],
    tags: str | None,
    keys: Sequence[str],
    sql: str | None,
    begin: int | None,
    end: int | None,
    target: str | None,
    name_server: str | None,
    ledger: Path | None,
    rate: float | None,
    dry_run: bool,
    skip_corrupt: bool,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Send messages of a store or a lake again, to live brokers.

    Messages of one queue go to one queue, in their order, each at least once under its own unique key. A replay that
    was interrupted goes on when it is started again with the same options and the same ledger. Exit code 1 where
    messages have left the source before they were sent.

    \b
    Examples:
      rucola pipeline replay --from lake -t Orders -b 2013-01-01T05:00 --dry-run
      rucola pipeline replay --from lake -t Orders --to Copy -n 127.0.0.1:9876 --ledger replay-1 --rate 500
    """
    if not dry_run and (name_server is None or ledger is None):
        raise click.UsageError("--namesrvAddr and --ledger are needed, or --dry-run")
    with spark_needed():
        from rucola.spark.jobs.replay import run
        from rucola.spark.jobs.replay_ledger import Reached
        from rucola.spark.jobs.selection import Selection
        from rucola.spark.session import LazySession
    with progress_bar("replay") as progress:
        summary = run(
            LazySession("rucola pipeline replay", master, use_spark=use_spark),
            source,
            name_server=None if dry_run else name_server,
            ledger=None if dry_run else ledger,
            topic=target,
            selection=Selection(**selected(topics, tags, keys, sql, begin, end)),
            rate=rate,
            corrupt_records="skip" if skip_corrupt else "fail",
            progress=progress,
        )
    if as_json:
        print_json(summary.to_json())
    else:
        if summary.queues:
            rows = [
                (*each.queue, each.rows, each.size, summary.reached.get(each.queue, Reached()).count)
                for each in summary.queues
            ]
            print_table(("#Broker", "#Topic", "#QID", "#Messages", "#Bytes", "#Acknowledged"), rows)
        where = f"to {target}" if target else "to their own topics"
        if summary.is_dry:
            click.echo(f"{summary.rows} messages of {source} would be sent {where}")
        else:
            click.echo(f"{summary.sent} messages sent {where}, {summary.acknowledged} of {summary.rows} acknowledged")
        if summary.unsafe:
            click.echo(f"{summary.unsafe} of them were stored, but not flushed or replicated in time", err=True)
        if summary.missing:
            click.echo(f"{summary.missing} messages left {source} before they were sent", err=True)
    ctx.exit(1 if summary.missing else 0)
