"""Layout of CommitLog records: located and validated thousands at a time, without decoding their contents.

A record has 88 fixed bytes with IPv4 hosts, or up to 112 with IPv6 hosts, then body, topic and properties
(`rucola.message.record` documents the format):

    0        48         56        64          72       88    88+b  +1          +2
    | fixed  | bornHost | stored  | storeHost | fixed  | body | n | topic n | p | properties p |
             | 8 or 20  |         | 8 or 20   |                 1 byte        2 bytes

`locate` copies the fixed bytes into one structured array (`heads`), and computes where the variable parts start
(`layout`). Logs are not trusted: a record that contradicts the format is excluded and reported as a `DamagedRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.message import properties, sysflag
from rucola.message.compression import read_body
from rucola.message.host import decode_host
from rucola.message.record import HEAD, MESSAGE_MAGIC, MIN_RECORD_SIZE, Buffer, body_crcs
from rucola.spark.source.array_conversions import Array, arrow, ints, mask, strings
from rucola.spark.source.byte_ranges import fields_at, gather, hexadecimal, replace_rows
from rucola.spark.source.property_columns import PropertyColumns, parse_properties

BATCH_ROWS: Final = 16 * 1024
"""Enough to amortise the calls per batch, few enough for the processor's caches."""

BATCH_SIZE: Final = 32 * 1024 * 1024
"""Bytes of log per batch, which bounds a batch of large messages."""

MAX_BODIES_SIZE: Final = 512 * 1024 * 1024
"""Bytes of decompressed bodies in one array, far below Arrow's limit of 2 GiB."""

_BORN_HOST: Final = 48
_STORE_HOST: Final = 64
_AFTER_HOSTS: Final = np.dtype(HEAD.descr[12:])
"""The fixed fields after storeHost, which IPv6 hosts move further back."""

_HOST: Final = np.dtype([("address", ">u4"), ("port", ">u4")])

# A record at 1,000 with IPv4 hosts, 5 bytes of body, topic "T" and 10 bytes of properties:
#     begin 1000   store_host 1064   body 1088   topic 1094   properties_size 1095   properties 1097   end 1107
_LAYOUT: Final = np.dtype(
    [(name, np.int64) for name in ("begin", "store_host", "body", "topic", "properties_size", "properties", "end")]
)
"""File positions of the parts of a record. `topic` is after its length byte, `properties` after its size."""


