"""Messages in PySpark: the data source `rocketmq`, the lake of archived messages, and the pipeline's jobs.

    source/        the data source: batch and streaming reads of stores and live brokers, and writes
    lake/          archived messages as Parquet files with a key index, and their commit protocol
    jobs/          one module per job: a pure function over DataFrames or Arrow batches, and its driver
    session        Spark sessions, created when needed
    errors         Rucola's errors, through Spark's processes to the user
    class_archive  cached classes, for a faster start of the Java runtime
    worker_daemon  the process that forks Spark's Python workers

A read passes through these modules of source/, from options to rows:

    data_source -> options -> batch_reader or stream_reader        on the driver
        source_offsets      queues and logs with their offsets, and the ranges of a batch
        store_source        of store directories: log_boundaries, log_splits
        live_source         of live brokers: pull_partitions
        pushdown            filters of the query that the source evaluates
    log_reader or pull_partitions                                  on the workers
        record_layout       records located and validated
        columns             their fields as Arrow columns: byte_ranges, property_columns, arrays

A write passes through sink, row_messages, encoding (of the job replay) and delivery. `lag` computes a stream's backlog,
`catalog_tables` keeps options of `CREATE TABLE`.

If this package is installed, Spark finds the data source by itself (see `pyspark_rucola`). Nothing is imported here, so
that importing the package loads neither Spark nor Arrow.
"""
