"""`rucola store`: commands for a store directory, without a broker."""

from __future__ import annotations

import click

from rucola.cli.store.backup import backup, restore
from rucola.cli.store.inspection import check, dump, grep, stat
from rucola.cli.store.recovery import rebuild, repair
from rucola.cli.suggestions import SuggestingGroup


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Check, search, back up and repair a store directory without a broker.

    The directory should be closed, or a copy. `check`, `stat`, `dump`, `grep` and `backup` only read it without a lock;
    so does `repair`; `rebuild` locks it. A broker may serve it during a `backup`. Long runs show a progress bar on a
    terminal.

    \b
    Exit codes:
      0  success; `check` found no damage, `grep` found messages
      1  `check` found damage, `grep` found nothing, or the command failed, with the reason on stderr
      2  the command line was wrong

    \b
    Examples:
      rucola store check data
      rucola store grep data -t Orders -k order-4711
    """


for command in (check, stat, dump, grep, backup, restore, rebuild, repair):
    store.add_command(command)
