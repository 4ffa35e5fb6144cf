"""Records of a CommitLog as Arrow columns, thousands at a time.

A record is 88 fixed bytes (up to 112 with IPv6 hosts) with body, topic and properties behind them;
`rucola.message.record` draws it. Reading one in Python takes some ten microseconds, so here no step goes over the
rows of a batch one by one:

    heads        the fixed bytes of every record are copied at once into a numpy structured array, whose
                 big-endian fields are the columns
    strings      a variable part of all records is one Arrow array over the untouched log: part, gap, part, gap ...;
                 taking every other element puts the parts side by side
    properties   one scan for the separators 0x01 and 0x02 gives all names and values of the batch as such parts
    hosts        few differ, so only the distinct ones are printed
    ids          hexadecimal through a table, two bytes at a time

What is irregular leaves the fast way alone, row by row: properties that are malformed, repeated or no UTF-8 go
through `rucola.message.properties.parse`, compressed bodies through `rucola.message.compression.decompress`. Only
the CRC of the bodies is one call a record. The result is that of `rucola.message.record.decode`.

Nothing in a log is trusted: a record that contradicts the format (size, magic, own address, lengths that do not
add up, CRC, a body that cannot be decompressed) is left out of the batch and reported as `DamagedRecord`.

Limits: callers keep a batch near `BATCH_ROWS` and `BATCH_SIZE` (see `batches`); one whose bodies grow beyond 512 MiB
when they are decompressed is decoded in halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from rucola.errors import InvalidMessage
from rucola.message import properties, sysflag
from rucola.message.compression import decompress
from rucola.message.host import decode_host
from rucola.message.record import HEAD, MESSAGE_MAGIC, MIN_RECORD_SIZE, Buffer
from rucola.spark.source.arrays import Array, arrow, ints, mask, repeated, strings
from rucola.spark.source.schema import COLUMNS, CORRUPT

BATCH_ROWS: Final = 16 * 1024
"""Rows to decode at once: enough to forget the cost of a call, few enough for the processor's caches."""

BATCH_SIZE: Final = 32 * 1024 * 1024
"""Bytes of log to decode at once, which bounds a batch of large messages."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
    "map<string,string>": PROPERTIES,
    "array<string>": pa.list_(pa.field("element", pa.string())),
}

SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
"""The columns of a message (see `schema`) as Arrow has them."""

_NUMBERS: Final = {
    "flag": "flag",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "commitLogOffset": "physical_offset",
    "storeSize": "size",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
}
"""Columns that are a number in the fixed part of a record, and its name there."""

_BORN_HOST: Final = 48
_STORE_HOST: Final = 64
_BEHIND_HOSTS: Final = np.dtype(HEAD.descr[12:])
"""The fields after storeHost, which IPv6 hosts push back."""

_HOST: Final = np.dtype([("address", ">u4"), ("port", ">u4")])

_LAYOUT: Final = np.dtype(
    [(name, np.int64) for name in ("begin", "store_host", "body", "topic", "properties_size", "properties", "end")]
)
"""Where in its file the parts of a record begin; a part ends where the fields before the next one begin."""

_SMALL_BODY: Final = 512
"""Bytes on average below which copies of bodies take less time than views: 80 ns instead of 170 for 100 bytes."""
_MAX_BODIES_SIZE: Final = 512 * 1024 * 1024
_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().upper().encode(), np.uint32)
"""The four hexadecimal digits of every two bytes."""


class _BodiesTooLarge(Exception):
    """Bodies of several records that together are too large to be decompressed into one array."""


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A record that cannot be read: where it stands in the CommitLog, and why."""

    physical_offset: int
    why: str


