"""Dead letters: what groups have given up. List it, look at it, take it out, send it again.

mqadmin has no such commands; these are named in its manner, and their flags mean what they mean elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from rucola.admin import AdminClient, DeadLetter, DeadLetterStats, RedriveResult, RedriveStatus
from rucola.cli.admin.command import ask, begin_option, command, confirm, end_option, times_of, yes_option
from rucola.cli.message_view import message_json
from rucola.cli.output import print_json, print_table, progress_bar, time_text
from rucola.errors import ConfigError

PARQUET_ROWS = 4096
"""Rows of one group of a Parquet file, which are in memory together."""

group_option = click.option("-g", "--groupName", "group", required=True, help="The group that gave them up.")
all_option = click.option("-a", "--showAll", "show_all", is_flag=True, help="Those that were re-driven as well.")


@command("dlqList")
@click.option("-g", "--groupName", "group", help="Only this group.")
def dlq_list(namesrv_addr: str, as_json: bool, group: str | None) -> None:
    """The groups that have dead letters: how many, how many of them wait to be re-driven, the oldest and the newest.

    \b
    Examples:
      rucola admin dlqList
      rucola admin dlqList -g billing --json
    """

    async def question(client: AdminClient) -> list[DeadLetterStats]:
        groups = [group] if group is not None else await client.dead_letters.groups()
        return [await client.dead_letters.stats(name) for name in groups]

    found = ask(namesrv_addr, question)
    if as_json:
        names = ("group", "count", "waiting", "oldestTimestamp", "newestTimestamp")
        rows = [(of.consumer_group, of.count, of.waiting, of.oldest_ms, of.newest_ms) for of in found]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(
        ("#Group", "#Count", "#Waiting", "#Oldest", "#Newest"),
        [(of.consumer_group, of.count, of.waiting, time_text(of.oldest_ms), time_text(of.newest_ms)) for of in found],
    )


async def _chosen(
    client: AdminClient, group: str, begin_ms: int | None, end_ms: int | None, show_all: bool
) -> AsyncGenerator[DeadLetter, None]:
    async with aclosing(client.dead_letters.read(group, begin_ms, end_ms)) as letters:
        async for letter in letters:
            if show_all or not letter.is_redriven:
                yield letter


def _letter_json(letter: DeadLetter) -> dict[str, Any]:
    return message_json(letter.message) | {"originTopic": letter.origin_topic, "redriven": letter.is_redriven}


@command("printDlq")
@group_option
@begin_option
@end_option
@all_option
def print_dlq(namesrv_addr: str, as_json: bool, group: str, begin: str | None, end: str | None, show_all: bool) -> None:
    """A group's dead letters that were not re-driven yet; with --json one JSON object a line.

    \b
    Examples:
      rucola admin printDlq -g billing
      rucola admin printDlq -g billing -a -b 2013-01-01#00:00:00:000 --json
    """
    begin_ms, end_ms = times_of(begin, end)

    async def question(client: AdminClient) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        async for letter in _chosen(client, group, begin_ms, end_ms, show_all):
            message = letter.message
            if as_json:
                click.echo(msgspec.json.encode(_letter_json(letter)))
                continue
            rows.append(
                (message.offset_msg_id, letter.origin_topic or "", message.tags or "", message.keys or "",
                 message.reconsume_times, time_text(message.store_timestamp), "yes" if letter.is_redriven else "no")
            )  # fmt: skip
        return rows

    rows = ask(namesrv_addr, question)
    if not as_json:
        columns = (
            "#Offset Message ID", "#Origin Topic", "#Tags", "#Keys", "#Reconsume Times", "#Store Timestamp",
            "#Redriven",
        )  # fmt: skip
        print_table(columns, rows)


@command("exportDlq")
@group_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write."
)
@click.option(
    "-f", "--format", "form", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True,
    help="One JSON object a line, or Parquet (needs the extra `spark`).",
)  # fmt: skip
@begin_option
@end_option
@all_option
def export_dlq(
    namesrv_addr: str,
    as_json: bool,
    group: str,
    output: Path,
    form: str,
    begin: str | None,
    end: str | None,
    show_all: bool,
) -> None:
    """Write a group's dead letters that were not re-driven yet to a file. They stay where they are.

    The columns of Parquet are those of the Spark source, with originTopic and redriven.

    \b
    Examples:
      rucola admin exportDlq -g billing -o billing.jsonl
      rucola admin exportDlq -g billing -o billing.parquet -f parquet -a
    """
    begin_ms, end_ms = times_of(begin, end)
    write = _parquet if form == "parquet" else _json_lines

    async def question(client: AdminClient) -> int:
        count = 0
        with _whole_file(output) as file, write(file) as add:
            async for letter in _chosen(client, group, begin_ms, end_ms, show_all):
                add(letter)
                count += 1
        return count

    count = ask(namesrv_addr, question)
    if as_json:
        print_json({"group": group, "output": str(output), "format": form, "count": count})
    else:
        click.echo(f"{count} dead letters of group {group} written to {output}")


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is complete."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None


@contextmanager
def _json_lines(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    def add(letter: DeadLetter) -> None:
        file.write(msgspec.json.encode(_letter_json(letter)) + b"\n")

    yield add


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Callable[[DeadLetter], None]]:
    try:
        import pyarrow as pa  # here, since Arrow is an extra
        from pyarrow.parquet import ParquetWriter

        from rucola.spark.source.columns import SCHEMA
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: Parquet needs `pip install 'rucola[spark]'`") from None
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
    return _letter_json(letter) | {
        "body": message.body,
        "keys": message.keys.split() if message.keys else None,
        "properties": list(message.properties.items()),
        "bornTimestamp": message.born_timestamp * 1000,
        "storeTimestamp": message.store_timestamp * 1000,
    }


@command("redriveDlq")
@group_option
@click.option("-i", "--msgId", "msg_ids", help="Only these, by offsetMsgId, several with ',' between them.")
@begin_option
@end_option
@click.option("-r", "--onlyGroup", "only_group", is_flag=True, help="To this group alone, by way of its retry topic.")
@click.option("-s", "--perSecond", "per_second", type=click.FloatRange(0, min_open=True), help="At most so many.")
@click.option("-d", "--dryRun", "dry_run", is_flag=True, help="Send nothing, tell what would be sent where.")
@yes_option
def redrive_dlq(
    namesrv_addr: str,
    as_json: bool,
    group: str,
    msg_ids: str | None,
    begin: str | None,
    end: str | None,
    only_group: bool,
    per_second: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send a group's dead letters again, each to the topic it came from, where all its groups get it.

    What was re-driven before is passed over, so a run that was broken off can be repeated. What fails stays, and is
    named; exit code 1 then. The dead letters themselves are kept until they expire. With --json one JSON object a line
    for each.

    \b
    Examples:
      rucola admin redriveDlq -g billing --dryRun
      rucola admin redriveDlq -g billing -s 100 --yes
      rucola admin redriveDlq -g billing -r -i 7F00000100002A9F0000000000000000 --yes
    """
    begin_ms, end_ms = times_of(begin, end)
    ids = [msg_id for part in (msg_ids or "").split(",") if (msg_id := part.strip())]
    if msg_ids is not None and (not ids or begin or end):
        raise click.UsageError("-i names messages, and -b and -e do not belong to it")
    counts: Counter[RedriveStatus] = Counter()
    topics: Counter[str] = Counter()

    async def question(client: AdminClient) -> None:
        total = len(ids) or (await client.dead_letters.stats(group)).waiting
        with progress_bar(f"re-driving {group}") as tell:
            results = client.dead_letters.redrive(
                group, ids, begin_ms=begin_ms, end_ms=end_ms, only_group=only_group, per_second=per_second,
                dry_run=dry_run,
            )  # fmt: skip
            async with aclosing(results):
                async for result in results:
                    counts[result.status] += 1
                    if result.status in (RedriveStatus.SENT, RedriveStatus.WOULD_SEND):
                        topics[result.topic] += 1
                    _tell(result, as_json)
                    if tell is not None:
                        tell(counts.total(), total)

    if not dry_run:
        confirm(yes, f"send {f'{len(ids)} of ' if ids else ''}the dead letters of group {group} again")
    ask(namesrv_addr, question)
    if not as_json:
        print_table(("#Topic", "#Would Send" if dry_run else "#Sent"), sorted(topics.items()))
    click.echo(f"{counts[RedriveStatus.DONE_BEFORE]} re-driven before, {counts[RedriveStatus.FAILED]} failed", err=True)
    if counts[RedriveStatus.FAILED]:
        sys.exit(1)


def _tell(result: RedriveResult, as_json: bool) -> None:
    message = result.message
    if as_json:
        line = {
            "offsetMsgId": message.offset_msg_id,
            "msgId": message.msg_id,
            "topic": result.topic,
            "status": result.status.name,
            "reason": result.reason,
        }
        click.echo(msgspec.json.encode(line))
    elif result.status is RedriveStatus.FAILED:
        click.echo(f"{message.offset_msg_id} failed and stays: {result.reason}", err=True)
