"""What C does with ranges of a log, for scans and for Spark: what numpy, Arrow and Python do, on ranges of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import speed
from rucola.message.record import body_crcs
from rucola.spark.source.property_columns import parse_properties
from support.accelerator import assert_same

SEGMENTS = st.one_of(
    st.builds(
        "{}\x01{}".format, st.sampled_from("abcd\u00e4"), st.sampled_from(["1", "x\0", "\u00e4\U0001f355", "v\x01w"])
    ),
    st.sampled_from(["", "a", "\x01", "a\x01", "\x01v"]),
)
STRINGS = st.lists(SEGMENTS, max_size=5).map(lambda parts: "\x02".join(parts).encode()) | st.binary(max_size=12)


def ranges_of(strings: list[bytes]) -> tuple[Any, Any, Any]:
    """Put strings into one buffer, with a byte before each, and return it with their begins and ends."""
    sizes = np.array([1 + len(string) for string in strings], np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.frombuffer(b"".join(b"#" + string for string in strings), np.uint8), ends - sizes + 1, ends


@given(st.lists(STRINGS, min_size=1, max_size=8))
def test_both_find_the_same_properties(strings: list[bytes]) -> None:
    def parse() -> Any:
        parsed = parse_properties(*ranges_of(strings))
        return parsed.as_map().to_pylist(), [parsed.values_of(name).to_pylist() for name in ("a", "b", "none")]

    assert_same(parse)


@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_properties_with_many_names(count: int) -> None:
    one = "\x02".join(f"name{number}\x01{number}" for number in range(count)).encode()
    for strings in ([one, b"a\x01b", one], [b"n%d\x01v" % number for number in range(count)]):
        assert_same(lambda strings=strings: parse_properties(*ranges_of(strings)).as_map().to_pylist())


def test_the_usual_properties_are_parsed_in_c() -> None:
    if speed.parse_properties is not None:
        found = speed.parse_properties(*ranges_of([b"a\x01b\x02TAGS\x01x\x02", b"", b"a\x01", b"TAGS\x01y"]))
        assert found is not None
        offsets, names, codes, value_offsets, values, irregular = found
        assert np.frombuffer(offsets, np.int32).tolist() == [0, 2, 2, 2, 3]
        assert names == [b"a", b"TAGS"]
        assert np.frombuffer(codes, np.int32).tolist() == [0, 1, 1]
        assert np.frombuffer(value_offsets, np.int32).tolist() == [0, 1, 2, 3]
        assert values == b"bxy"
        assert np.frombuffer(irregular, np.int64).tolist() == [2]


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_both_compute_the_same_checksums(bodies: list[bytes]) -> None:
    assert_same(lambda: body_crcs(*ranges_of(bodies)).tolist())


BOUNDS = st.lists(st.integers(-2, 12) | st.sampled_from([-(2**63), 2**63 - 1]), max_size=3)


@given(BOUNDS, BOUNDS)
def test_ranges_outside_the_data_are_declined(begins: list[int], ends: list[int]) -> None:
    if speed.crc32_of_ranges is not None and speed.parse_properties is not None:
        columns = np.array(begins, np.int64), np.array(ends, np.int64)
        bounds = zip(begins, ends, strict=False)
        is_inside = len(begins) == len(ends) and all(0 <= begin <= end <= 10 for begin, end in bounds)
        assert (speed.crc32_of_ranges(bytes(10), *columns) is not None) == is_inside
        assert (speed.parse_properties(bytes(10), *columns) is not None) == is_inside
        assert speed.crc32_of_ranges(bytes(10), columns[0].view(np.uint8)[:-1], columns[1]) is None or not begins