@dataclass(frozen=True)
class PropertyColumns:
    """The properties of a batch of records: those of row k are the names and values from offsets[k] to offsets[k+1]."""

    offsets: Array
    names: pa.DictionaryArray
    values: pa.StringArray

    @cached_property
    def rows(self) -> Array:
        """The row to which each name and value belongs."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def _codes(self) -> dict[str, int]:
        """The code of each name."""
        return {name: code for code, name in enumerate(self.names.dictionary.to_pylist())}

    def as_map(self) -> pa.MapArray:
        """Return one map a row."""
        return pa.MapArray.from_arrays(arrow(self.offsets), self.names.dictionary_decode(), self.values)

    def values_of(self, name: str) -> pa.StringArray:
        """Return the value of one property in each row, null where a row has none of that name."""
        code = self._codes.get(name, -1)
        found = np.flatnonzero(ints(self.names.indices) == code)
        index = np.full(len(self.offsets) - 1, -1, np.int32)
        index[self.rows[found]] = found
        return self.values.take(arrow(index, index >= 0))

    def rows_with_repeats(self) -> Array:
        """Return the rows in which a name occurs more than once."""
        place = np.sort(self.rows * len(self.names.dictionary) + ints(self.names.indices))
        repeated = place[1:][place[1:] == place[:-1]]
        return np.unique(repeated // len(self.names.dictionary)) if len(repeated) else repeated


@dataclass(frozen=True)
class Records:
    """Sound records of one CommitLog file, in the order of their addresses.

    `log` is the file as bytes; it is borrowed, while every column made from it is a copy. `heads` holds the fixed
    fields, `layout` where the variable ones stand, `topics` the topic of each with each name once in its dictionary.
    """

    log: Array
    heads: Array
    layout: Array
    topics: pa.DictionaryArray

    def __len__(self) -> int:
        return len(self.heads)

    def where(self, kept: Array) -> Records:
        """Return the records for which `kept` is true."""
        if kept.all():
            return self
        return Records(self.log, self.heads[kept], self.layout[kept], self.topics.filter(mask(kept)))

    def addresses(self, rows: Array) -> Array:
        """Return the physical offsets of the records for which `rows` is true."""
        return self.heads["physical_offset"][rows]

    @property
    def topic_codes(self) -> Array:
        """The topic of each record as an index into the dictionary of `topics`."""
        return ints(self.topics.indices)

    @cached_property
    def properties(self) -> PropertyColumns:
        """The properties of each record, without repeated names."""
        return parse_properties(self.log, self.layout["properties"], self.layout["end"])

    def body_crcs(self) -> Array:
        """Return the CRC of each body as it is on disk, cut to 31 bits as records hold it."""
        begins, ends = self.layout["body"], self.layout["topic"] - 1
        bodies: Iterable[Buffer]
        if (ends - begins).sum() < _SMALL_BODY * len(self):
            bodies = _gather(self.log, begins, ends).to_pylist()
        else:
            log = memoryview(self.log)  # type: ignore[arg-type]  # an array is a buffer
            bodies = map(log.__getitem__, map(slice, begins.tolist(), ends.tolist()))
        return np.fromiter(map(crc32, bodies), np.uint32, len(self)) & np.uint32(0x7FFFFFFF)

    def bodies(self) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the bodies, decompressed, and for each row whose body cannot be decompressed why not.

        Raises _BodiesTooLarge when they are many and together too large for one array.
        """
        stored = _gather(self.log, self.layout["body"], self.layout["topic"] - 1)
        flags = self.heads["sys_flag"]
        compressed = np.flatnonzero(flags & sysflag.COMPRESSED)
        if not len(compressed):
            return stored, {}
        plain: list[bytes] = []
        broken: dict[int, str] = {}
        size = stored.nbytes
        for row in compressed.tolist():
            try:
                plain.append(decompress(stored[row].as_buffer(), int(flags[row])))
            except InvalidMessage as error:
                plain.append(b"")
                broken[row] = str(error)
            size += len(plain[-1])
            if size > _MAX_BODIES_SIZE and len(self) > 1:
                raise _BodiesTooLarge
        return _replace(stored, compressed, strings(plain, pa.binary())), broken

    def hosts(self, field: str) -> pa.StringArray:
        """Return born_host or store_host, each as address:port."""
        v6 = sysflag.BORN_HOST_V6 if field == "born_host" else sysflag.STORE_HOST_V6
        is_wide = (self.heads["sys_flag"] & v6) != 0
        packed = arrow(np.where(is_wide, 0, self.heads[field].view(np.int64))).dictionary_encode()
        texts = [decode_host(host).encode() for host in ints(packed.dictionary).view("V8").tolist()]
        hosts = strings(texts).take(packed.indices)
        wide = np.flatnonzero(is_wide)
        if not len(wide):
            return hosts
        begin = self.layout["begin"] + _BORN_HOST if field == "born_host" else self.layout["store_host"]
        packed = fields_at(self.log, begin[wide], np.dtype("V20"))
        return _replace(hosts, wide, strings([decode_host(host).encode() for host in packed.tolist()]))

    def offset_msg_ids(self) -> pa.StringArray:
        """Return the offsetMsgIds: storeHost and physical offset, in hexadecimal."""
        packed = np.empty(len(self), [("host", "V8"), ("physical_offset", ">i8")])
        packed["host"], packed["physical_offset"] = self.heads["store_host"], self.heads["physical_offset"]
        ids = _hexadecimal(packed)
        wide = np.flatnonzero(self.heads["sys_flag"] & sysflag.STORE_HOST_V6)
        if not len(wide):
            return ids
        packed = np.empty(len(wide), [("host", "V20"), ("physical_offset", ">i8")])
        packed["host"] = fields_at(self.log, self.layout["store_host"][wide], np.dtype("V20"))
        packed["physical_offset"] = self.heads["physical_offset"][wide]
        return _replace(ids, wide, _hexadecimal(packed))

    def msg_ids(self) -> pa.StringArray:
        """Return the unique keys that producers gave, the offsetMsgId where there is none."""
        unique = self.properties.values_of(properties.UNIQ_KEY)
        return pc.coalesce(unique, self.offset_msg_ids()) if unique.null_count else unique

    def keys(self) -> pa.ListArray:
        """Return the words of the property KEYS, null where a record has none."""
        lists = pc.split_pattern(self.properties.values_of(properties.KEYS), properties.KEY_SEPARATOR)
        words = lists.flatten()
        empty = np.flatnonzero(ints(pc.binary_length(words)) == 0)
        if len(empty):
            plain = [None if line is None else [word for word in line if word] for line in lists.to_pylist()]
            lists = pa.array(plain, lists.type)
        return lists.cast(SCHEMA.field("keys").type)


