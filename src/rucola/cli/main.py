"""Entry point `rucola`: the table of commands, and the translation of errors to exit codes.

The module of a command is imported when the command is called, so that a broker starts without Spark.

    0    success
    1    the command failed, or a check found something; one line on stderr says why
    2    the command line was wrong
    130  Ctrl-C

An MQError or OSError never ends in a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

import click

from rucola.cli.suggestions import SuggestingGroup
from rucola.errors import MQError, StoreCorrupt

# Otherwise numpy starts one thread per core for linear algebra, which Rucola does not use.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

COMMANDS = {
    "standalone": ("rucola.cli.servers:standalone", "Run a name server and a broker in one process."),
    "namesrv": ("rucola.cli.servers:namesrv", "Run a name server (mqnamesrv)."),
    "broker": ("rucola.cli.servers:broker", "Run a broker (mqbroker)."),
    "proxy": ("rucola.cli.proxy:proxy", "Serve clients of RocketMQ 5 before several brokers."),
    "conformance": ("rucola.cli.conformance:conformance", "Check a server as clients of RocketMQ 5 use it."),
    "cluster": ("rucola.cli.cluster:cluster", "Run brokers and name servers on this machine."),
    "produce": ("rucola.cli.messages:produce", "Send lines of standard input as messages."),
    "consume": ("rucola.cli.messages:consume", "Print the messages of a topic as they arrive."),
    "router": ("rucola.cli.router:router", "Run a program of decorated handlers, or describe it."),
    "admin": ("rucola.cli.admin:admin", "Query and change a running cluster (mqadmin)."),
    "support": ("rucola.cli.support:support", "Write one archive for those who explain a fault."),
    "console": ("rucola.cli.console:console", "Show a cluster in a browser."),
    "mcp": ("rucola.cli.mcp:mcp", "Offer the commands of admin to an assistant, by MCP."),
    "store": ("rucola.cli.store:store", "Check, search and repair a store directory."),
    "pipeline": ("rucola.cli.pipeline:pipeline", "Archive, search, audit, replay and reconcile messages."),
    "lake": ("rucola.cli.lake:lake", "Serve archived messages to other engines."),
    "reliable": ("rucola.cli.reliable:reliable", "Outbox, relay and idempotent consumption in a database."),
    "tls": ("rucola.cli.tls:tls", "Make certificates for a first try of TLS."),
    "demo": ("rucola.cli.demo:demo", "A tour: a year of flights, sent, consumed and archived."),
}
T = TypeVar("T")

INTERRUPTED = 128 + signal.SIGINT


class Commands(SuggestingGroup):
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return _translated(partial(super().parse_args, ctx, args))  # --help and --version print

    def invoke(self, ctx: click.Context) -> Any:
        return _translated(partial(super().invoke, ctx))


def _translated(call: Callable[[], T]) -> T:
    """Call a function; errors with a documented meaning become one line and exit code 1, all others are bugs."""
    try:
        return call()
    except StoreCorrupt as error:
        raise _shown(f"{error}\n{advice(error)}".rstrip()) from None
    except MQError as error:
        raise _shown(str(error)) from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader of a pipe has exited, for example `head`; click handles this
        why = error.strerror or str(error) or type(error).__name__
        where = error.filename or ("standard output" if _is_of_output(error) else "")
        raise _shown(f"{where}: {why}" if where else why) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _is_of_output(error: OSError) -> bool:
    """Return whether standard output did not take what was written, as on a full disk."""
    *_, (frame, _line) = walk_tb(error.__traceback__)
    return frame.f_code is click.echo.__code__


def _shown(text: str) -> click.ClickException:
    """The error line, without characters that change a terminal: a server may have written it."""
    from rucola.cli.output import LAYOUT, printable  # imported here: no command without an error needs it

    return click.ClickException(printable(text, keep=LAYOUT))


def advice(error: StoreCorrupt) -> str:
    """Return the command that diagnoses or repairs the damage; empty if the error text already names one."""
    if "`rucola " in error.why:
        return ""
    if {"consumequeue", "index"} & set(Path(error.path).parts):
        return "`rucola store rebuild DIR` rebuilds ConsumeQueues and index from the log; stop the broker first."
    return "`rucola store check DIR` lists all damage; `rucola store repair DIR --out COPY` writes a repaired copy."


def _show_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from rucola import speed  # imported here, as a command is
        from rucola.version import FULL_VERSION

        click.echo(f"rucola, version {FULL_VERSION}, {speed.description()}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Rucola is a message system compatible with Apache RocketMQ, whose log is a Spark table.

    \b
    Examples:
      rucola standalone --store data          serve a store directory
      rucola admin topicStatus -t Orders      query a cluster (-n or ROCKETMQ_NAMESRV names the name server)
      rucola store check data                 look for damage, while no broker serves the directory
    """
