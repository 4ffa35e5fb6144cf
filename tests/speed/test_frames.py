"""What C does with the frames of a read: what Python does, on streams of any kind and in any chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import speed
from rucola.protocol.command import RemotingCommand, SerializeType, UnreadableCommand
from rucola.protocol.frame import MAX_HEADER_SIZE, FrameDecoder, FrameError
from support.accelerator import assert_same

LIMIT = 400
"""The longest frame that the decoders of these tests accept."""


def _frame(header: bytes, body: bytes = b"", *, serializer: int = 0, length: int = 0, size: int = 0) -> bytes:
    """Return a frame whose `length` and header `size` are larger than the true ones by so much."""
    marked = bytes([serializer]) + (len(header) + size).to_bytes(3, "big")
    return (4 + len(header) + len(body) + length).to_bytes(4, "big") + marked + header + body


BODIES = st.binary(max_size=60)
HEADERS = st.sampled_from(
    [b'{"code":310,"extFields":{"a":"g"},"opaque":7}', b'{"code":11,"opaque":8,"flag":1}', b"{}", b"{'code':1,}"]
)
UNREADABLE = st.sampled_from([b"", b"[]", b"{", b'{"code":"x"}', b'{"opaque":3,"code":[]}', b"\xff"])
FRAMES = st.one_of(
    st.builds(_frame, HEADERS, BODIES),
    st.builds(_frame, HEADERS, BODIES),
    st.builds(_frame, UNREADABLE, BODIES),
    st.builds(_frame, HEADERS, BODIES, serializer=st.sampled_from([1, 2, 255])),
    st.builds(_frame, HEADERS, BODIES, size=st.integers(1, 100)),
    st.builds(_frame, HEADERS, BODIES, length=st.sampled_from([-4, -1, 1, 400])),
    st.builds(
        lambda body: RemotingCommand(17, {"a": "b"}, body, serialize_type=SerializeType.ROCKETMQ).encode(), BODIES
    ),
    st.sampled_from([b"", b"\0", b"\0\0\0\0", b"\0\0\0\3", b"\xff\xff\xff\xff", b"\0\0\0\4\0\0\0\0"]),
)


def _received(chunks: list[bytes], as_views: bool = False) -> tuple[list[Any], object]:
    decoder = FrameDecoder(LIMIT)
    found: list[RemotingCommand] = []
    end: object = None
    try:
        for chunk in chunks:
            found += decoder.receive_data(memoryview(chunk) if as_views else chunk)
        end = decoder.buffered
    except FrameError as error:
        found += error.commands
        end = str(error)
    return [(repr(one), one, getattr(one, "why", None), one.json_header) for one in found], end


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 700), max_size=3), st.booleans())
def test_both_decoders_split_a_stream_alike(parts: list[bytes], cuts: list[int], as_views: bool) -> None:
    stream = b"".join(parts)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[begin:end] for begin, end in pairwise(edges)]
    assert_same(lambda: _received(chunks, as_views))


@given(st.binary(max_size=40))
def test_both_decoders_treat_any_bytes_alike(data: bytes) -> None:
    assert_same(lambda: _received([data]))


def test_the_usual_read_is_split_in_c() -> None:
    if speed.split_frames is not None:
        first, second = _frame(b'{"code":1}', b"body"), _frame(b"{}")
        split = speed.split_frames(memoryview(first + second + first[:9]), LIMIT, MAX_HEADER_SIZE)
        assert split == ([b'{"code":1}', b"{}"], [b"body", b""], len(first + second))
        assert speed.split_frames(b"\0\0\0", LIMIT, MAX_HEADER_SIZE) == ([], [], 0)
        assert speed.split_frames(first, len(first) - 4, 10) == ([b'{"code":1}'], [b"body"], len(first))


@pytest.mark.parametrize(
    ("data", "max_frame_size", "max_header_size"),
    [
        (_frame(b"{}", serializer=1), LIMIT, MAX_HEADER_SIZE),
        (_frame(b"{}", size=1), LIMIT, MAX_HEADER_SIZE),
        (_frame(b"{}", b"body", size=5), LIMIT, MAX_HEADER_SIZE),
        (_frame(b"{}", b"body"), 9, MAX_HEADER_SIZE),
        (_frame(b"{}", b"body"), LIMIT, 1),
        (_frame(b"{}") + b"\0\0\0\3", LIMIT, MAX_HEADER_SIZE),
        (_frame(b"{}") + b"\0\0\xff\xff", LIMIT, MAX_HEADER_SIZE),
    ],
)
def test_an_unusual_read_is_left_to_python(data: bytes, max_frame_size: int, max_header_size: int) -> None:
    if speed.split_frames is not None:
        assert speed.split_frames(data, max_frame_size, max_header_size) is None


def test_an_unreadable_header_among_others_has_its_place() -> None:
    stream = _frame(b'{"code":1}') + _frame(b'{"opaque":3,"code":[]}') + _frame(b'{"code":2}')
    found = FrameDecoder(LIMIT).receive_data(stream)
    assert [isinstance(one, UnreadableCommand) for one in found] == [False, True, False]
    assert [one.opaque for one in found] == [0, 3, 0]
