"""`rucola pipeline archive` and `compact`: write messages to a lake, and merge its small files."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.cli.lake_options import LakeType, catalog_option
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.output import print_json, print_table, progress_bar, wide_option
from rucola.cli.pipeline.command import (
    json_option,
    master_option,
    require_spark,
    show_tasks,
    skip_corrupt_option,
    spark_option,
)
from rucola.cli.pipeline.topic_tables import derive_and_print, parse_decodings, topic_tables_options
from rucola.errors import RemotingError
from rucola.name_server_addresses import NAMESRV_VARIABLES
from rucola.outages import Outages

if TYPE_CHECKING:
    from rucola.spark.archive import Archive
    from rucola.spark.jobs.archive import ArchiveResult
    from rucola.spark.session import LazySession

_log = logging.getLogger(__name__)

lake_option = click.option(
    "--lake",
    type=LakeType(),
    required=True,
    help="Directory of the lake, or the URL of an object store, as given to `archive --out`.",
)

progress_option = click.option(
    "--progress",
    "progress_directory",
    type=PathType(file_okay=False),
    help="With --catalog: directory for copies of the progress, which brokers with deleteOnlyArchived read.",
)


def with_progress(lake: Path | Archive, progress_directory: Path | None) -> Archive:
    """Return the archive in a lake, which writes copies of its progress to the directory."""
    from rucola.spark.archive import Archive

    if progress_directory is None:
        return Archive(lake)
    if not isinstance(lake, Archive):
        raise click.UsageError("--progress applies to --catalog; a lake without one has these copies in _rucola")
    return Archive(lake.path, lake.catalog, progress_directory=progress_directory)


@click.command()
@click.option(
    "--store",
    "stores",
    type=PathType(exists=True, file_okay=False),
    multiple=True,
    help="Store directory to archive. Can be repeated.",
)
@click.option(
    "--brokerName",
    "names",
    multiple=True,
    help="Name of a store in the lake, one for each --store in the same order; by default its path.",
)
@namesrv_option("name_server", "Archive the live brokers of a name server.", other_source="stores")
@click.option(
    "--out",
    type=LakeType(exists=False),
    required=True,
    help="Directory of the lake to write; with --catalog, the URL of an object store, too.",
)
@catalog_option
@progress_option
@click.option("--system-topics", is_flag=True, help="Archive system topics, too.")
@skip_corrupt_option
@click.option("--allow-loss", is_flag=True, help="Continue if messages were deleted before they were archived.")
@click.option("--allow-missing", is_flag=True, help="Continue without unreachable live brokers, and name them.")
@click.option(
    "--require-broker",
    "required",
    multiple=True,
    help="Fail unless the live broker with this name is reachable. Can be repeated.",
)
@topic_tables_options
@click.option("--every", "interval_s", type=click.FloatRange(0), help="Repeat after this many seconds, until stopped.")
@master_option
@spark_option
@json_option
@wide_option
def archive(
    stores: Sequence[Path],
    names: Sequence[str],
    name_server: str | None,
    out: Path | Archive,
    progress_directory: Path | None,
    system_topics: bool,
    skip_corrupt: bool,
    allow_loss: bool,
    allow_missing: bool,
    required: Sequence[str],
    decodings: Sequence[str],
    every_topic: bool,
    interval_s: float | None,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Archive new messages of stores or live brokers in a lake.

    A lake is an Iceberg table by topic and date, with an index of all keys. Stores and brokers may be in
    use. Each run adds the messages stored since the last one: none is archived twice or skipped, even if a run is
    killed. Afterwards, small files of the lake are merged (see `compact`). With --every the command prints only runs
    that archived messages, waits for unreachable brokers and for other runs, and on SIGINT or SIGTERM ends after the
    current run. A failure that lasts has a line at the start, summaries at growing distances, and a line at the end.

    With --decode, a table of the topic has the bodies as columns. It has all messages of the lake, also those that were
    archived before, and the reason for a body that does not decode. `infer-schema` makes a schema of JSON.

    \b
    Examples:
      rucola pipeline archive --store data --out lake
      rucola pipeline archive --store a --brokerName broker-a --store b --brokerName broker-b --out lake
      rucola pipeline archive -n localhost:9876 --out lake --every 60
      rucola pipeline archive -n localhost:9876 --out lake --decode Orders=json:orders.json
      rucola pipeline archive -n localhost:9876 --out lake --decode Orders=avro:http://registry:8081
      rucola pipeline archive -n localhost:9876 --out lake --decode Orders=protobuf:orders.desc#shop.Order
      rucola pipeline archive --store data --out s3://bucket/lake --catalog prod
    """
    if bool(stores) == (name_server is not None):
        raise click.UsageError(f"give either --store or --namesrvAddr, or set {NAMESRV_VARIABLES[0]}")
    if name_server is not None and (names or skip_corrupt):
        raise click.UsageError("--brokerName and --skip-corrupt apply to --store; live brokers have names of their own")
    if name_server is None and (allow_missing or required):
        raise click.UsageError("--allow-missing and --require-broker apply to live brokers (--namesrvAddr)")
    if names and (len(names) != len(stores) or len(set(names)) != len(names)):
        raise click.UsageError(f"there are {len(stores)} stores and {len(set(names))} names; name each store once")
    with require_spark():
        from rucola.spark.jobs.archive import check_store
        from rucola.spark.session import LazySession
    if progress_directory is not None:
        out = with_progress(out, progress_directory)
    for store in stores:
        check_store(store)
    decoders = parse_decodings(decodings)
    session = LazySession("rucola pipeline archive", master, use_spark=use_spark)
    common = {"include_system_topics": system_topics, "fail_on_data_loss": not allow_loss}

    def archive_once() -> Iterator[ArchiveResult]:
        if name_server is not None:
            missing = {"fail_on_missing_broker": not allow_missing, "required_brokers": required}
            yield _archive_live(session, name_server, out, **common, **missing)
        corrupt = "skip" if skip_corrupt else "fail"
        for store, name in zip_longest(stores, names):
            yield _archive_store(session, store, out, broker_name=name, corrupt_records=corrupt, **common)
        try:
            if decoders or every_topic:
                derive_and_print(out, decoders, as_json, every_topic=every_topic)
        finally:
            _compact_after(out)

    _run_rounds(archive_once, f"the archive in {out}", interval_s, as_json)


