"""`rucola pipeline status` and `check`: a lake, and how it compares with its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.cli.extras import require_spark
from rucola.cli.lake_options import catalog_option
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.output import duration_text, optional, print_json, print_table, time_text, whole, wide_option
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option
from rucola.errors import missing_extra

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a log, whose value is the argument `log`: options of the data source, or None."""

    @wraps(command)
    def with_log(stores: Sequence[Path], names: Sequence[str], name_server: str | None, **others: Any) -> Any:
        if stores and name_server is not None:
            raise click.UsageError("give either --store or --namesrvAddr")
        if names and len(names) != len(stores):
            raise click.UsageError("give one --brokerName for each --store, in the same order")
        log = None
        if stores:
            log = {"storePath": ",".join(map(str, stores))} | ({"brokerName": ",".join(names)} if names else {})
        elif name_server is not None:
            log = {"nameServer": name_server}
        return command(log=log, **others)

    for option in (
        namesrv_option("name_server", "Compare with the live brokers of a name server.", other_source="stores"),
        click.option("--brokerName", "names", multiple=True, help="Name of each store in the lake, as archived."),
        click.option(
            "--store",
            "stores",
            type=PathType(exists=True, file_okay=False),
            multiple=True,
            help="Compare with this store directory. Can be repeated.",
        ),
    ):
        with_log = option(with_log)
    return with_log


@click.command()
@lake_option
@catalog_option
@log_options
@click.option("--prometheus", "as_metrics", is_flag=True, help="Print metrics in the text format of Prometheus.")
@json_option
@wide_option
def status(lake: Path | Archive, log: dict[str, str] | None, as_metrics: bool, as_json: bool) -> None:
    """Show what a lake holds, and its lag.

    The lag of a topic is the number of its messages in the log that are not archived, its latency the age of the oldest
    of them. Both need the log: --store or --namesrvAddr.

    \b
    Examples:
      rucola pipeline status --lake lake
      rucola pipeline status --lake lake -n localhost:9876 --json
    """
    with require_spark():
        from rucola.spark.jobs.lake_status import metrics, run
    found = run(lake, log)
    for sentence in found.missing:
        click.echo(f"left out: {sentence}", err=True)
    if as_metrics:
        try:
            click.echo(metrics(found), nl=False)
        except ModuleNotFoundError as error:
            raise click.ClickException(missing_extra(error, "metrics")) from None
        return
    if as_json:
        print_json(found)
        return
    rows = []
    for each in found.topics:
        lags = () if log is None else ("-" if each.lag is None else each.lag, duration_text(each.latency_ms))
        rows.append((each.topic, each.rows, *lags, each.files, each.size, time_text(each.newest_ms or 0)))
    lag_columns = () if log is None else ("#Lag", "#Latency")
    print_table(
        ("#Topic", "#Messages", *lag_columns, optional("#Files"), optional("#Bytes"), optional("#Newest")), rows
    )
    click.echo(
        f"{found.rows} messages in {found.files} files; {found.snapshots} snapshots, "
        f"the last of {time_text(found.committed_ms or 0) or 'never'}"
    )


@click.command()
@lake_option
@catalog_option
@log_options
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic. Can be repeated.")
@json_option
@wide_option
def check(lake: Path | Archive, log: dict[str, str] | None, topics: Sequence[str], as_json: bool) -> None:
    """Compare a lake with its log, queue by queue: offsets, counts and the CRC of bodies.

    Every archived message must be in the lake once, without a gap, and those that are in the log, too, must have the
    same bodies. Each difference is named, and the exit code is 1 if there is any: `gap` (archived, but not in the
    lake), `duplicate`, `beyond` (in the lake, but not in its progress), `unread` (not in the log), `different`.

    \b
    Examples:
      rucola pipeline check --lake lake --store data --brokerName broker-a
      rucola pipeline check --lake lake -n localhost:9876 -t Orders --json
    """
    if log is None:
        raise click.UsageError("give --store or --namesrvAddr, the log to compare with")
    with require_spark():
        from rucola.spark.jobs.check import run
    found = run(lake, log, topics)
    if as_json:
        print_json(found)
    else:
        if found.differences:
            print_table(
                ("#Topic", "#Broker", whole("#QID"), whole("#Difference"), "#From", "#To"),
                [(d.topic, d.broker_name, d.queue_id, d.kind, d.begin, d.end - 1) for d in found.differences],
            )
        click.echo(
            f"{found.messages} messages of {found.queues} queues checked, {found.compared} of them with the log; "
            f"{len(found.differences)} differences"
        )
    if found.differences:
        raise click.exceptions.Exit(1)
