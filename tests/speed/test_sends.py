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
from rucola.message import Message, MessageInner, MessageInnerBatch, properties
from rucola.message.batch import decode_batch, encode_batch
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


@given(st.lists(BYTE_STRINGS, max_size=4))
def test_both_edit_property_strings_alike(strings: list[bytes]) -> None:
    assert_same(lambda: PropertyEditor("C").edit(strings, 3))


def test_usual_strings_are_edited_in_c() -> None:
    if speed.edit_properties is not None:
        names = b"TAGS\x02UNIQ_KEY\x02KEYS\x02WAIT\x02DELAY"
        usual = b"UNIQ_KEY\x017F\x02WAIT\x01true\x02TAGS\x01A\x02color\x01red"
        edited = speed.edit_properties([usual, b"", b"TAGS\x01A\x02DELAY\x013", usual], b"\x02CLUSTER\x01C", names, 9)
        assert edited == (
            [b"UNIQ_KEY\x017F\x02TAGS\x01A\x02color\x01red\x02CLUSTER\x01C", b"CLUSTER\x01C"],
            [65, 0],
            ["7F", None],
            [None, None],
            ["true", None],
        )


def _batch(messages: list[tuple[int, bytes, bytes]]) -> bytes:
    parts = []
    for flag, body, string in messages:
        size = 22 + len(body) + len(string)
        parts += [struct.pack(">iiiii", size, 0, 0, flag, len(body)), body, struct.pack(">H", len(string)), string]
    return b"".join(parts)


MESSAGES = st.lists(st.tuples(INT32, st.binary(max_size=100), BYTE_STRINGS), max_size=5)


@given(MESSAGES)
def test_both_split_a_batch_alike(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert assert_same(lambda: decode_batch(_batch(messages))) == tuple(map(list, zip(*messages, strict=True))) or (
        not messages
    )


@given(MESSAGES, st.data())
def test_a_damaged_batch(messages: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    body = bytearray(_batch(messages))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    del body[data.draw(st.integers(0, len(body))) :]
    assert_same(lambda: decode_batch(bytes(body)))


def test_the_usual_batch_is_split_in_c() -> None:
    if speed.split_batch is not None:
        made = Message("T", b"body", tags="\U0001f355", keys="k")
        body = encode_batch([made, made])
        assert speed.split_batch(body, 2) == ([0, 0], [b"body"] * 2, [properties.join(made.properties)] * 2)
        assert speed.split_batch(body, 1) is None


HOSTS = st.sampled_from([bytes(range(8)), bytes(range(20)), b"", bytes(9)])
WRONG = st.sampled_from([2**31, -(2**31) - 1])
ROWS = st.tuples(
    st.sampled_from(["T", "Topic", "\u00e4" * 40, "x" * 128]),
    INT32,
    INT32 | WRONG,
    st.binary(max_size=300),
    BYTE_STRINGS,
    st.integers(0, 2**31 - 1),
    INT64,
    INT32,
    INT64 | st.sampled_from([2**63, -(2**63) - 1]),
)


@given(st.lists(ROWS, max_size=5), st.sampled_from([bytes(range(8)), bytes(range(20))]), INT64, INT64, HOSTS)
def test_both_encode_the_records_of_a_batch_alike(
    rows: list[tuple[Any, ...]], born_host: bytes, physical_offset: int, time_ms: int, host: bytes
) -> None:
    *columns, queue_offsets = map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(9))
    batch = MessageInnerBatch(*columns, born_host, [], [], [])  # type: ignore[arg-type]
    assert_same(lambda: encode_many(batch, queue_offsets, physical_offset, time_ms, host))


@pytest.mark.parametrize("size", [0x7FFF, 0x8000, 0x10000])
def test_records_with_long_properties(size: int) -> None:
    batch = MessageInnerBatch(["T"], [0], [0], [b"x"], [b"p" * size], [0], [0], [0], bytes(8), [0], [None], [None])
    assert_same(lambda: encode_many(batch, [0], 0, 0, bytes(8)))


SMALL_OR_HUGE = INT32 | st.sampled_from([2**31, -(2**31) - 1, 2**63, -(2**63) - 1])


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
