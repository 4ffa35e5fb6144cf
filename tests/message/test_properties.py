"""The property string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import InvalidMessage
from rucola.message.properties import RESERVED, columns, join, parse

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(words, words))
def test_joined_properties_are_parsed(properties: dict[str, str]) -> None:
    data = join(properties)
    assert list(parse(data).items()) == list(properties.items())
    assert parse(memoryview(data + b"\x02" if data else data)) == properties
    assert join(parse(data.decode())) == data
    assert not data.endswith(b"\x02")


@given(st.binary())
def test_parse_accepts_any_text(data: bytes) -> None:
    for name, value in parse(data).items():
        assert name
        assert value
        assert "\x02" not in name + value


@given(st.dictionaries(st.text(), st.text(), min_size=1))
def test_join_round_trips_or_refuses(properties: dict[str, str]) -> None:
    try:
        data = join(properties)
    except InvalidMessage:
        assert (
            any(not k or not v or "\x01" in k or "\x02" in k + v for k, v in properties.items())
            or not "".join([*properties, *properties.values()]).isprintable()
        )
    else:
        assert parse(data) == properties


segments = st.text(st.sampled_from("ab\x01\u00e4"), max_size=5).map(str.encode) | st.binary(max_size=4)


@given(st.lists(segments).map(b"\x02".join))
def test_parsed_properties_can_be_joined(data: bytes) -> None:
    """Values with 0x01, empty names and values, equal names and invalid UTF-8 included."""
    properties = parse(data)
    assert parse(join(properties)) == properties


@given(st.lists(words, unique=True, min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_strings_of_one_shape_are_split_into_columns(names: list[str], count: int, data: st.DataObject) -> None:
    rows = [{name: data.draw(words) for name in names} for _ in range(count)]
    assert columns([join(row) for row in rows]) == {name: [row[name] for row in rows] for name in names}


pieces = st.sampled_from([b"A", b"B", b"A\x01v", b"B\x01w", b"A\x01", b"\x01", b"\x02", b"\xff", b""])


@given(st.lists(st.lists(pieces, max_size=4).map(b"\x02".join), min_size=1, max_size=4))
def test_columns_equal_parsed_strings(strings: list[bytes]) -> None:
    """Separators out of order, names that some strings lack or repeat, and values that look like names included."""
    found = columns(strings)
    if found is not None:
        rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
        assert [{name: value for name, value in row.items() if value} for row in rows] == [*map(parse, strings)]


def test_parse_tolerates_malformed_pairs() -> None:
    assert parse("a\x011\x02broken\x02\x01x\x02b\x01\x02c\x013\x02\x02a\x012\x02") == {"a": "2", "c": "3"}
    assert parse(b"a\x01\xff") == {"a": "�"}
    assert parse("a\x01b\x01c") == {"a": "b\x01c"}
    assert parse(b"") == {}


@pytest.mark.parametrize(
    "properties",
    [
        {"": "v"},
        {"n": ""},
        {"a": "1", "n": "", "b": "2"},
        {"a": "1", "": "x", "b": "2"},
        {"n\x01": "v"},
        {"n": "\x02"},
        {"a": "b\x02c\x01d"},
        {"n\x02": "v"},
        {"n": "\ud800"},
        {"n": "v" * 32767},
    ],
)
def test_join_refuses_separators(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage):
        join(properties)


def test_reserved_names_include_the_brokers_properties() -> None:
    assert {"KEYS", "TAGS", "UNIQ_KEY"} <= RESERVED
    assert "color" not in RESERVED
