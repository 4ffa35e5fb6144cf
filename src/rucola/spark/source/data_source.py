"""The data source `rocketmq`: messages as a table, a stream and a sink.

    spark.read.format("rocketmq").option("storePath", "/var/rocketmq/store").option("subscribe", "Flights").load()
    spark.readStream.format("rocketmq").option("nameServer", "host:9876").option("subscribe", "Flights").load()

`options` documents the options, `schema.COLUMNS` the columns. With topics or queues, or from live brokers, a read has
the messages in the ConsumeQueues, as consumers see them; otherwise all whole records of the log except half messages,
dispatched or not, in log order. System topics are read only if they are named or with `includeSystemTopics`.

A store may be in use: its ends are determined when a query, or a batch of a stream, is planned.

A record that contradicts the format ends the query with StoreCorrupt, unless corruptRecords allows it. After a break in
the chain of records, reading continues at the next record that a ConsumeQueue points at, or with the next file; records
in between cannot be counted.

Spark imports this module in several short-lived processes that read nothing. Therefore the methods that make a reader
or writer import what these need.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from rucola.errors import ConfigError, MQError
from rucola.spark.error_translation import without_tracebacks
from rucola.spark.source.catalog_tables import options_in, options_of_new_table, readable, schema_of_table, writable
from rucola.spark.source.options import (
    ReadOptions,
    SinkOptions,
    check_for_batch,
    check_for_stream,
    parse_read_options,
    parse_sink_options,
    with_default_source,
)
from rucola.spark.source.schema import TYPES, ddl

if TYPE_CHECKING:
    from rucola.spark.source.batch_reader import RocketMQReader
    from rucola.spark.source.sink import RocketMQStreamWriter, RocketMQWriter

FORMAT = "rocketmq"


@without_tracebacks
class RocketMQSource(DataSource):
    """Data source that Spark instantiates with the options of each read, write or table."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str | StructType:
        table = options_of_new_table(self._given, FORMAT)
        if table is not None:
            table = with_default_source(table)
            return schema_of_table(parse_read_options(readable(table)).columns, table)
        columns = parse_read_options(with_default_source(self._given)).columns
        return ddl(columns) if columns else StructType()

    def reader(self, schema: StructType) -> RocketMQReader:
        from rucola.spark.source.batch_reader import (  # imports Arrow
            RocketMQPushdownReader,
            RocketMQReader,
        )

        options = self._for_reading(schema)
        check_for_batch(options)
        kind = RocketMQPushdownReader if options.push_filters else RocketMQReader
        return kind(options, _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from rucola.spark.source.stream_reader import (  # imports Arrow
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
        from rucola.spark.source.sink import RocketMQWriter  # imports a client

        _refuse_overwriting(overwrite)
        return RocketMQWriter(self._for_writing(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 - Spark's name
        from rucola.spark.source.sink import RocketMQStreamWriter  # imports a client

        _refuse_overwriting(overwrite)
        return RocketMQStreamWriter(self._for_writing(schema), schema)

    def _for_reading(self, schema: StructType) -> ReadOptions:
        return parse_read_options(with_default_source(readable(options_in(schema, self._given)) | self._given))

    def _for_writing(self, schema: StructType) -> SinkOptions:
        # The default depends on all options: a table of a store has no brokers to write to.
        return parse_sink_options(
            writable(with_default_source(options_in(schema, self._given) | self._given)) | self._given
        )


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("messages cannot be overwritten or updated; write in mode append")


def _columns_of(schema: StructType) -> tuple[str, ...]:
    unknown = set(schema.names) - set(TYPES)
    if unknown:
        raise ConfigError(
            f"unknown columns in the schema: {', '.join(sorted(unknown))}; the columns are {', '.join(TYPES)}"
        )
    names = tuple(schema.names)
    if any(field.dataType.simpleString() != TYPES[field.name] for field in schema.fields):
        raise ConfigError(f"the schema must be {ddl(names)}")
    return names
