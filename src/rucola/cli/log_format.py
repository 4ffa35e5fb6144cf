"""Log of the servers: its level, and its format.

The format is plain text, or one JSON object per line (`--logFormat json`), with the traceback, if any, as `error`:

    {"time":"2013-01-01T05:15:00.000Z","level":"WARNING","logger":"rucola.broker.background.group_commit","message":"...","error":"..."}
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

FORMATS = ("text", "json")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

Command = TypeVar("Command", bound=Callable[..., Any])


def log_options(command: Command) -> Command:
    """Add the options of the log, which is configured before the command runs."""
    command = click.option(
        "--logLevel", type=click.Choice(LEVELS, case_sensitive=False), default="INFO", show_default=True,
        expose_value=False, is_eager=True, callback=_set_level, help="Lowest level that is logged.",
    )(command)  # fmt: skip
    return click.option(
        "--logFormat", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, expose_value=False,
        is_eager=True, callback=_set_format, help="Format of the log on stderr.",
    )(command)  # fmt: skip


def _set_format(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if value == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s"))
    logging.basicConfig(handlers=[handler])


def _set_level(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    logging.getLogger().setLevel(value)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
