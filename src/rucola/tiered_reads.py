"""Requests of a broker to the process that reads its lake, and their results, over a stream socket.

A frame is its size in 4 bytes, big-endian, and a request or result as MessagePack. Each request has one result, in
order. Records are as in the log. The process is `rucola.spark.lake.tiered_reader`; its side of the socket is its stdin.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

_SIZE: Final = struct.Struct(">I")


class ReadQueue(Struct, frozen=True, tag=True, array_like=True):
    """Messages of a queue from an offset on; the result is a Chunk."""

    topic: str
    queue_id: int
    queue_offset: int


class FindFirst(Struct, frozen=True, tag=True, array_like=True):
    """The first message of a queue; the result is Places with one or none."""

    topic: str
    queue_id: int


class FindOffset(Struct, frozen=True, tag=True, array_like=True):
    """The message at an offset of a queue; the result is Places with one or none."""

    topic: str
    queue_id: int
    queue_offset: int


class FindTime(Struct, frozen=True, tag=True, array_like=True):
    """The last message before a time (ms) and the first at or after it, of those before the offset `end`.

    The result is Places with those that there are.
    """

    topic: str
    queue_id: int
    timestamp_ms: int
    end: int


class ReadRecord(Struct, frozen=True, tag=True, array_like=True):
    """The record at a physical offset; the result is Records with one or none."""

    physical_offset: int


class FindKey(Struct, frozen=True, tag=True, array_like=True):
    """The newest messages of a topic with the hash of a key, below a physical offset; store times are inclusive (ms).

    The result is Records.
    """

    topic: str
    key: str
    max_count: int
    begin_ms: int
    end_ms: int
    before: int


Request: TypeAlias = ReadQueue | FindFirst | FindOffset | FindTime | ReadRecord | FindKey


class Chunk(Struct, frozen=True, tag=True, array_like=True):
    """Messages with consecutive queue offsets from `begin` on.

    If there is none at the requested offset, `begin` is the next one that there is, and -1 without any.
    """

    begin: int
    positions: bytes = b""
    """Where records begin and the last one ends: native 64-bit integers, one more than there are records."""
    codes: bytes = b""
    """Their tags codes, native 64-bit integers."""
    records: memoryview = memoryview(b"")


class Place(Struct, frozen=True, array_like=True):
    queue_offset: int
    store_timestamp: int


class Places(Struct, frozen=True, tag=True, array_like=True):
    places: list[Place]


class Records(Struct, frozen=True, tag=True, array_like=True):
    """Oldest first."""

    records: list[bytes]


class Failed(Struct, frozen=True, tag=True, array_like=True):
    why: str


Result: TypeAlias = Chunk | Places | Records | Failed

_encode: Final = msgspec.msgpack.Encoder().encode
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_results: Final[msgspec.msgpack.Decoder[Result]] = msgspec.msgpack.Decoder(Result)


def send(stream: socket.socket, content: Request | Result) -> None:
    data = _encode(content)
    stream.sendall(_SIZE.pack(len(data)))
    stream.sendall(data)


def receive_request(stream: socket.socket) -> Request:
    """Raises EOFError after the last one."""
    return _requests.decode(_receive(stream))


def receive_result(stream: socket.socket) -> Result:
    """Raises EOFError if the process has ended, TimeoutError, msgspec.MsgspecError."""
    return _results.decode(_receive(stream))


def _receive(stream: socket.socket) -> memoryview:
    return _receive_bytes(stream, _SIZE.unpack(_receive_bytes(stream, _SIZE.size))[0])


def _receive_bytes(stream: socket.socket, size: int) -> memoryview:
    # Not a bytearray: it fills a megabyte with zeros, for which the event loop waits.
    view, received = np.empty(size, np.uint8).data, 0
    while received < size:
        count = stream.recv_into(view[received:])
        if not count:
            raise EOFError("the other process has closed the connection")
        received += count
    return view
