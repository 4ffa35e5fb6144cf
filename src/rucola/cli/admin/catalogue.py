"""The commands of `rucola.admin.commands` on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from rucola.admin import AdminClient
from rucola.admin.commands import Argument, Command, Flag, Result, Target
from rucola.cli.admin.command import (
    broker_option,
    call_admin,
    click_command,
    confirm,
    interval_option,
    rounds,
    yes_option,
)
from rucola.cli.option_types import ADDRESS, TIME, PathType, TimeType
from rucola.cli.output import print_json, print_table, printable, to_json
from rucola.presentation import Table

FORMATS = {
    "address": ADDRESS,
    "time": TIME,
    "time or end": TimeType(latest=True),
    "file": PathType(exists=True, dir_okay=False),
    "new file": PathType(dir_okay=False),
    "directory": PathType(file_okay=False),
    "lake": PathType(exists=True, file_okay=False),
}


def add_to_cli(one: Command) -> None:
    """Add a command to `rucola admin`."""
    arguments = list(one.arguments())
    target = next((each for each in arguments if each.type is Target), None)

    def run(namesrv_addr: str, as_json: bool, yes: bool = True, interval: float | None = None, **given: Any) -> None:
        if target is not None:
            address, cluster = given.pop("address"), given.pop("cluster")
            if target.is_required and (address is None) == (cluster is None):
                raise click.UsageError("name either a broker with -b or a cluster with -c")
            given[target.name] = Target(address, cluster)
        if one.confirm:
            confirm(yes, call_admin(namesrv_addr, lambda client: one.question(client, **given)))
        is_failure = False

        async def request(client: AdminClient) -> None:
            nonlocal is_failure
            async for result in one.run(client, **given):
                _show(result, as_json, one)
                is_failure = result.is_failure

        # Each round uses a new connection, so that a name server that was restarted in the meantime is found again.
        for _ in rounds(interval):
            call_admin(namesrv_addr, request)
        if is_failure:
            sys.exit(1)

    options = [option for each in arguments for option in _options(each)]
    options += [yes_option] * bool(one.confirm) + [interval_option] * one.is_repeatable
    run.__doc__ = one.help
    for option in reversed(options):
        run = option(run)
    click_command(one.name)(run)


def _options(argument: Argument) -> list[Callable[[Any], Any]]:
    option, kind, text = argument.option, argument.type, argument.option.help
    more: dict[str, Any] = {} if argument.is_required else {"default": argument.default}
    if kind is Target:
        return [broker_option, click.option(*option.flags.split(), "cluster", help=option.help)]
    if option.choices:
        more["type"] = click.Choice(option.choices)
    elif (option.min, option.max) != (None, None):
        in_range: Any = click.IntRange if kind is int else click.FloatRange
        more["type"] = in_range(option.min, option.max)
    elif isinstance(option, Flag):
        more["is_flag"] = True
    else:
        more["type"] = FORMATS.get(option.format, kind)
        if kind is bool:
            text = f"{text.removesuffix('.')} (true|false)."
    if option.prompt:
        more["callback"] = lambda _ctx, _param, value: secret(value, option.prompt)
    return [
        click.option(
            *option.flags.split(), argument.name, required=argument.is_required, show_default=bool(argument.default),
            help=text, **more,
        )
    ]  # fmt: skip


def secret(text: str | None, name: str) -> str | None:
    """Return a secret, asked for at the terminal if `text` is `-`: command lines are visible to other users."""
    return str(click.prompt(name, hide_input=True, err=True)) if text == "-" else text


def _show(result: Result, as_json: bool, one: Command) -> None:
    for note in result.notes:
        click.echo(printable(note), err=True)
    value = to_json(result.value)
    text = [Table(one.columns, value)] if one.columns else result.text
    if one.is_stream and as_json:
        click.echo(b"" if value is None else msgspec.json.encode(value), nl=value is not None)
    elif as_json or text is None:
        print_json(value)
    else:
        for part in text:
            if isinstance(part, Table):
                print_table(part.columns, part.cells())
            else:
                click.echo(printable(part, keep="\t"))
