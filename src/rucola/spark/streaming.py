"""A stream of messages for Structured Streaming: stores and live brokers, batch after batch.

An offset of the stream is the offset of every place that is read (see `places`): the physical offset of each store's
log, or the queue offset of each queue. Spark keeps them in the checkpoint of the query and hands them back, so a query
that is started over goes on where it was, and repeats the batch that it had begun.

    initialOffset   startingOffsets and the like, asked for once in the life of a checkpoint
    latestOffset    where every place ends now; with maxOffsetsPerTrigger as far as so many messages go, shared out by
                    what each place has waiting. A place that is new is read from its beginning
    partitions      what lies between two offsets, cut as for a batch; what is no longer there is lost data

A query that runs with Trigger.AvailableNow notes where everything ended when it was started, and ends there.

Nothing depends on `commit` or `stop`: Spark calls neither for the last batch of an AvailableNow query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rucola.errors import StoreError
from rucola.spark import reader
from rucola.spark.failure import sentences
from rucola.spark.options import Options
from rucola.spark.places import Offsets, Place, at_offsets, from_json, initial_offsets, settled, to_json


@sentences
class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query, and on the workers, which get a pickled copy, reads their partitions."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._columns = names
        self._source = reader.source_of(options)
        self._last: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        bounds = self._source.bounds()
        return to_json(initial_offsets(at_offsets(self._options, self._source, bounds), bounds))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        count = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = {place: most for place, (_, most) in self._source.bounds().items()}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = from_json(start, self._options.by_queue)
        waiting: dict[Place, tuple[int, int]] = {}
        latest: dict[Place, int] = {}
        for place, (least, most) in self._source.bounds().items():
            begin = known.get(place, least)
            if begin > most and self._options.fail_on_data_loss:
                raise StoreError(
                    f"{place} was read up to offset {begin}, but ends at {most}: it was replaced, or lost its end; "
                    f"failOnDataLoss=false goes on from there"
                )
            if self._last is not None:
                if place not in self._last:
                    continue
                most = max(min(most, self._last[place]), min(begin, most))
            latest[place] = most
            if begin < most:
                waiting[place] = max(begin, least), most
        if isinstance(limit, ReadMaxRows) and waiting:
            for place, (_, end) in self._source.limit(waiting, limit.max_rows).items():
                latest[place] = end
        return to_json(latest)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        begin, upto = from_json(start, self._options.by_queue), from_json(end, self._options.by_queue)
        return list(self._source.plan(settled(self._options, begin, upto, self._source.bounds())))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reader.read(partition, self._options, self._columns)
