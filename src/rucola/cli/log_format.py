"""Log formats of the servers: plain text, or one JSON object per line (`--logFormat json`).

    {"time":"2013-01-01T05:15:00.000Z","level":"WARNING","logger":"rucola.broker.background.group_commit","message":"...","error":"..."}

`error` is the traceback, and is present only if the record has an exception.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

FORMATS = ("text", "json")

log_format_option = click.option(
    "--logFormat", "log_format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
    help="Format of the log on stderr.",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Formatter that renders a record as one JSON object."""

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


def configure_logging(log_format: str) -> None:
    """Configure the root logger to write records of level INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
