"""Streams of frames: cut anywhere, and broken in every way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import RemoteProtocolError
from rucola.protocol.command import RemotingCommand, SerializeType
from rucola.protocol.frame import MAX_FRAME_SIZE, FrameDecoder, FrameError
from wire import decode, frames


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
def test_any_chunking_gives_the_same_commands(cuts: list[int], as_views: bool) -> None:
    whole = FrameDecoder().receive_data(STREAM)
    assert [command.opaque for command in whole] == [1, 2, 3, 0, 4]
    decoder = FrameDecoder()
    chunks = cut(STREAM, cuts)
    assert feed(decoder, map(memoryview, chunks) if as_views else chunks) == whole
    assert decoder.is_between_frames


def test_byte_by_byte() -> None:
    decoder = FrameDecoder()
    assert feed(decoder, cut(STREAM, range(len(STREAM)))) == FrameDecoder().receive_data(STREAM)


@given(data=st.data())
def test_the_recorded_stream_in_chunks(golden: Path, data: st.DataObject) -> None:
    recorded = [bytes.fromhex(row["frame"]) for row in frames(golden)][:60]
    stream = b"".join(recorded)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert feed(FrameDecoder(), cut(stream, cuts)) == [decode(one) for one in recorded]


def test_bodies_are_copies_of_what_was_received() -> None:
    buffer = bytearray(json_frame(1, b"body"))
    (command,) = FrameDecoder().receive_data(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert command.body == b"body"
    assert command.ext_fields == {"a": "group"}


def test_a_half_frame_waits() -> None:
    decoder = FrameDecoder()
    whole = json_frame(7, b"body")
    assert decoder.receive_data(whole[:-1]) == []
    assert not decoder.is_between_frames
    assert [command.opaque for command in decoder.receive_data(whole[-1:] + whole[:2])] == [7]
    assert not decoder.is_between_frames
    assert [command.opaque for command in decoder.receive_data(whole[2:])] == [7]
    assert decoder.is_between_frames


def test_nothing_is_nothing() -> None:
    decoder = FrameDecoder()
    assert decoder.receive_data(b"") == []
    assert decoder.is_between_frames


# Broken streams.


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes; the limit is 16777216"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes; the limit is 16777216"),
        ((MAX_FRAME_SIZE + 1).to_bytes(4, "big"), "the limit is 16777216"),
        (b"\x00\x00\x00\x00", "cannot hold its own header length"),
        (b"\x00\x00\x00\x03\x00\x00\x00", "a frame of 3 bytes cannot hold its own header length"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}", "a header of 5 bytes in a frame of 8 bytes"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x00", "JSON at character 0"),
        (frame(b"{}"), "code"),
        (frame(b'{"code":1}', serializer=2), "serializer 2 is unknown"),
        (frame(b"\x00\x01\x00", serializer=1), "ends in the middle of a field"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of 1195725856 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a frame of 369295618 bytes"),
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 3, 1 << 20])
def test_a_broken_stream_says_what_is_wrong_and_keeps_what_came_before(bad: bytes, why: str, chunk_size: int) -> None:
    stream = json_frame(1) + json_frame(2) + bad
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []

    def receive() -> None:
        for begin in range(0, len(stream), chunk_size):
            commands.extend(decoder.receive_data(stream[begin : begin + chunk_size]))

    with pytest.raises(FrameError, match=why) as caught:
        receive()
    assert [command.opaque for command in commands + caught.value.commands] == [1, 2]


def test_a_giant_length_is_refused_before_anything_is_stored() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.receive_data(b"\x7f\xff\xff\xff" + bytes(100_000))
    assert decoder.is_between_frames


def test_the_limit_is_the_constructors() -> None:
    small = json_frame(1)
    assert len(FrameDecoder(len(small) - 4).receive_data(small)) == 1
    with pytest.raises(FrameError, match=f"the limit is {len(small) - 5}"):
        FrameDecoder(len(small) - 5).receive_data(small)


@given(st.binary(max_size=200))
def test_garbage_is_a_frame_error_or_an_unfinished_frame(garbage: bytes) -> None:
    with suppress(FrameError):
        FrameDecoder().receive_data(garbage)


@given(st.sampled_from([0, 1]), st.binary(max_size=60), st.binary(max_size=10))
def test_garbage_in_a_whole_frame_is_a_command_or_a_frame_error(serializer: int, header: bytes, body: bytes) -> None:
    with suppress(RemoteProtocolError):
        (command,) = FrameDecoder().receive_data(frame(header, body, serializer))
        assert command.body == body
        assert isinstance(command.ext_fields, dict)


@given(st.data())
def test_a_damaged_frame_is_a_command_or_a_protocol_error(data: st.DataObject) -> None:
    """Whatever byte changes on the way: decoding, reading the header, printing and encoding raise nothing else."""
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
