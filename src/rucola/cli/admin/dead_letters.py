"""Dead letters: export, and sending them again; both may need another package. mqadmin has no such commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from rucola.admin import AdminClient, AfterRedrive, DeadLetter, RedriveStatus
from rucola.admin.commands.command import (
    BeginTime,
    EndTime,
    Flag,
    InvalidArguments,
    Option,
    Result,
    check_window,
    command,
    split,
)
from rucola.admin.commands.dead_letters import DeadGroup, ShowAll, letter_json, selected_letters
from rucola.cli.extras import require_extra
from rucola.errors import ConfigError, missing_extra
from rucola.files import replacing
from rucola.presentation import Table

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


async def _resending(client: AdminClient, **given: Any) -> str:
    ids = _check_selection(given["msg_ids"], given["begin_ms"], given["end_ms"])
    if given["database"] is None and (given["prefix"] or given["schema"]):
        raise InvalidArguments("--prefix and --schema belong to --database, which is missing")
    number = f"{len(ids)} of " if ids else ""
    return "" if given["dry_run"] else f"send {number}the dead letters of group {given['group']} again"


def _check_selection(msg_ids: str | None, begin_ms: int | None, end_ms: int | None) -> list[str]:
    """Return the ids, if any."""
    check_window(begin_ms, end_ms)
    ids = split(msg_ids or "")
    if msg_ids is not None and not ids:
        raise InvalidArguments("-i names no message")
    if ids and (begin_ms is not None or end_ms is not None):
        raise InvalidArguments("-i names messages, so -b and -e cannot be given with it")
    return ids


@command("redriveDlq", confirm=_resending)
async def redrive_dlq(
    client: AdminClient,
    group: DeadGroup,
    msg_ids: Annotated[
        str | None, Option("-i --msgId", "Only the messages with these offsetMsgIds, separated by commas.")
    ] = None,
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    only_group: Annotated[bool, Flag("-r --onlyGroup", "Send only to this group, through its retry topic.")] = False,
    per_second: Annotated[float | None, Option("-s --perSecond", "Limit of messages per second.", min=0.001)] = None,
    dry_run: Annotated[
        bool, Flag("-d --dryRun", "Print which messages would be sent to which topic, and send nothing.")
    ] = False,
    database: Annotated[
        str | None,
        Option(
            "--database",
            "URL of the outbox's database (`rucola reliable`): reopens the DEAD stubs of the messages, too.",
            envvar="RUCOLA_DATABASE",
        ),
    ] = None,
    prefix: Annotated[str | None, Option("--prefix", "Prefix of the outbox's tables (`rucola reliable`).")] = None,
    schema: Annotated[str | None, Option("--schema", "Database schema of the outbox's tables.")] = None,
) -> AsyncIterator[Result]:
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
    reopening = None if database is None or dry_run else _stub_reopening(database, prefix, schema, group)
    statuses, topics, reopened = Counter[RedriveStatus](), Counter[str](), 0
    results = client.dead_letters.redrive(
        group, _check_selection(msg_ids, begin_ms, end_ms), begin_ms=begin_ms, end_ms=end_ms, only_group=only_group,
        per_second=per_second, dry_run=dry_run, after=reopening,
    )  # fmt: skip
    async with aclosing(results):
        async for result in results:
            statuses[result.status] += 1
            reopened += result.is_reopened
            if result.status in (RedriveStatus.SENT, RedriveStatus.WOULD_SEND):
                topics[result.topic] += 1
            one = result.message
            value = {
                "offsetMsgId": one.offset_msg_id, "msgId": one.msg_id, "topic": result.topic,
                "status": result.status.name, "reason": result.reason, "reopened": result.is_reopened,
            }  # fmt: skip
            failed = result.status is RedriveStatus.FAILED
            yield Result(value, [], [f"{one.offset_msg_id} was not sent: {result.reason}"] if failed else [])
    counts = f"{statuses[RedriveStatus.DONE_BEFORE]} re-driven before, {statuses[RedriveStatus.FAILED]} failed"
    stubs = f", {reopened} DEAD stubs reopened" if reopening is not None else ""
    table = Table(("#Topic", "#Would Send" if dry_run else "#Sent"), sorted(topics.items()))
    yield Result(None, [table], [counts + stubs], is_failure=bool(statuses[RedriveStatus.FAILED]))


def _stub_reopening(database: str, prefix: str | None, schema: str | None, group: str) -> AfterRedrive:
    with require_extra("reliable"):
        from rucola.cli.reliable.redriven import stub_reopening
    return stub_reopening(database, prefix, schema, group)
