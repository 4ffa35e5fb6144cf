"""Command group of `rucola admin`: the commands of `rucola.admin.commands` on the command line."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from rucola.acl.credentials import ACCESS_KEY_VARIABLE, CREDENTIALS_FILE_VARIABLE, SECRET_KEY_VARIABLE
from rucola.admin import AdminClient
from rucola.admin.commands import Argument, Command, InvalidArguments, Result, Target
from rucola.cli.admin.outbox_options import OutboxType, check_outbox, outbox_options
from rucola.cli.lake_options import ArchiveType, catalog_option
from rucola.cli.option_types import ADDRESS, TIME, PathType, TimeType, namesrv_option
from rucola.cli.output import print_json, print_table, printable, to_json, wide_option
from rucola.cli.suggestions import SuggestingGroup
from rucola.name_server_addresses import DEFAULT_NAMESRV
from rucola.presentation import Table

T = TypeVar("T")

FORMATS = {
    "address": ADDRESS,
    "time": TIME,
    "time or end": TimeType(latest=True),
    "file": PathType(exists=True, dir_okay=False),
    "new file": PathType(dir_okay=False),
    "directory": PathType(file_okay=False),
    "lake": ArchiveType(),
    "outbox": OutboxType(),
}


@click.group(cls=SuggestingGroup)
def admin() -> None:
    """Query and change a running cluster, with the names and flags of mqadmin.

    The exit code is 0 on success, 1 if a command failed, with the reason on stderr, and 2 if the command line was
    wrong. Destructive commands ask for confirmation unless --yes is given.

    \b
    Examples:
      rucola admin clusterList                       the cluster at localhost:9876
      rucola admin queryMsgByKey -n host:9876 -t Orders -k 4711
      ROCKETMQ_NAMESRV=host:9876 rucola admin topicStatus -t Orders --json
      rucola admin topicList --credentials tools.yml       a cluster with access control
      ROCKETMQ_TLS_CONFIG_FILE=client.properties rucola admin clusterList      by TLS, see docs/security.md
    """


def add_to_cli(one: Command) -> None:
    """Add a command of the catalogue to `rucola admin`."""
    arguments = list(one.arguments())
    target = next((each for each in arguments if each.type is Target), None)

    def run(namesrv_addr: str, as_json: bool, yes: bool = True, interval: float | None = None, **given: Any) -> None:
        if target is not None:
            address, cluster = given.pop("address"), given.pop("cluster")
            if target.is_required and (address is None) == (cluster is None):
                raise click.UsageError("name either a broker with -b or a cluster with -c")
            given[target.name] = Target(address, cluster)
        is_failure = False

        async def request(client: AdminClient) -> None:
            nonlocal is_failure
            async for result in one.run(client, **given):
                _show(result, as_json, one)
                is_failure = result.is_failure

        try:
            if one.confirm:
                question = _call(namesrv_addr, lambda client: one.question(client, **given))
                if question and not yes:
                    click.confirm(f"{question}?", abort=True, err=True)
            # Each round uses a new connection, so that a restarted name server is found again.
            _call(namesrv_addr, request)
            while interval is not None:
                time.sleep(interval)
                _call(namesrv_addr, request)
        except InvalidArguments as error:
            raise click.UsageError(str(error)) from None
        if is_failure:
            sys.exit(1)

    run.__doc__ = one.help
    options = [namesrv_option("namesrv_addr", "Name servers.", default=DEFAULT_NAMESRV), json_option]
    options += [option for each in arguments for option in _options(each)]
    options += [yes_option] * bool(one.confirm) + [interval_option] * one.is_repeatable + [credentials_option]
    for option in reversed([*options, wide_option]):
        run = option(run)
    admin.command(one.name)(run)
    admin.subjects.setdefault(one.subject, []).append(one.name)


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
    elif argument.is_flag:
        more["is_flag"] = True
    else:
        more["type"] = FORMATS.get(option.format, kind)
        if kind is bool:
            text = f"{text.removesuffix('.')} (true|false)."
    if option.prompt:
        more["callback"] = lambda _ctx, _param, value: secret(value, option.prompt)
    if option.envvar:
        more |= {"envvar": option.envvar, "show_envvar": True}
    if option.format == "outbox":
        more["callback"] = check_outbox
    beside = {"lake": [catalog_option], "outbox": outbox_options}.get(option.format, [])
    return [
        *beside,
        click.option(
            *option.flags.split(), argument.name, required=argument.is_required, show_default=bool(argument.default),
            help=text, **more,
        ),
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


def _use_credentials(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    before = dict(os.environ)
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
        os.environ.pop(name, None)
    os.environ[CREDENTIALS_FILE_VARIABLE] = str(path)

    def restore() -> None:
        os.environ.clear()
        os.environ.update(before)

    ctx.call_on_close(restore)


def _call(namesrv_addr: str, request: Callable[[AdminClient], Awaitable[T]]) -> T:
    async def call() -> T:
        async with AdminClient(namesrv_addr) as client:
            return await request(client)

    return asyncio.run(call())


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
broker_option = click.option("-b", "--brokerAddr", "address", type=ADDRESS, help="Address of one broker, host:port.")
interval_option = click.option(
    "-i", "--interval", type=click.FloatRange(0, min_open=True),
    help="Repeat after this many seconds, until interrupted.",
)  # fmt: skip
credentials_option = click.option(
    "--credentials", type=PathType(dir_okay=False), envvar=CREDENTIALS_FILE_VARIABLE, show_envvar=True,
    expose_value=False, callback=_use_credentials, help="File with accessKey and secretKey, like tools.yml.",
)  # fmt: skip
