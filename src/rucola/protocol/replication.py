"""The replication of a log, without I/O: what a master and its slave say to each other on the HA port.

A slave connects and reports; the master answers with bytes of its CommitLog, as they lie on its disk.

    slave -> master    position  bytes  field
                              0      8  physical offset: the end of the slave's log, or where it wants to begin

    master -> slave    position  bytes  field
                              0      8  physical offset of the first byte
                              8      4  size
                             12         so many bytes of the log, which need not begin or end with a record

Integers are big-endian and signed. The first report says where to begin, each one after it how far the slave has come;
a report may be repeated to show that somebody is there, and so may a transfer without bytes. Transfers follow each
other without gap. A slave of Apache's holds 4 MiB of a transfer, header included, and waits for ever behind a larger
one.

Answers to the wire of `HAService.HAClient` and `HAConnection` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from rucola.errors import RemoteProtocolError

_REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")

MAX_TRANSFER_SIZE: Final = 4 * 1024 * 1024 - _HEADER.size
"""So many bytes of the log a slave of Apache's takes at once."""


def encode_report(physical_offset: int) -> bytes:
    """What a slave says: it has everything before `physical_offset`, or, at first, wants what begins there."""
    return _REPORT.pack(physical_offset)


def encode_header(physical_offset: int, size: int) -> bytes:
    """What stands before `size` bytes of the log."""
    return _HEADER.pack(physical_offset, size)


class ReportDecoder:
    """Turns what a slave sends into its reports."""

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[int]:
        """Return the reports that are whole now, in order. RemoteProtocolError for one that no log can have."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        reports = [physical_offset for (physical_offset,) in _REPORT.iter_unpack(data[:whole])]
        for physical_offset in reports:
            if physical_offset < 0:
                raise RemoteProtocolError(f"a report of physical offset {physical_offset}; it cannot be below 0")
        return reports


class TransferDecoder:
    """Turns what a master sends into pieces of its log.

    A piece is given out as soon as it is there, however large its transfer, so nothing is kept but parts of a header.
    """

    def __init__(self) -> None:
        self._header = b""
        self._next_offset = -1
        self._left = 0

    def receive_data(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (physical offset, bytes) for what has come; a heartbeat has no bytes. The bytes are views of `data`.

        RemoteProtocolError for a header that cannot be, or one that does not go on where the last transfer ended.
        """
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _HEADER.size:
                    return
                self._begin(*_HEADER.unpack(self._header))
                self._header = b""
                if not self._left:
                    yield self._next_offset, view[:0]
            elif view:
                piece = view[: self._left]
                view = view[len(piece) :]
                begin = self._next_offset
                self._next_offset += len(piece)
                self._left -= len(piece)
                yield begin, piece

    def _begin(self, physical_offset: int, size: int) -> None:
        if physical_offset < 0 or size < 0:
            raise RemoteProtocolError(f"a transfer of {size} bytes at physical offset {physical_offset}")
        if self._next_offset >= 0 and physical_offset != self._next_offset:
            raise RemoteProtocolError(
                f"a transfer from physical offset {physical_offset}, where {self._next_offset} was to follow"
            )
        self._next_offset, self._left = physical_offset, size
