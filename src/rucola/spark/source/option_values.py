"""Parsers of option values.

    assign                           {"topic":[0,1]} for every broker, or {"topic":{"broker":[0,1]}}
    startingOffsets and similar      {"topic":{"broker":{"0":23}}}, or {"topic":{"0":23}} if one broker has the topic

-2 is the earliest and -1 the latest offset. The parsers raise any of `INVALID` with a reason, which `options` completes
to a ConfigError that names the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from rucola.errors import MQError
from rucola.files import is_remote, local_path
from rucola.message.topics import check_group, check_tags, check_topic
from rucola.name_server_addresses import split

T = TypeVar("T")

INVALID: Final = (ValueError, TypeError, AttributeError, re.error, MQError)

EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets = Mapping[tuple[str, str | None, int], int]
"""Queue offsets or times by (topic, broker name, queue id). None as broker is the topic's only broker."""

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def one_of(values: Mapping[str, T]) -> Callable[[str], T]:
    """Return the parser of a word that ignores case, such as `true` or `false`."""
    words = list(values)

    def parse(text: str) -> T:
        for word in words:
            if word.lower() == text.lower():
                return values[word]
        raise ValueError(f"it must be {', '.join(words[:-1])} or {words[-1]}")

    return parse


boolean: Final = one_of({"true": True, "false": False})


def words(text: str) -> list[str]:
    """Parse a comma-separated list that must not be empty."""
    found = names(text)
    if not found:
        raise ValueError("it is empty")
    return found


def names(text: str) -> list[str]:
    """Parse a comma-separated list that may be empty."""
    return [word.strip() for word in text.split(",") if word.strip()]


def word_set(text: str) -> frozenset[str]:
    """Parse a comma-separated set that must not be empty."""
    return frozenset(words(text))


def path(text: str) -> str:
    """Parse a path as Spark passes it: for LOCATION and for tables with the scheme `file`."""
    return str(local_path(text))


def lake(text: str) -> str:
    """Parse the path of a lake, or the URL of an object store."""
    return text if is_remote(text) else path(text)


def paths(text: str) -> list[str]:
    """Parse the paths of `load([...])`, which Spark passes as JSON."""
    return [path(each) for each in json.loads(text)]


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


def duration_ms(text: str) -> int:
    """Parse a duration such as `30s`. A number without a unit is in milliseconds."""
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise ValueError("it must be a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def name_servers(text: str) -> str:
    """Parse `host:port;host:port`, and return it without blanks."""
    addresses = split(text)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not host:port")
    if not addresses:
        raise ValueError("it is empty")
    return ";".join(addresses)


def group(text: str) -> str:
    """Validate the name of a group."""
    check_group(text)
    return text


def topic(text: str) -> str:
    """Validate the name of a topic."""
    check_topic(text)
    return text


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse a tag expression `TagA || TagB`, in which tags may have blanks; None for `*`, all tags."""
    tags = frozenset(tag.strip() for tag in text.split("||"))
    if tags == {"*"}:
        return None
    try:
        check_tags(text)
    except MQError as error:
        raise ValueError(str(error)) from None
    for tag in tags:
        if not tag or "*" in tag:
            raise ValueError(f"{tag!r} is not a tag; write TagA || TagB")
    return tags


def expression(text: str) -> str:
    """Validate an SQL92 expression."""
    sql92_matcher(text)
    return text


@cache
def sql92_matcher(expression: str) -> Callable[[Mapping[str, str]], bool]:
    """Compile an SQL92 expression into a predicate over properties. Raises InvalidExpression."""
    from rucola.message import sql92  # imported on first use, because it loads a grammar

    return sql92.compile(expression).matches


def queues(text: str) -> frozenset[tuple[str, str | None, int]]:
    """Parse the queues of the option `assign` as (topic, broker name, queue id); None as broker is every broker."""
    found = set()
    for topic, brokers in json.loads(text).items():
        by_broker: dict[str | None, Any] = brokers if isinstance(brokers, dict) else {None: brokers}
        for broker, queue_ids in by_broker.items():
            found |= {(topic, broker, _queue_id(queue_id)) for queue_id in queue_ids}
    return frozenset(found)


def starting_offsets(text: str) -> QueueOffsets | int:
    """Parse EARLIEST or LATEST for the words, otherwise offsets by queue."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return _numbers(text, "earliest, latest or ", "queue offset or -2 or -1", (EARLIEST, LATEST))


def ending_offsets(text: str) -> QueueOffsets | None:
    """Parse None for the word latest, otherwise offsets by queue."""
    return None if text.strip().lower() == "latest" else _numbers(text, "latest or ", "queue offset or -1", (LATEST,))


def times(text: str) -> QueueOffsets:
    """Parse times in milliseconds by queue."""
    return _numbers(text, "", "time in milliseconds")


def _numbers(text: str, words: str, what: str, stand_ins: tuple[int, ...] = ()) -> QueueOffsets:
    if not text.strip().startswith("{"):
        raise ValueError(f'it must be {words}JSON such as {{"topic":{{"broker":{{"0":23}}}}}}, each a {what}')
    found = {}
    for topic, named in json.loads(text).items():
        has_brokers = {isinstance(value, dict) for value in named.values()}
        if len(has_brokers) > 1:
            raise ValueError(f"topic {topic!r} has queues with and without the name of a broker")
        by_broker: dict[str | None, Any] = named if True in has_brokers else {None: named}
        for broker, numbers in by_broker.items():
            for queue_id, number in numbers.items():
                if not isinstance(number, int) or isinstance(number, bool) or (number < 0 and number not in stand_ins):
                    raise ValueError(f"{number!r} is not a {what}")
                found[topic, broker, _queue_id(queue_id)] = number
    return found


def _queue_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError(f"{value!r} is not a queue id")
    return int(value)
