"""The lag of a stream: how many messages waited when Spark reported a progress of its query.

Spark's Python data sources report offsets but no metrics, so the metrics that Spark's Kafka source has are computed
here from the offsets: `endOffset`, where the batch ended, and `latestOffset`, where every queue ended when the batch
was planned. Of a store that is read as one log, offsets and so the lag are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Lag(NamedTuple):
    """The offsets that the queues of a source are behind: all together, and those of a queue."""

    total: int
    least: int
    most: int
    average: float


def lag_of(progress: Mapping[str, Any]) -> list[Lag]:
    """Return the lag of each source that reports its latest offset, from `query.lastProgress` or a listener's event."""
    found = []
    for source in progress["sources"]:
        end, latest = (dict(_leaves(json.loads(source[name] or "null"))) for name in ("endOffset", "latestOffset"))
        behind = [latest[place] - offset for place, offset in end.items() if place in latest]
        if behind:
            found.append(Lag(sum(behind), min(behind), max(behind), sum(behind) / len(behind)))
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the offsets in a nested map by their path; a list is a range, which ends with the offset."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, list):
        yield path, value[-1]
    elif isinstance(value, int):
        yield path, value
