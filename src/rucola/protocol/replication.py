"""Replication protocol of master and slave on the HA port, without I/O.

A slave sends reports; the master sends bytes of its CommitLog, unchanged.

    slave -> master    position  bytes  field
                              0      8  physical offset: the end of the slave's log, or where to start

    master -> slave    position  bytes  field
                              0      8  physical offset of the first byte
                              8      4  size
                             12         bytes of the log; a transfer may start and end within a record

Integers are big-endian and signed. The first report is the start offset, each later one acknowledges all bytes before
it. Repeated reports and empty transfers are heartbeats. Transfers are contiguous. Apache's slave buffers 4 MiB of a
transfer, header included, and hangs on a larger one.

Example: a slave with 256 bytes receives 5 bytes, and acknowledges them.

    slave  -> master   00 00 00 00 00 00 01 00
    master -> slave    00 00 00 00 00 00 01 00   00 00 00 05   xx xx xx xx xx
    slave  -> master   00 00 00 00 00 00 01 05

Corresponds to the wire protocol of `HAService.HAClient` and `HAConnection` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from rucola.errors import RemoteProtocolError

_REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")
_HEADER_WITH_END: Final = Struct(">qiq")

NO_VISIBLE_END: Final = (1 << 63) - 1
"""The visible end if consumers may read the whole log."""

MAX_TRANSFER_SIZE: Final = 4 * 1024 * 1024 - _HEADER.size
"""Apache's slave hangs on a larger transfer."""


def encode_report(physical_offset: int) -> bytes:
    """Encode a report: the start offset first, later the end of the acknowledged bytes."""
    return _REPORT.pack(physical_offset)


def encode_header(physical_offset: int, size: int, visible_end: int | None = None) -> bytes:
    """Encode the header of a transfer, with a visible end for a slave with epochs."""
    if visible_end is None:
        return _HEADER.pack(physical_offset, size)
    return _HEADER_WITH_END.pack(physical_offset, size, visible_end)


class ReportDecoder:
    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[int]:
        """Return the completed reports. RemoteProtocolError for a negative offset."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        reports = [physical_offset for (physical_offset,) in _REPORT.iter_unpack(data[:whole])]
        for physical_offset in reports:
            if physical_offset < 0:
                raise RemoteProtocolError(f"a report of physical offset {physical_offset}; it cannot be below 0")
        return reports


class TransferDecoder:
    """Decodes transfers into pieces of the log. Set `has_visible_end` if both sides support epochs."""

    def __init__(self, *, has_visible_end: bool = False) -> None:
        self.visible_end = NO_VISIBLE_END
        self._layout = _HEADER_WITH_END if has_visible_end else _HEADER
        self._rest = b""  # the received part of an incomplete header
        self._next_offset = -1  # physical offset of the next byte; -1 before the first transfer
        self._remaining = 0  # bytes of the current transfer that were not received

    def receive_data(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (physical offset, piece of `data`), empty for a heartbeat. RemoteProtocolError if not contiguous."""
        view, self._rest = memoryview(self._rest + data), b""
        while view:
            if not self._remaining:
                if len(view) < self._layout.size:
                    self._rest = bytes(view)
                    return
                self._begin(*self._layout.unpack_from(view))
                view = view[self._layout.size :]
            begin, piece, view = self._next_offset, view[: self._remaining], view[self._remaining :]
            self._next_offset += len(piece)
            self._remaining -= len(piece)
            if piece or not self._remaining:
                yield begin, piece

    def _begin(self, physical_offset: int, size: int, visible_end: int = NO_VISIBLE_END) -> None:
        if physical_offset < 0 or size < 0:
            raise RemoteProtocolError(f"a transfer of {size} bytes at physical offset {physical_offset}")
        if visible_end < 0:
            raise RemoteProtocolError(f"a visible end of {visible_end}")
        if self._next_offset >= 0 and physical_offset != self._next_offset:
            raise RemoteProtocolError(
                f"a transfer from physical offset {physical_offset}, but {self._next_offset} is next"
            )
        self._next_offset, self._remaining, self.visible_end = physical_offset, size, visible_end
