"""Error messages for commands whose optional dependencies are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from rucola.errors import missing_extra


@contextmanager
def require_spark() -> Iterator[None]:
    """Wrap imports of `rucola.spark`, so that a missing extra is reported in one sentence.

    Commands import it when they run, because loading PySpark takes about a second.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "spark")) from None


@contextmanager
def require_reliable() -> Iterator[None]:
    """Wrap imports of `rucola.reliable`, so that a missing extra is reported in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "reliable")) from None
