"""Java's String.hashCode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.message.hashing import index_hash, string_hash, tags_code


def by_definition(text: str) -> int:
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    value = sum(unit * 31 ** (len(units) - 1 - k) for k, unit in enumerate(units)) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("TagA", 2598919),
        ("commit", -1354815177),
        ("polygenelubricants", -(2**31)),
        ("café", 3045921),
        ("\U0001f600", 1772899),
    ],
)
def test_string_hash_equals_known_values_of_java(text: str, expected: int) -> None:
    assert by_definition(text) == expected
    assert string_hash(text) == expected
    assert tags_code(text) == expected


def test_index_hash_maps_the_smallest_integer_to_zero() -> None:
    assert index_hash("polygenelubricants") == 0
    assert index_hash("commit") == 1354815177


@given(st.text(st.characters(exclude_categories=[])))
def test_hashes_equal_their_definition(text: str) -> None:
    assert string_hash(text) == by_definition(text)
    assert index_hash(text) == abs(by_definition(text)) % 2**31


def test_hashes_of_long_texts_equal_their_definition() -> None:
    for text in ("x" * 5000, "é" * 1025, "\U0001f600" * 700):
        assert string_hash(text) == by_definition(text)
    for length in range(60):
        text = "ABCDEFghijkl0123456789" * 3
        assert string_hash(text[:length]) == by_definition(text[:length])


def test_tags_code_without_tags_is_zero() -> None:
    assert tags_code(None) == 0
    assert tags_code("") == 0
