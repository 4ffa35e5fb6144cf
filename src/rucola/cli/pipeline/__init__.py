"""`rucola pipeline`: the jobs of `rucola.spark.jobs`, started on this machine.

`archiving` holds the commands that write to the archive lake, `searching` what finds messages in it, `auditing` what
counts messages, `replaying` what sends them again, `rebuilding` what makes queues and index of a store, `repairing`
what restores a damaged lake; `command` and `selecting` what they have in common.
"""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "archive": "archive",
    "compact": "archive",
    "repair": "repair",
    "search": "search",
    "audit": "audit",
    "replay": "replay",
    "rebuild": "rebuild",
}
"""The module of each command."""


class Jobs(click.Group):
    """Commands that are imported when they are asked for, and that an interrupt ends silently."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{COMMANDS[cmd_name]}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # what a job has completed stays
            ctx.exit(128 + signal.SIGINT)


@click.group(cls=Jobs)
def pipeline() -> None:
    """Jobs over store directories, live brokers and the archive lake, in Spark if there is much to read."""
