"""Bodies of messages as text, JSON or hexadecimal, up to a number of bytes.

Control characters are escaped for people; a program gets the exact characters, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from rucola.cli.output import printable

FORMATS = ("text", "json", "hex")
DEFAULT_LIMIT = 4096
_CONTEXT = 40
_HEX_LINE = 16


@dataclass(frozen=True, slots=True)
class BodyView:
    """Shows bodies in one of `FORMATS`, and at most `limit` bytes of each."""

    form: str
    limit: int

    def fields(self, body: bytes) -> dict[str, Any]:
        """Return the body as fields of a JSON object.

        `body` is text with invalid UTF-8 replaced, or with format json the value, if that need not be cut.
        `bodyHex` is hexadecimal, `bodyShown` the number of bytes if not all are shown.
        """
        part = body[: self.limit]
        cut = {"bodyShown": len(part)} if len(part) < len(body) else {}
        if self.form == "hex":
            return {"bodyHex": part.hex(), **cut}
        if self.form == "json" and not cut and (value := _json_value(body)) is not None:
            return {"body": value[0]}
        return {"body": _decode(part), **cut}

    def block(self, body: bytes) -> str:
        """Return the body as indented lines, the last of which says what is not shown."""
        part = body[: self.limit]
        if self.form == "hex":
            lines = list(_hex_lines(part))
        elif self.form == "json" and _json_value(body) is not None:
            # Formatted before it is cut, so that it is readable from the start.
            lines = _lines(_decode(msgspec.json.format(body, indent=2)[: self.limit]))
        else:
            lines = _lines(_decode(part))
            if self.form == "json":
                lines.append("(not JSON)")
        if len(part) < len(body):
            lines.append(f"({len(body)} bytes, the first {self.limit} are shown; see --bodyLimit)")
        return "\n".join(f"    {line}" for line in lines)


def body_options(command: Callable[..., Any]) -> Callable[..., Any]:
    limit = click.option(
        "--bodyLimit", "body_limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True,
        help="With --body: bytes of each body to show.",
    )  # fmt: skip
    form = click.option("--body", "body_format", type=click.Choice(FORMATS), help="Show bodies, decompressed.")
    return form(limit(command))


def match_context(body: bytes, span: tuple[int, int]) -> str:
    """Return a match in brackets with up to 40 bytes on both sides, on one line."""
    begin, end = span
    before, after = body[max(0, begin - _CONTEXT) : begin], body[end : end + _CONTEXT]
    head = "…" if begin > _CONTEXT else ""
    tail = "…" if end + _CONTEXT < len(body) else ""
    match = body[begin : min(end, begin + 2 * _CONTEXT)]
    more = "…" if end - begin > len(match) else ""
    # A character may begin outside of these bytes; its remaining bytes are dropped.
    shown = (before.decode("utf-8", "ignore"), _decode(match), after.decode("utf-8", "ignore"))
    first, middle, last = (re.sub(r"\s+", " ", printable(part, keep="\n\t\r ")) for part in shown)
    return f"{head}{first}[{middle}{more}]{last}{tail}"


def _json_value(body: bytes) -> tuple[Any] | None:
    """The JSON value in a tuple, or None if the body is not JSON."""
    try:
        return (msgspec.json.decode(body),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode(part: bytes) -> str:
    return part.decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    return [printable(line, keep="\t") for line in text.split("\n")]


def _hex_lines(part: bytes) -> list[str]:
    """Lines with the position, 16 bytes, and these as ASCII."""
    lines = []
    for position in range(0, len(part), _HEX_LINE):
        row = part[position : position + _HEX_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{position:08x}  {row.hex(' '):<{3 * _HEX_LINE - 1}}  {text}")
    return lines
