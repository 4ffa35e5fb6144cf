"""Streams of frames: in any chunks, and damaged."""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rucola.errors import RemoteProtocolError
from rucola.protocol.command import RemotingCommand, SerializeType, UnreadableCommand
from rucola.protocol.frame import (
    MAX_FRAME_SIZE,
    MAX_HEADER_SIZE,
    MAX_UNREADABLE,
    PART_SIZE,
    FrameDecoder,
    FrameError,
)
from rucola.protocol.offset import QueueRequestHeader
from support.recorded_frames import decode


def frame(header: bytes, body: bytes = b"", serializer: int = 0) -> bytes:
    marked = bytes([serializer]) + len(header).to_bytes(3, "big")
    return (4 + len(header) + len(body)).to_bytes(4, "big") + marked + header + body


def json_frame(opaque: int = 0, body: bytes = b"") -> bytes:
    return frame(json.dumps({"code": 310, "opaque": opaque, "extFields": {"a": "group"}}).encode(), body)


def feed(decoder: FrameDecoder, chunks: Iterable[bytes | memoryview]) -> list[RemotingCommand]:
    return [command for chunk in chunks for command in decoder.receive_data(chunk)]


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


BINARY = RemotingCommand(17, {"topic": "T"}, b"body", serialize_type=SerializeType.ROCKETMQ, opaque=4).encode()
STREAM = b"".join([json_frame(1), json_frame(2, b"x" * 300), json_frame(3), frame(b'{"code":1}'), BINARY])


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_any_chunking_yields_the_same_commands(cuts: list[int], as_views: bool) -> None:
    whole = FrameDecoder().receive_data(STREAM)
    assert [command.opaque for command in whole] == [1, 2, 3, 0, 4]
    decoder = FrameDecoder()
    chunks = cut(STREAM, cuts)
    assert feed(decoder, map(memoryview, chunks) if as_views else chunks) == whole
    assert decoder.is_between_frames


