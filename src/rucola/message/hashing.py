"""Java's String.hashCode: the hash of tags in a ConsumeQueue and of keys in an IndexFile.

    h(s) = s[0] * 31^(n-1) + s[1] * 31^(n-2) + ... + s[n-1]     in 32 bits, two's complement

over UTF-16 code units (surrogates count as two). Hashes collide ("Aa" and "BB"), so a selection by hash is followed by
a comparison of strings. An index uses the absolute value; -2^31, whose absolute value does not fit, becomes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_TAIL_LENGTH: Final = 12
_TAIL_WEIGHT: Final = pow(31, _TAIL_LENGTH, 1 << 32)


def string_hash(text: str) -> int:
    """Return String.hashCode of `text`, from -2^31 to 2^31 - 1."""
    if not text.isascii():
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
        value = _hash_of(units)
    elif len(text) <= 2 * _TAIL_LENGTH:
        value = _hash_of(text.encode("ascii"))
    else:
        # The unique keys of one producer differ in their last 12 characters only. With h(stem + tail) = h(stem) *
        # 31^len(tail) + h(tail), the cached hash of the stem saves 20 of 32 steps.
        tail = _hash_of(text[-_TAIL_LENGTH:].encode("ascii"))
        value = (_stem_hash(text[:-_TAIL_LENGTH]) * _TAIL_WEIGHT + tail) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _hash_of(units: Sequence[int]) -> int:
    value = 0
    for unit in units:
        # "AB" is 65 * 31 + 66 = 2,081; "Aa" and "BB" both are 2,112.
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=4096)
def _stem_hash(text: str) -> int:
    return _hash_of(text.encode("ascii"))


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """Return the tagsCode of a ConsumeQueue unit: the tags' hash, or 0 without tags."""
    return string_hash(tags) if tags else 0


def index_hash(text: str) -> int:
    """Return the non-negative hash by which an IndexFile stores `text`, which is `topic#key`."""
    value = abs(string_hash(text))
    return 0 if value == 0x8000_0000 else value


def _powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    powers = np.full(count, base, dtype=np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_INVERSE: Final = pow(31, -1, 1 << 32)
_CHUNK: Final = 1 << 14
_POWERS: Final = _powers(31, _CHUNK)
_INVERSE_POWERS: Final = _powers(_INVERSE, _CHUNK)


def string_hashes(texts: Sequence[str], before: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int32]:
    """Return String.hashCode of every text. `before` has the hashes of prefixes that the texts continue."""
    if not texts:
        return np.zeros(0, np.int32)
    joined = "\0".join((*texts, ""))  # each text ends with a NUL, which adds nothing to a sum
    if joined.isascii():
        units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16] = np.frombuffer(joined.encode("ascii"), np.uint8)
    else:
        units = np.frombuffer(joined.encode("utf-16-le", "surrogatepass"), np.dtype("<u2"))
    ends = np.flatnonzero(units == 0)
    if len(ends) > len(texts):  # some texts contain NULs
        ends = np.cumsum([len(text.encode("utf-16-le", "surrogatepass")) // 2 + 1 for text in texts]) - 1
    begins = np.zeros_like(ends)
    begins[1:] = ends[:-1] + 1
    powers, inverses = _POWERS, _INVERSE_POWERS
    if units.size > _CHUNK:
        powers, inverses = _powers(31, units.size), _powers(_INVERSE, units.size)
    # A unit at position i has the weight 31^(e-1-i), where e is the end of its text. Since 31 has an inverse modulo
    # 2^32, that weight is 31^(e-1) * (1/31)^i: one factor for each position, summed up by text, and one factor for
    # each text. So all texts are hashed by three array operations, whatever their lengths.
    # For AB and C the units are 65 66 0 67 0, and the ends 2 and 4: (65 + 66/31) * 31^(2-1) = 2,081, and (67/31^3) *
    # 31^(4-1) = 67.
    hashes = np.add.reduceat(units * inverses[: units.size], begins, dtype=np.uint32) * powers[ends - 1]
    if before is not None:
        hashes += before.view(np.uint32) * powers[ends - begins]
    return hashes.view(np.int32)


def index_hashes(texts: Sequence[str], before: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int32]:
    hashes: npt.NDArray[np.int32] = np.abs(string_hashes(texts, before))
    # The absolute value of -2^31 stays negative in 32 bits.
    hashes[hashes < 0] = 0
    return hashes
