"""`rucola pipeline archive` and `compact`: messages into the lake, and its many files into few."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.output import print_json, print_table
from rucola.cli.pipeline.command import json_option, master_option, spark_needed, spark_option, tasks_shown
from rucola.errors import RemotingError

if TYPE_CHECKING:
    from rucola.spark.jobs.archive import Summary

lake_option = click.option(
    "--lake",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="A directory into which messages were archived.",
)


@click.command()
@click.option(
    "--store",
    "stores",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A store directory; may be given several times.",
)
@click.option(
    "--brokerName", "names", multiple=True, help="The name of each store, in the same order; by default its path."
)
@click.option("-n", "--namesrvAddr", "name_server", metavar="HOST:PORT[;...]", help="Live brokers instead of stores.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The lake's directory.")
@click.option("--system-topics", is_flag=True, help="Archive the system's own topics, too.")
@click.option("--skip-corrupt", is_flag=True, help="Leave damaged records out instead of ending.")
@click.option("--allow-loss", is_flag=True, help="Go on where messages were deleted before they were archived.")
@click.option("--allow-missing", is_flag=True, help="Go on without live brokers that are missing, and name them.")
@click.option(
    "--require-broker", "required", multiple=True, help="The name of a live broker that must be there; the like."
)
@click.option("--every", "interval_s", type=click.FloatRange(0), help="Go on for ever, so many seconds apart.")
@master_option
@spark_option
@json_option
def archive(
    stores: Sequence[Path],
    names: Sequence[str],
    name_server: str | None,
    out: Path,
    system_topics: bool,
    skip_corrupt: bool,
    allow_loss: bool,
    allow_missing: bool,
    required: Sequence[str],
    interval_s: float | None,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Write what is new in stores, or on live brokers, to Parquet, by topic and date, with an index of all keys.

    They may be in use. A second run adds what has come since; nothing is ever archived twice, nor missed, whenever a
    run is killed. Where many small files have come together they are made into few (see `compact`). With --every
    the command tells only of runs that found something, waits for brokers that are away and for other runs, and ends
    after the run during which it is interrupted.

    \b
    Examples:
      rucola pipeline archive --store data --out lake
      rucola pipeline archive --store a --brokerName broker-a --store b --brokerName broker-b --out lake
      rucola pipeline archive -n localhost:9876 --out lake --every 60
    """
    if bool(stores) == (name_server is not None):
        raise click.UsageError("give either --store or --namesrvAddr")
    if name_server is not None and (names or skip_corrupt):
        raise click.UsageError("--brokerName and --skip-corrupt are about stores; live brokers have names of their own")
    if name_server is None and (allow_missing or required):
        raise click.UsageError("--allow-missing and --require-broker are about live brokers, which --namesrvAddr finds")
    if names and (len(names) != len(stores) or len(set(names)) != len(names)):
        raise click.UsageError(f"there are {len(stores)} stores and {len(set(names))} names; each needs one of its own")
    with spark_needed():
        from rucola.spark.jobs import archive as job
        from rucola.spark.jobs import compact as compaction
        from rucola.spark.lake.writer import LakeInUse
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline archive", master, use_spark=use_spark)
    said = {"include_system_topics": system_topics, "fail_on_data_loss": not allow_loss}
    missing = _MissingBrokers()
    for store in stores:
        job.check_store(store)

    def archive_once() -> Iterator[Summary]:
        if name_server is not None:
            with tasks_shown(session, f"archive {name_server}"):
                summary = job.run_live(
                    session,
                    name_server,
                    out,
                    fail_on_missing_broker=not allow_missing,
                    required_brokers=required,
                    **said,
                )
            missing.name(summary)
            yield summary
        corrupt = "skip" if skip_corrupt else "fail"
        for store, name in zip_longest(stores, names):
            with tasks_shown(session, f"archive {store}"):
                summary = job.run(session, store, out, broker_name=name, corrupt_records=corrupt, **said)
            yield summary
        # If another run has taken the lake meanwhile, compaction is left to it or to the next run.
        with suppress(LakeInUse), tasks_shown(session, "compact"):
            compaction.run(session, out)

    with _interrupted(interval_s is not None) as wait:
        for summary in archive_once():
            _show(summary, as_json, by_topic=interval_s is None)
        while interval_s is not None and not wait(interval_s):
            try:
                for summary in archive_once():
                    if summary.rows or as_json:
                        _show(summary, as_json, by_topic=False)
            except (RemotingError, LakeInUse) as error:
                # Brokers are restarted, and other runs end; what is not archived stays where it is until then.
                click.echo(f"{error}; trying again in {interval_s:g} s", err=True)


class _MissingBrokers:
    """Names on stderr the brokers that a run left out, if they are not those of the run before."""

    def __init__(self) -> None:
        self._named: tuple[str, ...] = ()

    def name(self, summary: Summary) -> None:
        if summary.missing != self._named:
            self._named = summary.missing
            for sentence in summary.missing:
                click.echo(f"left out: {sentence}", err=True)


@contextmanager
def _interrupted(is_awaited: bool) -> Iterator[Callable[[float], bool]]:
    """Give a function that waits so many seconds, and says whether SIGINT or SIGTERM came meanwhile or before.

    Where that `is_awaited`, the signals do nothing else.
    """
    told = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_awaited else ()
    before = [signal.signal(number, lambda *_: told.set()) for number in numbers]
    try:
        yield told.wait
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _show(summary: Summary, as_json: bool, *, by_topic: bool) -> None:
    if as_json:
        print_json(summary.to_json())
        return
    if summary.rows and by_topic:
        print_table(("#Topic", "#Messages"), summary.rows_by_topic.items())
    click.echo(f"{summary.rows} messages of {summary.source} archived in {summary.lake}, in {summary.file_count} files")


@click.command()
@lake_option
@click.option("--at-least", "least_files", type=click.IntRange(2), default=2, show_default=True, help="Small files.")
@master_option
@spark_option
@json_option
def compact(lake: Path, least_files: int, master: str | None, use_spark: bool | None, as_json: bool) -> None:
    """Make the small files of a lake into few, of each topic and day, and of the index of keys.

    A search sees every message once meanwhile. Files that were replaced stay an hour for who reads them, and go with
    the next run after that.

    \b
    Examples:
      rucola pipeline compact --lake lake
    """
    with spark_needed():
        from rucola.spark.jobs.compact import run
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline compact", master, use_spark=use_spark)
    with tasks_shown(session, "compact"):
        summary = run(session, lake, least_files=least_files)
    if as_json:
        print_json(summary.to_json())
        return
    print_table(
        ("#Files", "#Replaced", "#Written"),
        [
            ("messages", summary.replaced_row_files, summary.parquet_files),
            ("keys", summary.replaced_key_files, summary.key_files),
        ],
    )
