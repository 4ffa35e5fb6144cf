"""`rucola store`: what can be done with a store directory that no broker serves.

`looking` holds the commands that only read, `mending` those that write; `directory` what they take and say alike.
"""

from __future__ import annotations

import click

from rucola.cli.store.inspection import check, dump, grep, stat
from rucola.cli.store.recovery import rebuild, repair


@click.group()
def store() -> None:
    """Look into a store directory, search it and repair it, without a broker.

    The directory should be closed, or a copy. `check`, `stat`, `dump` and `grep` write nothing and take no lock;
    `repair` only reads it; `rebuild` takes its lock. A bar on stderr shows how far a long run is, on a terminal.

    \b
    Exit codes:
      0  done; `check` found nothing, `grep` found something
      1  `check` found something, `grep` nothing, or it could not be done, with the reason on stderr
      2  the command line was wrong
    """


for command in (check, stat, dump, grep, rebuild, repair):
    store.add_command(command)
