"""Property strings, as they come and as they are stored: one at a time and a batch at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.send_properties import PropertyEditor
from rucola.errors import InvalidMessage
from rucola.message.properties import parse

CLUSTER = "\x02CLUSTER\x01C"

editor = PropertyEditor("C")

names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "XWAIT", "WAI"])
values = st.sampled_from(["true", "false", "v", "v w", "WAIT", "\u00e4", "x\x00", "true\x00"])
pairs = st.builds("{}\x01{}".format, names, values)
oddities = st.sampled_from(["", "a", "\x01", "a\x01", "\x01v", "a\x01b\x01c", "CLUSTER\x01other"])


def test_wait_is_removed_and_cluster_is_added() -> None:
    text = "UNIQ_KEY\x017F\x02WAIT\x01true\x02TAGS\x01A"
    for ended in (text, text + "\x02"):
        stored = f"UNIQ_KEY\x017F\x02TAGS\x01A{CLUSTER}".encode()
        assert one(ended) == (stored, 65, "7F", None, "true")
    assert one("WAIT\x01true") == (b"CLUSTER\x01C", 0, None, None, "true")
    assert one("TAGS\x01A\x02DELAY\x013") is None


@pytest.mark.parametrize("empty", ["KEYS\x01", "\x01v", "\x01"])
def test_a_string_with_an_empty_property_name_or_value_is_unusual(empty: str) -> None:
    assert one(f"TAGS\x01A\x02{empty}") is None
    assert one(f"{empty}\x02TAGS\x01A") is None


def test_strings_are_edited_up_to_the_first_that_is_unusual() -> None:
    strings = [b"TAGS\x01A", b"", b"DELAY\x011", b"TAGS\x01B"]
    assert editor.edit(strings, 9)[0] == [b"TAGS\x01A\x02CLUSTER\x01C", b"CLUSTER\x01C"]
    assert editor.edit([b"KEYS\x01123456789", b"KEYS\x011234567890"], 9)[3] == ["123456789"]


def one(text: str) -> tuple[bytes, int, str | None, str | None, str | None] | None:
    """A string edited alone; None if it is unusual."""
    return next(zip(*editor.edit([text.encode()], 1000), strict=True), None)


@given(st.lists(pairs, unique=True, max_size=4), st.integers(1, 4), st.data())
def test_a_batch_of_equal_shapes_is_edited_as_single_messages(row: list[str], count: int, data: st.DataObject) -> None:
    """The same names, other values; with a separator at the end of each, or of some."""
    order = [pair.partition("\x01")[0] for pair in row]
    rows = [[f"{name}\x01{data.draw(values)}" for name in order] for _ in range(count)]
    _compare(["\x02".join(row) + data.draw(st.sampled_from(["", "\x02"])) for row in rows])


shared_texts = st.lists(pairs | oddities, max_size=3).map("\x02".join)


@given(st.lists(st.lists(pairs | oddities, max_size=3).map("\x02".join), min_size=1, max_size=4), shared_texts)
def test_any_batch_is_edited_as_single_messages(texts: list[str], shared: str) -> None:
    _compare(texts)
    _compare(texts, shared)


@given(st.lists(pairs, unique=True, max_size=3), st.integers(1, 3), shared_texts, st.data())
def test_properties_of_a_batch_are_applied_to_each_message(
    row: list[str], count: int, shared: str, data: st.DataObject
) -> None:
    order = [pair.partition("\x01")[0] for pair in row]
    _compare(["\x02".join(f"{name}\x01{data.draw(values)}" for name in order) for _ in range(count)], shared)


pieces = st.sampled_from([b"A", b"B", b"A\x01v", b"B\x01w", b"A\x01", b"\x01", b"\x02", b"\xff", b"B\x01\xff", b""])


@given(st.lists(st.lists(pieces, max_size=4).map(b"\x02".join), min_size=2, max_size=4))
def test_properties_of_each_message_of_a_batch_are_edited(strings: list[bytes]) -> None:
    """Separators out of order, names that some strings lack or repeat, and bytes that are no text included."""
    together = list(zip(*editor.edit_batch(strings), strict=True))
    assert together == [next(zip(*editor.edit_batch([string]), strict=True)) for string in strings]


def _compare(texts: list[str], shared: str = "") -> None:
    strings = [text.encode() for text in texts]
    stored, tags, unique_keys, keys = editor.edit_batch(strings, shared.encode())
    assert len(stored) == len(tags) == len(unique_keys) == len(keys) == len(texts)
    for number, text in enumerate(texts):
        alone = one(text)
        expected = parse(text) | parse(shared)
        if alone is None or parse(shared).keys() - {"WAIT", "CLUSTER"}:
            pairs = {name: value for name, value in expected.items() if name != "WAIT"} | {"CLUSTER": "C"}
            assert parse(stored[number]) == pairs
        else:
            assert stored[number] == alone[0]
        for column, name in ((tags, "TAGS"), (unique_keys, "UNIQ_KEY"), (keys, "KEYS")):
            assert (column[number] or None) == expected.get(name), "what leads to it is what a rebuild would read"


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("asked", ["DELAY\x013", "TRAN_MSG\x01true", "TIMER_DELAY_SEC\x015"])
def test_a_batch_with_a_forbidden_property_is_refused(asked: str, alike: bool) -> None:
    strings = [f"TAGS\x01A\x02{asked}".encode(), f"TAGS\x01B\x02{asked}".encode() if alike else b"TAGS\x01B"]
    with pytest.raises(InvalidMessage):
        editor.edit_batch(strings)
    assert editor.edit_batch([b"TAGS\x01A\x02DELAY\x010"])[0] == [b"TAGS\x01A\x02DELAY\x010\x02CLUSTER\x01C"]
    with pytest.raises(InvalidMessage):
        editor.edit_batch([b"TAGS\x01A", b"TAGS\x01B"], asked)
    assert editor.edit_batch([b"TAGS\x01A"], "DELAY\x010")[0] == [b"TAGS\x01A\x02DELAY\x010\x02CLUSTER\x01C"]
