"""Record: the encoding of one message, in a CommitLog, a pull response and for Spark.

All numbers are big-endian and signed. With IPv4 hosts, the usual case, 88 bytes precede the body:

    position  bytes  field
           0      4  size, of the whole record
           4      4  magic, 0xDAA320A7
           8      4  bodyCRC, the lower 31 bits of CRC-32 over the body as stored
          12      4  queueId
          16      4  flag, the application's own
          20      8  queueOffset, index in the ConsumeQueue
          28      8  physicalOffset, address of this record in the CommitLog
          36      4  sysFlag, see `sysflag`
          40      8  bornTimestamp, milliseconds
          48      8  bornHost, see `host`                       20 bytes if sysFlag has BORN_HOST_V6
          56      8  storeTimestamp, milliseconds
          64      8  storeHost                                  20 bytes if sysFlag has STORE_HOST_V6
          72      4  reconsumeTimes
          76      8  preparedTransactionOffset
          84      4  body size n
          88      n  body, compressed if sysFlag has COMPRESSED
        88+n      1  topic size t, at most 127
        89+n      t  topic, UTF-8
      89+n+t      2  properties size p, at most 32,767
      91+n+t      p  properties, see `properties`

A CommitLog file ends with a blank: 8 bytes, the size of the rest of the file and the magic 0xCBD43194. The CRC covers
the body only; damage to other fields, except sizes, cannot be detected from the record alone.

Counterpart of org.apache.rocketmq.common.message.MessageDecoder and of org.apache.rocketmq.store.CommitLog.
Deliberate differences: `decode` verifies the CRC; `encode` derives the host bits of sysFlag.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from mmap import mmap
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from rucola import speed
from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.compression import read_body
from rucola.message.host import decode_host
from rucola.message.message import MessageExt, MessageInner, MessageInnerBatch
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.message.topics import MAX_TOPIC_LENGTH

LARGE_BODY: Final = 256 * 1024
"""The size from which a body is stored without a copy: copying 3.9 MB takes 1 ms."""
Buffer = bytes | bytearray | memoryview | mmap
"""Bytes that records are decoded from. Mapped files are read in place."""

MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194

HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""The 88 bytes before the body of a record with IPv4 hosts."""

HEAD_SIZE: Final = HEAD.itemsize
MIN_RECORD_SIZE: Final = HEAD_SIZE + 1 + 2

FRAME: Final = struct.Struct(">iI")

_PLACE: Final = struct.Struct(">i16xqq")

