"""Tables of single topics, derived from the messages of a lake, with decoded bodies.

    topics.<topic>    the columns of `rucola.messages`, `value` and `_decode_error`; partitioned by day(storeTimestamp)

`rucola.messages` has every message, whether its body can be decoded or not. A table of a topic is derived from it,
by separate commits, after the commit of the messages. A wrong schema or an absent registry delays only this table,
which can be written again at any time.

A commit adds the files of new messages and sets two kinds of properties:

    rucola.progress.<name>     the archive progress up to which messages of a store or live broker are derived
    rucola.derived-through     the sequence number of the snapshot of `rucola.messages` that they come from

Files of `rucola.messages` up to that number are not opened again. Of later ones, which a compaction may have written,
messages below the progress are dropped. So a message is derived once, also after compactions by other engines.

**Schema.** Fields that a schema has in addition become columns, numbers become wider, and a column gets another name if
the schema says so by an alias or a field number. The property `rucola.field-names` has the names of each column, also
former ones, and its number as `#1`. Values of a type that a column cannot have are not decoded, and nothing stops.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.errors import MQError, RemotingError, StoreCorrupt, StoreError
from rucola.files import local_path
from rucola.spark.bodies.decoded import (
    TIMESTAMP,
    Decoded,
    Decoder,
    Values,
    aliases_of,
    fields_of,
    number_of,
    reason,
)
from rucola.spark.lake.catalogs import CommitRefused
from rucola.spark.lake.compaction import MIN_FILES, SMALL_SIZE
from rucola.spark.lake.data_files import MESSAGES, ROW_GROUP_SIZE, first_line, partition_directory
from rucola.spark.lake.parquet_files import by_partition, read_file
from rucola.spark.lake.runs import Run
from rucola.spark.lake.snapshot import ArchiveProgress, RowFile, check_exists
from rucola.spark.lake.storage import Storage
from rucola.spark.lake.tables import PROGRESS, LakeInUse, Tables, TopicTableError, Value, open_tables, partition_of
from rucola.spark.lake.writer import KEEP_REPLACED_MS, prepared
from rucola.spark.source.array_conversions import Array, bools, ints, mask

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType, NestedField, StructType

_THROUGH: Final = "rucola.derived-through"
_NAMES: Final = "rucola.field-names"
_MAX_BUFFERED: Final = 64 << 20
_VALUE: Final = "value"
_ERROR: Final = "_decode_error"


@dataclass(frozen=True)
class DerivedTopic:
    """The additions of a run to the table of a topic: messages, and of these the bodies not decoded, and one reason."""

    topic: str
    rows: int
    errors: int
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
        return {"topic": self.topic, "rows": self.rows, "errors": self.errors, "reason": self.reason}


def derive(
    root: str | Path,
    decoders: Mapping[str, Decoder],
    catalog: str | None = None,
    *,
    every_topic: bool = False,
    again: bool = False,
    keep_replaced_ms: int = KEEP_REPLACED_MS,
) -> list[DerivedTopic]:
    """Add new messages of a lake to the tables of the topics with a decoder, or of every topic.

    With `again`, these tables are emptied first, and get all messages that the lake has. Raises StoreError if there is
    no lake, LakeInUse if another run is writing; after all other topics RemotingError if a schema registry does not
    answer, or TopicTableError if the table of a topic cannot be continued.
    """
    if catalog is None:
        check_exists(local_path(root).resolve())
    results: list[DerivedTopic] = []
    failure: MQError | None = None
    with (
        prepared(root) if catalog is None else nullcontext(root) as place,
        open_tables(place, catalog) as tables,
    ):
        if tables is None:
            return results
        topics = sorted({file.topic for file in tables.snapshot().rows}) if every_topic else sorted(decoders)
        for topic in topics:
            try:
                derived = _Derivation(tables, topic, decoders.get(topic), again).run(keep_replaced_ms)
            except (RemotingError, LakeInUse) as error:
                failure = failure or error
            except MemoryError:
                raise
            except Exception as error:
                text = f"messages of {topic} are archived, but its table cannot be continued: {first_line(error)}"
                failure = failure or TopicTableError(text, topic)
            else:
                results += [] if derived is None else [derived]
    if failure is not None:
        raise failure
    return results


class _Derivation:
    """The messages of a topic that its table does not have yet."""

    def __init__(self, tables: Tables, topic: str, decoder: Decoder | None, again: bool) -> None:
        self._tables = tables
        self._topic = topic
        self._decoder = decoder
        self._again = again
        self._errors = 0
        self._reason: str | None = None

    def run(self, keep_replaced_ms: int) -> DerivedTopic | None:
        """Derive, commit and maintain; None if there is nothing new."""
        current = self._tables.messages.current_snapshot()
        existing = self._tables.topic(self._topic)
        known: Mapping[str, ArchiveProgress] = {}
        through = 0
        if existing is not None and self._decoder is None and _column(existing, _ERROR) is not None:
            return None  # which continues when the run has its decoder again
        if existing is not None and self._again:
            _empty(self._tables, existing)
        if existing is not None:
            known, through = self._tables.progress(existing), int(existing.properties.get(_THROUGH, 0))
        files = self._tables.row_files_after(through, self._topic)
        if current is None or not files:
            return None
        table = existing or self._tables.topic(self._topic, MESSAGES)
        assert table is not None
        run = Run(self._tables.storage, f"{self._tables.directory(table)}/data/staging")
        run.recover(partial(self._tables.delete_orphans_of, table), is_locked=self._tables.is_embedded)
        run.begin()
        rows = 0
        added: list[DataFile] = []
        for chunk in _chunks(self._new_messages(files, known)):
            rows += len(chunk)
            added += self._write(table, self._decoded(table, chunk))
        progress = {
            name: replace(each, queues={self._topic: each.queues.get(self._topic, {})}, messages={}, recreated={})
            for name, each in self._tables.progress().items()
        }
        # A change of the schema may have found the table that another run has continued.
        if (self._tables.progress(table), int(table.properties.get(_THROUGH, 0))) != (known, through):
            raise LakeInUse(f"another run has continued {table.location()}; run this one again")
        number = current.sequence_number or 0
        run.check_age()
        self._tables.commit(table, added, (), progress, {_THROUGH: str(number)})
        self._merge(table)
        run.end()
        self._tables.expire_table(table, keep_replaced_ms)
        return DerivedTopic(self._topic, rows, self._errors, self._reason)

    def _merge(self, table: Table) -> None:
        """Merge small files of a day, if there are several, into files that are not small."""
        by_day: dict[Value, list[tuple[str, int]]] = {}
        for path, file in zip(self._tables.paths(table), self._tables.files(table), strict=True):
            if file.file_size_in_bytes < SMALL_SIZE:
                by_day.setdefault(file.partition[0], []).append((path, file.file_size_in_bytes))
        merged: list[DataFile] = []
        replaced: list[str] = []
        for files in by_day.values():
            if len(files) < MIN_FILES:
                continue
            groups: dict[int, list[str]] = {}
            for (path, _), end in zip(files, np.cumsum([size for _, size in files]).tolist(), strict=True):
                groups.setdefault(end // SMALL_SIZE, []).append(path)
            for group in groups.values():
                merged += self._write(table, _read(table, self._tables.storage, group))
                replaced += group
        if replaced:
            self._tables.commit(table, merged, replaced)

    def _write(self, table: Table, rows: pa.RecordBatch) -> list[DataFile]:
        """Write rows by day, durably; return the files, `<table>/data/date=<day>/<unique>-00000.parquet`."""
        files = []
        for topic, day, part in by_partition(rows):
            date = partition_directory(topic, day).partition("/")[2]
            path = f"{self._tables.directory(table)}/data/{date}/{uuid.uuid4().hex}-00000.parquet"
            size = max(1, len(part) * ROW_GROUP_SIZE // max(part.nbytes, 1))
            written = pa.Table.from_batches([part])
            with self._tables.storage.writing(path) as stream:
                pq.write_table(written, stream, row_group_size=size, compression="zstd", write_page_index=True)
            self._tables.storage.sync([path])
            files.append(self._tables.data_file(table, path, partition_of(topic, day)[:1]))
        return files

    def _new_messages(self, files: Sequence[RowFile], known: Mapping[str, ArchiveProgress]) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in read_file(self._tables.storage, file, MESSAGES.names):
                yield batch.filter(mask(_is_new(batch, known, self._topic))) if known else batch

    def _decoded(self, table: Table, messages: pa.RecordBatch) -> pa.Table:
        """Return the rows of a table for messages, after adapting its schema."""
        if self._decoder is None:
            return _conformed_rows(table, messages, [], {})
        bodies = messages["body"]
        usable = bools(pc.and_(bodies.is_valid(), messages["bodyError"].is_null()))
        decoded = Decoded()
        for row in np.flatnonzero(~usable).tolist():
            decoded.errors[row] = messages["bodyError"][row].as_py() or "no body"
        decoded.add(np.flatnonzero(usable), self._decoder.decode(bodies.filter(mask(usable)), value_type(table)))
        values = []
        for each in decoded.values:
            try:
                adapt_schema(table, each.declared)
                values.append(each)
            except Incompatible as error:
                decoded.errors.update(dict.fromkeys(each.rows.tolist(), reason(error)))
        self._errors += len(decoded.errors)
        self._reason = self._reason or next(iter(decoded.errors.values()), None)
        return _conformed_rows(table, messages, values, decoded.errors)


def _empty(tables: Tables, table: Table) -> None:
    """Take all rows and the type of the values from a table, and its progress, at once."""
    keys = [key for key in table.properties if key == _THROUGH or key.startswith(PROGRESS)]
    files = tables.files(table)
    try:
        with table.transaction() as transaction:
            if _column(table, _VALUE) is not None:
                with transaction.update_schema() as update:
                    update.delete_column(_VALUE)
            if keys:
                transaction.remove_properties(*keys)
            if files:
                with transaction.update_snapshot().overwrite() as producer:
                    for file in files:
                        producer.delete_data_file(file)
    except Exception as error:
        raise StoreError(f"{table.location()}: the table cannot be emptied: {first_line(error)}") from error


def _is_new(batch: pa.RecordBatch, known: Mapping[str, ArchiveProgress], topic: str) -> Array:
    """Return which messages are not below the progress."""
    names = batch["brokerName"].dictionary_encode()
    own, result = ints(names.indices), np.ones(len(batch), bool)
    for number, name in enumerate(names.dictionary.to_pylist()):
        progress = known.get(name)
        if progress is None:
            continue
        if progress.is_live:
            ends = {int(queue): end for queue, end in progress.queues.get(topic, {}).items()}
            begins = np.array([ends.get(queue, 0) for queue in batch["queueId"].to_pylist()], np.int64)
            is_new = ints(batch["queueOffset"]) >= begins
        else:
            is_new = ints(batch["commitLogOffset"]) >= progress.physical_offset
        result &= (own != number) | is_new
    return result


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches together, each of about `_MAX_BUFFERED` bytes."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if len(batch):
            parts.append(batch)
            size += batch.nbytes
        if size >= _MAX_BUFFERED:
            yield pa.concat_batches(parts)
            parts, size = [], 0
    if parts:
        yield pa.concat_batches(parts)


def _read(table: Table, storage: Storage, paths: Iterable[str]) -> pa.RecordBatch:
    """Return the rows of files with the columns that the table has now, in the order of the log."""
    kind = table.schema().as_struct()
    # Not by pyiceberg, for which a null list is an empty one.
    parts = []
    for path in paths:
        try:
            with storage.reading(path) as source:
                read = pq.ParquetFile(source, page_checksum_verification=True).read()
        except (pa.ArrowException, OSError) as error:
            why = f"the file cannot be read: {first_line(error)}"
            advice = "`rucola pipeline decode --again` writes the table anew"
            raise StoreCorrupt(storage.place(path), 0, f"{why}; {advice}") from error
        parts += [_conformed(array, kind, {}) for array in read.to_struct_array().chunks]
    rows = pa.RecordBatch.from_struct_array(pa.concat_arrays(parts))
    return rows.take(pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")]))


# -- schema ------------------------------------------------------------------------------------------------------------


class Incompatible(Exception):
    """A schema with a type that a column of the table cannot have."""


def value_type(table: Table) -> pa.StructType | None:
    """Return the type of a table's values, None without a value yet."""
    column = _column(table, _VALUE)
    return None if column is None else _arrow(column.field_type)


