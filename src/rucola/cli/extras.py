"""What only some installations have: one sentence where a command needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def spark_needed() -> Iterator[None]:
    """Around imports of `rucola.spark`, which is an extra and takes a second to load: one sentence where it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: install `rucola[spark]`") from None


@contextmanager
def reliable_needed() -> Iterator[None]:
    """Wrap imports of `rucola.reliable` and what it needs: one sentence if the extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: install `rucola[reliable]`") from None
