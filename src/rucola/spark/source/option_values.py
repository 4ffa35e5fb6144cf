"""Parsers of single option values; `offset_options` has the parsers of JSON values.

They raise ValueError (or TypeError, AttributeError) with a reason, which `options` completes to a ConfigError that
names the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from rucola.errors import ConfigError, InvalidMessage
from rucola.files import local_path
from rucola.message.topics import check_group, check_tags, check_topic

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def words(text: str) -> list[str]:
    """Parse a comma-separated list that must not be empty."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise ValueError("it is empty")
    return found


def names(text: str) -> list[str]:
    """Parse a comma-separated list that may be empty."""
    return words(text) if text.strip() else []


def word_set(text: str) -> frozenset[str]:
    """Parse a comma-separated set that must not be empty."""
    return frozenset(words(text))


def path(text: str) -> list[str]:
    """Parse a path as Spark passes it: for LOCATION and for tables with the scheme `file`."""
    try:
        return [str(local_path(text))]
    except ConfigError as error:
        raise ValueError(str(error)) from error


def file_path(text: str) -> str:
    """Parse the path of one file."""
    (found,) = path(text)
    return found


def paths(text: str) -> list[str]:
    """Parse the paths of `load([...])`, which Spark passes as JSON."""
    return [each for text in json.loads(text) for each in path(text)]


def number(text: str) -> int:
    """Parse an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise ValueError("it must not be negative")
    return value


def positive_number(text: str) -> int:
    """Parse an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError("it must be at least 1")
    return value


def boolean(text: str) -> bool:
    """Parse `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def duration_ms(text: str) -> int:
    """Parse a duration such as `30s`. A number without a unit is in milliseconds."""
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise ValueError("it must be a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def name_servers(text: str) -> str:
    """Parse `host:port;host:port`, and return it without blanks."""
    addresses = [address.strip() for address in text.split(";") if address.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not host:port")
    if not addresses:
        raise ValueError("it is empty")
    return ";".join(addresses)


def group(text: str) -> str:
    """Validate the name of a group."""
    try:
        check_group(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


def topic(text: str) -> str:
    """Validate the name of a topic."""
    try:
        check_topic(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


def one_topic(text: str) -> frozenset[str]:
    """Validate the name of a topic, and return it as a set."""
    return frozenset({topic(text)})


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error


def is_sql92(text: str) -> bool:
    """Parse an expression type, `TAG` or `SQL92`."""
    if text.upper() not in ("TAG", "SQL92"):
        raise ValueError("it must be TAG or SQL92")
    return text.upper() == "SQL92"


def is_skip(text: str) -> bool:
    """Parse `fail` or `skip`."""
    if text.lower() not in ("fail", "skip"):
        raise ValueError("it must be fail or skip")
    return text.lower() == "skip"


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse a tag expression `TagA || TagB`, in which tags may have blanks; None for `*`, all tags."""
    tags = frozenset(tag.strip() for tag in text.split("||"))
    if tags == {"*"}:
        return None
    try:
        check_tags(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from None
    for tag in tags:
        if not tag or "*" in tag:
            raise ValueError(f"{tag!r} is not a tag; write TagA || TagB")
    return tags


def expression(text: str) -> str:
    """Validate an SQL92 expression."""
    try:
        sql92_matcher(text)
    except InvalidMessage as error:
        raise ValueError(str(error)) from error
    return text


@cache
def sql92_matcher(expression: str) -> Callable[[Mapping[str, str]], bool]:
    """Compile an SQL92 expression into a predicate over properties. Raises InvalidExpression."""
    from rucola.message import sql92  # imported on first use, because it loads a grammar

    return sql92.compile(expression).matches
