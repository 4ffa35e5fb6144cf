"""Mutations of byte strings: what an attacker or a broken disk makes of valid input."""

from __future__ import annotations

import random
from collections.abc import Sequence

MAX_SIZE = 256 * 1024
"""Inputs grow no further: larger ones are refused by their size, which tests of limits show."""
NUMBERS = [0, 1, 2, 4, 20, *(2**bits - less for bits in (7, 8, 15, 16, 24, 31, 32, 63) for less in (0, 1))]
TOKENS = [
    *(b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"\\", b"\\u", b"\\ud800", b"null", b"true", b"NaN", b"-", b"--"),
    *(
        b"e999999999",
        b"0" * 400,
        b"9" * 30,
        b"1.5",
        b"\x00",
        b"\x01",
        b"\x02",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\x1b[2J",
    ),
    *(b" AND ", b" OR ", b"NOT ", b" IN (", b" IS NULL", b" BETWEEN ", b"(", b")", b"'a'", b"/*", b"*/", b"||", b"*"),
    *(b"../", b"%RETRY%", b"%DLQ%", b"TBW102", b"SCHEDULE_TOPIC_XXXX", b"%s%n", b"queueId", b"topic", b"offsetTable"),
]


def mutated(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return `seed` after one to eight changes; `others` are inputs to take pieces from."""
    data = bytearray(seed)
    for _ in range(1 << chance.randrange(4)):
        _change(data, others, chance)
        del data[MAX_SIZE:]
    return bytes(data)


def _change(data: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    length = min(chance.choice([1, 2, 4, 8, 30, 300, 3000]), len(data) - at)
    match chance.randrange(9):
        case 0 if data:
            data[at - 1] ^= 1 << chance.randrange(8)
        case 1 if data:
            data[at - 1] = chance.randrange(256)
        case 2:
            del data[at : at + length]
        case 3:
            del data[at:]
        case 4:
            data[at:at] = data[at : at + length] * chance.choice([1, 2, 10, 1000])
        case 5:
            data[at:at] = chance.choice(TOKENS) * chance.choice([1, 1, 1, 2, 100])
        case 6:
            size = chance.choice([1, 2, 4, 8])
            number = chance.choice(NUMBERS) + chance.randrange(-2, 3)
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, chance.choice(["big", "little"]))
        case 7:
            data[at : at + length] = str(chance.choice(NUMBERS) * chance.choice([1, -1])).encode()
        case _:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            data[at : at + length] = other[begin : begin + chance.choice([4, 30, 300, 3000])]