class BodiesTooLarge(Exception):
    """The decompressed bodies of a batch exceed `MAX_BODIES_SIZE`; decode it in halves."""


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A record that cannot be read: its physical offset in the CommitLog, and the reason."""

    physical_offset: int
    why: str


@dataclass(frozen=True)
class Records:
    """Valid records of one CommitLog file, in ascending order of their addresses.

    `log` holds the file's bytes and is borrowed; every column made from it is a copy. `heads` has the dtype
    `record.HEAD`.
    """

    log: Array
    heads: Array
    layout: Array
    topics: pa.DictionaryArray

    def __len__(self) -> int:
        return len(self.heads)

    def where(self, kept: Array) -> Records:
        """Return the records selected by a mask."""
        if kept.all():
            return self
        return Records(self.log, self.heads[kept], self.layout[kept], self.topics.filter(mask(kept)))

    def addresses(self, rows: Array) -> Array:
        """Return the physical offsets of the records selected by a mask."""
        return self.heads["physical_offset"][rows]

    @property
    def topic_codes(self) -> Array:
        """The topic of each record, as an index into the dictionary of `topics`."""
        return ints(self.topics.indices)

    @cached_property
    def properties(self) -> PropertyColumns:
        """The parsed properties, made on first use."""
        return parse_properties(self.log, self.layout["properties"], self.layout["end"])

    def body_crcs(self) -> Array:
        """Compute the CRC-32 of each stored body, cut to 31 bits as in the record."""
        return body_crcs(self.log, self.layout["body"], self.layout["topic"] - 1)  # type: ignore[arg-type]  # a buffer

    def bodies(self) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the bodies, and by row why a body is as stored. Raises BodiesTooLarge above `MAX_BODIES_SIZE`."""
        stored = gather(self.log, self.layout["body"], self.layout["topic"] - 1)
        flags = self.heads["sys_flag"]
        compressed = np.flatnonzero(flags & sysflag.COMPRESSED)
        if not len(compressed):
            return stored, {}
        plain: list[bytes] = []
        errors: dict[int, str] = {}
        size = stored.nbytes
        for row in compressed.tolist():
            body, error = read_body(stored[row].as_buffer(), int(flags[row]))
            plain.append(body)
            if error is not None:
                errors[row] = error
            size += len(body)
            if size > MAX_BODIES_SIZE and len(self) > 1:
                raise BodiesTooLarge
        return replace_rows(stored, compressed, strings(plain, pa.binary())), errors

    def hosts(self, field: str) -> pa.StringArray:
        """Return `born_host` or `store_host` of each record as address:port, formatted once per distinct IPv4 host."""
        v6 = sysflag.BORN_HOST_V6 if field == "born_host" else sysflag.STORE_HOST_V6
        is_v6 = (self.heads["sys_flag"] & v6) != 0
        # Rows with an IPv6 host get a host of zeros here, and their own below.
        packed = arrow(np.where(is_v6, 0, self.heads[field].view(np.int64))).dictionary_encode()
        texts = [decode_host(host).encode() for host in ints(packed.dictionary).view("V8").tolist()]
        hosts = strings(texts).take(packed.indices)
        v6_rows = np.flatnonzero(is_v6)
        if not len(v6_rows):
            return hosts
        begin = self.layout["begin"] + _BORN_HOST if field == "born_host" else self.layout["store_host"]
        packed = fields_at(self.log, begin[v6_rows], np.dtype("V20"))
        return replace_rows(hosts, v6_rows, strings([decode_host(host).encode() for host in packed.tolist()]))

    def offset_msg_ids(self) -> pa.StringArray:
        """Return the offsetMsgIds: storeHost and physical offset in hexadecimal, 32 digits, or 56 with IPv6."""
        # 127.0.0.1:10911 at physical offset 256 gives 7F000001 00002A9F 0000000000000100, without the blanks.
        packed = np.empty(len(self), [("host", "V8"), ("physical_offset", ">i8")])
        packed["host"], packed["physical_offset"] = self.heads["store_host"], self.heads["physical_offset"]
        ids = hexadecimal(packed)
        v6_rows = np.flatnonzero(self.heads["sys_flag"] & sysflag.STORE_HOST_V6)
        if not len(v6_rows):
            return ids
        packed = np.empty(len(v6_rows), [("host", "V20"), ("physical_offset", ">i8")])
        packed["host"] = fields_at(self.log, self.layout["store_host"][v6_rows], np.dtype("V20"))
        packed["physical_offset"] = self.heads["physical_offset"][v6_rows]
        return replace_rows(ids, v6_rows, hexadecimal(packed))

    def msg_ids(self) -> pa.StringArray:
        """Return the producers' unique keys, or the offsetMsgId of records without one."""
        unique = self.properties.values_of(properties.UNIQ_KEY)
        return pc.coalesce(unique, self.offset_msg_ids()) if unique.null_count else unique

    def keys(self) -> pa.ListArray:
        """Return the keys of each record, split at blanks; null without the property KEYS."""
        lists = pc.split_pattern(self.properties.values_of(properties.KEYS), properties.KEY_SEPARATOR)
        words = lists.flatten()
        # Repeated blanks give empty words. They are rare, so the lists are filtered in Python only then.
        if (ints(pc.binary_length(words)) == 0).any():
            plain = [None if line is None else [word for word in line if word] for line in lists.to_pylist()]
            lists = pa.array(plain, lists.type)
        return lists.cast(pa.list_(pa.field("element", pa.string())))


def locate(log: Buffer, log_offset: int | None, positions: Array, sizes: Array) -> tuple[Records, list[DamagedRecord]]:
    """Validate the records expected at `positions` of a file, except their bodies; return valid and damaged ones.

    `log` starts at physical offset `log_offset`; None for records taken out of their log: own addresses are not
    checked, and damage is reported by position. `positions` must be ascending, and records must not overlap.
    """
    locator = _Locator(np.frombuffer(log, np.uint8), log_offset, positions, sizes)
    locator.read_heads()
    ports = locator.find_bodies()
    locator.find_topics_and_properties(ports)
    topics = locator.read_topics()
    return Records(locator.file, locator.heads, locator.layout, topics), locator.damaged


