"""The outbox whose stubs `rucola admin redriveDlq` reopens."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from rucola.admin.commands.dead_letters import StubReopening
from rucola.admin.redrive import AfterRedrive
from rucola.cli.extras import require_extra

_PLACE: Final = "rucola.outbox"


class OutboxType(click.ParamType[StubReopening]):
    """The URL of a database, as what reopens the stubs in its tables."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> StubReopening:
        return partial(_stub_reopening, value, (ctx.meta if ctx is not None else {}).get(_PLACE, {}))


def _stub_reopening(database: str, place: dict[str, str], group: str) -> AfterRedrive:
    with require_extra("reliable"):
        from rucola.cli.reliable.redriven import stub_reopening
    return stub_reopening(database, place.get("prefix"), place.get("schema"), group)


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name is not None:
        ctx.meta.setdefault(_PLACE, {})[parameter.name] = value


def check_outbox(ctx: click.Context, _: click.Parameter, value: StubReopening | None) -> StubReopening | None:
    if value is None and _PLACE in ctx.meta:
        raise click.UsageError("--prefix and --schema belong to --database, which is missing")
    return value


def _option(name: str, text: str) -> Any:
    # Known when the database is converted.
    return click.option(f"--{name}", is_eager=True, expose_value=False, callback=_remember, help=text)


outbox_options: Final = [
    _option("prefix", "Prefix of the outbox's tables (`rucola reliable`)."),
    _option("schema", "Database schema of the outbox's tables."),
]
