"""The protocol of master and slave: bytes of Apache's HAService, in any chunks, and damaged."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import RemoteProtocolError
from rucola.protocol.replication import (
    MAX_TRANSFER_SIZE,
    NO_VISIBLE_END,
    ReportDecoder,
    TransferDecoder,
    encode_header,
    encode_report,
)

GIB = 1 << 30
REPORTS = bytes.fromhex("000000000000000000000000400000000000000040000123")
"""Reports of Apache's slave that begins with an empty log."""
TRANSFERS = (
    bytes.fromhex("000000004000000000000003616263")
    + bytes.fromhex("000000004000000300000000")  # a heartbeat
    + bytes.fromhex("0000000040000003000000056465666768")
)
"""Transfers of Apache's master in response: its newest file from the start."""


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    return [stream[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(stream)])]


@given(st.lists(st.integers(0, len(REPORTS)), max_size=8))
def test_reports_are_decoded_in_any_chunks(cuts: list[int]) -> None:
    decoder = ReportDecoder()
    found = [report for chunk in chunks(REPORTS, cuts) for report in decoder.receive_data(chunk)]
    assert found == [0, GIB, GIB + 0x123]
    assert b"".join(map(encode_report, found)) == REPORTS


@given(st.lists(st.integers(0, len(TRANSFERS)), max_size=12))
def test_transfers_are_decoded_in_any_chunks(cuts: list[int]) -> None:
    decoder = TransferDecoder()
    log = b""
    heartbeats = 0
    for chunk in chunks(TRANSFERS, cuts):
        for physical_offset, piece in decoder.receive_data(chunk):
            assert physical_offset == GIB + len(log)
            log += piece
            heartbeats += not piece
    assert (log, heartbeats) == (b"abcdefgh", 1)
    again = encode_header(GIB, 3) + b"abc" + encode_header(GIB + 3, 0) + encode_header(GIB + 3, 5) + b"defgh"
    assert again == TRANSFERS


@given(st.lists(st.integers(0, 45), max_size=6))
def test_headers_with_a_visible_end_are_decoded_in_any_chunks(cuts: list[int]) -> None:
    stream = encode_header(7, 5, 9) + b"abcde" + encode_header(12, 0, NO_VISIBLE_END)
    decoder = TransferDecoder(has_visible_end=True)
    found = [
        (physical_offset + index, piece[index : index + 1].tobytes(), decoder.visible_end)
        for chunk in chunks(stream, cuts)
        for physical_offset, piece in decoder.receive_data(chunk)
        for index in range(max(1, len(piece)))
    ]
    letters = [(7 + index, b"abcde"[index : index + 1], 9) for index in range(5)]
    assert found == [*letters, (12, b"", NO_VISIBLE_END)]


def test_bytes_are_returned_before_their_transfer_is_complete() -> None:
    decoder = TransferDecoder()
    first = list(decoder.receive_data(encode_header(7, 1 << 30) + b"ab"))
    assert [(offset, bytes(piece)) for offset, piece in first] == [(7, b"ab")]
    assert [(offset, bytes(piece)) for offset, piece in decoder.receive_data(b"cd")] == [(9, b"cd")]


@pytest.mark.parametrize("header", [(-1, 5), (7, -5), (-(1 << 63), -(1 << 31))])
def test_an_impossible_transfer_is_refused(header: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        list(TransferDecoder().receive_data(encode_header(*header)))


def test_a_negative_visible_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        list(TransferDecoder(has_visible_end=True).receive_data(encode_header(7, 0, -1)))


def test_a_gap_between_transfers_is_a_protocol_error() -> None:
    decoder = TransferDecoder()
    assert len(list(decoder.receive_data(encode_header(10, 2) + b"ab"))) == 1
    with pytest.raises(RemoteProtocolError):
        list(decoder.receive_data(encode_header(11, 2) + b"cd"))


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportDecoder().receive_data(encode_report(5) + encode_report(-1))


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_garbage_is_an_error_or_a_transfer(parts: list[bytes]) -> None:
    reports, transfers = ReportDecoder(), TransferDecoder()
    with suppress(RemoteProtocolError):
        for part in parts:
            assert all(report >= 0 for report in reports.receive_data(part))
    expected = None
    with suppress(RemoteProtocolError):
        for part in parts:
            for physical_offset, piece in transfers.receive_data(part):
                assert expected is None or physical_offset == expected
                expected = physical_offset + len(piece)


def test_the_largest_transfer_fits_apaches_buffer() -> None:
    assert len(encode_header(0, MAX_TRANSFER_SIZE)) + MAX_TRANSFER_SIZE == 4 * 1024 * 1024
