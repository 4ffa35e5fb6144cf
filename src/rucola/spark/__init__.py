"""Messages in PySpark: the data source `rocketmq`, the lake of archived messages, and pipeline jobs.

    source/            the data source: batch and streaming reads of stores and live brokers, and writes
    archive            archived messages: append, scan, lookup by key, verify
    lake/              the archive's format: Iceberg tables of messages and of their keys
    jobs/              one module per job: a pure function over DataFrames or Arrow batches, and its driver
    session            Spark sessions, created when needed
    shared_files       checks that driver and tasks see the same directories
    error_translation  Rucola's errors, through Spark's processes to the user
    class_archive      cached classes, for a faster start of the Java runtime
    interruption       Ctrl-C during a job
    worker_daemon      the process that forks Spark's Python workers

A read passes through these modules of source/, from options to rows:

    data_source -> options -> batch_reader or stream_reader        on the driver
        source_offsets      queues and logs with their offsets, and the ranges of a batch
        store_source        of store directories: log_boundaries, log_splits
        live_source         of live brokers: pull_partitions
        pushdown            filters of the query that the source evaluates
    log_reader or pull_partitions, record_decoder                  on the workers
        record_layout       records located and validated
        columns             their fields as Arrow columns: byte_ranges, property_columns, array_conversions

A write passes through sink and row_messages to the client. `lag` computes a stream's backlog,
`catalog_tables` keeps options of `CREATE TABLE`.

Spark finds the data source by itself (see `pyspark_rucola`) if its Python processes run an interpreter that has this
package. Spark runs PYSPARK_PYTHON, or else the first `python3` on PATH. Therefore importing this package sets
PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to this interpreter unless they are set or spark-submit runs, for sessions
created later; `register` makes the data source known to an existing session.

Importing the package loads neither Spark nor Arrow.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

if "PYSPARK_GATEWAY_PORT" not in os.environ:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def register(spark: SparkSession) -> None:
    """Register the data source with an existing session; its Python processes then run PYSPARK_PYTHON."""
    from pyspark.sql.utils import is_remote

    from rucola.spark.source.data_source import RocketMQSource

    if "PYSPARK_PYTHON" in os.environ and not is_remote():
        spark.sparkContext.pythonExec = os.environ["PYSPARK_PYTHON"]
    spark.dataSource.register(RocketMQSource)
