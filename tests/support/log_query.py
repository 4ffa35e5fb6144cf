"""A streaming query over a store, run as Spark runs it but without Spark."""

from __future__ import annotations

import json
import pickle
from typing import Any

from rucola.spark.source.options import check_for_stream, parse_read_options
from rucola.spark.source.stream_reader import RocketMQStreamReader

Offset = dict[str, Any]


class LogQuery:
    """A streaming query as far as its source sees it: every offset goes through JSON, every partition through pickle.

    `rows` are the physical offsets of the messages that were read, batch by batch.
    """

    def __init__(self, checkpoint: Offset | None = None, **given: str) -> None:
        self.options = parse_read_options(given)
        check_for_stream(self.options)
        self.reader = RocketMQStreamReader(self.options, ("commitLogOffset", "topic", "queueOffset"))
        self.offset = checkpoint if checkpoint is not None else _as_json(self.reader.initialOffset())
        self.rows: list[list[int]] = []

    def trigger(self) -> bool:
        """One batch, if there is anything new."""
        end = _as_json(self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(self.offset):
            return False
        self.rows.append(self.batch(self.offset, end))
        self.offset = end
        return True

    def batch(self, start: Offset, end: Offset) -> list[int]:
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        batches = [batch for partition in partitions for batch in self.reader.read(partition)]
        return [row["commitLogOffset"] for batch in batches for row in batch.to_pylist()]

    def run(self) -> list[int]:
        """Batches until there is nothing new; everything that was read."""
        while self.trigger():
            pass
        return [row for batch in self.rows for row in batch]


def _as_json(offset: Offset) -> Offset:
    restored: Offset = json.loads(json.dumps(offset))
    return restored