_HEADS: Final = {
    (born, store): struct.Struct(f">iIiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)
}
_HEAD_V4: Final = _HEADS[8, 8]

# Host sizes by the lower six bits of sysFlag.
_HOST_SIZES: Final = tuple(sysflag.host_sizes(flag) for flag in range(64))
_HOSTS_V6: Final = sysflag.HOSTS_V6
_HOSTS_V4: Final = ~_HOSTS_V6


class Peek(NamedTuple):
    """The fields that dispatch and scans need. Positions are relative to the start of the buffer."""

    size: int
    body_crc: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    body_begin: int
    body_end: int
    topic: str
    properties_begin: int
    properties_end: int


def body_crc(body: Buffer) -> int:
    return int(crc32(body)) & 0x7FFFFFFF


def body_crcs(data: Buffer, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return `body_crc` of each range of `data`."""
    if speed.crc32_of_ranges is not None:
        crcs = speed.crc32_of_ranges(data, np.ascontiguousarray(begins), np.ascontiguousarray(ends))
        if crcs is not None:
            return np.frombuffer(crcs, np.uint32)
    bodies = map(memoryview(data).__getitem__, map(slice, begins.tolist(), ends.tolist()))
    return np.fromiter(map(crc32, bodies), np.uint32, len(begins)) & np.uint32(0x7FFFFFFF)


@lru_cache(maxsize=8192)
def _topic_field(topic: str) -> bytes:
    try:
        data = topic.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"topic {topic!r} is not Unicode text") from error
    if len(data) > MAX_TOPIC_LENGTH:
        raise InvalidMessage(f"topic {topic!r} takes {len(data)} bytes; {MAX_TOPIC_LENGTH} are allowed")
    return bytes((len(data),)) + data


@lru_cache(maxsize=8192)
def _topic_text(data: bytes) -> str:
    return data.decode()


class RecordParts:
    """A record in parts, the second of which is the body. `len` is the size of the record."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: tuple[bytes | memoryview, ...]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


def encode(
    message: MessageInner, queue_offset: int, physical_offset: int, store_timestamp: int, store_host: bytes
) -> bytes:
    """Encode `message` as a record. Raises InvalidMessage for a value that does not fit its field."""
    if speed.encode_record is not None:
        record = speed.encode_record(
            _topic_field(message.topic), message.queue_id, message.flag, message.body, message.properties,
            message.sys_flag, message.born_timestamp, message.born_host, store_timestamp, store_host,
            message.reconsume_times, message.prepared_transaction_offset, queue_offset, physical_offset,
        )  # fmt: skip
        if record is not None:
            return record
    return b"".join(_parts_of(message, queue_offset, physical_offset, store_timestamp, store_host))


def encode_parts(
    message: MessageInner, queue_offset: int, physical_offset: int, store_timestamp: int, store_host: bytes
) -> RecordParts:
    """Encode a message with a large body, as `encode`, without a copy of the body."""
    return RecordParts(_parts_of(message, queue_offset, physical_offset, store_timestamp, store_host))


def _parts_of(
    message: MessageInner, queue_offset: int, physical_offset: int, store_timestamp: int, store_host: bytes
) -> tuple[bytes | memoryview, ...]:
    return _parts(
        message.topic, message.queue_id, message.flag, message.body, message.properties, message.sys_flag,
        message.born_timestamp, message.reconsume_times, queue_offset, message.born_host, store_timestamp, store_host,
        physical_offset, message.prepared_transaction_offset,
    )  # fmt: skip


def encode_many(
    batch: MessageInnerBatch, queue_offsets: list[int], physical_offset: int, store_timestamp: int, store_host: bytes
) -> tuple[bytes | bytearray, list[int], list[int]]:
    """Encode messages as contiguous records from `physical_offset` on; also return their physical offsets and sizes."""
    columns = (
        batch.topics, batch.queue_ids, batch.flags, batch.bodies, batch.properties, batch.sys_flags,
        batch.born_timestamps, batch.reconsume_times, queue_offsets,
    )  # fmt: skip
    if speed.encode_records is not None:
        encoded = speed.encode_records(*columns, batch.born_host, store_timestamp, store_host, physical_offset)
        if encoded is not None:
            return encoded
    born_host = batch.born_host
    records, physical_offsets, sizes = list[bytes](), list[int](), list[int]()
    for topic, queue_id, flag, body, stored, sys_flag, born_timestamp, times, offset in zip(*columns, strict=True):
        parts = _parts(
            topic, queue_id, flag, body, stored, sys_flag, born_timestamp, times, offset, born_host, store_timestamp,
            store_host, physical_offset,
        )  # fmt: skip
        record = b"".join(parts)
        records.append(record)
        physical_offsets.append(physical_offset)
        sizes.append(len(record))
        physical_offset += len(record)
    return b"".join(records), physical_offsets, sizes


def _parts(
    topic: str,
    queue_id: int,
    flag: int,
    body: bytes | memoryview,
    stored_properties: bytes,
    sys_flag: int,
    born_timestamp: int,
    reconsume_times: int,
    queue_offset: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    physical_offset: int,
    prepared_transaction_offset: int = 0,
) -> tuple[bytes | memoryview, ...]:
    topic_field = _topic_field(topic)
    properties_size = len(stored_properties)
    if properties_size > MAX_PROPERTIES_SIZE:
        raise InvalidMessage(f"properties take {properties_size} bytes; a record has room for {MAX_PROPERTIES_SIZE}")
    head, sys_flag = _head_of_hosts(born_host, store_host, sys_flag & _HOSTS_V4)
    body_size = len(body)
    try:
        return (
            head.pack(
                head.size + body_size + len(topic_field) + 2 + properties_size,
                MESSAGE_MAGIC,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_size,
            ),
            body,
            topic_field,
            properties_size.to_bytes(2, "big"),
            stored_properties,
        )
    except struct.error as error:
        raise InvalidMessage(f"a number of this message does not fit its field in a record: {error}") from error


def _head_of_hosts(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[struct.Struct, int]:
    head = _HEADS.get((len(born_host), len(store_host)))
    if head is None:
        raise InvalidMessage(f"hosts have 8 or 20 bytes; bornHost has {len(born_host)} and storeHost {len(store_host)}")
    if len(born_host) == 20:
        sys_flag |= sysflag.BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= sysflag.STORE_HOST_V6
    return head, sys_flag


def _outline(buffer: Buffer, position: int) -> tuple[tuple[Any, ...], int, int, int, str]:
    """Return (head fields, body start, topic start, properties start, topic). Accesses no byte outside the record."""
    left = len(buffer) - position
    if position < 0 or left < MIN_RECORD_SIZE:
        raise _invalid(position, f"{max(left, 0)} bytes are left; the smallest record has {MIN_RECORD_SIZE}")
    # All heads are the same up to sysFlag, so if that has a host bit, the head is unpacked again with the right sizes.
    head = _HEAD_V4
    fields = head.unpack_from(buffer, position)
    size = fields[0]
    if fields[1] != MESSAGE_MAGIC:
        raise _invalid(position, f"magic is {fields[1]:#010x}, not {MESSAGE_MAGIC:#010x}")
    if not MIN_RECORD_SIZE <= size <= left:
        raise _invalid(position, f"size is {size}, but {left} bytes are left")
    if fields[7] & _HOSTS_V6:
        head = _HEADS[_HOST_SIZES[fields[7] & 63]]
        if size < head.size + 3:
            raise _invalid(position, f"size is {size}; with IPv6 hosts the smallest is {head.size + 3}")
        fields = head.unpack_from(buffer, position)
    end = position + size
    body_begin = position + head.size
    body_size = fields[14]
    topic_begin = body_begin + body_size + 1
    if body_size < 0 or topic_begin + 2 > end:
        raise _invalid(position, f"body size is {body_size} in a record of {size}")
    topic_size = buffer[topic_begin - 1]
    topic_end = topic_begin + topic_size
    if topic_size > MAX_TOPIC_LENGTH or topic_end + 2 > end:
        raise _invalid(position, f"topic size is {topic_size} in a record of {size}")
    properties_size = buffer[topic_end] << 8 | buffer[topic_end + 1]
    if properties_size > MAX_PROPERTIES_SIZE or topic_end + 2 + properties_size != end:
        raise _invalid(position, f"the sizes of its fields do not add up to the record's size of {size}")
    try:
        topic = _topic_text(bytes(buffer[topic_begin:topic_end]))
    except UnicodeDecodeError as error:
        raise _invalid(position, f"topic is not UTF-8: {error}") from error
    return fields, body_begin, topic_begin, topic_end + 2, topic


place_of = _PLACE.unpack_from
"""Return (size, queue offset, physical offset) from the first 36 bytes of a record, without validation."""


def split(records: bytes) -> dict[int, bytes]:
    """Return records that follow each other in one queue by their queue offsets."""
    found = {}
    begin = 0
    while begin < len(records):
        size, queue_offset, _ = place_of(records, begin)
        found[queue_offset] = records[begin : begin + size]
        begin += size
    return found


def with_topic(record: bytes, topic: str, added: bytes) -> bytes:
    """Return a record with another topic and with properties `added` to its own."""
    found = peek(record)
    stored = record[found.properties_begin : found.properties_end]
    pairs = b"\x02".join(part for part in (stored.rstrip(b"\x02"), added) if part)
    parts = record[4 : found.body_end], _topic_field(topic), len(pairs).to_bytes(2, "big"), pairs
    return (4 + sum(map(len, parts))).to_bytes(4, "big") + b"".join(parts)


def peek(buffer: Buffer, position: int = 0) -> Peek:
    """Decode the record at `position` without body, properties and CRC. Raises InvalidMessage unless it is complete."""
    fields, body_begin, topic_begin, properties_begin, topic = _outline(buffer, position)
    return Peek(
        fields[0],
        fields[2],
        fields[3],
        fields[5],
        fields[6],
        fields[7],
        fields[10],
        body_begin,
        topic_begin - 1,
        topic,
        properties_begin,
        position + fields[0],
    )


def decode(buffer: Buffer, position: int = 0, *, decompress: bool = True, check_crc: bool = True) -> MessageExt:
    """Decode the record at `position`. Raises InvalidMessage for an incomplete record or a CRC mismatch.

    The result owns its bytes. Without `decompress` the body stays as stored, for `encode`; otherwise see `body_error`.
    """
    fields, body_begin, topic_begin, properties_begin, topic = _outline(buffer, position)
    (
        size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host_bytes,
        store_timestamp, store_host_bytes, reconsume_times, prepared_transaction_offset, stored_size,
    ) = fields  # fmt: skip
    body, body_error = bytes(buffer[body_begin : topic_begin - 1]), None
    if check_crc and crc32(body) & 0x7FFFFFFF != crc:
        raise _invalid(position, f"the body's CRC is {body_crc(body)}, but the record has {crc}")
    if decompress and sys_flag & sysflag.COMPRESSED:
        body, body_error = read_body(body, sys_flag)
    try:
        born_host, store_host = decode_host(born_host_bytes), decode_host(store_host_bytes)
    except InvalidMessage as error:
        raise _invalid(position, str(error)) from error
    return MessageExt(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        size,
        body,
        bytes(buffer[properties_begin : position + size]),  # type: ignore[arg-type]  # see `MessageExt.properties`
        flag,
        sys_flag,
        crc,
        stored_size,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        store_host_bytes,
        body_error,
    )


def decode_many(
    buffer: Buffer, *, decompress: bool = True, check_crc: bool = True, max_count: int = 1 << 62
) -> list[MessageExt]:
    """Decode contiguous records, such as the body of a pull response; at most `max_count`."""
    if speed.decode_records is not None and not decompress and check_crc and isinstance(buffer, bytes):
        rows = speed.decode_records(buffer, max_count)
        if rows is not None:
            return [MessageExt(*row) for row in rows]
    messages: list[MessageExt] = []
    position = 0
    while position < len(buffer) and len(messages) < max_count:
        messages.append(decode(buffer, position, decompress=decompress, check_crc=check_crc))
        position += messages[-1].store_size
    return messages


def _invalid(position: int, why: str) -> InvalidMessage:
    return InvalidMessage(f"invalid record at byte {position}: {why}", subject=position)
