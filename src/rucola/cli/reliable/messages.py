"""`rucola reliable list`, `show`, `resend`, `confirm`, `void` and `stats`: what operators do with messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click
import msgspec

from rucola.cli.output import print_json, print_table, time_text
from rucola.cli.reliable.command import (
    ask,
    database_options,
    dry_run_option,
    duration,
    json_option,
    select,
    selection_options,
    yes_option,
)
from rucola.errors import MQError
from rucola.reliable import ReliableError, operations
from rucola.reliable.joined_view import StoredCopy, stored_copies
from rucola.reliable.operations import MessageView, StubView
from rucola.reliable.schema import STATUSES

BODY_SHOWN = 200


@click.command("list")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), multiple=True, help="In this state.")
@click.option("-t", "--topic", help="Of this topic.")
@click.option("-g", "--group", help="Awaiting this consumer group.")
@click.option("--shard-key", help="With this sharding key.")
@click.option("--older-than", type=click.FloatRange(0), metavar="SECONDS", help="Added so long ago or longer.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most that are shown.")
@json_option
@database_options
def list_(
    database: str, prefix: str, schema: str | None, status: tuple[str, ...], topic: str | None, group: str | None,
    shard_key: str | None, older_than: float | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """List messages that are not settled, oldest first.

    \b
    Examples:
      rucola reliable list
      rucola reliable list --status STUCK --status DEAD
      rucola reliable list -t Orders --older-than 3600 --json
    """
    found = ask(
        database, prefix, schema, operations.find, statuses=status, topic=topic, group=group, shard_key=shard_key,
        older_than_ms=None if older_than is None else int(older_than * 1000), limit=limit,
    )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        _print_stubs(found)


@click.command()
@click.argument("message_id")
@click.option("-n", "--namesrvAddr", "namesrv_addr", envvar="NAMESRV_ADDR", show_envvar=True, help="Ask brokers, too.")
@json_option
@database_options
def show(
    database: str, prefix: str, schema: str | None, message_id: str, namesrv_addr: str | None, as_json: bool
) -> None:
    """Show where one message is now, and what happens next.

    Joins stub, receipts and done rows; with a name server also what brokers have of it, dead letters among it.

    \b
    Examples:
      rucola reliable show 7F000001000418B4AAC2508C77F60000
      rucola reliable show 7F000001000418B4AAC2508C77F60000 -n localhost:9876 --json
    """
    shown = ask(database, prefix, schema, operations.show, message_id)
    if shown.stub is None and not shown.receipts and not shown.done:
        raise ReliableError(f"nothing is known of {message_id}: purged, or never added")
    stored: list[StoredCopy] = []
    if namesrv_addr and shown.stub is not None:
        try:
            stored = asyncio.run(stored_copies(namesrv_addr, shown.stub))
        except MQError as error:  # the tables' answer is useful without the brokers', in an outage above all
            click.echo(f"Brokers were not asked: {error}", err=True)
    next_step = operations.next_step(shown.stub) if shown.stub is not None else ""
    if as_json:
        print_json(msgspec.to_builtins(shown) | {"next": next_step, "stored": stored})
        return
    if shown.stub is not None:
        _print_stub(shown, shown.stub)
    for receipt in shown.receipts:
        held = f", held for another {duration(receipt.held_for_ms)}" if receipt.held_for_ms is not None else ""
        click.echo(f"received   by group {receipt.group} {duration(receipt.age_ms)} ago{held}")
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
def resend(**options: Any) -> None:
    """Send messages again: with a new count, by the next relay, at once.

    CONFIRMED messages stay as they are. Consumers drop what they have done before.

    \b
    Examples:
      rucola reliable resend 7F000001000418B4AAC2508C77F60000
      rucola reliable resend --status MANUAL --topic Orders --dry-run
      rucola reliable resend --status STUCK --yes
    """
    _change("send {} again", operations.resend, **options)


@click.command()
@selection_options
@click.option("--for-group", help="Confirm for this group only, not for all that the messages await.")
@dry_run_option
@yes_option
@database_options
def confirm(for_group: str | None, **options: Any) -> None:
    """Settle messages whose effect is known to be there.

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
def void(**options: Any) -> None:
    """Void messages: no relay sends them, and consumers drop them. CONFIRMED messages stay.

    \b
    Examples:
      rucola reliable void 7F000001000418B4AAC2508C77F60000
      rucola reliable void --status MANUAL --topic Orders --yes
    """
    _change("void {}", operations.void, **options)


@click.command()
@json_option
@database_options
def stats(database: str, prefix: str, schema: str | None, as_json: bool) -> None:
    """Count messages by state, with the age of the oldest.

    \b
    Examples:
      rucola reliable stats
      rucola reliable stats --json
    """
    counted = ask(database, prefix, schema, operations.stats)
    if as_json:
        print_json(counted)
        return
    print_table(
        ["STATUS", "COUNT", "OLDEST"],
        [[status, count, duration(counted.oldest_ms.get(status))] for status, count in counted.counts.items()],
    )
    click.echo(f"relay lag {duration(counted.relay_lag_ms)}, receipts {counted.receipts}, done rows {counted.done}")


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
    found = ask(database, prefix, schema, select, message_ids, status, topic, group)
    count = f"{len(found)} message{'s' * (len(found) != 1)}"
    if dry_run:
        _print_stubs(found)
        click.echo(f"would {what.format(count)}")
        return
    if found and not yes:
        click.confirm(f"{what.format(count)}?", abort=True, err=True)
    changed = ask(database, prefix, schema, change, [stub.message_id for stub in found]) if found else 0
    click.echo(f"{changed} of {len(found)} changed")


def _print_stubs(found: list[StubView]) -> None:
    print_table(
        ["MESSAGE ID", "STATUS", "SENDS", "AGE", "DUE", "TOPIC"],
        [
            [stub.message_id, stub.status, stub.sends, duration(stub.age_ms), duration(stub.due_in_ms), stub.topic]
            for stub in found
        ],
    )


def _print_stub(shown: MessageView, stub: StubView) -> None:
    click.echo(f"message    {stub.message_id}, topic {stub.topic}, tags {shown.tags or '-'}, keys {shown.keys or '-'}")
    click.echo(f"body       {len(shown.body)} bytes: {shown.body[:BODY_SHOWN]!r}")
    click.echo(f"status     {stub.status}, added {time_text(stub.created_at)}, {duration(stub.age_ms)} ago")
    if stub.shard_key is not None:
        click.echo(f"shard key  {stub.shard_key}")
    if stub.awaiting:
        click.echo(f"awaits     {', '.join(stub.awaiting)}")
    if stub.broker is not None:
        offset = "unknown" if stub.queue_offset is None else stub.queue_offset
        click.echo(f"sent       {stub.sends} times, last to {stub.broker}, queue {stub.queue_id}, offset {offset}")
    if stub.error is not None:
        click.echo(f"why        {stub.error}")
