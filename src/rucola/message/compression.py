"""Compression of message bodies with zlib, LZ4 or ZSTD.

    zlib  a zlib stream (RFC 1950)      LZ4  an LZ4 frame, not a block      ZSTD  a Zstandard frame

In sysFlag, bit 0 marks a compressed body and bits 8 to 10 hold the type. The broker stores and forwards the body
unchanged; CRC and size in the record are of the compressed bytes. Brokers accept any body with these bits, so every
reader calls `read_body`, which returns a body that cannot be decompressed as stored, with the reason (`body_error`,
`bodyError` in JSON and columns). Counterpart of the package org.apache.rocketmq.common.compression.
"""

from __future__ import annotations

import os
import zlib
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import lz4.frame
import zstandard

from rucola.errors import ConfigError, InvalidMessage
from rucola.message import sysflag

SIZE_VARIABLE: Final = "RUCOLA_MAX_DECOMPRESSED_SIZE"
RATIO_VARIABLE: Final = "RUCOLA_MAX_DECOMPRESSION_RATIO"
"""Environment variables that replace the limits, read with the first compressed message of the process."""

_ZSTD_STEP: Final = 256
"""Compressed bytes per step of ZSTD: 4 bytes can expand to 128 KiB, so a step produces at most 8 MiB."""


class ExpansionLimits(NamedTuple):
    """Limits on the expansion of one body."""

    max_size: int = 64 * 1024 * 1024
    """Largest decompressed body in bytes."""
    max_ratio: int = 250
    """Largest ratio beyond `free_size`. Logs and JSON reach 5 to 50, repeated text 1,000."""
    free_size: int = 8 * 1024 * 1024
    """Decompressed bytes that any body may have, regardless of its ratio."""

    def of(self, compressed_size: int) -> int:
        """Return the largest permitted size of a body with this compressed size."""
        return min(self.max_size, max(self.free_size, self.max_ratio * compressed_size))

    def exceeded(self, kind: str, compressed_size: int) -> InvalidMessage:
        limit = self.of(compressed_size)
        if limit == self.max_size:
            key, rule = SIZE_VARIABLE, "the limit of a decompressed body"
        else:
            key, rule = RATIO_VARIABLE, f"{self.max_ratio} times its size or {self.free_size} bytes"
        text = f"a {kind} body of {compressed_size} bytes expands to more than {limit} bytes: {rule}; {key} raises it"
        return InvalidMessage(text, subject=key)


@lru_cache(maxsize=1)
def expansion_limits() -> ExpansionLimits:
    """Return the limits of this process. Raises ConfigError."""
    default = ExpansionLimits()
    return default._replace(
        max_size=_from_environment(SIZE_VARIABLE, default.max_size),
        max_ratio=_from_environment(RATIO_VARIABLE, default.max_ratio),
    )


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: expected a number of at least 1", subject=name)
    return int(text)


class CompressionType(IntEnum):
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
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
            return bytes(lz4.frame.compress(body, compression_level=level, store_size=False))
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=level).compress(body)


def read_body(stored: bytes | memoryview, sys_flag: int) -> tuple[bytes, str | None]:
    """Return the body and None, or the body as stored and the reason why it cannot be decompressed."""
    try:
        return decompress(stored, sys_flag), None
    except InvalidMessage as error:
        return bytes(stored), str(error)


def decompress(body: bytes | memoryview, sys_flag: int, limits: ExpansionLimits | None = None) -> bytes:
    """Return the decompressed body. Raises InvalidMessage for an incomplete stream or a result above `limits`."""
    if not sys_flag & sysflag.COMPRESSED:
        return bytes(body)
    kind = compression_type(sys_flag)
    limits = limits or expansion_limits()
    max_size = limits.of(len(body))
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
                plain, whole, cut = _decompress_zstd(body, max_size)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise InvalidMessage(f"a body of {len(body)} bytes is not a {kind.name} stream: {error}") from error
    if cut and not whole:
        raise limits.exceeded(kind.name, len(body))
    if not whole:
        raise InvalidMessage(f"a {kind.name} body of {len(body)} bytes is truncated")
    return plain


def _decompress_zstd(body: bytes | memoryview, max_size: int) -> tuple[bytes, bool, bool]:
    """Return bytes, whether the stream is whole, and whether it exceeds `max_size`, which bounds the window too."""
    if zstandard.get_frame_parameters(body).window_size > max(max_size, 1 << zstandard.WINDOWLOG_MIN):
        return b"", False, True
    zstd = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    for begin in range(0, len(body), _ZSTD_STEP):
        parts.append(zstd.decompress(body[begin : begin + _ZSTD_STEP]))
        size += len(parts[-1])
        if zstd.eof or size > max_size:
            break
    return b"".join(parts), zstd.eof and size <= max_size, size > max_size