class _Locator:
    """Steps of `locate`, each of which narrows `heads` and `layout` to still valid records."""

    def __init__(self, file: Array, log_offset: int | None, positions: Array, sizes: Array) -> None:
        self.file = file
        self.layout = np.empty(len(positions), _LAYOUT)
        self.layout["begin"], self.layout["end"] = positions, positions + sizes
        self.heads = np.empty(0, HEAD)
        self.damaged: list[DamagedRecord] = []
        self._log_offset = log_offset

    def _reject(self, wrong: Array, why: str) -> Array | None:
        """Exclude and report the wrong records; return a mask of the kept ones, None if all."""
        if not wrong.any():
            return None
        begins = self.layout["begin"][wrong].tolist()
        self.damaged.extend(DamagedRecord((self._log_offset or 0) + position, why) for position in begins)
        kept = ~wrong
        self.layout = self.layout[kept]
        if len(self.heads):
            self.heads = self.heads[kept]
        return kept

    def read_heads(self) -> None:
        """Step 1: copy the fixed bytes, after checking that they are inside the file."""
        begin, end = self.layout["begin"], self.layout["end"]
        outside = (end - begin < MIN_RECORD_SIZE) | (begin < 0) | (end > len(self.file))
        self._reject(outside, "no room for a record of its size")
        begin, end = self.layout["begin"], self.layout["end"]
        self.heads = fields_at(self.file, begin, HEAD)
        elsewhere = False if self._log_offset is None else self.heads["physical_offset"] != begin + self._log_offset
        self._reject(
            (self.heads["magic"] != MESSAGE_MAGIC) | (self.heads["size"] != end - begin) | elsewhere,
            "no record begins here: magic, size or own address is wrong",
        )

    def find_bodies(self) -> Array:
        """Step 2: find storeHost and body; return both ports of each record, combined by a bitwise or."""
        if (self.heads["sys_flag"] & sysflag.HOSTS_V6).any():
            return self._find_bodies_after_ipv6()
        begin = self.layout["begin"]
        self.layout["store_host"], self.layout["body"] = begin + _STORE_HOST, begin + HEAD.itemsize
        ports: Array = self.heads["born_host"].view(_HOST)["port"] | self.heads["store_host"].view(_HOST)["port"]
        return ports

    def _find_bodies_after_ipv6(self) -> Array:
        """Perform step 2 for IPv6 hosts: fields after them were copied from the wrong bytes and are copied again."""
        flags, begin = self.heads["sys_flag"], self.layout["begin"]
        store_host = begin + _BORN_HOST + np.where(flags & sysflag.BORN_HOST_V6, 20, 8) + 8
        after_hosts = store_host + np.where(flags & sysflag.STORE_HOST_V6, 20, 8)
        self.layout["store_host"], self.layout["body"] = store_host, after_hosts + _AFTER_HOSTS.itemsize
        too_short = self.layout["body"] + 1 + 2 > self.layout["end"]
        kept = self._reject(too_short, "too short for the hosts its sysFlag names")
        if kept is not None:
            store_host, after_hosts = store_host[kept], after_hosts[kept]
        self.heads["store_timestamp"] = fields_at(self.file, store_host - 8, np.dtype(">i8"))
        self.heads["store_host"] = fields_at(self.file, store_host, np.dtype("V8"))
        fields = fields_at(self.file, after_hosts, _AFTER_HOSTS)
        for name in _AFTER_HOSTS.names or ():
            self.heads[name] = fields[name]
        # A host ends with its port. bornHost ends 8 bytes of storeTimestamp before storeHost begins.
        port = np.dtype(">u4")
        ports: Array = fields_at(self.file, store_host - 12, port) | fields_at(self.file, after_hosts - 4, port)
        return ports

    def find_topics_and_properties(self, ports: Array) -> None:
        """Step 3: find topic and properties, by positions clipped into the record, until the sizes are compared."""
        file, rows, body_size = self.file, self.layout, self.heads["body_size"]
        # topic = body + body size + its length byte; properties = topic + topic size + their two length bytes.
        last = rows["end"] - 1
        rows["topic"] = rows["body"] + np.maximum(body_size, 0) + 1
        topic_size = file[np.minimum(rows["topic"] - 1, last)].view(np.int8)
        claimed = rows["topic"] + topic_size
        rows["properties_size"] = np.clip(claimed, rows["begin"], last - 1)
        properties_size = fields_at(file, rows["properties_size"], np.dtype(">i2"))
        rows["properties"] = rows["properties_size"] + 2
        self._reject(
            (ports > 0xFFFF)
            | (body_size < 0)
            | (topic_size < 0)
            | (properties_size < 0)
            | (claimed + 2 + properties_size != rows["end"]),
            "a port above 65535, or sizes that do not add up to the record's",
        )

    def read_topics(self) -> pa.DictionaryArray:
        """Step 4: read the topics. Only distinct ones are decoded, since a batch has few."""
        names = gather(self.file, self.layout["topic"], self.layout["properties_size"]).dictionary_encode()
        undecodable = [code for code, name in enumerate(names.dictionary.to_pylist()) if not _is_utf8(name)]
        if undecodable:
            kept = self._reject(np.isin(ints(names.indices), undecodable), "the topic is not UTF-8")
            if kept is not None:
                # Encode again: the dictionary must not contain the topics that were rejected.
                names = names.filter(mask(kept)).dictionary_decode().dictionary_encode()
        return pa.DictionaryArray.from_arrays(names.indices, names.dictionary.cast(pa.string()))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def batches(positions: Array, sizes: Array) -> Iterator[slice]:
    """Cut records into slices of at most `BATCH_ROWS` rows and `BATCH_SIZE` bytes; a larger record is one slice."""
    # For example, sizes of 10, 20 and 15 MiB have the ends 10, 30 and 45: the first slice is 0:2, the second 2:3.
    # `ends` are the cumulated sizes; a binary search finds the last record that fits.
    ends = np.cumsum(sizes, dtype=np.int64)
    begin = 0
    while begin < len(positions):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
        end = min(max(end, begin + 1), begin + BATCH_ROWS)
        yield slice(begin, end)
        begin = end
