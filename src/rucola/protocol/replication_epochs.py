"""Epochs on the replication connection, used only if both sides support them.

Other peers, such as Apache RocketMQ 4.9.8, use the protocol of `rucola.protocol.replication`. Numbers below 0, which
are never offsets there, start the extensions:

    slave  -> master   8  -1: this slave supports epochs
                       8  its first report
    master -> slave    8  -1: this master supports epochs, too
                       4  size of the rest
                       8  epoch of the master
                       8  start offset of its log
                       8  end offset of its log
                       1  1 for a SYNC_MASTER, 0 for an ASYNC_MASTER
                          for each epoch of its log: 8 number, 8 start offset
    slave  -> master   8  -2: this slave joins
                       4  size of the rest
                       8  its brokerId
                       8  the newest epoch that it has seen
                       8  the physical offset at which to start, which replaces the first report
                       8  the end offset of its log
                       2  size of the address that follows
                          the address for clients, which distinguishes it from others with its brokerId
                          for each epoch of its log: 8 number, 8 start offset

then transfers and reports, but the header of a transfer has 8 more bytes, after the size:

    master -> slave    8  visible end: consumers may read up to this physical offset, which all slaves of the
                          in-sync set have; 2^63 - 1 for a master without one, and for an ASYNC_MASTER

A master of 4.9.8 understands -1 as "nothing requested yet", its initial value, and waits for the next report. A slave
of 4.9.8 sends no -1. So the first bytes decide, and no timeout is needed. Integers are big-endian and signed. Rucola
before epochs closes the connection at -1; the slave then leaves the extensions out. A message with other fields needs a
number of its own, below -2: slaves are upgraded first, so a new one must be understood by the master before.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from rucola.errors import RemoteProtocolError

KNOWS_EPOCHS: Final = -1
JOINS: Final = -2

INTRODUCTION: Final = Struct(">qi")
"""Number and size before a greeting or a join; as long as a transfer's header."""
MAX_SIZE: Final = 1 << 20

_GREETING: Final = Struct(">qqq?")
_JOIN: Final = Struct(">qqqq")
_ADDRESS_SIZE: Final = Struct(">H")
_EPOCH: Final = Struct(">qq")


class Greeting(NamedTuple):
    """The state of a master; `epochs` are pairs of number and start offset."""

    epoch: int
    begin: int
    end: int
    is_sync: bool
    epochs: tuple[tuple[int, int], ...]


class Join(NamedTuple):
    """The state of a slave; `begin` is the physical offset at which to start."""

    member_id: int
    newest_epoch: int
    begin: int
    end: int
    address: str
    epochs: tuple[tuple[int, int], ...]


def encode_greeting(greeting: Greeting) -> bytes:
    """Encode a greeting with its introduction."""
    return _encode(KNOWS_EPOCHS, _GREETING.pack(*greeting[:-1]), greeting.epochs)


def encode_join(join: Join) -> bytes:
    """Encode a join with its introduction."""
    address = join.address.encode()
    return _encode(JOINS, _JOIN.pack(*join[:4]) + _ADDRESS_SIZE.pack(len(address)) + address, join.epochs)


def decode_greeting(body: bytes) -> Greeting:
    """Decode a greeting without its introduction. RemoteProtocolError if malformed."""
    epoch, begin, end, is_sync = _fields(_GREETING, body)
    return Greeting(epoch, begin, end, bool(is_sync), _epochs(body[_GREETING.size :]))


def decode_join(body: bytes) -> Join:
    """Decode a join without its introduction. RemoteProtocolError if malformed."""
    member_id, newest_epoch, begin, end = _fields(_JOIN, body)
    if not 0 <= begin <= end:
        raise RemoteProtocolError(f"a slave with a log that ends at {end} wants it from {begin} on")
    (size,) = _fields(_ADDRESS_SIZE, body[_JOIN.size :])
    rest = body[_JOIN.size + _ADDRESS_SIZE.size :]
    try:
        address = rest[:size].decode()
    except UnicodeDecodeError:
        address = ""
    if len(rest) < size or (size and not address):
        raise RemoteProtocolError(f"a slave whose address has {size} bytes: {rest[:size]!r}")
    return Join(member_id, newest_epoch, begin, end, address, _epochs(rest[size:]))


def checked_size(introduction: bytes, number: int) -> int:
    """Return the size in an introduction. RemoteProtocolError unless it starts with `number`."""
    found, size = INTRODUCTION.unpack(introduction)
    if found != number or not 0 <= size <= MAX_SIZE:
        raise RemoteProtocolError(f"{found} with {size} bytes, where {number} with its epochs is expected")
    return int(size)


def _encode(number: int, fields: bytes, epochs: Sequence[tuple[int, int]]) -> bytes:
    body = fields + b"".join([_EPOCH.pack(*epoch) for epoch in epochs])
    return INTRODUCTION.pack(number, len(body)) + body


def _fields(layout: Struct, body: bytes) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise RemoteProtocolError(f"{len(body)} bytes about a log, at least {layout.size} are expected")
    return layout.unpack_from(body)


def _epochs(data: bytes) -> tuple[tuple[int, int], ...]:
    if len(data) % _EPOCH.size:
        raise RemoteProtocolError(f"{len(data)} bytes of epochs, which have {_EPOCH.size} each")
    return tuple(_EPOCH.iter_unpack(data))
