"""Lag of a stream: messages not read yet when Spark reported its query's progress.

Spark's Python data sources report offsets but no metrics. `lag_of` computes the metrics of Spark's Kafka source from
two offsets: `endOffset`, at which the batch ended, and `latestOffset`, the end of every queue when the batch was
planned. For a store that is read as one log, offsets are physical, so the lag is in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Lag(NamedTuple):
    """The lag of one source, in offsets.

    `total` is the sum over its queues; the others are minimum, maximum and mean of a queue.
    """

    total: int
    least: int
    most: int
    average: float


def lag_of(progress: Mapping[str, Any]) -> list[Lag]:
    """Return the lag of each source that reports a latest offset.

    `progress` is `query.lastProgress`, or the progress of a StreamingQueryListener's event.
    """
    found = []
    for source in progress["sources"]:
        end, latest = (dict(_leaves(json.loads(source[name] or "null"))) for name in ("endOffset", "latestOffset"))
        # Both are {path: offset}, such as {("Orders", "broker-a", "0"): 23}.
        behind = [latest[path] - offset for path, offset in end.items() if path in latest]
        if behind:
            found.append(Lag(sum(behind), min(behind), max(behind), sum(behind) / len(behind)))
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the offsets in nested maps with their paths.

    A list is a range [begin, offset].
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, list):
        yield path, value[-1]
    elif isinstance(value, int):
        yield path, value
