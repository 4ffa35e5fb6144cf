"""`rucola pipeline reconcile`: compare the stubs of an outbox with brokers and archives."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.lake_options import LakeType, catalog_option
from rucola.cli.option_types import DurationRange, PathType, namesrv_option
from rucola.cli.output import duration_text, print_json, print_table, progress_bar
from rucola.cli.pipeline.command import json_option, master_option, require_spark, show_tasks, skip_corrupt_option
from rucola.cli.reliable.command import check_file
from rucola.reliable.schema import DEFAULT_PREFIX

if TYPE_CHECKING:
    from rucola.spark.archive import Archive
    from rucola.spark.jobs.reconcile import HandedOver, ReconcileResult


@click.command()
@click.option(
    "-d",
    "--database",
    envvar="RUCOLA_DATABASE",
    show_envvar=True,
    help="URL of the database, as for `rucola reliable`.",
)
@click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the table names.")
@click.option("--schema", help="Database schema of the tables.")
@click.option(
    "--tables",
    type=PathType(exists=True, file_okay=False),
    help="Read this export of the tables (`rucola reliable export`) instead of the database.",
)
@click.option(
    "--consumer-database",
    "consumers",
    multiple=True,
    metavar="URL",
    help="Database with done rows of consumers that keep them in their own. Can be repeated.",
)
@click.option(
    "-f",
    "--from",
    "sources",
    type=LakeType(),
    multiple=True,
    help="Store directory or lake with messages. Can be repeated.",
)
@catalog_option
@click.option("--brokerName", "names", multiple=True, help="Name of the broker of each store directory, in order.")
@namesrv_option("name_server", "Name servers of live brokers.", other_source="sources")
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic. Can be repeated.")
@click.option("--max-sends", type=click.IntRange(1), help="As given to the relay.")
@click.option("--keyed-resend", type=click.Choice(["manual", "send"]), help="As given to the relay.")
@click.option(
    "--horizon",
    type=DurationRange(),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Younger messages are in neither never_stored nor without_stub.",
)
@click.option(
    "--out",
    type=PathType(file_okay=False),
    help="Directory for report.html, the counts and one directory of Parquet files per list.",
)
@click.option("--resend", is_flag=True, help="Make lost messages due, so that a relay decides about them at once.")
@click.option("--yes", is_flag=True, help="Change them; without it, --resend shows only what it would change.")
@skip_corrupt_option
@master_option
@json_option
def reconcile(
    database: str | None, prefix: str, schema: str | None, tables: Path | None, consumers: Sequence[str],
    sources: Sequence[Path | Archive], names: Sequence[str], name_server: str | None, topics: Sequence[str],
    max_sends: int | None, keyed_resend: str | None, horizon: float, out: Path | None, resend: bool, yes: bool,
    skip_corrupt: bool, master: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the stubs of an outbox with stored messages, and list the differences.

    The lists are: messages that a relay sends now, messages that were sent but never stored, messages that were stored
    but never received, and effects and messages without a stub.

    \b
    Examples:
      rucola pipeline reconcile -d sqlite:///shop.db -n localhost:9876 --out reconciled
      rucola pipeline reconcile --from store --brokerName broker-a --from lake --out reconciled
      rucola pipeline reconcile --tables export --from lake --json
      rucola pipeline reconcile -n localhost:9876 --resend --yes
    """
    if database is None and (tables is None or resend):
        raise click.UsageError("give --database, or --tables without --resend")
    if yes and not resend:
        raise click.UsageError("--yes confirms --resend; give both")
    if tables is not None and consumers:
        raise click.UsageError("--consumer-database is read together with --database; an export has no other tables")
    for url in (*consumers, *([database] if database else [])):
        check_file(url)
    with require_spark():
        from rucola.reliable import KeyedResend, Policy
        from rucola.spark.jobs.reconcile import hand_over, run
        from rucola.spark.jobs.reconciled_log import log_sources
        from rucola.spark.jobs.table_export import TableSource, source_of
        from rucola.spark.session import LazySession
    policy = Policy(
        max_sends=max_sends or Policy().max_sends,
        keyed_resend=KeyedResend(keyed_resend) if keyed_resend else Policy().keyed_resend,
    )
    log = log_sources(
        sources, names, name_server, topics=topics or None, corrupt_records="skip" if skip_corrupt else "fail"
    )
    source = None if database is None else source_of(TableSource(database, prefix, schema))
    done = [source_of(TableSource(url, prefix, schema)) for url in consumers]
    given = tables or source
    assert given is not None
    session = LazySession("rucola pipeline reconcile", master)
    with tempfile.TemporaryDirectory(prefix="rucola-reconciled-") as temporary:
        directory = out or Path(temporary)
        with show_tasks(session, "reconcile"):
            result = run(session, given, log, directory, consumers=done, policy=policy, horizon_ms=int(horizon * 1000))
        handed: dict[str, HandedOver] = {}
        if resend and source is not None:
            with progress_bar("resend") as progress:
                handed = hand_over(source, directory, is_dry=not yes, progress=progress)
    if as_json:
        print_json(result.to_json() | {"resent": {name: vars(each) for name, each in handed.items()}})
        return
    _print_result(result)
    _print_handed_over(handed, is_dry=not yes)
    if out is not None:
        click.echo(f"the report is {out / 'report.html'}")


def _print_result(result: ReconcileResult) -> None:
    from rucola.spark.jobs.reconcile import LISTS

    rows = result.tables["counts"].to_pylist()
    by_line: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows:
        key = row["list"], row["topic"] or "-", row["group"] or "-"
        messages, oldest = by_line.get(key, (0, 0))
        by_line[key] = messages + row["messages"], max(oldest, row["oldestMs"])
    if by_line:
        print_table(
            ("LIST", "MESSAGES", "OLDEST", "TOPIC", "GROUP"),
            [
                (name, messages, duration_text(oldest), topic, group)
                for (name, topic, group), (messages, oldest) in by_line.items()
            ],
        )
    stubs = sum(result.tables["stubs"]["messages"].to_pylist())
    counts = ", ".join(f"{result.count(each)} {each}" for each in LISTS)
    click.echo(f"{stubs} stubs compared: {counts}")
    for sentence in result.missing:
        click.echo(f"left out: {sentence}", err=True)
    for row in result.tables["unknown"].to_pylist():
        click.echo(f"{row['messages']} more of {row['list']} are unknown: {row['reason']}")


def _print_handed_over(handed: Mapping[str, HandedOver], *, is_dry: bool) -> None:
    for name, each in handed.items():
        if is_dry:
            click.echo(f"{name}: would make {each.listed} messages due; add --yes")
        else:
            click.echo(f"{name}: {each.changed} of {each.listed} messages made due")