def locate(log: Buffer, log_offset: int | None, positions: Array, sizes: Array) -> tuple[Records, list[DamagedRecord]]:
    """Return the sound ones among the records expected at `positions` of a file, and the damage of the others.

    `log` holds the bytes of a CommitLog file whose first byte has the physical offset `log_offset`; that is None for
    records taken out of their log, whose damage is then reported by position. `positions` must ascend, and records may
    not overlap. Everything but the body is checked.
    """
    file = np.frombuffer(log, np.uint8)
    rows = np.empty(len(positions), _LAYOUT)
    rows["begin"], rows["end"] = positions, positions + sizes
    damages: list[DamagedRecord] = []

    def without(wrong: Array, why: str) -> Array | None:
        """Report the rows that are wrong; return which are left, or None while that is all of them."""
        if not wrong.any():
            return None
        damages.extend(DamagedRecord((log_offset or 0) + position, why) for position in rows["begin"][wrong].tolist())
        return ~wrong

    kept = without(
        (sizes < MIN_RECORD_SIZE) | (positions < 0) | (rows["end"] > len(file)), "no room for a record of its size"
    )
    if kept is not None:
        rows = rows[kept]
    heads = fields_at(file, rows["begin"], HEAD)
    elsewhere = False if log_offset is None else heads["physical_offset"] != rows["begin"] + log_offset
    kept = without(
        (heads["magic"] != MESSAGE_MAGIC) | (heads["size"] != rows["end"] - rows["begin"]) | elsewhere,
        "no record begins here: magic, size or own address is wrong",
    )
    if kept is not None:
        rows, heads = rows[kept], heads[kept]

    flags = heads["sys_flag"]
    if (flags & sysflag.HOSTS_V6).any():
        store_host = rows["begin"] + _BORN_HOST + np.where(flags & sysflag.BORN_HOST_V6, 20, 8) + 8
        behind_hosts = store_host + np.where(flags & sysflag.STORE_HOST_V6, 20, 8)
        rows["store_host"], rows["body"] = store_host, behind_hosts + _BEHIND_HOSTS.itemsize
        kept = without(rows["body"] + 1 + 2 > rows["end"], "too short for the hosts its sysFlag names")
        if kept is not None:
            rows, heads, store_host, behind_hosts = rows[kept], heads[kept], store_host[kept], behind_hosts[kept]
        heads["store_timestamp"] = fields_at(file, store_host - 8, np.dtype(">i8"))
        heads["store_host"] = fields_at(file, store_host, np.dtype("V8"))
        fields = fields_at(file, behind_hosts, _BEHIND_HOSTS)
        for name in _BEHIND_HOSTS.names or ():
            heads[name] = fields[name]
        ports = fields_at(file, store_host - 12, np.dtype(">u4")) | fields_at(file, behind_hosts - 4, np.dtype(">u4"))
    else:
        rows["store_host"], rows["body"] = rows["begin"] + _STORE_HOST, rows["begin"] + HEAD.itemsize
        ports = heads["born_host"].view(_HOST)["port"] | heads["store_host"].view(_HOST)["port"]

    # Whatever the sizes claim, they are looked for inside the record.
    last = rows["end"] - 1
    rows["topic"] = rows["body"] + np.maximum(heads["body_size"], 0) + 1
    topic_size = file[np.minimum(rows["topic"] - 1, last)].view(np.int8)
    claimed = rows["topic"] + topic_size
    rows["properties_size"] = np.clip(claimed, rows["begin"], last - 1)
    properties_size = fields_at(file, rows["properties_size"], np.dtype(">i2"))
    rows["properties"] = rows["properties_size"] + 2
    kept = without(
        (ports > 0xFFFF)
        | (heads["body_size"] < 0)
        | (topic_size < 0)
        | (properties_size < 0)
        | (claimed + 2 + properties_size != rows["end"]),
        "a port above 65535, or sizes that do not add up to the record's",
    )
    if kept is not None:
        rows, heads = rows[kept], heads[kept]

    names = _gather(file, rows["topic"], rows["properties_size"]).dictionary_encode()
    unreadable = [code for code, name in enumerate(names.dictionary.to_pylist()) if not _is_utf8(name)]
    kept = without(np.isin(ints(names.indices), unreadable), "the topic is no UTF-8") if unreadable else None
    if kept is not None:
        rows, heads = rows[kept], heads[kept]
        names = names.filter(mask(kept)).dictionary_decode().dictionary_encode()
    topics = pa.DictionaryArray.from_arrays(names.indices, names.dictionary.cast(pa.string()))
    return Records(file, heads, rows, topics), damages