def _archive_live(session: LazySession, name_server: str, out: Path | Archive, **options: Any) -> ArchiveResult:
    from rucola.spark.jobs.archive import run_live

    with show_tasks(session, f"archive {name_server}") as bar:
        return run_live(session, name_server, out, progress=bar, **options)


def _archive_store(session: LazySession, store: Path, out: Path | Archive, **options: Any) -> ArchiveResult:
    from rucola.spark.jobs.archive import run

    with show_tasks(session, f"archive {store}") as bar:
        return run(session, store, out, progress=bar, **options)


def _compact_after(lake: Path | Archive) -> None:
    """Compact the lake after an archive run; a run that has locked it in the meantime will compact it."""
    from rucola.spark.archive import Archive, LakeInUse

    with suppress(LakeInUse), progress_bar(f"compact {lake}") as bar:
        Archive(lake).compact(progress=bar)


def _run_rounds(
    archive_once: Callable[[], Iterator[ArchiveResult]], subject: str, interval_s: float | None, as_json: bool
) -> None:
    """Run `archive_once`, with an interval until SIGINT or SIGTERM; only the first round raises temporary errors."""
    from rucola.spark.archive import LakeInUse, TopicTableError

    missing = _MissingBrokers()
    outages = Outages(_log)
    with _stop_signals(interval_s is not None) as wait:
        for result in archive_once():
            missing.report(result)
            _print_result(result, as_json, by_topic=interval_s is None)
        while interval_s is not None and not wait(interval_s):
            try:
                for result in archive_once():
                    missing.report(result)
                    if result.rows or as_json:
                        _print_result(result, as_json, by_topic=False)
            except (RemotingError, LakeInUse, TopicTableError) as error:
                outages.failed(subject, error)
            else:
                outages.succeeded(subject)


class _MissingBrokers:
    def __init__(self) -> None:
        self._reported: tuple[str, ...] = ()

    def report(self, result: ArchiveResult) -> None:
        if result.missing != self._reported:
            self._reported = result.missing
            for sentence in result.missing:
                click.echo(f"left out: {sentence}", err=True)


@contextmanager
def _stop_signals(is_enabled: bool) -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits up to some seconds for SIGINT or SIGTERM, and returns whether one has arrived.

    If `is_enabled`, the signals have no other effect inside the block; otherwise they keep their handlers.
    """
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_enabled else ()
    handlers = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped.wait
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _print_result(result: ArchiveResult, as_json: bool, *, by_topic: bool) -> None:
    if as_json:
        print_json(result.to_json())
        return
    if result.rows and by_topic:
        print_table(("#Topic", "#Messages"), result.rows_by_topic.items())
    click.echo(f"{result.rows} messages of {result.source} archived in {result.lake}, in {result.file_count} files")


@click.command()
@lake_option
@catalog_option
@progress_option
@click.option(
    "--at-least",
    "min_files",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="Merge only if a topic and day has this many small files.",
)
@click.option("--reindex", is_flag=True, help="First write the key index anew from the messages.")
@json_option
@wide_option
def compact(
    lake: Path | Archive, progress_directory: Path | None, min_files: int, reindex: bool, as_json: bool
) -> None:
    """Merge a lake's small files, by topic and day, and the small files of its key index.

    Searches see every message exactly once at any time. Replaced files are kept for an hour, for readers that still
    use them, and deleted by the next run after that. With --reindex, a key index whose files are missing or damaged is
    replaced.

    \b
    Examples:
      rucola pipeline compact --lake lake
      rucola pipeline compact --lake lake --at-least 20 --json
    """
    with require_spark():
        archive = with_progress(lake, progress_directory)
    if reindex:
        with progress_bar(f"index {archive}") as bar:
            archive.reindex(progress=bar)
    with progress_bar(f"compact {archive}") as bar:
        result = archive.compact(min_files=min_files, progress=bar)
    if as_json:
        print_json(result.to_json())
        return
    print_table(
        ("#Files", "#Replaced", "#Written"),
        [
            ("messages", result.replaced_row_files, result.row_files),
            ("keys", result.replaced_key_files, result.key_files),
        ],
    )
