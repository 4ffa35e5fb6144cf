"""Error messages for commands whose optional dependencies are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rucola.errors import missing_extra


@contextmanager
def require_spark() -> Iterator[None]:
    """Wrap imports of `rucola.spark`, so that a missing extra is reported in one sentence.

    Commands import it when they run, because loading PySpark takes about a second; a terminal shows that.
    """
    is_shown = sys.stderr.isatty()
    if is_shown:
        click.echo("loading PySpark ...\r", err=True, nl=False)
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "spark")) from None
    finally:
        if is_shown:
            click.echo("\x1b[2K", err=True, nl=False)  # erase the line


@contextmanager
def require_security() -> Iterator[None]:
    """Wrap imports of `cryptography`, so that a missing extra is reported in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "security")) from None


@contextmanager
def require_reliable() -> Iterator[None]:
    """Wrap imports of `rucola.reliable`, so that a missing extra is reported in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "reliable")) from None
