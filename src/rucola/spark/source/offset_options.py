"""JSON values of the options for queues and offsets.

    assign                           {"topic":[0,1]} for every broker, or {"topic":{"broker":[0,1]}}
    startingOffsets and similar      {"topic":{"broker":{"0":23}}}, or {"topic":{"0":23}} if one broker has the topic

-2 is the earliest and -1 the latest offset. Functions raise ValueError, TypeError or AttributeError for text that they
cannot parse; `options` turns these into a ConfigError that names the option.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets = Mapping[tuple[str, str | None, int], int]
"""Queue offsets or times by (topic, broker name, queue id). None as broker is the topic's only broker."""


def parse_queues(text: str) -> Iterator[tuple[str, str | None, int]]:
    """Yield the queues of the option `assign` as (topic, broker name, queue id); None as broker is every broker."""
    for topic, brokers in json.loads(text).items():
        by_broker: dict[str | None, Any] = brokers if isinstance(brokers, dict) else {None: brokers}
        for broker, queue_ids in by_broker.items():
            for queue_id in queue_ids:
                yield topic, broker, _queue_id(queue_id)


def parse_starting_offsets(text: str) -> QueueOffsets | int:
    """Return EARLIEST or LATEST for the words, otherwise offsets by queue."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return _offsets(text, "earliest, latest", (EARLIEST, LATEST))


def parse_ending_offsets(text: str) -> QueueOffsets | None:
    """Return None for the word latest, otherwise offsets by queue."""
    return None if text.strip().lower() == "latest" else _offsets(text, "latest", (LATEST,))


def parse_times(text: str) -> QueueOffsets:
    """Return times in milliseconds by queue."""
    if not text.strip().startswith("{"):
        raise ValueError('it must be JSON such as {"topic":{"broker":{"0":1700000000000}}}')
    return _numbers(text, "time in milliseconds")


def _offsets(text: str, words: str, stand_ins: tuple[int, ...]) -> QueueOffsets:
    if not text.strip().startswith("{"):
        raise ValueError(f'it must be {words} or JSON such as {{"topic":{{"broker":{{"0":23}}}}}}')
    return _numbers(text, f"queue offset or {' or '.join(map(str, stand_ins))}", stand_ins)


def _numbers(text: str, what: str, stand_ins: tuple[int, ...] = ()) -> QueueOffsets:
    numbers = {}
    for topic, named in json.loads(text).items():
        has_brokers = {isinstance(value, dict) for value in named.values()}
        if len(has_brokers) > 1:
            raise ValueError(f"topic {topic!r} has queues with and without the name of a broker")
        by_broker: dict[str | None, Any] = named if True in has_brokers else {None: named}
        for broker, queues in by_broker.items():
            for queue_id, number in queues.items():
                if not isinstance(number, int) or isinstance(number, bool) or (number < 0 and number not in stand_ins):
                    raise ValueError(f"{number!r} is not a {what}")
                numbers[topic, broker, _queue_id(queue_id)] = number
    return numbers


def _queue_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError(f"{value!r} is not a queue id")
    return int(value)
