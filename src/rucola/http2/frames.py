"""Frames of HTTP/2 (RFC 9113, section 6), and header blocks without compression (RFC 7541).

bytes  field
    3  length of the payload
    1  type
    1  flags
    4  stream id, 0 for the connection; the highest bit is reserved
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD: Final = Struct(">HBBBI")
"""The head of a frame; the length is in the first two fields."""
SETTING: Final = Struct(">HI")
WORD: Final = Struct(">I")

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_MAX_FRAME_SIZE: Final = 16_384
MAX_WINDOW: Final = (1 << 31) - 1
MAX_STREAM_ID: Final = (1 << 31) - 1

_STATUS_200: Final = b"\x88"
"""Entry 8 of the static table."""
_LITERAL: Final = b"\x00"
"""A field with a literal name, not entered in the table."""


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings))


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode lower-case names and values. The result depends on no state, so it may be sent again."""
    return b"".join(_STATUS_200 if field == (b":status", b"200") else _field(*field) for field in fields)


def _field(name: bytes, value: bytes) -> bytes:
    return _LITERAL + _length(len(name)) + name + _length(len(value)) + value


def _length(length: int) -> bytes:
    """An integer with a prefix of 7 bits, without Huffman coding."""
    if length < 127:
        return bytes((length,))
    encoded, length = [127], length - 127
    while length >= 128:
        encoded.append(length % 128 + 128)
        length //= 128
    return bytes((*encoded, length))
