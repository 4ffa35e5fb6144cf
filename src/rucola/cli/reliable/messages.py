"""`rucola reliable list`, `resend`, `confirm`, `void` and `stats`: operations on messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import click

from rucola.cli.option_types import DurationRange
from rucola.cli.output import duration_text, print_json, print_table, whole, wide_option
from rucola.cli.reliable.command import (
    MAX_SELECTED,
    Command,
    Where,
    database_options,
    dry_run_option,
    filter_options,
    json_option,
    select_stubs,
    tenant_options,
    yes_option,
)
from rucola.reliable import ReliableError, operations
from rucola.reliable.operations import StubView
from rucola.reliable.schema import CONFIRMED, VOID


@click.command("list")
@filter_options
@click.option("--shard-key", help="Only messages with this sharding key.")
@click.option(
    "--older-than", type=DurationRange(), metavar="SECONDS", help="Only messages added at least this long ago."
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Maximum number of messages."
)
@json_option
@database_options
@wide_option
def list_(
    where: Where, status: tuple[str, ...], topic: str | None, group: str | None, shard_key: str | None,
    older_than: float | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """List incomplete messages, oldest first.

    \b
    Examples:
      rucola reliable list
      rucola reliable list --status STUCK --status DEAD
      rucola reliable list -t Orders --older-than 3600 --json
    """
    found = where.run_checked(
        operations.find, statuses=status, topic=topic, group=group, shard_key=shard_key,
        older_than_ms=None if older_than is None else int(older_than * 1000), limit=limit + 1,
    )  # fmt: skip
    if len(found) > limit:
        found.pop()
        click.echo(f"more than {limit} messages match: these are the oldest; --limit shows more", err=True)
    if as_json:
        print_json(found)
    else:
        _print_stubs(found)


def change_options(function: Command) -> Command:
    """Add what all commands have that change messages."""
    for option in (wide_option, database_options, yes_option, dry_run_option, filter_options):
        function = option(function)
    return click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")(function)


@click.command()
@change_options
def resend(**options: Any) -> None:
    """Schedule messages to be resent at once by a relay, with a new send count.

    CONFIRMED messages are not changed. Consumers drop messages that they have already processed.

    \b
    Examples:
      rucola reliable resend 7F000001000418B4AAC2508C77F60000
      rucola reliable resend --status MANUAL --topic Orders --dry-run
      rucola reliable resend --status STUCK --yes
    """
    _change("send {} again", operations.resend, **options)


@click.command()
@change_options
@click.option("--for-group", help="Confirm for this group only, instead of for all awaited groups.")
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
@change_options
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
@tenant_options
@wide_option
def stats(places: Mapping[str, Where], as_json: bool) -> None:
    """Count messages by state, with the age of the oldest message.

    With several databases or schemas, for each of them; JSON is an object by tenant.

    \b
    Examples:
      rucola reliable stats
      rucola reliable stats --json
      rucola reliable stats --schema north --schema south
    """
    if len(places) == 1:
        (where,) = places.values()
        counted = where.run_checked(operations.stats)
        if as_json:
            print_json(counted)
        else:
            _print_stats(counted)
        return
    found: dict[str, operations.Stats] = {}
    failures: dict[str, ReliableError] = {}
    for name, where in places.items():
        try:
            found[name] = where.run_checked(operations.stats)
        except ReliableError as error:
            failures[name] = error
    if as_json:
        print_json(found)
    for name, counted in found.items():
        if not as_json:
            click.echo(f"{name}:")
            _print_stats(counted)
    if failures:
        why = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise ReliableError(f"{len(failures)} of {len(places)} tenants failed: {why}")


def _print_stats(counted: operations.Stats) -> None:
    print_table(
        ["STATUS", "COUNT", "OLDEST"],
        [[status, count, duration_text(counted.oldest_ms.get(status))] for status, count in counted.counts.items()],
    )
    click.echo(
        f"relay lag {duration_text(counted.relay_lag_ms)}, receipts {counted.receipts}, done rows {counted.done}"
    )


def _change(
    what: str,
    change: Callable[..., int],
    *,
    where: Where,
    message_ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    if message_ids and any(filters.values()):
        raise click.UsageError("name messages by id or by --status, --topic and --group, not by both")
    if not message_ids and not any(filters.values()):
        raise click.UsageError("name messages by id, or by --status, --topic or --group")
    found = where.run_checked(select_stubs, message_ids, **filters)
    if len(found) > MAX_SELECTED:
        found.pop()
        click.echo(f"more than {MAX_SELECTED} messages match: these are the oldest; repeat the command", err=True)
    count = f"{len(found)} message{'s' * (len(found) != 1)}"
    if dry_run:
        _print_stubs(found)
        click.echo(f"would {what.format(count)}")
        return
    if found and not yes:
        click.confirm(f"{what.format(count)}?", abort=True, err=True)
    # The messages may have changed since they were listed: the operation checks each state in its transaction.
    changed = where.run_checked(change, [stub.message_id for stub in found]) if found else 0
    if message_ids and not changed:
        states = "; ".join(f"{stub.message_id} is {stub.status}" + awaits(stub) for stub in found)
        raise ReliableError(f"nothing was changed: {states}")
    click.echo(f"{changed} of {len(found)} changed")
    if changed < len(found):
        kept = Counter(stub.status for stub in found if stub.status in (CONFIRMED, VOID))
        why = ", ".join(f"{number} {status}" for status, number in kept.items()) or "changed meanwhile"
        click.echo(f"not changed: {why}", err=True)


def awaits(stub: StubView) -> str:
    """Return the groups that a stub awaits, as an addition to its status."""
    return f" and awaits {', '.join(stub.awaiting)}" if stub.awaiting else ""


def _print_stubs(found: list[StubView]) -> None:
    print_table(
        [whole("MESSAGE ID"), "STATUS", "SENDS", "AGE", "DUE", "TOPIC"],
        [
            [
                stub.message_id,
                stub.status,
                stub.sends,
                duration_text(stub.age_ms),
                "now" if stub.due_in_ms is not None and stub.due_in_ms <= 0 else duration_text(stub.due_in_ms),
                stub.topic,
            ]
            for stub in found
        ],
    )
