"""Results as data: columns and rows of tables, JSON, and timestamps in mqadmin's format; `cli.output` prints them."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

LAYOUT: Final = "\t\r\n"
"""Control characters that are part of a text of several lines, for `printable`."""
END_OF_TIMES_MS: Final = 253_402_214_400_000
"""The last day of the year 9999: later local times have no four-digit year."""
_MQADMIN_TIME = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})", re.ASCII)
_MILLISECONDS = re.compile(r"\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. A plain string is a column whose content may be shortened."""

    name: str
    key: str = ""
    """The member of a row that the column shows."""
    show: Callable[[Any], object] = lambda value: value
    is_whole: bool = False
    """The content is never shortened, and the column never left out."""
    is_optional: bool = False
    """The column is left out before those that are not optional."""


def whole(name: str, key: str = "", show: Callable[[Any], object] = lambda value: value) -> Column:
    """A column of ids or addresses, which are useless if they are cut."""
    return Column(name, key, show, is_whole=True)


def optional(name: str, key: str = "", show: Callable[[Any], object] = lambda value: value) -> Column:
    """A column that is left out first."""
    return Column(name, key, show, is_optional=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows are mappings with the columns' keys, or cells in the order of the columns."""

    columns: Sequence[Column | str]
    rows: Sequence[Any]

    def cells(self) -> list[Sequence[object]]:
        """Return the rows as cells in the order of the columns."""
        return [
            [one.show(row[one.key]) for one in self.columns if isinstance(one, Column)]
            if isinstance(row, dict)
            else row
            for row in self.rows
        ]


FORMULAS: Final = "=", "+", "-", "@", "\t", "\r"
"""What a text begins with that spreadsheets run as a formula."""


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV; None is empty, and a text that a spreadsheet would run begins with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file)
    for row in rows:
        writer.writerow(f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell for cell in row)
    return file.getvalue()


def time_text(timestamp_ms: int) -> str:
    """Format a timestamp in local time as `2013-01-01 05:15:00,000`; empty for "never" (0 or negative)."""
    if timestamp_ms <= 0:
        return ""
    if timestamp_ms >= END_OF_TIMES_MS:
        return str(timestamp_ms)
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{milliseconds:03}"


def parse_time(text: str) -> int:
    """Parse `now`, milliseconds since 1970, ISO 8601 or mqadmin's `2013-01-01#05:15:00:250` to milliseconds.

    Times without a UTC offset are local. Raises ValueError.
    """
    text = text.strip()
    if text == "now":
        return time.time_ns() // 1_000_000
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    of_mqadmin = _MQADMIN_TIME.fullmatch(text)
    if "#" in text and of_mqadmin is None:  # fromisoformat accepts any character for the T
        raise ValueError(text)
    moment = datetime.fromisoformat("{}T{}.{}".format(*of_mqadmin.groups()) if of_mqadmin else text)
    try:
        # Rounded, since a float of seconds since 1970 is not exact to the millisecond.
        return round(moment.timestamp() * 1000)
    except (OverflowError, OSError) as error:
        raise ValueError(str(error)) from None


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Join names for a sentence, and count those beyond `most`: a, b and 7 more."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def short_number(value: float) -> str:
    """Format a number with three significant digits, and all of a whole one below 10,000."""
    if value == int(value) and abs(value) < 10_000:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def size_text(size: float) -> str:
    """Format bytes with binary units: 512 B, 1.5 KiB, 20 MiB."""
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**exponent:
            return f"{short_number(size / 1024**exponent)} {unit}"
    return f"{short_number(size)} B"


def duration_text(milliseconds: float | None) -> str:
    """Format a duration in its largest unit: 350 ms, 3.4 s, 45 s, 12 min, 3.5 h, 2.1 d; a dash for None."""
    if milliseconds is None:
        return "-"
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
    size, unit = next((one for one in units if abs(milliseconds) >= one[0]), (1000, "s"))
    value = milliseconds / size
    text = f"{value:,.1f}".removesuffix(".0") if abs(value) < 9.95 else f"{value:,.0f}"
    return f"{text} {unit}"


def to_json(value: Any) -> Any:
    """Convert a value to JSON's types, with the fields of structs and dataclasses in camelCase; keys of dicts stay."""
    match value:
        case msgspec.Struct():
            # Fields that the struct's encoding omits are omitted here, too.
            encoded = msgspec.to_builtins(value, enc_hook=str)
            return {
                _camel_case(field.encode_name): to_json(getattr(value, field.name))
                for field in msgspec.structs.fields(type(value))
                if field.encode_name in encoded
            }
        case list() | tuple() | set() | frozenset():
            return [to_json(one) for one in value]
        case dict():
            return {key: to_json(one) for key, one in value.items()}
        case Path():
            return str(value)
    if dataclasses.is_dataclass(value):
        return {_camel_case(field.name): to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def json_text(value: Any) -> str:
    """Format a value of `to_json` with its fields on lines of their own."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, and characters that reorder or hide text, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape", "backslashreplace").decode("ascii")
        for one in text
    )