def _column(name: str, records: Records, broker_name: str) -> pa.Array:
    """Make one column; `body` is not made here, since making it can find damage."""
    match name:
        case "topic":
            return records.topics.dictionary_decode()
        case "properties":
            return records.properties.as_map()
        case "brokerName":
            return repeated(broker_name, len(records))
        case "tags":
            return records.properties.values_of(properties.TAGS)
        case "keys":
            return records.keys()
        case "msgId":
            return records.msg_ids()
        case "offsetMsgId":
            return records.offset_msg_ids()
        case "bornHost":
            return records.hosts("born_host")
        case "storeHost":
            return records.hosts("store_host")
        case "bornTimestamp" | "storeTimestamp":
            return arrow(records.heads[_NUMBERS[name]].astype(np.int64) * 1000).view(TIMESTAMP)
        case _ if name == CORRUPT:
            return pa.nulls(len(records), pa.string())
        case _:
            numbers = records.heads[_NUMBERS[name]]
            return arrow(numbers.astype(numbers.dtype.newbyteorder("=")))


def decode(
    records: Records, columns: Sequence[str], *, broker_name: str, check_crc: bool = True
) -> Iterator[tuple[pa.RecordBatch, list[DamagedRecord]]]:
    """Yield the named columns of `SCHEMA` for these records, in that order, with what was found damaged.

    There is one batch unless its bodies, decompressed, are too large for one. Bodies are looked at only when `body`
    is among the columns: a wrong CRC (with `check_crc`) or a body that cannot be decompressed takes the row out.
    """
    damages: list[DamagedRecord] = []
    bodies = None
    if "body" in columns:
        if check_crc:
            wrong = records.body_crcs() != records.heads["body_crc"]
            damages += [DamagedRecord(int(at), "the body does not match its CRC") for at in records.addresses(wrong)]
            records = records.where(~wrong)
        try:
            bodies, broken = records.bodies()
        except _BodiesTooLarge:
            first = np.arange(len(records)) < len(records) // 2
            for half in (records.where(first), records.where(~first)):
                for batch, found in decode(half, columns, broker_name=broker_name, check_crc=False):
                    yield batch, damages + found
                    damages = []
            return
        if broken:
            wrong = np.isin(np.arange(len(records)), list(broken))
            addresses = records.addresses(wrong).tolist()
            damages += [DamagedRecord(at, why) for at, why in zip(addresses, broken.values(), strict=True)]
            records, bodies = records.where(~wrong), bodies.filter(mask(~wrong))
    arrays = [bodies if name == "body" else _column(name, records, broker_name) for name in columns]
    yield _batch(arrays, columns, len(records)), damages


