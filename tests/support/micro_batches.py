"""A streaming query as Spark's micro-batch execution runs it, without Spark: what is logged when, and what is repeated.

    log the end of a batch  ->  plan and read it  ->  commit it

A query that failed is started again on what it had logged: a batch that was not committed is repeated with the same
ends, after which the query asks for further offsets. Every offset goes through JSON, every partition through pickle.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

from rucola.spark.source.options import check_for_stream, parse_read_options
from rucola.spark.source.stream_reader import RocketMQStreamReader

Offset = dict[str, Any]
Row = dict[str, Any]

COLUMNS = ("msgId", "topic", "brokerName", "queueId", "queueOffset")


class MicroBatches:
    """A query with its checkpoint: `logged` are the ends of batches, of which the first `committed` were finished."""

    def __init__(self, *, columns: Sequence[str] = COLUMNS, **given: str) -> None:
        self.given = given
        self.columns = tuple(columns)
        self.logged: list[Offset] = []
        self.committed = 0
        self.batches: list[list[Row]] = []
        self.reader: RocketMQStreamReader | None = None
        self._start: Offset = {}

    def start(self, **given: str) -> None:
        """Start the query, or start it again on its checkpoint, with further options."""
        options = parse_read_options({**self.given, **given})
        check_for_stream(options)
        self.reader = RocketMQStreamReader(options, self.columns)
        self._start = self.logged[self.committed - 1] if self.committed else as_json(self.reader.initialOffset())
        if len(self.logged) > self.committed:
            self._run_batch()

    def trigger(self) -> bool:
        """Run one batch if there is anything new."""
        assert self.reader is not None
        end = as_json(self.reader.latestOffset(self._start, self.reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(self._start):
            return False
        self.logged.append(end)
        self._run_batch()
        return True

    def run(self) -> list[Row]:
        """Run batches until there is nothing new; return all rows so far."""
        while self.trigger():
            pass
        return self.rows

    @property
    def rows(self) -> list[Row]:
        """The rows of all batches that were committed."""
        return [row for batch in self.batches for row in batch]

    @property
    def ids(self) -> list[str]:
        """The msgIds of all rows, sorted."""
        return sorted(row["msgId"] for row in self.rows)

    def _run_batch(self) -> None:
        assert self.reader is not None
        end = self.logged[self.committed]
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(self._start, end)))
        batches = [batch for partition in partitions for batch in self.reader.read(partition)]
        self.batches.append([row for batch in batches for row in batch.to_pylist()])
        self.committed += 1
        self._start = end


def as_json(offset: Offset) -> Offset:
    """An offset after its way through the checkpoint."""
    restored: Offset = json.loads(json.dumps(offset))
    return restored
