"""Positions of a consumer group in Apache's bloom filters, for `config/consumerFilter.json`.

Apache's broker can store with each ConsumeQueue unit which groups match the message: three of 112 bits per group.

    murmur3(group#topic) = a + b * 2^32        position k = (a + k * b) mod 112, for k = 1, 2, 3

Rucola evaluates message properties instead, and writes the positions only for an Apache broker that opens the store
later.

Corresponds to `BloomFilter` of Apache RocketMQ 4.9.8, with its default sizes: 32 groups, 20 % false positives.
"""

from __future__ import annotations

from struct import unpack_from

BIT_COUNT = 112
HASH_COUNT = 3

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def bloom_filter_positions(text: str) -> list[int]:
    value = _murmur3(text.encode())
    first, step = (value & 0xFFFFFFFF), value >> 32
    positions = []
    for number in range(1, HASH_COUNT + 1):
        # In Java the sum is a signed int, and a negative one is complemented.
        total = (first + number * step) & 0xFFFFFFFF
        positions.append((total if total < 1 << 31 else ~total & 0xFFFFFFFF) % BIT_COUNT)
    return positions


def _murmur3(data: bytes) -> int:
    """First 64 bits of MurmurHash3_x64_128 with seed 0."""
    h1 = h2 = 0
    # Blocks of 16 bytes; the last one is padded with zeros and skips the mixing of the body (`is_whole`).
    padded = data + bytes(-len(data) % 16)
    for position in range(0, len(padded), 16):
        k1, k2 = unpack_from("<QQ", padded, position)
        is_whole = position + 16 <= len(data)
        h1 ^= _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK
        if is_whole:
            h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK
        if is_whole:
            h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_mixed(h1) + _mixed(h2)) & _MASK


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (64 - count)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
