"""`rucola store`: commands for a store directory that no broker serves."""

from __future__ import annotations

import click

from rucola.cli.store.inspection import check, dump, grep, stat
from rucola.cli.store.recovery import rebuild, repair
from rucola.cli.suggestions import SuggestingGroup


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Check, search and repair a store directory without a broker.

    The directory should be closed, or a copy. `check`, `stat`, `dump` and `grep` write nothing and do not lock it;
    `repair` only reads the directory; `rebuild` locks it. Long runs show a progress bar on a terminal.

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


for command in (check, stat, dump, grep, rebuild, repair):
    store.add_command(command)
