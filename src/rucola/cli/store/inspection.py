"""`rucola store check`, `stat`, `dump` and `grep`: read-only commands without a lock."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from rucola.admin import MessageExt
from rucola.cli.option_types import SINCE_HELP, TIME
from rucola.cli.output import optional, print_json, print_table, printable, progress_bar, time_text, whole, wide_option
from rucola.cli.store.body_view import BodyView, body_options, match_context
from rucola.cli.store.directory import config_option, directory_argument, index_slots
from rucola.store.directory_lock import is_served
from rucola.store.directory_reader import StoreReader
from rucola.store.features import Support, find_features
from rucola.store.tools.check import check as check_store
from rucola.store.tools.dump import dump as dump_store
from rucola.store.tools.dump import message_row
from rucola.store.tools.grep import SearchQuery, body_of
from rucola.store.tools.grep import grep as grep_store
from rucola.store.tools.stat import IndexFileStat, QueueStat, StoreStat
from rucola.store.tools.stat import stat as stat_store


@click.command()
@directory_argument
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
def check(directory: Path, config_file: Path | None, as_json: bool) -> None:
    """Check the whole store DIR against the format, and list the damage.

    Checks records, blank ends of files, ConsumeQueue units, index chains, checkpoint and configuration. The exit code
    is 1 if there is damage. While a broker serves the store, the check covers what is complete, up to the last
    dispatched message, and says so.

    \b
    Examples:
      rucola store check data
      rucola store check data --json
    """
    served = is_served(directory)
    if served:
        click.echo(
            f"{directory} is being served: messages up to the last dispatched one are checked, but not the end of the "
            "log, the newest index file and the checkpoint",
            err=True,
        )
    for feature in find_features(directory):
        if feature.support is not Support.REFUSED:  # the others are findings
            click.echo(str(feature), err=True)
    with progress_bar(f"check {directory}") as progress:
        findings = check_store(directory, index_slots=index_slots(config_file), progress=progress)
    if as_json:
        print_json([{"path": str(found.path), "position": found.position, "what": found.what} for found in findings])
    else:
        for found in findings:
            click.echo(f"{found.path} at byte {found.position}: {found.what}")
        if findings:
            click.echo(f"{len(findings)} finding{'s' if len(findings) > 1 else ''}", err=True)
        else:
            click.echo(f"{directory} is clean{', as far as it was checked' if served else ''}")
    sys.exit(1 if findings else 0)


@click.command()
@directory_argument
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with times in milliseconds.")
@wide_option
def stat(directory: Path, config_file: Path | None, as_json: bool) -> None:
    """Show statistics of the store DIR: log, queues, index, checkpoint and configuration.

    \b
    Examples:
      rucola store stat data
      rucola store stat data --json | jq '.queues[] | {topic, queueId, messages: .inLog.messages}'
    """
    with progress_bar(f"stat {directory}") as progress:
        counted = stat_store(directory, index_slots=index_slots(config_file), progress=progress)
    if as_json:
        print_json(counted)
        return
    _print_stat(counted)


def _print_stat(counted: StoreStat) -> None:
    log, records = counted.log, counted.log.records
    times = " to ".join(time_text(time_ms) for time_ms in (records.first_timestamp, records.last_timestamp) if time_ms)
    click.echo(f"CommitLog    {log.files} files of {log.file_size} bytes, {log.allocated} allocated")
    click.echo(f"             physical offsets {log.begin} to {log.end}")
    click.echo(f"             {records.messages} messages, {records.size} bytes, {records.keys} keys {times}".rstrip())
    click.echo(f"             {log.blanks} blanks of {log.blank_size} bytes, {log.unused} bytes unused at the end")
    if log.damage:
        click.echo(f"             damaged: {log.damage}; run `rucola store check {counted.path}`")
    point = [time_text(time_ms) or "never" for time_ms in counted.checkpoint]
    click.echo(f"checkpoint   CommitLog {point[0]}, ConsumeQueue {point[1]}, index {point[2]}")
    click.echo(
        f"abort        {'there: the store is open, or was not closed cleanly' if counted.abort else 'not there'}"
    )
    click.echo(f"config       {' '.join(counted.config) or 'none'}")
    for feature in counted.features:
        click.echo(f"feature      {feature}")
    latest = counted.epochs[-_SHOWN_EPOCHS:]
    if latest:
        before = "... " if len(latest) < len(counted.epochs) else ""
        click.echo(f"epochs       {before}{', '.join(f'{epoch.number} from {epoch.begin}' for epoch in latest)}")
    click.echo()
    if counted.queues:
        print_table(_QUEUE_COLUMNS, map(_queue_row, counted.queues))
    if counted.index:
        click.echo()
        print_table(_INDEX_COLUMNS, map(_index_row, counted.index))


_SHOWN_EPOCHS: Final = 8
_QUEUE_COLUMNS: Final = (
    "#Topic", whole("#QID"), optional("#Min Offset"), "#Max Offset", "#Messages", optional("#Bytes"),
    optional("#Keys"), optional("#First"), optional("#Last"),
)  # fmt: skip


def _queue_row(queue: QueueStat) -> tuple[object, ...]:
    own = queue.in_log
    times = time_text(own.first_timestamp), time_text(own.last_timestamp)
    return queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, own.messages, own.size, own.keys, *times


_INDEX_COLUMNS: Final = (
    "#Index", "#Entries", optional("#Room"), optional("#Slots used"), optional("#Slots"), optional("#First"),
    optional("#Last"),
)  # fmt: skip


def _index_row(file: IndexFileStat) -> tuple[object, ...]:
    times = time_text(file.begin_timestamp), time_text(file.end_timestamp)
    return file.name, file.entries, file.max_entries, file.slots_used, file.slots, *times


@click.command()
@directory_argument
@body_options
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for symmetry; the output is always JSON.")
def dump(directory: Path, body_format: str | None, body_limit: int) -> None:
    """Print every message in the CommitLog of DIR, in order, one JSON object per line.

    `cq` is topic|queueId|queueOffset, `tagsCode` the code in the ConsumeQueue (null if the message is not dispatched).
    Bodies are represented by size and SHA-256, decompressed and as stored. With --body, the field `body` (or
    `bodyHex`) has the body itself.

    \b
    Examples:
      rucola store dump data | head
      rucola store dump data --body json | jq .body.price
      rucola store dump data | jq -r 'select(.topic == "Orders") | .msgId'
    """
    # Bytes are written without a decoding and encoding round trip, which would take longer than reading the log.
    out = sys.stdout.buffer
    encode = msgspec.json.Encoder().encode
    with progress_bar(f"dump {directory}", prints_lines=True) as progress:
        body_fields = BodyView(body_format, body_limit).fields if body_format else None
        for message in dump_store(directory, progress, body_fields):
            out.write(encode(message))
            out.write(b"\n")
    out.flush()


def _pattern(ctx: click.Context, parameter: click.Parameter, text: str | None) -> re.Pattern[bytes] | None:
    try:
        return re.compile(text.encode()) if text is not None else None
    except re.error as error:
        raise click.BadParameter(f"not a regular expression: {error}") from None


@click.command()
@directory_argument
@config_option
@click.option("-t", "--topic", help="Only this topic.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="Only the queues with this id.")
@click.option("-g", "--tag", help="Only messages with this tag.")
@click.option("-k", "--key", help="Only messages with this key or unique key. With -t, the index finds them.")
@click.option(
    "-b",
    "--begin",
    "begin_ms",
    type=TIME,
    help=SINCE_HELP,
)
@click.option("-e", "--end", "end_ms", type=TIME, help="Only messages stored before this time.")
@click.option("-s", "--text", help="Only messages whose body contains this text.")
@click.option("-r", "--regex", callback=_pattern, help="Only messages whose body matches this regular expression.")
@click.option(
    "--all",
    "exhaustive",
    is_flag=True,
    help="Read the whole log, without ConsumeQueues and index, which may be damaged.",
)
@click.option("-n", "--max", "max_count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--table", is_flag=True, help="Print a table of offsets, times, tags and keys.")
@body_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, as dump does (the default without --body)."
)
@wide_option
@click.pass_context
def grep(
    ctx: click.Context,
    directory: Path,
    config_file: Path | None,
    topic: str | None,
    queue_id: int | None,
    tag: str | None,
    key: str | None,
    begin_ms: int | None,
    end_ms: int | None,
    text: str | None,
    regex: re.Pattern[bytes] | None,
    exhaustive: bool,
    max_count: int | None,
    table: bool,
    body_format: str | None,
    body_limit: int,
    as_json: bool,
) -> None:
    """Print the messages of the store DIR that meet all conditions.

    The exit code is 1 if there are none. With -s or -r the output shows where the body matches, with its context. With
    --body each message is one line of its position and then its body; with --json too, the body is a field.

    With a topic the command reads only its ConsumeQueues, with a topic and a key only the messages that the index
    finds, and otherwise the whole log. Bodies are decompressed before they are searched.

    \b
    Examples:
      rucola store grep data -t Orders -k order-1
      rucola store grep data -t Orders -g food -b 2013-01-01T05:00 -e 2013-01-01T06:00 --table
      rucola store grep data -r 'pizza|pasta' -n 10
      rucola store grep data -s pizza --body text --bodyLimit 500
    """
    _check_options(table and (as_json or body_format is not None), begin_ms, end_ms)
    query = SearchQuery(topic, queue_id, tag, key, begin_ms or 0, text=text, pattern=regex, exhaustive=exhaustive)
    if end_ms is not None:
        query.end_ms = end_ms
    view = BodyView(body_format, body_limit) if body_format else None
    rows: list[tuple[object, ...]] = []
    count = 0
    with (
        StoreReader(directory, index_slots=index_slots(config_file)) as reader,
        progress_bar(f"grep {directory}", prints_lines=not table) as progress,
    ):
        for message in grep_store(reader, query, progress):
            count += 1
            if table:
                rows.append(_table_row(message, query))
            elif view is not None and not as_json:
                click.echo(_block(message, query, view))
            else:
                click.echo(_json_line(message, query, view, reader))
            if count == max_count:
                break
    if rows:
        print_table((*_MESSAGE_COLUMNS, *["#Match"] * query.searches_bodies), rows)
    ctx.exit(0 if count else 1)


_MESSAGE_COLUMNS: Final = (
    whole("#MsgId"), "#Topic", whole("#QID"), "#Offset", optional("#Physical Offset"), optional("#Store Time"),
    optional("#Tags"), optional("#Keys"),
)  # fmt: skip


def _table_row(message: MessageExt, query: SearchQuery) -> tuple[object, ...]:
    position = message.topic, message.queue_id, message.queue_offset, message.physical_offset
    time = time_text(message.store_timestamp)
    return message.msg_id, *position, time, message.tags or "", message.keys or "", *_match(query, message)


def _match(query: SearchQuery, message: MessageExt) -> tuple[str, ...]:
    if not query.searches_bodies:
        return ()
    body = body_of(message)
    span = query.match(body)
    return () if span is None else (match_context(body, span),)


def _block(message: MessageExt, query: SearchQuery, view: BodyView) -> str:
    """A line of position, time, id, tags and keys; the match; the body."""
    position = f"{message.topic} {message.queue_id}:{message.queue_offset} at {message.physical_offset}"
    words = f"TAGS: {message.tags or ''} KEYS: {message.keys or ''}"
    head = printable(f"{position} {time_text(message.store_timestamp)} {message.msg_id} {words}")
    match = [f"  match: {context}" for context in _match(query, message)]
    return "\n".join([head, *match, view.block(body_of(message))])


def _json_line(message: MessageExt, query: SearchQuery, view: BodyView | None, reader: StoreReader) -> bytes:
    row = message_row(message, reader.unit_of(message), view.fields if view is not None else None)
    return msgspec.json.encode(row | dict(zip(("match",), _match(query, message), strict=False)))


def _check_options(has_two_formats: bool, begin_ms: int | None, end_ms: int | None) -> None:
    if has_two_formats:
        raise click.UsageError("--table cannot be combined with --json or --body")
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise click.UsageError(f"-b {begin_ms} is not before -e {end_ms}")
