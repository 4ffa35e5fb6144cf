"""Header blocks of requests (RFC 7541), decoded with the table and the Huffman code of the library hpack.

Its own decoder copies the rest of a block for every field, and takes three times as long.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKDecodingError, InvalidTableSizeError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Headers = list[tuple[bytes, bytes]]

_OVERHEAD: Final = 32
"""Bytes that a field counts in addition to its name and value."""
_INDEXED, _ADDED, _SIZE_UPDATE = 0x80, 0x40, 0x20
_MAX_SHIFT: Final = 28
"""Of the digits of an integer, 7 bits each."""


class HeaderDecoder:
    """The blocks of one connection, in their order. `limit` is the size of a header list in bytes."""

    def __init__(self, limit: int) -> None:
        self.table = HeaderTable()
        self._limit = limit
        self._max_table_size = self.table.maxsize

    def decode(self, block: bytes) -> Headers:
        """Return names and values. Raises HPACKError, after which the connection must end."""
        fields: Headers = []
        try:
            self._decode(block, fields)
        except IndexError:
            raise HPACKDecodingError("a header block is cut off") from None
        return fields

    def _decode(self, block: bytes, fields: Headers) -> None:
        table, at, end, size = self.table, 0, len(block), 0
        while at < end:
            first = block[at]
            if first & _INDEXED:
                index, at = _integer(block, at, 0x7F)
                field = table.get_by_index(index)
            elif first & _ADDED:
                name, at = self._name(block, at, 0x3F)
                value, at = _string(block, at)
                field = name, value
                table.add(name, value)
            elif first & _SIZE_UPDATE:
                table_size, at = _integer(block, at, 0x1F)
                if fields or table_size > self._max_table_size:
                    raise InvalidTableSizeError(f"a table size of {table_size} after {len(fields)} fields")
                table.maxsize = table_size
                continue
            else:
                name, at = self._name(block, at, 0x0F)
                value, at = _string(block, at)
                field = name, value
            size += len(field[0]) + len(field[1]) + _OVERHEAD
            if size > self._limit:
                raise OversizedHeaderListError(f"a header list of more than {self._limit} bytes")
            fields.append(field)

    def _name(self, block: bytes, at: int, mask: int) -> tuple[bytes, int]:
        """Return a name that is in the table, or follows, and where the value begins."""
        if block[at] & mask:
            index, at = _integer(block, at, mask)
            return self.table.get_by_index(index)[0], at
        return _string(block, at + 1)


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    length, begin = _integer(block, at, 0x7F)
    end = begin + length
    if end > len(block):
        raise IndexError
    text = block[begin:end]
    return decode_huffman(text) if is_huffman else text, end


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return the integer whose first bits are in the mask, and where it ends."""
    number, at = block[at] & mask, at + 1
    if number == mask:
        shift = 0
        while True:
            digit, at = block[at], at + 1
            number += (digit & 0x7F) << shift
            if digit < 0x80:
                break
            shift += 7
            if shift > _MAX_SHIFT:
                raise HPACKDecodingError("an integer of too many bytes")
    return number, at
