"""Lag of a stream, with the metrics of Spark's Kafka source: from `endOffset` to `latestOffset` of a query's progress.

For a store that is read as one log, offsets are physical, so the lag is in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Lag(NamedTuple):
    """The lag of one source, in offsets: sum, minimum, maximum and mean over its queues."""

    total: int
    least: int
    most: int
    average: float


def lag_of(progress: Mapping[str, Any]) -> list[Lag]:
    """Return the lag of each source in `query.lastProgress`, or in the progress of a listener's event."""
    found = []
    for source in progress["sources"]:
        end, latest = (dict(_leaves(json.loads(source[name] or "null"))) for name in ("endOffset", "latestOffset"))
        # Both are {path: offset}, such as {("Orders", "broker-a", "0"): 23}.
        behind = [latest[path] - offset for path, offset in end.items() if path in latest]
        if behind:
            found.append(Lag(sum(behind), min(behind), max(behind), sum(behind) / len(behind)))
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the offsets in nested maps with their paths."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, int):
        yield path, value
