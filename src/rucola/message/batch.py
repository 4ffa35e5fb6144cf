"""The body of SEND_BATCH_MESSAGE: several messages for one topic in one request.

The messages follow each other without a count. Each is

    position  bytes  field
           0      4  size, of this message
           4      4  magic, not used, 0
           8      4  CRC, not used, 0
          12      4  flag
          16      4  body size n
          20      n  body
        20+n      2  properties size p
        22+n      p  properties, see `properties`

The broker takes the batch apart and stores ordinary records, so a batch leaves no trace in a store.

Answers to encodeMessages and decodeMessages of org.apache.rocketmq.common.message.MessageDecoder. Apache's broker
believes the sizes; `decode_batch` holds them against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.message import Message
from rucola.message.record import Buffer

_HEAD: Final = struct.Struct(">i8xii")
_HEAD_SIZE: Final = _HEAD.size
_MIN_SIZE: Final = _HEAD_SIZE + 2


def encode_batch(messages: Iterable[Message]) -> bytes:
    """Return the body that carries `messages`. Their topics are not in it; the request names the one topic.

    Raises InvalidMessage for properties or a flag that the format cannot carry.
    """
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
    """Return the flags, the bodies and the property strings of the messages in a batch, each in their order.

    Raises InvalidMessage, which names the position, for sizes that do not agree.
    """
    data = bytes(body)  # Everything but a large slice costs less of bytes than of a view.
    end = len(data)
    flags, bodies, strings = [], [], []
    position = 0
    while position < end:
        if end - position < _MIN_SIZE:
            raise _invalid(position, f"{end - position} bytes are left; the smallest message has {_MIN_SIZE}")
        size, flag, body_size = _HEAD.unpack_from(data, position)
        body_begin = position + _HEAD_SIZE
        body_end = body_begin + body_size
        position += size
        if (
            not body_begin <= body_end <= position - 2 <= end - 2
            or body_end + 2 + (data[body_end] << 8 | data[body_end + 1]) != position
        ):
            raise _disagreement(body_begin - _HEAD_SIZE, end, size, body_size)
        flags.append(flag)
        bodies.append(data[body_begin:body_end])
        strings.append(data[body_end + 2 : position])
    return flags, bodies, strings


def _disagreement(position: int, end: int, size: int, body_size: int) -> InvalidMessage:
    """Why the sizes of the message there do not agree."""
    if not _MIN_SIZE <= size <= end - position:
        return _invalid(position, f"size is {size}, but {end - position} bytes are left")
    if not 0 <= body_size <= size - _MIN_SIZE:
        return _invalid(position, f"body size is {body_size} in a message of {size}")
    return _invalid(position, f"the sizes inside do not add up to the message's size of {size}")


def _invalid(position: int, why: str) -> InvalidMessage:
    return InvalidMessage(f"no message of a batch at byte {position}: {why}")
