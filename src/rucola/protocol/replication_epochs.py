"""Epochs on the replication connection, used only if both sides know them.

The protocol of `rucola.protocol.replication` is unchanged for a peer that knows no epochs, in particular for Apache
RocketMQ 4.9.8. Numbers below 0, which it never uses as offsets, introduce what is new:

    slave  -> master   8  -1: this slave knows epochs
                       8  its first report, as ever
    master -> slave    8  -1: this master knows epochs, too
                       4  size of what follows
                       8  epoch of the master
                       8  begin of its log
                       8  end of its log
                       1  1 for a SYNC_MASTER, 0 for an ASYNC_MASTER
                          for each epoch of its log: 8 number, 8 begin
    slave  -> master   8  -2: this slave joins
                       4  size of what follows
                       8  its brokerId
                       8  the newest epoch that it knows
                       8  the physical offset at which to begin, which replaces the first report
                       8  the end of its log
                       2  size of the address that follows
                          the address at which it serves clients, which tells it from another one with its brokerId
                          for each epoch of its log: 8 number, 8 begin

then transfers and reports as ever, but for 8 more bytes in the header of a transfer, behind the size:

    master -> slave    8  visible end: consumers may see what ends at or before this physical offset, since all slaves
                          of the in-sync set have it; 2^63 - 1 for a master without one, and for an ASYNC_MASTER

A master of 4.9.8 takes the -1 for "nothing requested yet", which is the number that it starts with: it waits for the
next report, and sends transfers, whose offsets are not below 0. A slave of 4.9.8 sends no -1, and gets transfers from a
master of either kind. So both sides know after the first bytes that they receive, and no timeout is needed.

Integers are big-endian and signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from rucola.errors import RemoteProtocolError

KNOWS_EPOCHS: Final = -1
JOINS: Final = -2

INTRODUCTION: Final = Struct(">qi")
"""Number and size before a greeting or a join; as long as the header of a transfer."""
MAX_SIZE: Final = 1 << 20

_GREETING: Final = Struct(">qqq?")
_JOIN: Final = Struct(">qqqq")
_ADDRESS_SIZE: Final = Struct(">H")
_EPOCH: Final = Struct(">qq")


class Greeting(NamedTuple):
    """The state of a master; `epochs` are pairs of number and begin."""

    epoch: int
    begin: int
    end: int
    is_sync: bool
    epochs: tuple[tuple[int, int], ...]


class Join(NamedTuple):
    """The state of a slave, likewise.

    `begin` is the physical offset from which on it wants the log.
    """

    member_id: int
    newest_epoch: int
    begin: int
    end: int
    address: str
    epochs: tuple[tuple[int, int], ...]


def encode_greeting(greeting: Greeting) -> bytes:
    """Return a greeting with its introduction."""
    return _encode(KNOWS_EPOCHS, _GREETING.pack(*greeting[:-1]), greeting.epochs)


def encode_join(join: Join) -> bytes:
    """Return a join with its introduction."""
    address = join.address.encode()
    return _encode(JOINS, _JOIN.pack(*join[:4]) + _ADDRESS_SIZE.pack(len(address)) + address, join.epochs)


def decode_greeting(body: bytes) -> Greeting:
    """Return the greeting in what follows an introduction. Raises RemoteProtocolError."""
    epoch, begin, end, is_sync = _fields(_GREETING, body)
    return Greeting(epoch, begin, end, bool(is_sync), _epochs(body[_GREETING.size :]))


def decode_join(body: bytes) -> Join:
    """Return the join in what follows an introduction. Raises RemoteProtocolError."""
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
    """Return the size in an introduction. RemoteProtocolError unless it begins with `number`."""
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