@given(st.lists(st.integers(0, 5 * PART_SIZE), max_size=12), st.booleans())
def test_a_large_frame_is_joined_from_its_parts(cuts: list[int], as_views: bool) -> None:
    body = bytes(range(256)) * (5 * PART_SIZE // 256)
    stream, decoder = json_frame(1, body) + json_frame(2), FrameDecoder()
    for chunk in cut(stream, cuts):
        before = decoder.buffered
        commands = decoder.receive_data(memoryview(chunk) if as_views else chunk)
        assert commands or decoder.buffered == before + len(chunk)
    assert (commands[0].body, [command.opaque for command in commands]) == (body, [1, 2])
    assert decoder.is_between_frames


@given(st.lists(st.integers(0, 5 * PART_SIZE), max_size=8), st.integers(0, PART_SIZE + 1000))
def test_a_large_frame_with_an_unreadable_header_or_damage_behind_it(cuts: list[int], padding: int) -> None:
    """In any chunks as in one; a header may be longer than the first part."""
    stream = frame(b'{"code":1,"opaque":9,' + b" " * padding, bytes(5 * PART_SIZE)) + json_frame(2) + bytes(8)
    (unreadable, command), _ = outcome([stream])
    assert isinstance(unreadable, UnreadableCommand)
    assert command.opaque == 2
    assert outcome(cut(stream, cuts)) == outcome([stream])


def outcome(chunks: list[bytes]) -> tuple[list[RemotingCommand], str]:
    """The commands before the damage, and what it is."""
    decoder, commands = FrameDecoder(), list[RemotingCommand]()
    try:
        for chunk in chunks:
            commands += decoder.receive_data(chunk)
    except FrameError as error:
        return commands + error.commands, str(error)
    return commands, ""


def test_bodies_are_copies_of_the_received_bytes() -> None:
    buffer = bytearray(json_frame(1, b"body"))
    (command,) = FrameDecoder().receive_data(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert command.body == b"body"
    assert command.ext_fields == {"a": "group"}


def test_an_incomplete_frame_waits_for_more_bytes() -> None:
    decoder = FrameDecoder()
    whole = json_frame(7, b"body")
    assert decoder.receive_data(whole[:-1]) == []
    assert not decoder.is_between_frames
    assert [command.opaque for command in decoder.receive_data(whole[-1:] + whole[:2])] == [7]
    assert not decoder.is_between_frames
    assert [command.opaque for command in decoder.receive_data(whole[2:])] == [7]
    assert decoder.is_between_frames


# Damaged streams.


@pytest.mark.parametrize(
    "bad",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        (MAX_FRAME_SIZE + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03\x00\x00\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 3, 1 << 20])
def test_a_broken_stream_raises_after_its_complete_commands(bad: bytes, chunk_size: int) -> None:
    stream = json_frame(1) + json_frame(2) + bad
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []

    def receive() -> None:
        for begin in range(0, len(stream), chunk_size):
            commands.extend(decoder.receive_data(stream[begin : begin + chunk_size]))

    with pytest.raises(FrameError) as caught:
        receive()
    assert [command.opaque for command in commands + caught.value.commands] == [1, 2]


TOLERANT = frame(b"{'code':310,'opaque':9,}")


@given(
    st.lists(st.sampled_from([json_frame(1), BINARY, TOLERANT, frame(b"{")]), max_size=MAX_UNREADABLE),
    st.lists(st.integers(0, 900), max_size=6),
    st.lists(st.integers(0, 4), max_size=20),
)
def test_headers_that_must_wait_are_decoded_later_in_their_order(
    parts: list[bytes], cuts: list[int], budgets: list[int]
) -> None:
    stream = b"".join(parts) + json_frame(2)
    left = 0

    def may_decode() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    decoder, commands, later = FrameDecoder(may_decode=may_decode), list[RemotingCommand](), iter(budgets)
    for chunk in cut(stream, (min(one, len(stream)) for one in cuts)):
        left = next(later, 1)
        commands += decoder.receive_data(chunk)
    while decoder.is_behind:
        assert decoder.buffered
        left = 1
        (first, *others) = decoder.receive_data(b"")
        commands += [first, *others]
    assert decoder.is_between_frames
    assert [repr(one) for one in commands] == [repr(one) for one in FrameDecoder().receive_data(stream)]


def test_unreadable_frames_of_one_read_are_counted_over_all_of_its_parts() -> None:
    answers = itertools.cycle([False, True])
    decoder = FrameDecoder(may_decode=lambda: next(answers))
    assert decoder.receive_data(frame(b"{") * (MAX_UNREADABLE + 1)) == []
    for _ in range(MAX_UNREADABLE):
        assert len(decoder.receive_data(b"")) == 1
    with pytest.raises(FrameError):
        decoder.receive_data(b"")


BINARY_HEAD = struct.pack(">hBhii", 310, 0, 409, 7, 0)


@pytest.mark.parametrize(
    ("bad", "opaque", "why"),
    [
        (b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}", None, "a header of 5 bytes in a frame of 8 bytes"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x00", None, "JSON at character 0"),
        (frame(b"[7]"), None, "must be a JSON object"),
        (frame(b'{"code":1,"opaque":7'), None, "the text ends"),
        (frame(b'{"code":1,"opaque":2147483648}'), None, "opaque"),
        (frame(b'{"code":"x","opaque":7}'), 7, "code"),
        (frame(b'{"code":4294967296,"opaque":"7"}'), 7, "code"),
        (frame(b'{"code":1,"opaque":7,"version":"x"}'), 7, "version"),
        (frame(b'{"code":1,"opaque":7,"flag":[]}'), 7, "flag"),
        (frame(b"{code:1,opaque:7,extFields:[]}"), 7, "extFields must be an object"),
        (frame(b'{"code":1,"opaque":7}', serializer=2), None, "serializer 2 is unknown"),
        (frame(b"\x00\x01\x00", serializer=1), None, "ends in the middle of a field"),
        (frame(BINARY_HEAD, serializer=1), 7, "ends in the middle of a field"),
        (frame(BINARY_HEAD + struct.pack(">i", -1), serializer=1), 7, "-1 bytes of text"),
        (frame(BINARY_HEAD + struct.pack(">ii", 0, 99), serializer=1), 7, "99 bytes of ext fields"),
        (frame(BINARY_HEAD + struct.pack(">iih", 0, 2, -1), serializer=1), 7, "-1 bytes of text"),
        (frame(BINARY_HEAD + struct.pack(">iih", 0, 2, 5), serializer=1), 7, "5 bytes of text"),
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 1 << 20])
def test_an_unreadable_header_does_not_end_the_stream(
    bad: bytes, opaque: int | None, why: str, chunk_size: int
) -> None:
    stream = json_frame(1) + bad + BINARY
    decoder = FrameDecoder()
    chunks = [stream[begin : begin + chunk_size] for begin in range(0, len(stream), chunk_size)]
    first, command, last = feed(decoder, chunks)
    assert (first.opaque, last.opaque) == (1, 4)
    assert isinstance(command, UnreadableCommand)
    assert re.search(why, command.why)
    assert (command.opaque if command.opaque_is_known else None) == opaque
    assert not command.is_answer
    assert command.serialize_type is (SerializeType.ROCKETMQ if bad[4] == 1 else SerializeType.JSON)
    assert decoder.is_between_frames


@pytest.mark.parametrize("bad", [frame(b""), frame(b'{"code":"x","opaque":7}'), frame(BINARY_HEAD, serializer=1)])
def test_one_unreadable_frame_too_many_in_a_read_ends_the_stream(bad: bytes) -> None:
    decoder = FrameDecoder()
    for _ in range(3):  # each read begins anew
        commands = decoder.receive_data(bad * MAX_UNREADABLE + json_frame(1))
        assert [isinstance(command, UnreadableCommand) for command in commands] == [True] * MAX_UNREADABLE + [False]
    with pytest.raises(FrameError) as caught:
        decoder.receive_data(json_frame(1) + (bad + json_frame(2)) * (MAX_UNREADABLE + 1))
    assert [command.opaque for command in caught.value.commands if not isinstance(command, UnreadableCommand)] == [
        1,
        *[2] * MAX_UNREADABLE,
    ]
    assert len(caught.value.commands) == 1 + 2 * MAX_UNREADABLE


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"opaque":7,"language":3}', (0, 7, "PYTHON")),
        (b'{"code":310,"opaque":7,"language":99}', (310, 7, "OTHER")),
        (b'{"code":310,"opaque":7,"language":[1]}', (310, 7, "OTHER")),
        (b'{"code":null,"opaque":7,"language":"JAVA"}', (0, 7, "JAVA")),
        (b'{"code":310,"opaque":7,"remark":"\xff"}', (310, 7, "OTHER")),
        (b'{"code":310,"opaque":7,"remark":5}', (310, 7, "OTHER")),
    ],
)
def test_headers_that_apache_accepts_are_accepted(header: bytes, expected: tuple[int, int, str]) -> None:
    (command,) = FrameDecoder().receive_data(frame(header))
    assert (command.code, command.opaque, command.language) == expected


