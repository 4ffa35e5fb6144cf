"""What C does with sends of producers: byte by byte what Python does, on input of any kind."""

from __future__ import annotations

import struct
import zlib
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import speed
from rucola.broker.send_properties import PropertyEditor
from rucola.message import Message, MessageInner, MessageInnerBatch
from rucola.message.batch import encode_batch
from rucola.message.record import encode, encode_many
from support.accelerator import FUNCTIONS, assert_same

NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "TAG", "TAGSX", "CLUSTER", "DELAY", "TIMER_OUT_MS"]
SEGMENTS = st.one_of(
    st.builds(
        "{}\x01{}".format, st.sampled_from(NAMES), st.sampled_from(["true", "v", "v w", "\u00e4\U0001f355", "x\0"])
    ),
    st.sampled_from(["", "a", "\x01", "a\x01", "\x01v", "a\x01b\x01c", "KEYS\x01"]),
)
STRINGS = st.lists(SEGMENTS, max_size=6).map("\x02".join) | st.text(max_size=20)
BYTE_STRINGS = STRINGS.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=20)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


def test_the_extension_has_every_function(extension: ModuleType | None) -> None:
    if extension is not None:
        assert extension.INTERFACE == speed.INTERFACE
        functions = {name for name in dir(extension) if callable(getattr(extension, name)) and name[0] != "_"}
        assert set(FUNCTIONS) == functions - {"crc32"}, "all of them are compared, and run in the sanitizers' build"


def test_crc32_is_that_of_zlib(extension: ModuleType | None) -> None:
    if extension is not None:
        data = memoryview(bytes(number * 167 % 251 for number in range(70_004)))
        for size in (*range(300), 1023, 1024, 1025, 4096 + 17, 70_001):
            for begin in range(3):
                part = data[begin : begin + size]
                assert extension.crc32(part) == zlib.crc32(part), (begin, size)


@given(STRINGS)
def test_both_read_a_property_string_alike(text: str) -> None:
    assert_same(lambda: PropertyEditor("C").edit("T", text))


def test_the_usual_string_is_edited_in_c() -> None:
    if speed.edit_properties is not None:
        names = b"TAGS\x02UNIQ_KEY\x02KEYS\x02WAIT\x02DELAY"
        usual = "UNIQ_KEY\x017F\x02WAIT\x01true\x02TAGS\x01A\x02color\x01red"
        edited = speed.edit_properties(usual, b"\x02CLUSTER\x01C", names)
        assert edited == (b"UNIQ_KEY\x017F\x02TAGS\x01A\x02color\x01red\x02CLUSTER\x01C", "A", "7F", None, "true")
        assert speed.edit_properties("TAGS\x01A\x02DELAY\x013", b"\x02CLUSTER\x01C", names) is None


def _batch(messages: list[tuple[int, bytes, bytes]]) -> bytes:
    parts = []
    for flag, body, string in messages:
        size = 22 + len(body) + len(string)
        parts += [struct.pack(">iiiii", size, 0, 0, flag, len(body)), body, struct.pack(">H", len(string)), string]
    return b"".join(parts)


MESSAGES = st.lists(st.tuples(INT32, st.binary(max_size=100), BYTE_STRINGS), max_size=5)
SHARED = st.sampled_from(["", "", "", "WAIT\x01true\x02", "TAGS\x01shared", "DELAY\x013"])


def _read(editor: PropertyEditor, body: bytes, shared: str = "", most: int = 1024) -> tuple[list[list[Any]], int]:
    columns, end = editor.read_batch(body, shared, 0, most)
    return list(map(list, columns)), end


@given(MESSAGES, SHARED, st.sampled_from([1, 3, 1024]))
def test_both_read_a_batch_alike(messages: list[tuple[int, bytes, bytes]], shared: str, most: int) -> None:
    body = _batch(messages)
    editor = PropertyEditor("C")
    for _ in range(2):  # the second batch finds the shared properties of the first
        assert_same(lambda: _read(editor, body, shared, most))


