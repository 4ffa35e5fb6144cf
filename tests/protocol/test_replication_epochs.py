"""Epochs on the replication connection: the bytes that this module documents, and nothing but errors for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import RemoteProtocolError
from rucola.protocol.replication import TransferDecoder, encode_report
from rucola.protocol.replication_epochs import (
    INTRODUCTION,
    JOINS,
    KNOWS_EPOCHS,
    MAX_SIZE,
    Greeting,
    Join,
    checked_size,
    decode_greeting,
    decode_join,
    encode_greeting,
    encode_join,
)

OFFSETS = st.integers(0, 2**62)
EPOCHS = st.lists(st.tuples(OFFSETS, OFFSETS), max_size=20).map(tuple)


def test_the_bytes_are_as_documented() -> None:
    greeting = encode_greeting(Greeting(3, 0, 200, True, ((1, 0), (3, 100))))
    assert greeting.hex() == (
        "ffffffffffffffff" "00000039"  # -1, 57 bytes
        "0000000000000003" "0000000000000000" "00000000000000c8" "01"
        "0000000000000001" "0000000000000000" "0000000000000003" "0000000000000064"
    )  # fmt: skip
    join = encode_join(Join(7, 3, 100, 150, "h:1", ((1, 0),)))
    assert join.hex() == (
        "fffffffffffffffe" "00000035"
        "0000000000000007" "0000000000000003" "0000000000000064" "0000000000000096" "0003" "683a31"
        "0000000000000001" "0000000000000000"
    )  # fmt: skip
    assert encode_report(KNOWS_EPOCHS) == b"\xff" * 8


@given(OFFSETS, OFFSETS, OFFSETS, st.booleans(), EPOCHS)
def test_a_greeting_comes_back(
    epoch: int, begin: int, end: int, is_sync: bool, epochs: tuple[tuple[int, int], ...]
) -> None:
    greeting = Greeting(epoch, begin, end, is_sync, epochs)
    data = encode_greeting(greeting)
    size = checked_size(data[: INTRODUCTION.size], KNOWS_EPOCHS)
    assert (size, decode_greeting(data[INTRODUCTION.size :])) == (len(data) - INTRODUCTION.size, greeting)


@given(OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.text(st.characters(codec="utf-8"), max_size=50), EPOCHS)
def test_a_join_comes_back(
    member_id: int, newest: int, one: int, other: int, address: str, epochs: tuple[tuple[int, int], ...]
) -> None:
    join = Join(member_id, newest, min(one, other), max(one, other), address, epochs)
    data = encode_join(join)
    assert decode_join(data[INTRODUCTION.size :]) == join


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error_or_a_value(data: bytes) -> None:
    for decode in (decode_greeting, decode_join):
        try:
            decode(data)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("size", [-1, MAX_SIZE + 1])
def test_the_size_is_bounded(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        checked_size(INTRODUCTION.pack(JOINS, size), JOINS)
    with pytest.raises(RemoteProtocolError):
        checked_size(INTRODUCTION.pack(0, 5), JOINS)
    with pytest.raises(RemoteProtocolError):
        decode_join(encode_join(Join(1, 1, 9, 8, "", ()))[INTRODUCTION.size :])
    for cut in (b"\x00", b"\x00\x05h:1", b"\x00\x02\xff\xff"):
        with pytest.raises(RemoteProtocolError):
            decode_join(bytes(32) + cut)


def test_a_master_without_epochs_is_told_apart_by_its_first_bytes() -> None:
    """No transfer begins with a number below 0; the decoder of transfers refuses one."""
    with pytest.raises(RemoteProtocolError):
        list(TransferDecoder().receive_data(encode_greeting(Greeting(1, 0, 0, False, ()))))
