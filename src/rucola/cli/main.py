"""`rucola`: the door to all commands.

The table below is all that is loaded for `rucola --help`; a command's module is imported when the command is asked for,
so that a broker starts without Spark and a query without the store.

Exit codes: 0 done; 1 it could not be done, or a check found something, with one clear line on stderr; 2 the command
line itself was wrong. An MQError is never shown as a traceback, nor is what the system refuses.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import rucola
from rucola.errors import MQError, StoreCorrupt

# numpy's linear algebra would start a thread for every core; nothing here multiplies matrices. Read when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

COMMANDS = {
    "standalone": ("rucola.cli.servers:standalone", "Name server and broker in one process, on one directory."),
    "namesrv": ("rucola.cli.servers:namesrv", "A name server (mqnamesrv)."),
    "broker": ("rucola.cli.servers:broker", "A broker (mqbroker)."),
    "admin": ("rucola.cli.admin:admin", "Ask and change a running cluster (mqadmin)."),
    "store": ("rucola.cli.store:store", "Look into a store directory, search it, repair it."),
    "pipeline": ("rucola.cli.pipeline:pipeline", "Spark jobs over a store directory."),
    "reliable": ("rucola.cli.reliable:reliable", "Outbox, relay and idempotent consumption in a database."),
    "demo": ("rucola.cli.demo:demo", "A year of flights through the whole house."),
}


class Commands(click.Group):
    """The commands of the table, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StoreCorrupt as error:
            raise click.ClickException(f"{error}\n{advice(error)}".rstrip()) from None
        except MQError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever read the output has gone, of which click knows
            why = error.strerror or str(error) or type(error).__name__
            raise click.ClickException(f"{error.filename}: {why}" if error.filename else why) from None


def advice(error: StoreCorrupt) -> str:
    """What to run after damage was met; nothing more where the error says it already."""
    if "`rucola " in error.why:
        return ""
    if {"consumequeue", "index"} & set(Path(error.path).parts):
        return "`rucola store rebuild DIR` makes ConsumeQueues and index anew from the log, with the broker stopped."
    return "`rucola store check DIR` names all damage; `rucola store repair DIR --out COPY` writes a sound copy."


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(f"{rucola.__version__}{', compiled' if rucola.is_compiled() else ''}", package_name="rucola")
def main() -> None:
    """Rucola: a message system compatible with Apache RocketMQ, whose log is a Spark table.

    \b
    Examples:
      rucola standalone --store data          serve a directory
      rucola admin topicStatus -t Orders      ask it (-n or NAMESRV_ADDR names the name server)
      rucola store check data                 look for damage while nobody serves it
    """
