"""Body of SEND_BATCH_MESSAGE: several messages for one topic, concatenated without a count.

    position  bytes  field
           0      4  size, of this message
           4      4  magic, not used, 0
           8      4  CRC, not used, 0
          12      4  flag
          16      4  body size n
          20      n  body
        20+n      2  properties size p
        22+n      p  properties, see `properties`

The broker stores them as ordinary records. Counterpart of encodeMessages and decodeMessages in
org.apache.rocketmq.common.message.MessageDecoder. Deliberate difference: the sizes are validated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np

from rucola import speed
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.message import Message
from rucola.message.record import Buffer

HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])
"""The fields before the body."""
_HEAD: Final = struct.Struct(">i8xii")
_HEAD_SIZE: Final = _HEAD.size
_MIN_SIZE: Final = _HEAD_SIZE + 2


def encode_batch(messages: Iterable[Message]) -> bytes:
    """Encode messages of one topic. Raises InvalidMessage for properties or a flag that the format cannot represent."""
    parts: list[bytes] = []
    for message in messages:
        joined = properties.join(message.properties)
        try:
            head = _HEAD.pack(_MIN_SIZE + len(message.body) + len(joined), message.flag, len(message.body))
        except struct.error as error:
            raise InvalidMessage(f"flag {message.flag} or the body's size does not fit 32 bits") from error
        parts += (head, message.body, len(joined).to_bytes(2, "big"), joined)
    return b"".join(parts)


def decode_batch(body: Buffer) -> tuple[list[int], list[bytes], list[bytes]]:
    """Return parallel lists of flags, bodies and property strings. Raises InvalidMessage, which names the position."""
    flags, bodies, strings, _ = decode_part(bytes(body), 0, len(body))
    return flags, bodies, strings


def decode_part(data: bytes, position: int, max_count: int) -> tuple[list[int], list[bytes], list[bytes], int]:
    """Decode up to `max_count` messages from `position`, as `decode_batch`; also return the position after them."""
    end = len(data)
    if not position and speed.split_batch is not None:
        columns = speed.split_batch(data, max_count)
        if columns is not None:
            return *columns, end
    flags, bodies, strings = [], [], []
    for _ in range(max_count):
        if position >= end:
            break
        if end - position < _MIN_SIZE:
            raise _invalid(position, f"{end - position} bytes are left; the smallest message has {_MIN_SIZE}")
        size, flag, body_size = _HEAD.unpack_from(data, position)
        body_begin = position + _HEAD_SIZE
        body_end = body_begin + body_size
        position += size
        # Sizes are signed, and a negative one fails as well. One chained comparison on the usual path; `_disagreement`
        # finds the wrong size.
        if (
            not body_begin <= body_end <= position - 2 <= end - 2
            or body_end + 2 + (data[body_end] << 8 | data[body_end + 1]) != position
        ):
            raise _disagreement(body_begin - _HEAD_SIZE, end, size, body_size)
        flags.append(flag)
        bodies.append(data[body_begin:body_end])
        strings.append(data[body_end + 2 : position])
    return flags, bodies, strings, position


def _disagreement(position: int, end: int, size: int, body_size: int) -> InvalidMessage:
    if not _MIN_SIZE <= size <= end - position:
        return _invalid(position, f"size is {size}, but {end - position} bytes are left")
    if not 0 <= body_size <= size - _MIN_SIZE:
        return _invalid(position, f"body size is {body_size} in a message of {size}")
    return _invalid(position, f"the sizes of its fields do not add up to the message's size of {size}")


def _invalid(position: int, why: str) -> InvalidMessage:
    return InvalidMessage(f"invalid message in a batch at byte {position}: {why}", subject=position)