@given(MESSAGES, st.data())
def test_a_damaged_batch(messages: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    body = bytearray(_batch(messages))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    del body[data.draw(st.integers(0, len(body))) :]
    assert_same(lambda: _read(PropertyEditor("C"), bytes(body)))


def test_the_usual_batch_is_read_in_c() -> None:
    if speed.read_batch is not None:
        made = Message("T", b"body", tags="\U0001f355", keys="k")
        names = b"TAGS\x02UNIQ_KEY\x02KEYS\x02WAIT\x02DELAY"
        assert speed.read_batch(encode_batch([made, made]), b"\x02CLUSTER\x01C", names, 2) is not None


BATCHES = st.lists(
    st.tuples(st.binary(max_size=300), BYTE_STRINGS, INT32 | st.sampled_from([2**31, -(2**31) - 1])), max_size=5
).flatmap(
    lambda messages: st.builds(
        MessageInnerBatch,
        st.sampled_from(["T", "Topic", "\u00e4" * 40]),
        INT32,
        st.just([body for body, _, _ in messages]),
        st.just([string for _, string, _ in messages]),
        st.just([flag for _, _, flag in messages]),
        st.integers(0, 2**31 - 1),
        INT64,
        st.sampled_from([bytes(range(8)), bytes(range(20))]),
        INT32,
        st.just([]),
        st.just([]),
        st.just([]),
    )
)


@given(BATCHES, INT64, INT64 | st.sampled_from([2**63, -(2**63) - 1]), INT64, st.sampled_from([bytes(8), bytes(20)]))
def test_both_encode_the_records_of_a_batch_alike(
    batch: MessageInnerBatch, queue_offset: int, physical_offset: int, time_ms: int, host: bytes
) -> None:
    assert_same(lambda: encode_many(batch, queue_offset, physical_offset, time_ms, host))


@pytest.mark.parametrize("size", [0x7FFF, 0x8000, 0x10000])
def test_records_with_long_properties(size: int) -> None:
    batch = MessageInnerBatch("T", 0, [b"x"], [b"p" * size], [0], 0, 0, bytes(8), 0, [0], [None], [None])
    assert_same(lambda: encode_many(batch, 0, 0, 0, bytes(8)))


SMALL_OR_HUGE = INT32 | st.sampled_from([2**31, -(2**31) - 1, 2**63, -(2**63) - 1])
HOSTS = st.sampled_from([bytes(range(8)), bytes(range(20)), b"", bytes(9)])


@given(
    st.builds(
        MessageInner,
        st.sampled_from(["T", "\u00e4" * 40, "x" * 128]),
        SMALL_OR_HUGE,
        st.binary(max_size=200) | st.binary(max_size=9).map(memoryview),
        st.binary(max_size=40) | st.just(bytes(0x8000)),
        SMALL_OR_HUGE,
        SMALL_OR_HUGE,
        SMALL_OR_HUGE,
        HOSTS,
        SMALL_OR_HUGE,
        SMALL_OR_HUGE,
    ),
    SMALL_OR_HUGE,
    SMALL_OR_HUGE,
    SMALL_OR_HUGE,
    HOSTS,
)
def test_both_encode_one_record_alike(
    message: MessageInner, queue_offset: int, physical_offset: int, time_ms: int, host: bytes
) -> None:
    assert_same(lambda: encode(message, queue_offset, physical_offset, time_ms, host))


@given(st.binary(max_size=300), st.binary(max_size=40), INT32, INT32, INT64, INT64, st.booleans(), st.booleans())
def test_a_record_that_fits(
    body: bytes, string: bytes, flag: int, sys_flag: int, time_ms: int, offset: int, is_born_v6: bool, is_v6: bool
) -> None:
    born_host, host = bytes(20 if is_born_v6 else 8), bytes(range(20 if is_v6 else 8))
    message = MessageInner("T", 3, body, string, flag, sys_flag, time_ms, born_host, flag, offset)
    record = assert_same(lambda: encode(message, 1, offset, time_ms, host))
    assert isinstance(record, bytes)


def test_records_of_other_sequences_are_encoded_as_well() -> None:
    batch = MessageInnerBatch("T", 0, (memoryview(b"xyz"),), [b""], (1,), 0, 0, bytes(8), 0, [0], [None], [None])
    assert assert_same(lambda: encode_many(batch, 0, 0, 0, bytes(8)))[1] == [91 + 3 + 1]
