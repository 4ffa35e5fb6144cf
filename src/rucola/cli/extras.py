"""Commands with optional dependencies: their errors where those are not installed, and the option `--otel`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rucola.errors import missing_extra


@contextmanager
def require_spark() -> Iterator[None]:
    """Report a missing extra for `rucola.spark` in one sentence.

    Import it when the command runs: loading PySpark takes about a second, which a terminal shows.
    """
    is_shown = sys.stderr.isatty()
    if is_shown:
        click.echo("loading PySpark ...\r", err=True, nl=False)
    try:
        with require_extra("spark"):
            yield
    finally:
        if is_shown:
            click.echo("\x1b[2K", err=True, nl=False)  # erase the line


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Report a missing extra in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, extra)) from None


def _check_otel(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        with require_extra("otel"):
            import rucola.client.otel  # noqa: F401
    return value


otel_option = click.option(
    "--otel",
    is_flag=True,
    callback=_check_otel,
    help="Record spans and metrics by OpenTelemetry, as `opentelemetry-instrument` sets it up.",
)