def adapt_schema(table: Table, declared: pa.StructType | None) -> None:
    """Give a table the columns of its values' type, in a separate commit. Raises Incompatible.

    Another run may do the same at the same time: each looks at what the table has become.
    """
    fields = [pa.field(_ERROR, pa.string())]
    if declared is not None and declared.num_fields:
        fields.insert(0, pa.field(_VALUE, declared))
    wanted = pa.struct(fields)
    while True:
        names = _names(table.properties)
        changes = _changes(table.schema().as_struct(), wanted, names, ())
        if not changes and _with_names(table.schema().as_struct(), wanted, names) == names:
            return
        try:
            with table.transaction() as transaction:
                if changes:
                    with transaction.update_schema() as update:
                        for change in changes:
                            change(update)
                columns = transaction.table_metadata.schema().as_struct()
                transaction.set_properties({_NAMES: json.dumps(_with_names(columns, wanted, names))})
        except Exception as error:
            table.refresh()
            if not _changes(table.schema().as_struct(), wanted, _names(table.properties), ()):
                return
            if not isinstance(error, CommitRefused):
                raise StoreError(f"{table.location()}: the schema cannot be changed: {first_line(error)}") from error


def _names(properties: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(properties.get(_NAMES, "{}"))
    return found


def _column(table: Table, name: str) -> NestedField | None:
    return next((each for each in table.schema().fields if each.name == name), None)


def _matching(field: pa.Field, columns: StructType, names: Mapping[str, list[str]]) -> NestedField | None:
    """Return the column of a field: by its id, its number, its name or former names, or former names of the column."""
    identity = (field.metadata or {}).get(b"PARQUET:field_id")
    if identity is not None:
        return next((each for each in columns.fields if each.field_id == int(identity)), None)
    number = number_of(field)
    had = {each.field_id: names.get(str(each.field_id), []) for each in columns.fields}
    if number is not None:
        for each in columns.fields:
            if f"#{number}" in had[each.field_id]:
                return each
    for candidates in ([field.name], aliases_of(field)):
        for each in columns.fields:
            has_other_number = number is not None and any(name.startswith("#") for name in had[each.field_id])
            if each.name in candidates and not has_other_number:
                return each
    return next((each for each in columns.fields if {field.name, *aliases_of(field)} & {*had[each.field_id]}), None)


def _changes(
    columns: StructType, wanted: pa.StructType, names: Mapping[str, list[str]], path: tuple[str, ...]
) -> list[Callable[[UpdateSchema], Any]]:
    """Return what makes the columns of a struct those of a type."""
    found: list[Callable[[UpdateSchema], Any]] = []
    for field in fields_of(wanted):
        column = _matching(field, columns, names)
        place = (*path, field.name)
        if column is None:
            similar = [each.name for each in columns.fields if each.name.lower() == field.name.lower()]
            if similar:
                raise Incompatible(f"{'.'.join(place)}: the table has another column {similar[0]}")
            found.append(partial(_add, place, _iceberg(field.type)))
            continue
        # An older schema does not give a column its older name again.
        if column.name != field.name and field.name not in names.get(str(column.field_id), ()):
            found.append(partial(_rename, (*path, column.name), field.name))
        found += _type_changes(column.field_type, field.type, names, (*path, column.name))
    return found


def _type_changes(
    kind: IcebergType, wanted: pa.DataType, names: Mapping[str, list[str]], path: tuple[str, ...]
) -> list[Callable[[UpdateSchema], Any]]:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType) and pa.types.is_struct(wanted):
        return _changes(kind, wanted, names, path)
    if isinstance(kind, ListType) and pa.types.is_list(wanted):
        return _type_changes(kind.element_type, wanted.value_type, names, (*path, "element"))
    if isinstance(kind, MapType) and pa.types.is_map(wanted):
        return _type_changes(kind.value_type, wanted.item_type, names, (*path, "value"))
    target = _iceberg(wanted)
    if target == kind or _is_wider(kind, target):
        return []
    if _is_wider(target, kind):
        return [partial(_widen, path, target)]
    raise Incompatible(f"{'.'.join(path)} is {_shown(target)} in the schema, but {_shown(kind)} in the table")


