"""Java's String.hashCode: the hash of tags in a ConsumeQueue and of keys in an IndexFile.

    h(s) = s[0] * 31^(n-1) + s[1] * 31^(n-2) + ... + s[n-1]     in 32 bits, two's complement

over UTF-16 code units (surrogates count as two). Hashes collide ("Aa" and "BB"), so a selection by hash is followed by
a comparison of strings. An index uses the absolute value; -2^31, whose absolute value does not fit, becomes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

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
    """Return the non-negative hash by which an IndexFile stores `text`, which is `topic#key`.

    Corresponds to `IndexFile.indexKeyHashMethod`.
    """
    value = abs(string_hash(text))
    return 0 if value == 0x8000_0000 else value
