"""The data source `rocketmq`: the messages of store directories as a table.

    spark.read.format("rocketmq").option("storePath", "/var/rocketmq/store").option("subscribe", "Flights").load()

`options` lists what can be said, `columns.SCHEMA` the columns. What a read sees:

    topics or queues chosen   what the ConsumeQueues make visible, as a consumer would see it: no half messages, nothing
                              that a broker has not dispatched yet
    otherwise                 the log itself, front to back, which is the fastest way through it: every whole record
                              that takes a place in a queue, dispatched yet or not

Half messages of transactions lie in a system topic of their own and come only with `includeSystemTopics` or by that
topic's name. System topics are left out unless they are named or asked for.

A store may be in use. Where its log ended when the query was planned is where the query ends; partitions carry
addresses and queue offsets, never data. Each worker opens the directory again, read-only, and decodes its stretches
in batches of `columns.BATCH_ROWS`.

A record that contradicts the format ends the query with StoreCorrupt, which names file and position. With
corruptRecords=skip it is left out and a warning tells how many were. Where the chain of the log itself is broken,
reading goes on at the next record to which a ConsumeQueue points, or with the next file; what lies between cannot
be counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.message import sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.spark import columns, planning
from rucola.spark.columns import Array, Damage, Records
from rucola.spark.options import Options, parse
from rucola.spark.planning import QueueRange, Stretch
from rucola.store.reader import LogFile, StoreReader

FORMAT = "rocketmq"

_log = logging.getLogger(__name__)

_SQL_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    columns.TIMESTAMP: "timestamp",
    columns.PROPERTIES: "map<string,string>",
    columns.SCHEMA.field("keys").type: "array<string>",
}


class RocketMQSource(DataSource):
    """The data source. Spark makes one from the options of each read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.parsed = parse(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl(self.parsed.columns)

    def reader(self, schema: StructType) -> RocketMQReader:
        return RocketMQReader(self.parsed, _columns_of(schema))


class RocketMQReader(DataSourceReader):
    """Plans a read on the driver and carries it out on the workers, which get a pickled copy."""

    def __init__(self, parsed: Options, names: tuple[str, ...]) -> None:
        self._options = parsed
        self._columns = names

    def partitions(self) -> Sequence[InputPartition]:
        return planning.plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where nothing is to be read.
        if isinstance(partition, Stretch):
            yield from read(partition, self._options, self._columns)


def register(session: SparkSession) -> None:
    """Make the data source known to a session. Where `pyspark_rucola` is on Python's path, Spark does so by itself."""
    session.dataSource.register(RocketMQSource)


def ddl(names: Sequence[str]) -> str:
    """Return the schema of these columns in Spark's words."""
    return ", ".join(f"{name} {_SQL_TYPES[columns.SCHEMA.field(name).type]}" for name in names)


def _columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a schema names; it may have been given by the user."""
    unknown = set(schema.names) - set(columns.SCHEMA.names)
    if unknown:
        raise ConfigError(
            f"the schema names {', '.join(sorted(unknown))}; columns are {', '.join(columns.SCHEMA.names)}"
        )
    names = tuple(schema.names)
    if not to_arrow_schema(schema, timezone="UTC").equals(columns.schema_of(names)):
        raise ConfigError(f"the schema must be {ddl(names)}")
    return names


class Found(NamedTuple):
    """Places in one file where records are expected, ascending.

    `ranges` and `queue_offsets` say which message each must be, as an index into the stretch's queues and its place
    there; they are None where the log itself is followed.
    """

    file: LogFile
    positions: Array
    sizes: Array
    ranges: Array | None = None
    queue_offsets: Array | None = None


class _Damaged:
    """What to do about damage: end the read, or count it."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self._count = 0
        self._first = ""

    def report(self, file: LogFile, damages: Sequence[Damage]) -> None:
        for damage in damages:
            error = StoreCorrupt(file.path, damage.physical_offset - file.begin, damage.why)
            if not self._skip:
                raise error
            self._first = self._first or str(error)
            self._count += 1

    def close(self, stretch: Stretch) -> None:
        if self._count:
            place = f"{stretch.store} between physical offsets {stretch.begin} and {stretch.end}"
            _log.warning("left out %d damaged records of %s; the first: %s", self._count, place, self._first)


def read(stretch: Stretch, chosen: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one stretch of a log as record batches of these columns, in the order of the log."""
    damaged = _Damaged(chosen.skip_corrupt_records)
    with StoreReader(stretch.store) as reader:
        find = _along_the_log if stretch.queues is None else _by_units
        for found in find(reader, stretch, damaged):
            log = reader.buffer(found.file)
            for cut in columns.batches(found.positions, found.sizes):
                records, damages = columns.locate(log, found.file.begin, found.positions[cut], found.sizes[cut])
                if stretch.queues is not None:
                    records, strangers = _as_expected(records, found, stretch.queues)
                    damages += strangers
                damaged.report(found.file, damages)
                records = records.where(_wanted(records, stretch, chosen))
                for batch, damages in columns.decode(records, names, broker_name=stretch.broker_name):
                    damaged.report(found.file, damages)
                    if batch.num_rows:
                        yield batch
    damaged.close(stretch)


def _along_the_log(reader: StoreReader, stretch: Stretch, damaged: _Damaged) -> Iterator[Found]:
    """Follow the log from record to record."""
    offset = stretch.begin
    while offset < stretch.end:
        file = _file_of(reader, offset)
        log = reader.buffer(file)
        position, end = offset - file.begin, min(stretch.end - file.begin, file.size)
        positions: list[int] = []
        whole = True
        while whole and position < end and len(positions) < columns.BATCH_ROWS:
            size, magic = FRAME.unpack_from(log, position) if position + FRAME.size <= file.size else (0, 0)
            whole = magic == MESSAGE_MAGIC and MIN_RECORD_SIZE <= size <= file.size - position
            if whole:
                positions.append(position)
                position += size
        if positions:
            begins = np.array(positions, np.int64)
            yield Found(file, begins, np.diff(begins, append=position))
        offset = file.begin + position
        if not whole and magic == BLANK_MAGIC and size == file.size - position:
            offset = file.begin + file.size
        elif not whole:
            damaged.report(file, [Damage(offset, "neither a record nor a blank begins here")])
            offset = planning.next_record(reader, offset + 1) or stretch.end


def _by_units(reader: StoreReader, stretch: Stretch, damaged: _Damaged) -> Iterator[Found]:
    """Go to the records to which the units of the stretch's queues point, in the order of their addresses."""
    assert stretch.queues is not None
    queues = LogFile(reader.path / "consumequeue", 0, 0)  # where the damage is when the log is not to blame
    units = [reader.units(each.topic, each.queue_id, each.begin, each.end) for each in stretch.queues]
    addresses = np.concatenate([each["physical_offset"] for each in units]).astype(np.int64)
    sizes = np.concatenate([each["size"] for each in units]).astype(np.int64)
    ranges = np.repeat(np.arange(len(units)), [len(each) for each in units])
    queue_offsets = np.concatenate([np.arange(each.begin, each.end) for each in stretch.queues])
    order = np.argsort(addresses, kind="stable")
    twice = np.flatnonzero(np.diff(addresses[order]) == 0)
    why = "two units of ConsumeQueues point at this physical offset"
    damaged.report(queues, [Damage(address, why) for address in addresses[order[twice]].tolist()])
    order = np.delete(order, twice)
    files = reader.commit_log_files
    outside = (addresses[order] < files[0].begin) | (addresses[order] >= files[-1].begin + files[-1].size)
    why = "a unit of a ConsumeQueue points at this physical offset, which the log does not hold"
    damaged.report(queues, [Damage(address, why) for address in addresses[order[outside]].tolist()])
    for file in files:
        inside = order[(addresses[order] >= file.begin) & (addresses[order] < file.begin + file.size)]
        if len(inside):
            positions = addresses[inside] - file.begin
            yield Found(file, positions, sizes[inside], ranges[inside], queue_offsets[inside])


def _as_expected(records: Records, found: Found, queues: Sequence[QueueRange]) -> tuple[Records, list[Damage]]:
    """Return the records that are the messages which the units promised, and the damage of the others."""
    assert found.ranges is not None
    assert found.queue_offsets is not None
    row = np.searchsorted(found.positions, records.places["begin"])
    code_of = {topic: code for code, topic in enumerate(records.topics.dictionary.to_pylist())}
    expected_codes = np.array([code_of.get(each.topic, -1) for each in queues])
    expected_ids = np.array([each.queue_id for each in queues])
    ranges = found.ranges[row]
    kept = (
        (records.topic_codes == expected_codes[ranges])
        & (records.heads["queue_id"] == expected_ids[ranges])
        & (records.heads["queue_offset"] == found.queue_offsets[row])
    )
    why = "a unit of a ConsumeQueue points at this record, which is of another queue or place"
    return records.where(kept), [Damage(address, why) for address in records.addresses(~kept).tolist()]


def _wanted(records: Records, stretch: Stretch, chosen: Options) -> Array:
    """Tell which records the read asks for."""
    stored = records.heads["store_timestamp"]
    wanted = np.ones(len(records), np.bool_)
    if chosen.starting_timestamp is not None:
        wanted &= stored >= chosen.starting_timestamp
    if chosen.ending_timestamp is not None:
        wanted &= stored < chosen.ending_timestamp
    if stretch.queues is None:
        names = records.topics.dictionary.to_pylist()
        topics = np.array([planning.is_chosen_topic(chosen, name) for name in names], np.bool_)
        wanted &= topics[records.topic_codes]
        # What takes no place in a queue was never there for anyone to consume.
        wanted &= (records.heads["sys_flag"] & sysflag.TRANSACTION_PREPARED) == 0
    return wanted


def _file_of(reader: StoreReader, physical_offset: int) -> LogFile:
    for file in reader.commit_log_files:
        if file.begin <= physical_offset < file.begin + file.size:
            return file
    raise StoreError(f"{reader.path} no longer holds physical offset {physical_offset}; it was deleted meanwhile")