def _shown(kind: IcebergType) -> str:
    return str(kind).partition("<")[0]


def _add(path: tuple[str, ...], kind: IcebergType, update: UpdateSchema) -> None:
    update.add_column(path, kind)


def _rename(path: tuple[str, ...], name: str, update: UpdateSchema) -> None:
    update.rename_column(path, name)


def _widen(path: tuple[str, ...], kind: IcebergType, update: UpdateSchema) -> None:
    update.update_column(path, kind)


def _is_wider(kind: IcebergType, other: IcebergType) -> bool:
    """Return whether Iceberg can make a column of type `other` one of type `kind`."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    if isinstance(kind, DecimalType) and isinstance(other, DecimalType):
        return kind.scale == other.scale and kind.precision > other.precision
    return (type(kind), type(other)) in ((LongType, IntegerType), (DoubleType, FloatType))


def _with_names(columns: StructType, wanted: pa.DataType, names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the names by column with those of a type, whose fields the columns have."""
    from pyiceberg.types import StructType

    result = {key: [*value] for key, value in names.items()}
    current = {each.name for each in columns.fields}
    for field in fields_of(wanted):
        column = _matching(field, columns, names)
        if column is None:
            continue
        number = number_of(field)
        has = [column.name, field.name, *aliases_of(field), *(() if number is None else (f"#{number}",))]
        known = result.get(str(column.field_id), [])
        own = [name for name in (*known, *has) if name == column.name or name not in current]
        result[str(column.field_id)] = [*dict.fromkeys(own)]
        inner, kind = _inside(column.field_type, field.type)
        if isinstance(inner, StructType) and pa.types.is_struct(kind):
            result = _with_names(inner, kind, result)
    return result