@pytest.mark.parametrize("known", [False, True])
def test_invalid_utf8_is_decoded_as_by_apache(known: bool) -> None:
    header = b'{"code":31,"opaque":7,"extFields":{"topic":"%b","queueId":"1","more":"\xfe"}}'
    if known:  # the type of the ext fields of this code, from a request before
        FrameDecoder().receive_data(frame(header % b"T"))[0].decode_header(QueueRequestHeader)
    (command,) = FrameDecoder().receive_data(frame(header % b"\xff"))
    assert command.decode_header(QueueRequestHeader) == QueueRequestHeader(topic="\ufffd", queue_id=1)
    assert command.ext_fields == {"topic": "\ufffd", "queueId": "1", "more": "\ufffd"}
    ext = b"\x00\x05topic" + struct.pack(">i", 1) + b"\xff"
    binary = BINARY_HEAD + struct.pack(">i", 1) + b"\xfe" + struct.pack(">i", len(ext)) + ext
    (command,) = FrameDecoder().receive_data(frame(binary, serializer=1))
    assert (command.remark, command.ext_fields) == ("\ufffd", {"topic": "\ufffd"})


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_a_negative_ext_fields_size_means_no_fields(size: int) -> None:
    (command,) = FrameDecoder().receive_data(frame(BINARY_HEAD + struct.pack(">ii", 0, size), b"body", 1))
    assert (command.code, command.opaque, command.ext_fields, command.body) == (310, 7, {}, b"body")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**33), 2**33) | st.floats() | st.text(max_size=4) | st.just("7"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
members = st.sampled_from(["code", "language", "version", "opaque", "flag", "remark", "extFields", "other"])
any_header = st.one_of(
    st.dictionaries(members, json_values, max_size=8).map(lambda header: json.dumps(header).encode()),
    st.binary(max_size=40),
    st.binary(max_size=30).map(lambda rest: BINARY_HEAD + rest),
)


@given(st.lists(st.tuples(any_header, st.binary(max_size=4), st.sampled_from([0, 0, 1, 2, 255])), max_size=6))
@example([(b'{"code": null, "version": [Infinity], "opaque": 0}', b"", 0)])
@example([(b'{"code": null, "other": NaN, "opaque": 7}', b"", 0)])
def test_every_frame_with_a_valid_length_is_one_command(parts: list[tuple[bytes, bytes, int]]) -> None:
    """For any content of its header; its opaque is known if it is readable."""
    commands = FrameDecoder().receive_data(b"".join(frame(*part) for part in parts) + BINARY)
    assert len(commands) == len(parts) + 1
    assert commands[-1].opaque == 4
    for (header, body, serializer), command in zip(parts, commands, strict=False):
        expected = opaque_of(header, serializer)
        if isinstance(command, UnreadableCommand):
            assert command.why
            assert expected == (command.opaque if command.opaque_is_known else None)
        else:
            assert (command.opaque, command.body) == (expected or 0, body)
        decode(command.response(0).encode())


def refuse(constant: str) -> NoReturn:
    """Refuse Infinity and NaN, which Python reads and writes, and JSON does not have."""
    raise ValueError(constant)


def opaque_of(header: bytes, serializer: int) -> int | None:
    """Return the opaque in a header, or None."""
    if serializer == 1:
        return struct.unpack_from(">i", header, 5)[0] if len(header) >= len(BINARY_HEAD) else None
    if serializer:
        return None
    try:
        value = json.loads(header, parse_constant=refuse)["opaque"]
        number = int(value)
    except (ValueError, LookupError, TypeError, OverflowError):
        return None
    is_number = not isinstance(value, bool) and (isinstance(value, str) or value == number)
    return number if is_number and -(2**31) <= number < 2**31 else None


def test_a_huge_length_is_refused_before_buffering() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.receive_data(b"\x7f\xff\xff\xff" + bytes(100_000))
    assert decoder.is_between_frames


def test_the_frame_limit_is_configurable() -> None:
    small = json_frame(1)
    assert len(FrameDecoder(len(small) - 4).receive_data(small)) == 1
    with pytest.raises(FrameError):
        FrameDecoder(len(small) - 5).receive_data(small)


@given(st.binary(max_size=200))
def test_garbage_is_a_frame_error_or_an_unfinished_frame(garbage: bytes) -> None:
    with suppress(FrameError):
        FrameDecoder().receive_data(garbage)


@given(st.data())
def test_a_damaged_frame_is_a_command_or_a_protocol_error(data: st.DataObject) -> None:
    """For any changed byte, decoding, header decoding, printing and encoding raise nothing else."""
    damaged = bytearray(json_frame(1, b"x") + BINARY)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        commands = FrameDecoder().receive_data(bytes(damaged))
    except FrameError as error:
        commands = error.commands
    for command in commands:
        with suppress(RemoteProtocolError):
            repr(command)
            decode(command.encode())


@pytest.mark.parametrize("serializer", SerializeType)
@pytest.mark.parametrize("chunk_size", [1 << 20, 65_500])
@pytest.mark.parametrize("body", [b"", b"x" * 70_000])
def test_a_header_above_the_limit_is_answered(serializer: SerializeType, chunk_size: int, body: bytes) -> None:
    """With parts of 65,500 bytes the opaque of the JSON header is in two of them."""
    command = RemotingCommand(10, {"a": "x" * (5 * 65_500 - 111)}, body, opaque=77, serialize_type=serializer)
    following = RemotingCommand(10, opaque=78)
    stream = command.encode() + following.encode()
    chunks = [stream[begin : begin + chunk_size] for begin in range(0, len(stream), chunk_size)]
    refused, whole = feed(FrameDecoder(), chunks)
    assert isinstance(refused, UnreadableCommand)
    assert (refused.opaque, refused.opaque_is_known, refused.is_answer) == (77, True, False)
    assert refused.why.endswith(f"bytes; the limit is {MAX_HEADER_SIZE}")
    assert whole == following
