"""The data source `rocketmq`: the messages of store directories or live brokers as a table, a stream and a sink.

    spark.read.format("rocketmq").option("storePath", "/var/rocketmq/store").option("subscribe", "Flights").load()
    spark.readStream.format("rocketmq").option("nameServer", "host:9876").option("subscribe", "Flights").load()

`options` lists what can be said, `schema.COLUMNS` the columns. What a read sees:

    topics or queues chosen   what the ConsumeQueues make visible, as a consumer would see it: no half messages, nothing
    or live brokers           that a broker has not dispatched yet
    otherwise                 the log itself, front to back, which is the fastest way through it: every whole record
                              that takes a place in a queue, dispatched yet or not

Half messages of transactions lie in a system topic of their own and come only with `includeSystemTopics` or by that
topic's name. System topics are left out unless they are named or asked for.

A store may be in use. Where its log or its queues ended when the query, or the batch of a stream, was planned is where
that ends; partitions carry addresses and queue offsets, never data. Each worker opens the directory again, read-only,
or pulls from the broker, and decodes records in batches of `record_layout.BATCH_ROWS`.

A record that contradicts the format ends the query with StoreCorrupt, which names file and position. With
corruptRecords=skip it is left out and a warning tells how many were; with corruptRecords=column it is a row that says
why, whatever else the options choose, since nothing can be known of it. Where the chain of the log itself is broken,
reading goes on at the next record to which a ConsumeQueue points, or with the next file; what lies between cannot
be counted.

Spark asks for this module in several short-lived processes that read nothing. What reads is therefore imported by the
methods that make a reader.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from rucola.errors import ConfigError, MQError
from rucola.spark.errors import without_tracebacks
from rucola.spark.source.catalog_tables import options_in, options_of_new_table, readable, schema_of_table, writable
from rucola.spark.source.options import (
    ReadOptions,
    SinkOptions,
    check_for_batch,
    check_for_stream,
    parse_read_options,
    parse_sink_options,
)
from rucola.spark.source.schema import TYPES, ddl

if TYPE_CHECKING:
    from rucola.spark.source.batch_reader import RocketMQReader
    from rucola.spark.source.sink import RocketMQStreamWriter, RocketMQWriter

FORMAT = "rocketmq"


@without_tracebacks
class RocketMQSource(DataSource):
    """The data source. Spark makes one from the options of each read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str | StructType:
        table = options_of_new_table(self._given, FORMAT)
        if table is not None:
            return schema_of_table(parse_read_options(readable(table)).columns, table)
        columns = parse_read_options(self._given).columns
        return ddl(columns) if columns else StructType()

    def reader(self, schema: StructType) -> RocketMQReader:
        from rucola.spark.source.batch_reader import (  # here, since it takes Arrow
            RocketMQPushdownReader,
            RocketMQReader,
        )

        options = self._for_reading(schema)
        check_for_batch(options)
        kind = RocketMQPushdownReader if options.push_filters else RocketMQReader
        return kind(options, _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from rucola.spark.source.stream_reader import (  # here, since it takes Arrow
            RefusedStreamReader,
            RocketMQStreamReader,
        )

        try:
            options = self._for_reading(schema)
            check_for_stream(options)
        except MQError as error:
            return RefusedStreamReader(error)
        return RocketMQStreamReader(options, _columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        from rucola.spark.source.sink import RocketMQWriter  # here, since it takes a client

        _refuse_overwriting(overwrite)
        return RocketMQWriter(self._for_writing(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 - Spark's name
        from rucola.spark.source.sink import RocketMQStreamWriter  # here, since it takes a client

        _refuse_overwriting(overwrite)
        return RocketMQStreamWriter(self._for_writing(schema), schema)

    def _for_reading(self, schema: StructType) -> ReadOptions:
        return parse_read_options(readable(options_in(schema, self._given)) | self._given)

    def _for_writing(self, schema: StructType) -> SinkOptions:
        return parse_sink_options(writable(options_in(schema, self._given)) | self._given)


def register(session: SparkSession) -> None:
    """Make the data source known to a session. Where `pyspark_rucola` is on Python's path, Spark does so by itself."""
    session.dataSource.register(RocketMQSource)


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("messages cannot be overwritten, nor a result that changes be sent; write in mode append")


def _columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a schema names; it may have been given by the user."""
    unknown = set(schema.names) - set(TYPES)
    if unknown:
        raise ConfigError(f"the schema names {', '.join(sorted(unknown))}; columns are {', '.join(TYPES)}")
    names = tuple(schema.names)
    if any(field.dataType.simpleString() != TYPES[field.name] for field in schema.fields):
        raise ConfigError(f"the schema must be {ddl(names)}")
    return names
