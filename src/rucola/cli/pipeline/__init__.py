"""`rucola pipeline`: the jobs of `rucola.spark.jobs`, started on this machine.

`archiving` holds the commands that write to the archive lake, `searching` what finds messages in it, `auditing` what
counts messages, `replaying` what sends them again, `rebuilding` what makes queues and index of a store, `repairing`
what restores a damaged lake; `command` and `selecting` what they have in common.
"""

from __future__ import annotations

import signal
from typing import Any

import click

from rucola.cli.pipeline.archiving import archive, compact
from rucola.cli.pipeline.auditing import audit
from rucola.cli.pipeline.rebuilding import rebuild
from rucola.cli.pipeline.repairing import repair
from rucola.cli.pipeline.replaying import replay
from rucola.cli.pipeline.searching import search


class Jobs(click.Group):
    """Commands that an interrupt ends silently; what a job has completed stays."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)


@click.group(cls=Jobs)
def pipeline() -> None:
    """Jobs over store directories, live brokers and the archive lake, in Spark if there is much to read."""


for command in (archive, compact, repair, search, audit, replay, rebuild):
    pipeline.add_command(command)
