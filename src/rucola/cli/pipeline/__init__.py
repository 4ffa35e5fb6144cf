"""`rucola pipeline`: the Spark jobs of `rucola.spark.jobs`, started on this machine.

`archiving` holds the commands that write to the archive lake, `searching` what finds messages in it, `auditing` what
counts messages, `replaying` what sends them again, `rebuilding` what makes queues and index of a store, `repairing`
what restores a damaged lake; `command` and `selecting` what they have in common.
"""

from __future__ import annotations

import click

from rucola.cli.pipeline.archiving import archive, compact
from rucola.cli.pipeline.auditing import audit
from rucola.cli.pipeline.rebuilding import rebuild
from rucola.cli.pipeline.repairing import repair
from rucola.cli.pipeline.replaying import replay
from rucola.cli.pipeline.searching import search


@click.group()
def pipeline() -> None:
    """Spark jobs over store directories, live brokers and the archive lake."""


for command in (archive, compact, repair, search, audit, replay, rebuild):
    pipeline.add_command(command)
