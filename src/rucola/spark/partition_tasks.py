"""Tasks that get one partition each, as a pickled object."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterator[pa.RecordBatch]

_PARTITION: Final = "number int, partition binary"


def partition_tasks(session: SparkSession, partitions: Sequence[Any]) -> DataFrame:
    """Return a DataFrame with one pickled partition per task, for `read_partitions` in `mapInArrow`."""
    # repartitionById puts row n into partition n exactly; a hash partitioning could leave tasks without work.
    rows = [(number, pickle.dumps(partition)) for number, partition in enumerate(partitions)]
    return session.createDataFrame(rows, _PARTITION).repartitionById(max(len(rows), 1), "number")


def read_partitions(read: Callable[[Any], Batches], tasks: Batches) -> Batches:
    """Yield what `read` makes of a task's partitions."""
    for batch in tasks:
        for pickled in batch["partition"].to_pylist():
            yield from read(pickle.loads(pickled))  # noqa: S301 - the driver's
