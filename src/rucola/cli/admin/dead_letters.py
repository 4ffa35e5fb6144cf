"""Dead letters: list, print, export and re-drive them. mqadmin has no such commands."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import click
import msgspec

from rucola.admin import AdminClient, AfterRedrive, DeadLetter, RedriveResult, RedriveStatus
from rucola.admin.commands.command import BeginTime, EndTime, Option, Result, check_window, command, split
from rucola.admin.commands.contents import DeadGroup, ShowAll, letter_json, selected_letters
from rucola.cli.admin.command import begin_option, call_admin, click_command, confirm, end_option, yes_option
from rucola.cli.extras import require_reliable
from rucola.cli.output import print_table, progress_bar
from rucola.errors import ConfigError, missing_extra
from rucola.files import replacing

FORM = "One JSON object per line, or Parquet (needs the extra `spark`)."
PARQUET_ROWS = 4096
"""Rows per row group of a Parquet file, all of which are held in memory."""


@command("exportDlq")
async def export_dlq(
    client: AdminClient,
    group: DeadGroup,
    output: Annotated[Path, Option("-o --output", "File to write.", format="new file")],
    form: Annotated[str, Option("-f --format", FORM, choices=("jsonl", "parquet"))] = "jsonl",
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    show_all: ShowAll = False,
) -> Result:
    """Write the dead letters of a group to a file, without re-driven ones.

    The messages stay on the brokers. A Parquet file has the columns of the Spark data source, and originTopic and
    redriven.

    \b
    Examples:
      rucola admin exportDlq -g billing -o billing.jsonl
      rucola admin exportDlq -g billing -o billing.parquet -f parquet -a
    """
    check_window(begin_ms, end_ms)
    count = 0
    with _replacing(output) as file, (_parquet if form == "parquet" else _json_lines)(file) as add:
        async for letter in selected_letters(client, group, begin_ms, end_ms, show_all):
            add(letter)
            count += 1
    value = {"group": group, "output": output, "format": form, "count": count}
    return Result(value, [f"{count} dead letters of group {group} written to {output}"])


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None


@contextmanager
def _json_lines(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    def add(letter: DeadLetter) -> None:
        file.write(msgspec.json.encode(letter_json(letter)) + b"\n")

    yield add


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    try:
        import pyarrow as pa  # imported here: Arrow is an extra
        from pyarrow.parquet import ParquetWriter

        from rucola.spark.source.columns import SCHEMA
    except ModuleNotFoundError as error:
        raise ConfigError(f"Parquet: {missing_extra(error, 'spark')}") from None
    # A dead letter was pulled from the wire, and has no broker name.
    columns = [column for column in SCHEMA if column.name != "brokerName"]
    schema = pa.schema([*columns, ("originTopic", pa.string()), ("redriven", pa.bool_())])
    rows: list[dict[str, Any]] = []
    with ParquetWriter(file, schema) as writer:

        def write() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def add(letter: DeadLetter) -> None:
            rows.append(_parquet_row(letter))
            if len(rows) == PARQUET_ROWS:
                write()

        yield add
        write()


def _parquet_row(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    # JSON fields have the names of the columns. Columns of other types replace theirs.
    return letter_json(letter) | {
        "body": message.body,
        "keys": message.keys.split() if message.keys else None,
        "properties": list(message.properties.items()),
        **_times("bornTimestamp", message.born_timestamp),
        **_times("storeTimestamp", message.store_timestamp),
    }


def _times(name: str, timestamp_ms: int) -> dict[str, int | None]:
    """A timestamp in microseconds, or null and the number as stored if it is no time."""
    from rucola.spark.source.schema import LAST_TIME_MS

    if 0 <= timestamp_ms <= LAST_TIME_MS:
        return {name: timestamp_ms * 1000}
    return {name: None, f"{name}Raw": timestamp_ms}


@click_command("redriveDlq")
@click.option("-g", "--groupName", "group", required=True, help="Consumer group of the dead letters.")
@click.option("-i", "--msgId", "msg_ids", help="Only the messages with these offsetMsgIds, separated by commas.")
@begin_option
@end_option
@click.option("-r", "--onlyGroup", "only_group", is_flag=True, help="Send only to this group, through its retry topic.")
@click.option(
    "-s", "--perSecond", "per_second", type=click.FloatRange(0, min_open=True), help="Limit of messages per second."
)
@click.option(
    "-d",
    "--dryRun",
    "dry_run",
    is_flag=True,
    help="Print which messages would be sent to which topic, and send nothing.",
)
@click.option(
    "--database", envvar="RUCOLA_DATABASE", show_envvar=True,
    help="URL of the outbox's database (`rucola reliable`): reopens the DEAD stubs of the messages, too.",
)  # fmt: skip
@click.option("--prefix", help="Prefix of the outbox's tables, as for `rucola reliable`.")
@click.option("--schema", help="Database schema of the outbox's tables.")
@yes_option
def redrive_dlq(
    namesrv_addr: str, as_json: bool, group: str, msg_ids: str | None, begin_ms: int | None, end_ms: int | None,
    only_group: bool, per_second: float | None, dry_run: bool, database: str | None, prefix: str | None,
    schema: str | None, yes: bool,
) -> None:  # fmt: skip
    """Re-drive the dead letters of a group: send them to their original topics again.

    All groups of such a topic receive the message, unless -r is given.

    With --database, DEAD stubs of an outbox wait for the confirmation again (SENT), and a further failure raises a new
    alert; without it they stay DEAD until the copy is consumed, which confirms them.

    Dead letters that were re-driven before are skipped, so an interrupted run can be repeated. If some cannot be sent,
    they are named and stay, and the exit code is 1. Dead letters are kept until they expire. With --json the output has
    one JSON object per line.

    \b
    Examples:
      rucola admin redriveDlq -g billing --dryRun
      rucola admin redriveDlq -g billing -s 100 --yes
      rucola admin redriveDlq -g billing -r -i 7F00000100002A9F0000000000000000 --yes
      rucola admin redriveDlq -g billing --database sqlite:///shop.db --yes
    """
    check_window(begin_ms, end_ms)
    ids = split(msg_ids or "")
    if msg_ids is not None and (not ids or begin_ms is not None or end_ms is not None):
        raise click.UsageError("-i names messages, so -b and -e cannot be given with it")
    if database is None and (prefix or schema):
        raise click.UsageError("--prefix and --schema belong to --database, which is missing")
    reopening = None if database is None or dry_run else _stub_reopening(database, prefix, schema, group)
    totals = _RedriveTotals(as_json, dry_run, reopens=reopening is not None)

    async def request(client: AdminClient) -> None:
        # The number of pending dead letters is an estimate: others may be added or re-driven in the meantime.
        total = len(ids) or (await client.dead_letters.stats(group)).waiting
        with progress_bar(f"re-driving {group}") as progress:
            results = client.dead_letters.redrive(
                group, ids, begin_ms=begin_ms, end_ms=end_ms, only_group=only_group, per_second=per_second,
                dry_run=dry_run, after=reopening,
            )  # fmt: skip
            async with aclosing(results):
                async for result in results:
                    totals.add(result)
                    if progress is not None:
                        progress(totals.count, total)

    if not dry_run:
        confirm(yes, f"send {f'{len(ids)} of ' if ids else ''}the dead letters of group {group} again")
    call_admin(namesrv_addr, request)
    totals.print()
    if totals.failed:
        sys.exit(1)


def _stub_reopening(database: str, prefix: str | None, schema: str | None, group: str) -> AfterRedrive:
    with require_reliable():
        from rucola.cli.reliable.redriven import stub_reopening
    return stub_reopening(database, prefix, schema, group)


class _RedriveTotals:
    def __init__(self, as_json: bool, dry_run: bool, *, reopens: bool) -> None:
        self._as_json = as_json
        self._dry_run = dry_run
        self._reopens = reopens
        self._reopened = 0
        self._statuses: Counter[RedriveStatus] = Counter()
        self._topics: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._statuses.total()

    @property
    def failed(self) -> int:
        return self._statuses[RedriveStatus.FAILED]

    def add(self, result: RedriveResult) -> None:
        self._statuses[result.status] += 1
        self._reopened += result.is_reopened
        if result.status in (RedriveStatus.SENT, RedriveStatus.WOULD_SEND):
            self._topics[result.topic] += 1
        message = result.message
        if self._as_json:
            line = {
                "offsetMsgId": message.offset_msg_id,
                "msgId": message.msg_id,
                "topic": result.topic,
                "status": result.status.name,
                "reason": result.reason,
                "reopened": result.is_reopened,
            }
            click.echo(msgspec.json.encode(line))
        elif result.status is RedriveStatus.FAILED:
            click.echo(f"{message.offset_msg_id} was not sent: {result.reason}", err=True)

    def print(self) -> None:
        if not self._as_json:
            print_table(("#Topic", "#Would Send" if self._dry_run else "#Sent"), sorted(self._topics.items()))
        counts = f"{self._statuses[RedriveStatus.DONE_BEFORE]} re-driven before, {self.failed} failed"
        click.echo(counts + (f", {self._reopened} DEAD stubs reopened" if self._reopens else ""), err=True)
