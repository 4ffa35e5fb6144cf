"""The two ids of a message.

offsetMsgId is an address. The broker gives it out, and one can fetch the message with it:

    storeHost (8 bytes with IPv4, 20 with IPv6), physicalOffset (8 bytes)      32 or 56 upper-case hex digits

The unique id is made by the producer before it sends, and travels as the property UNIQ_KEY:

    4 bytes  address of the producer's machine (16 with IPv6)
    2 bytes  process id, its lower 16 bits
    4 bytes  a number of this process
    4 bytes  milliseconds since the first of the month, local time
    2 bytes  counter                                                           32 upper-case hex digits

The counter wraps at 65,536, so ids repeat only when a process makes more than that many in one millisecond.

Answers to MessageDecoder.createMessageId and MessageClientIDSetter of org.apache.rocketmq.common.message. Apache
puts the machine's address and a class loader's hash into the unique id; here both are random, drawn anew in every
process and after a fork, as Apache itself does where it finds no address.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from itertools import count
from struct import Struct, pack
from typing import Final

from rucola.errors import InvalidMessage
from rucola.message.host import decode_host

_OFFSET: Final = Struct(">q")
_TAIL: Final = Struct(">IH")


OFFSET_DIGITS: Final = b"%016X"
"""The physical offset as it stands in an offsetMsgId, behind the digits of the host."""


def host_digits(store_host: bytes) -> bytes:
    """Return how every offsetMsgId of the broker whose storeHost has these 8 or 20 bytes begins."""
    return store_host.hex().upper().encode()


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the broker whose storeHost has these 8 or 20 bytes."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def offset_msg_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """Return the ids of several records, separated by commas."""
    ids = store_host + store_host.join(map(_OFFSET.pack, physical_offsets))
    return ids.hex(",", len(store_host) + 8).upper()


def parse_offset_msg_id(message_id: str) -> tuple[str, int]:
    """Return (host as `address:port`, physical offset). Raises InvalidMessage for what is no offsetMsgId."""
    try:
        data = bytes.fromhex(message_id)
        if len(message_id) not in (32, 56) or len(data) * 2 != len(message_id) or data[-8] > 0x7F:
            raise ValueError("it must have 32 or 56 hex digits and a positive offset")
        return decode_host(data[:-8]), int.from_bytes(data[-8:], "big")
    except (ValueError, InvalidMessage) as error:
        raise InvalidMessage(f"{message_id!r} is no offsetMsgId: {error}") from error


class UniqueIds:
    """A source of unique ids. `address` has 4 or 16 bytes, `number` 4."""

    def __init__(self, address: bytes, process_id: int, number: int) -> None:
        self._prefix = (address + pack(">HI", process_id & 0xFFFF, number & 0xFFFFFFFF)).hex().upper()
        self._count = count()
        self._month_begin_ms, self._month_end_ms = 0, 0

    def next(self, now_ms: int) -> str:
        """Return an id made at `now_ms`, milliseconds since 1970."""
        if not self._month_begin_ms <= now_ms < self._month_end_ms:
            self._month_begin_ms, self._month_end_ms = _month_of(now_ms, 0), _month_of(now_ms, 1)
        return self._prefix + _TAIL.pack(now_ms - self._month_begin_ms, next(self._count) & 0xFFFF).hex().upper()


def _month_of(now_ms: int, later: int) -> int:
    """Return when the month of `now_ms`, or one `later` months after it, begins in local time."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon + later, 1, 0, 0, 0, 0, 0, -1))) * 1000


def _of_this_process() -> UniqueIds:
    return UniqueIds(secrets.token_bytes(4), os.getpid(), secrets.randbits(32))


_ids = _of_this_process()


def _after_fork() -> None:
    global _ids
    _ids = _of_this_process()


os.register_at_fork(after_in_child=_after_fork)


def unique_id() -> str:
    """Return a new unique id, 32 upper-case hex digits. Safe to call from any thread."""
    return _ids.next(time.time_ns() // 1_000_000)


def unique_id_time_ms(unique_id: str, now_ms: int) -> int:
    """Return when the id was made, milliseconds since 1970.

    An id says only how far into a month that was, so the answer is the last such moment up to `now_ms`; for ids older
    than a month it is wrong. Raises InvalidMessage for what is no unique id.
    """
    try:
        data = bytes.fromhex(unique_id)
        if len(unique_id) not in (32, 56) or len(data) * 2 != len(unique_id):
            raise ValueError("it must have 32 or 56 hex digits")
    except ValueError as error:
        raise InvalidMessage(f"{unique_id!r} is no unique id: {error}") from error
    elapsed_ms = int.from_bytes(data[-6:-2], "big")
    month_begin_ms = _month_of(now_ms, 0)
    if month_begin_ms + elapsed_ms > now_ms:
        month_begin_ms = _month_of(now_ms, -1)
    return month_begin_ms + elapsed_ms
