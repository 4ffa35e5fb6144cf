"""Compression of message bodies with zlib, LZ4 or ZSTD.

A producer compresses a body above its threshold and marks it in sysFlag: bit 0 is set, and bits 8 to 10 hold the type.
The broker stores and forwards such a body unchanged; CRC and size in the record are those of the compressed bytes.

    zlib  a zlib stream (RFC 1950)      LZ4  an LZ4 frame, not a block      ZSTD  a Zstandard frame

A few compressed bytes can expand to gigabytes, so `decompress` has a limit.

Counterpart of the package org.apache.rocketmq.common.compression.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from rucola.errors import InvalidMessage
from rucola.message import sysflag

MAX_DECOMPRESSED_SIZE: Final = 256 * 1024 * 1024


class CompressionType(IntEnum):
    """Compression type, as encoded in bits 8 to 10 of sysFlag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The sysFlag bits of a body with this compression."""
        return sysflag.COMPRESSED | self << sysflag.COMPRESSION_SHIFT


def compression_type(sys_flag: int) -> CompressionType:
    """Return the compression type in `sys_flag`. Raises InvalidMessage for an undefined code."""
    code = (sys_flag & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT
    try:
        return CompressionType(code or CompressionType.ZLIB)
    except ValueError:
        raise InvalidMessage(f"sysFlag {sys_flag:#x} names compression type {code}; known are 1, 2 and 3") from None


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = 5) -> bytes:
    """Compress `body`. `level` ranges from 1 (fast) to 9 (small) for all three types."""
    match kind:
        case CompressionType.ZLIB:
            return zlib.compress(body, level)
        case CompressionType.LZ4:
            return bytes(lz4.frame.compress(body, compression_level=level))
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes | memoryview, sys_flag: int, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Decompress the body of a record with this sysFlag; without the compressed bit, return a copy.

    Raises InvalidMessage if the bytes are not one complete stream of the type, or if the result would exceed `max_size`
    bytes.
    """
    if not sys_flag & sysflag.COMPRESSED:
        return bytes(body)
    kind = compression_type(sys_flag)
    try:
        match kind:
            case CompressionType.ZLIB:
                stream = zlib.decompressobj()
                plain = stream.decompress(body, max_size)
                whole, cut = stream.eof, bool(stream.unconsumed_tail)
            case CompressionType.LZ4:
                frame = lz4.frame.LZ4FrameDecompressor()
                plain = frame.decompress(bytes(body), max_size)
                whole, cut = frame.eof, not frame.needs_input
            case CompressionType.ZSTD:
                zstd = zstandard.ZstdDecompressor().decompressobj()
                parts, size = [], 0
                # A stream need not declare its size, and 4 bytes can expand to 128 KiB: feed 1 KiB at a time, so
                # that at most 32 MiB are produced before the size is checked.
                for begin in range(0, len(body), 1024):
                    parts.append(zstd.decompress(body[begin : begin + 1024]))
                    size += len(parts[-1])
                    if zstd.eof or size > max_size:
                        break
                plain = b"".join(parts)
                whole, cut = zstd.eof and size <= max_size, size > max_size
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise InvalidMessage(f"a body of {len(body)} bytes is not a {kind.name} stream: {error}") from error
    if not whole:
        why = f"expands to more than {max_size} bytes" if cut else "is truncated"
        raise InvalidMessage(f"a {kind.name} body of {len(body)} bytes {why}")
    return plain
