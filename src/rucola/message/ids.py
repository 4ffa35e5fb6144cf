"""Message ids: the broker's offsetMsgId and the producer's unique key, as upper-case hex digits.

An offsetMsgId, the address of a record, has 32 or 56 digits:

    storeHost (8 bytes with IPv4, 20 with IPv6), physicalOffset (8 bytes)

A unique id, which a producer generates for the property UNIQ_KEY, has 32 digits (56 with IPv6):

    4 bytes  address of the producer's machine (16 with IPv6)
    2 bytes  process id, its lower 16 bits
    4 bytes  random number of the process
    4 bytes  milliseconds since the first of the month, local time
    2 bytes  counter, which wraps

Counterpart of MessageDecoder.createMessageId and MessageClientIDSetter of org.apache.rocketmq.common.message.
Deliberate difference: address and number are random in each process and fork.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from struct import Struct, pack
from typing import Final

from rucola.errors import InvalidMessage
from rucola.message.host import decode_host

_OFFSET: Final = Struct(">q")
_TAIL: Final = Struct(">IH")


OFFSET_DIGITS: Final = b"%016X"
"""Format of the physical offset, after the digits of the host."""


def host_digits(store_host: bytes) -> bytes:
    return store_host.hex().upper().encode()


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def offset_msg_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    ids = store_host + store_host.join(map(_OFFSET.pack, physical_offsets))
    return ids.hex(",", len(store_host) + 8).upper()


def parse_offset_msg_id(message_id: str) -> tuple[str, int]:
    """Return host (`address:port`) and physical offset. Raises InvalidMessage."""
    try:
        data = _from_hex(message_id)
        if data[-8] > 0x7F:
            raise ValueError("its physical offset is negative")
        return decode_host(data[:-8]), int.from_bytes(data[-8:], "big")
    except (ValueError, InvalidMessage) as error:
        raise InvalidMessage(f"{message_id!r} is not an offsetMsgId: {error}") from error


def is_id(text: str) -> bool:
    """Return whether a text has the form of an offsetMsgId or a unique id."""
    try:
        return bool(_from_hex(text))
    except ValueError:
        return False


def _from_hex(text: str) -> bytes:
    if len(text) in (32, 56):
        with suppress(ValueError):
            if len(data := bytes.fromhex(text)) * 2 == len(text):
                return data
    raise ValueError("it must have 32 or 56 hexadecimal digits")


class UniqueIds:
    """Generator of unique ids. `address` has 4 or 16 bytes, `number` 4."""

    def __init__(self, address: bytes, process_id: int, number: int) -> None:
        self._prefix = (address + pack(">HI", process_id & 0xFFFF, number & 0xFFFFFFFF)).hex().upper()
        self._count = count()
        self._month_begin_ms, self._month_end_ms = 0, 0

    def next(self, now_ms: int) -> str:
        """Return a new id for `now_ms`, in milliseconds since 1970."""
        if not self._month_begin_ms <= now_ms < self._month_end_ms:
            self._month_begin_ms, self._month_end_ms = _month_of(now_ms, 0), _month_of(now_ms, 1)
        return self._prefix + _TAIL.pack(now_ms - self._month_begin_ms, next(self._count) & 0xFFFF).hex().upper()


def _month_of(now_ms: int, later: int) -> int:
    """Return the start, in local time, of the month `later` months after `now_ms`."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon + later, 1, 0, 0, 0, 0, 0, -1))) * 1000


def _of_this_process() -> UniqueIds:
    return UniqueIds(secrets.token_bytes(4), os.getpid(), secrets.randbits(32))


_ids = _of_this_process()


def _after_fork() -> None:
    global _ids
    _ids = _of_this_process()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)


def unique_id() -> str:
    """Return a new unique id. Thread-safe."""
    return _ids.next(time.time_ns() // 1_000_000)


def unique_id_time_ms(unique_id: str, now_ms: int) -> int:
    """Return when an id was generated, in ms since 1970; wrong if over a month old. Raises InvalidMessage."""
    try:
        data = _from_hex(unique_id)
    except ValueError as error:
        raise InvalidMessage(f"{unique_id!r} is not a unique id: {error}") from error
    elapsed_ms = int.from_bytes(data[-6:-2], "big")
    month_begin_ms = _month_of(now_ms, 0)
    # Read on 2 February, an id with 30 days since the first of its month is from 31 January.
    if month_begin_ms + elapsed_ms > now_ms:
        month_begin_ms = _month_of(now_ms, -1)
    return month_begin_ms + elapsed_ms