def corrupt_rows(
    damages: Sequence[DamagedRecord], columns: Sequence[str], *, broker_name: str, with_offsets: bool = True
) -> pa.RecordBatch:
    """Return a row for each damage: of the named columns only brokerName, commitLogOffset and _corrupt are not NULL.

    Without `with_offsets`, where positions are not those of a log, commitLogOffset is NULL, too.
    """
    known: dict[str, list[Any]] = {
        "brokerName": [broker_name] * len(damages),
        CORRUPT: [damage.why for damage in damages],
    }
    if with_offsets:
        known["commitLogOffset"] = [damage.physical_offset for damage in damages]
    schema = schema_of(columns)
    arrays = [pa.array(known.get(field.name, [None] * len(damages)), field.type) for field in schema]
    return _batch(arrays, columns, len(damages))


def _batch(arrays: Sequence[pa.Array], columns: Sequence[str], count: int) -> pa.RecordBatch:
    """Return a batch of these columns, which has `count` rows even if there are no columns."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the part of `SCHEMA` with these columns, in this order; `_corrupt` may be among them."""
    return pa.schema([pa.field(CORRUPT, pa.string()) if name == CORRUPT else SCHEMA.field(name) for name in columns])


def parse_properties(log: Array, begins: Array, ends: Array) -> PropertyColumns:
    """Return what `rucola.message.properties.parse` reads in each of the strings log[begin:end].

    The ranges must ascend, be disjoint, and have a byte before each that belongs to no other.
    """
    # That byte is copied along and becomes a separator, so that every name and value of the batch, whatever string it
    # stands in, begins behind one separator and ends at the next. Clients of other languages end their strings with
    # a separator that separates nothing; it is not copied.
    ended = (ends > begins) & (log[ends - 1] == 2)
    strings = _gather(log, begins - 1, ends - ended)
    offsets, data = _offsets_and_data(strings)
    data = data.copy()
    data[offsets[:-1]] = 2

    # Bytes of 0 count here, too: they do not belong between separators and so make their row irregular.
    separators = np.flatnonzero(data < 3).astype(np.int32)
    kinds = data[separators]
    begin, end = separators + 1, np.append(separators[1:], np.int32(len(data)))
    of_row = np.searchsorted(separators, offsets).astype(np.int32)
    irregular = np.concatenate([_rows_out_of_turn(kinds, begin == end, of_row), _rows_no_utf8(offsets, data)])
    while True:
        chosen: slice | Array = slice(None)
        pairs = of_row // 2
        if len(irregular):
            counts = np.diff(of_row)
            regular = np.ones(len(counts), np.bool_)
            regular[irregular] = False
            chosen = np.repeat(regular, counts)
            pairs = np.append(0, np.cumsum(counts * regular // 2)).astype(np.int32)
        some_begin, some_end = begin[chosen], end[chosen]
        names = _gather(data, some_begin[0::2], some_end[0::2]).dictionary_encode()
        values = _gather(data, some_begin[1::2], some_end[1::2]).view(pa.string())
        names = pa.DictionaryArray.from_arrays(names.indices, names.dictionary.cast(pa.string()))
        parsed = PropertyColumns(pairs, names, values)
        repeated = parsed.rows_with_repeats()
        if not len(repeated):
            break
        irregular = np.append(irregular, repeated)
    irregular = np.unique(irregular)
    if not len(irregular):
        return parsed
    plain = [properties.parse(data[slice(*offsets[row : row + 2])][1:].tobytes()) for row in irregular]
    maps = _replace(parsed.as_map(), irregular, _maps(plain))
    return PropertyColumns(ints(maps.offsets), maps.keys.dictionary_encode(), maps.items)


def _rows_out_of_turn(kinds: Array, empty: Array, of_row: Array) -> Array:
    """Return the rows that are no sequence of 0x02, name, 0x01, value, without empty names or values.

    `kinds` are the separators, `empty` tells where nothing follows one, `of_row` where the rows begin among them.
    """
    if len(kinds) % 2 == 0 and (kinds[0::2] == 2).all() and (kinds[1::2] == 1).all() and not empty.any():
        return np.empty(0, np.int64)
    counts = np.diff(of_row)
    row = np.repeat(np.arange(len(counts)), counts)
    turn = 2 - ((np.arange(len(kinds)) - of_row[row]) & 1)
    return np.concatenate([np.flatnonzero(counts % 2), row[(kinds != turn) | empty]])


def _rows_no_utf8(offsets: Array, data: Array) -> Array:
    """Return the rows that are no UTF-8, after asking whether any is."""
    if not len(data) or data.max() < 0x80:
        return np.empty(0, np.int64)
    strings = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        rows = [row for row, (i, j) in enumerate(pairwise(offsets.tolist())) if not _is_utf8(data[i:j].tobytes())]
        return np.array(rows, np.int64)
    return np.empty(0, np.int64)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def fields_at(log: Array, positions: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of the fields of this type that stand at `positions`."""
    if not len(positions):
        return np.empty(0, dtype)
    # As plain bytes an element is copied three times as fast as field by field.
    unstructured = np.dtype(f"V{dtype.itemsize}")
    everywhere = np.ndarray((len(log) - dtype.itemsize + 1,), unstructured, log, strides=(1,))
    return everywhere[positions].view(dtype)


def _gather(log: Array, begins: Array, ends: Array) -> pa.BinaryArray:
    """Return log[begin:end] for each of the ascending, disjoint ranges, copied side by side."""
    if not len(begins):
        return strings([], pa.binary())
    start, stop = int(begins[0]), int(ends[-1])
    offsets = np.empty((len(begins), 2), np.int32)
    offsets[:, 0], offsets[:, 1] = begins - start, ends - start
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(log[start:stop])]
    parts_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(begins) - 1, buffers)
    return parts_and_gaps.take(arrow(np.arange(0, 2 * len(begins), 2, dtype=np.int32)))


def _offsets_and_data(strings: pa.BinaryArray) -> tuple[Array, Array]:
    """Return the offsets of an array as `_gather` makes it, and its bytes, without copying."""
    _, offsets, data = strings.buffers()
    if not len(strings):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32, len(strings) + 1, strings.offset * 4)
    return bounds, np.frombuffer(data, np.uint8, int(bounds[-1])) if data else np.empty(0, np.uint8)


def _hexadecimal(packed: Array) -> pa.StringArray:
    """Return each element of a packed array as upper-case hexadecimal."""
    digits = _HEX[packed.view(np.uint16)]
    offsets = np.arange(0, digits.nbytes + 1, packed.itemsize * 2, dtype=np.int32)
    return pa.StringArray.from_buffers(len(packed), pa.py_buffer(offsets), pa.py_buffer(digits))


def _replace(array: pa.Array, rows: Array, values: pa.Array) -> pa.Array:
    """Return `array` with `values` in place of these rows."""
    order = np.arange(len(array))
    order[rows] = np.arange(len(array), len(array) + len(rows))
    return pa.concat_arrays([array, values]).take(arrow(order))


def _maps(plain: Sequence[Mapping[str, str]]) -> pa.MapArray:
    """Return properties as `PROPERTIES`."""
    offsets = np.cumsum([0, *map(len, plain)], dtype=np.int32)
    names = strings([name.encode() for pairs in plain for name in pairs])
    values = strings([value.encode() for pairs in plain for value in pairs.values()])
    return pa.MapArray.from_arrays(arrow(offsets), names, values)


def batches(positions: Array, sizes: Array) -> Iterator[slice]:
    """Cut records into slices of at most `BATCH_ROWS` rows and, if they are more than one, `BATCH_SIZE` bytes."""
    ends = np.cumsum(sizes, dtype=np.int64)
    begin = 0
    while begin < len(positions):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
        end = min(max(end, begin + 1), begin + BATCH_ROWS)
        yield slice(begin, end)
        begin = end
