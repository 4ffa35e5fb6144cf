"""`rucola pipeline`: commands that run the jobs of `rucola.spark.jobs`, each in the module of its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from rucola.cli.suggestions import SuggestingGroup
from rucola.spark.interruption import exiting_on_interrupt

COMMANDS = {
    "archive": "archive",
    "compact": "archive",
    "forget": "forget",
    "status": "lake",
    "check": "lake",
    "decode": "decode",
    "infer-schema": "decode",
    "search": "search",
    "sql": "sql",
    "audit": "audit",
    "replay": "replay",
    "rebuild": "rebuild",
    "reconcile": "reconcile",
}
"""The module of each command, in the order of `--help`."""


class Jobs(SuggestingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{COMMANDS[cmd_name]}"), cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        with exiting_on_interrupt():
            return super().invoke(ctx)


@click.group(cls=Jobs)
def pipeline() -> None:
    """Run jobs over store directories, live brokers and the archive lake.

    Large inputs run in Spark.

    \b
    Examples:
      rucola pipeline archive --store data --out lake
      rucola pipeline search --lake lake -k order-4711
      rucola pipeline sql --lake lake "SELECT topic, count(*) FROM messages GROUP BY topic"
      rucola pipeline audit --from lake --out audit
      rucola pipeline reconcile -d sqlite:///shop.db -n localhost:9876 --out reconciled
    """
