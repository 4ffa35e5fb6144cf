"""`rucola reliable list`, `show`, `resend`, `confirm`, `void` and `stats`: operations on messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click

from rucola.cli.option_types import ADDRESSES
from rucola.cli.output import print_json, print_table, printable, time_text, to_json, wide_option
from rucola.cli.reliable.command import (
    database_options,
    dry_run_option,
    format_duration,
    json_option,
    run_checked,
    select_stubs,
    selection_options,
    yes_option,
)
from rucola.client.name_server_addresses import NAMESRV_VARIABLES
from rucola.errors import MQError
from rucola.reliable import ReliableError, operations
from rucola.reliable.joined_view import StoredCopy, stored_copies
from rucola.reliable.operations import MessageView, StubView
from rucola.reliable.schema import STATUSES

BODY_PREVIEW = 200


@click.command("list")
@click.option(
    "--status",
    type=click.Choice(STATUSES, case_sensitive=False),
    multiple=True,
    help="Only messages in this state. Can be repeated.",
)
@click.option("-t", "--topic", help="Only messages of this topic.")
@click.option("-g", "--group", help="Only messages that await this consumer group.")
@click.option("--shard-key", help="Only messages with this sharding key.")
@click.option(
    "--older-than", type=click.FloatRange(0), metavar="SECONDS", help="Only messages added at least this long ago."
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of messages.")
@json_option
@database_options
@wide_option
def list_(
    database: str, prefix: str, schema: str | None, status: tuple[str, ...], topic: str | None, group: str | None,
    shard_key: str | None, older_than: float | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """List incomplete messages, oldest first.

    \b
    Examples:
      rucola reliable list
      rucola reliable list --status STUCK --status DEAD
      rucola reliable list -t Orders --older-than 3600 --json
    """
    found = run_checked(
        database, prefix, schema, operations.find, statuses=status, topic=topic, group=group, shard_key=shard_key,
        older_than_ms=None if older_than is None else int(older_than * 1000), limit=limit,
    )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        _print_stubs(found)


@click.command()
@click.argument("message_id")
@click.option(
    "-n",
    "--namesrvAddr",
    "namesrv_addr",
    type=ADDRESSES,
    envvar=NAMESRV_VARIABLES,
    show_envvar=True,
    help="Name servers; with this option, brokers are queried, too.",
)
@json_option
@database_options
def show(
    database: str, prefix: str, schema: str | None, message_id: str, namesrv_addr: str | None, as_json: bool
) -> None:
    """Show the state of one message and its next step.

    Combines stub, receipts and done rows; with a name server also the copies that brokers store, including dead
    letters.

    \b
    Examples:
      rucola reliable show 7F000001000418B4AAC2508C77F60000
      rucola reliable show 7F000001000418B4AAC2508C77F60000 -n localhost:9876 --json
    """
    shown = run_checked(database, prefix, schema, operations.show, message_id)
    if shown.stub is None and not shown.receipts and not shown.done:
        raise ReliableError(f"there is no message {message_id}: purged, or never added")
    stored: list[StoredCopy] = []
    if namesrv_addr and shown.stub is not None:
        try:
            stored = asyncio.run(stored_copies(namesrv_addr, shown.stub))
        except MQError as error:  # during an outage, the tables alone are useful
            click.echo(f"brokers were not queried: {error}", err=True)
    next_step = operations.next_step(shown.stub) if shown.stub is not None else ""
    if as_json:
        print_json(to_json(shown) | {"next": next_step, "stored": stored})
        return
    if shown.stub is not None:
        _print_stub(shown, shown.stub)
    for receipt in shown.receipts:
        held = f", held for another {format_duration(receipt.held_for_ms)}" if receipt.held_for_ms is not None else ""
        click.echo(f"received   by group {receipt.group} {format_duration(receipt.age_ms)} ago{held}")
    for group, done_at in shown.done.items():
        click.echo(f"done       by group {group} at {time_text(done_at)}")
    for copy in stored:
        click.echo(f"stored     {copy.topic}, queue {copy.queue_id}, offset {copy.queue_offset}")
    if next_step:
        click.echo(f"next       {next_step}")


@click.command()
@selection_options
@dry_run_option
@yes_option
@database_options
@wide_option
def resend(**options: Any) -> None:
    """Schedule messages to be sent again at once by a relay, with a new count of sends.

    CONFIRMED messages are not changed. Consumers drop messages that they have already processed.

    \b
    Examples:
      rucola reliable resend 7F000001000418B4AAC2508C77F60000
      rucola reliable resend --status MANUAL --topic Orders --dry-run
      rucola reliable resend --status STUCK --yes
    """
    _change("send {} again", operations.resend, **options)


@click.command()
@selection_options
@click.option("--for-group", help="Confirm for this group only, instead of for all awaited groups.")
@dry_run_option
@yes_option
@database_options
@wide_option
def confirm(for_group: str | None, **options: Any) -> None:
    """Confirm messages whose effect is known to have happened.

    \b
    Examples:
      rucola reliable confirm 7F000001000418B4AAC2508C77F60000
      rucola reliable confirm 7F000001000418B4AAC2508C77F60000 --for-group billing --yes
    """
    _change(
        "confirm {}" + (f" for group {for_group}" if for_group else ""),
        lambda connection, tables, ids: operations.confirm(connection, tables, ids, for_group),
        **options,
    )


@click.command()
@selection_options
@dry_run_option
@yes_option
@database_options
@wide_option
def void(**options: Any) -> None:
    """Void messages: relays stop sending them, and consumers drop them. CONFIRMED messages are not changed.

    \b
    Examples:
      rucola reliable void 7F000001000418B4AAC2508C77F60000
      rucola reliable void --status MANUAL --topic Orders --yes
    """
    _change("void {}", operations.void, **options)


@click.command()
@json_option
@database_options
@wide_option
def stats(database: str, prefix: str, schema: str | None, as_json: bool) -> None:
    """Count messages by state, with the age of the oldest message.

    \b
    Examples:
      rucola reliable stats
      rucola reliable stats --json
    """
    counted = run_checked(database, prefix, schema, operations.stats)
    if as_json:
        print_json(counted)
        return
    print_table(
        ["STATUS", "COUNT", "OLDEST"],
        [[status, count, format_duration(counted.oldest_ms.get(status))] for status, count in counted.counts.items()],
    )
    click.echo(
        f"relay lag {format_duration(counted.relay_lag_ms)}, receipts {counted.receipts}, done rows {counted.done}"
    )


def _change(
    what: str,
    change: Callable[..., int],
    *,
    database: str,
    prefix: str,
    schema: str | None,
    message_ids: tuple[str, ...],
    status: tuple[str, ...],
    topic: str | None,
    group: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    found = run_checked(database, prefix, schema, select_stubs, message_ids, status, topic, group)
    count = f"{len(found)} message{'s' * (len(found) != 1)}"
    if dry_run:
        _print_stubs(found)
        click.echo(f"would {what.format(count)}")
        return
    if found and not yes:
        click.confirm(f"{what.format(count)}?", abort=True, err=True)
    # The messages may have changed since they were listed: the operation checks each state again in its transaction,
    # and returns how many it has changed.
    changed = run_checked(database, prefix, schema, change, [stub.message_id for stub in found]) if found else 0
    click.echo(f"{changed} of {len(found)} changed")


def _print_stubs(found: list[StubView]) -> None:
    print_table(
        ["MESSAGE ID", "STATUS", "SENDS", "AGE", "DUE", "TOPIC"],
        [
            [
                stub.message_id,
                stub.status,
                stub.sends,
                format_duration(stub.age_ms),
                "now" if stub.due_in_ms is not None and stub.due_in_ms <= 0 else format_duration(stub.due_in_ms),
                stub.topic,
            ]
            for stub in found
        ],
    )


def _print_stub(shown: MessageView, stub: StubView) -> None:
    labels = f"tags {shown.tags or '-'}, keys {shown.keys or '-'}"
    click.echo(printable(f"message    {stub.message_id}, topic {stub.topic}, {labels}"))
    click.echo(f"body       {len(shown.body)} bytes: {shown.body[:BODY_PREVIEW]!r}")
    click.echo(f"status     {stub.status}, added {time_text(stub.created_at)}, {format_duration(stub.age_ms)} ago")
    if stub.shard_key is not None:
        click.echo(f"shard key  {stub.shard_key}")
    if stub.awaiting:
        click.echo(f"awaits     {', '.join(stub.awaiting)}")
    if stub.broker is not None:
        offset = "unknown" if stub.queue_offset is None else stub.queue_offset
        times = "once" if stub.sends == 1 else f"{stub.sends} times, last"
        click.echo(f"sent       {times} to {stub.broker}, queue {stub.queue_id}, offset {offset}")
    if stub.error is not None:
        click.echo(f"why        {stub.error}")