def _inside(kind: IcebergType, wanted: pa.DataType) -> tuple[IcebergType, pa.DataType]:
    """Return the types of the elements of lists and values of maps."""
    from pyiceberg.types import ListType, MapType

    if isinstance(kind, ListType) and pa.types.is_list(wanted):
        return _inside(kind.element_type, wanted.value_type)
    if isinstance(kind, MapType) and pa.types.is_map(wanted):
        return _inside(kind.value_type, wanted.item_type)
    return kind, wanted


def _primitives() -> list[tuple[pa.DataType, IcebergType]]:
    from pyiceberg import types

    return [
        (pa.bool_(), types.BooleanType()),
        (pa.int32(), types.IntegerType()),
        (pa.int64(), types.LongType()),
        (pa.float32(), types.FloatType()),
        (pa.float64(), types.DoubleType()),
        (pa.string(), types.StringType()),
        (pa.binary(), types.BinaryType()),
        (pa.date32(), types.DateType()),
        (pa.time64("us"), types.TimeType()),
        (pa.timestamp("us"), types.TimestampType()),
        (TIMESTAMP, types.TimestamptzType()),
    ]


def _iceberg(kind: pa.DataType) -> IcebergType:
    """Return the Iceberg type; the table gives its fields their ids."""
    from pyiceberg.types import DecimalType, ListType, MapType, NestedField, StructType

    if pa.types.is_struct(kind):
        return StructType(*(NestedField(0, each.name, _iceberg(each.type), required=False) for each in fields_of(kind)))
    if pa.types.is_list(kind):
        return ListType(0, _iceberg(kind.value_type), element_required=False)
    if pa.types.is_map(kind):
        return MapType(0, _iceberg(kind.key_type), 0, _iceberg(kind.item_type), value_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return next(target for own, target in _primitives() if own == kind)


def _arrow(kind: IcebergType) -> pa.DataType:
    """Return the Arrow type, whose fields have the ids of the columns."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(each) for each in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(_arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return next(own for own, target in _primitives() if target == kind)


def _arrow_field(each: NestedField) -> pa.Field:
    metadata = {"PARQUET:field_id": str(each.field_id)}
    return pa.field(each.name, _arrow(each.field_type), nullable=not each.required, metadata=metadata)


# -- rows --------------------------------------------------------------------------------------------------------------


def _conformed_rows(
    table: Table, messages: pa.RecordBatch, values: Sequence[Values], errors: Mapping[int, str]
) -> pa.RecordBatch:
    """Return messages with their values and reasons as rows of a table; the body of a value is left to the lake."""
    names = _names(table.properties)
    arrays, fields = [], []
    value, is_decoded = None, None
    column = _column(table, _VALUE)
    if column is not None:
        parts = [_conformed(each.structs, column.field_type, names) for each in values]
        parts.append(pa.nulls(1, _arrow(column.field_type)))
        rows = np.full(len(messages), sum(map(len, parts)) - 1)
        for each, begin in zip(values, np.cumsum([0, *map(len, parts)]), strict=False):
            rows[each.rows] = begin + np.arange(len(each.rows))
        value = pa.concat_arrays(parts).take(pa.array(rows))
        is_decoded = value.is_valid()
    reasons = pa.array([errors.get(row) for row in range(len(messages))], pa.string())
    for field in map(_arrow_field, table.schema().fields):
        if field.name == _VALUE and value is not None:
            array = value
        elif field.name == _ERROR:
            array = reasons
        elif field.name == "body" and is_decoded is not None:
            array = pc.if_else(is_decoded, pa.scalar(None, pa.binary()), messages["body"])
        elif field.name in messages.schema.names:
            array = messages[field.name]
        else:  # that another engine has added
            array = pa.nulls(len(messages), field.type)
        arrays.append(array.cast(field.type))
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _conformed(array: pa.Array, kind: IcebergType, names: Mapping[str, list[str]]) -> pa.Array:
    """Return decoded values with the columns of a table."""
    from pyiceberg.types import ListType, MapType, StructType

    target = _arrow(kind)
    if isinstance(kind, StructType):
        found: dict[int, list[pa.Array]] = {}
        for number, field in enumerate(fields_of(array.type)):
            column = _matching(field, kind, names)
            if column is not None:
                found.setdefault(column.field_id, []).append(_conformed(array.field(number), column.field_type, names))
        children = [
            pc.coalesce(*found[each.field_id])
            if len(found.get(each.field_id, ())) > 1
            else found.get(each.field_id, [pa.nulls(len(array), _arrow(each.field_type))])[0]
            for each in kind.fields
        ]
        return pa.StructArray.from_arrays(children, fields=fields_of(target), mask=array.is_null())
    if isinstance(kind, ListType):
        values = _conformed(array.values, kind.element_type, names)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=array.is_null())
    if isinstance(kind, MapType):
        values = _conformed(array.items, kind.value_type, names)
        return pa.MapArray.from_arrays(array.offsets, array.keys, values, type=target, mask=array.is_null())
    return array.cast(target)
