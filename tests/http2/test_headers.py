"""Header blocks, decoded as the library hpack does: valid and hostile ones, one after the other on one connection."""

from __future__ import annotations

from collections.abc import Callable

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from rucola.http2.headers import HeaderDecoder, Headers

LIMIT = 2000

texts = st.binary(max_size=12) | st.sampled_from([b"x" * 126, b"x" * 127, b"x" * 300, b"y" * 4000])
names = st.sampled_from([b":path", b":method", b"te", b"content-type", b"x-mq-client-id"]) | texts
fields = st.tuples(names, st.sampled_from([b"GET", b"POST", b"trailers"]) | texts)
blocks = st.lists(st.tuples(fields, st.booleans()), max_size=6)
places = st.floats(0, 1, exclude_max=True)
mutations = st.tuples(places, st.sampled_from(["flip", "cut", "insert"]), st.integers(0, 255))
bytes_of_interest = st.sampled_from([0x00, 0x0F, 0x1F, 0x20, 0x3F, 0x40, 0x7F, 0x80, 0xBE, 0xFF]) | st.integers(0, 255)


def outcome(decode: Callable[[], object]) -> object:
    try:
        return decode()
    except HPACKError:
        return HPACKError


def check(encoded: list[bytes]) -> None:
    ours, model = HeaderDecoder(LIMIT), Decoder(LIMIT)
    for block in encoded:

        def of_model(block: bytes = block) -> Headers:
            return [(bytes(name), bytes(value)) for name, value in model.decode(block, raw=True)]

        expected = outcome(of_model)
        assert outcome(lambda block=block: ours.decode(block)) == expected
        if expected is HPACKError:
            return
        table = [(bytes(name), bytes(value)) for name, value in model.header_table.dynamic_entries]
        assert list(ours.table.dynamic_entries) == table
        assert ours.table.maxsize == model.header_table.maxsize


def mutated(block: bytes, mutation: tuple[float, str, int]) -> bytes:
    place, kind, byte = mutation
    at = int(place * len(block))
    rest = {"cut": b"", "insert": block[at:]}.get(kind, block[at + 1 :])
    return block[:at] + (b"" if kind == "cut" else bytes((byte,))) + rest


@given(
    sequence=st.lists(st.tuples(blocks, st.booleans(), st.none() | st.integers(0, 5000), st.none() | mutations)),
)
def test_the_blocks_of_an_encoder_and_their_mutations(
    sequence: list[tuple[list[tuple[tuple[bytes, bytes], bool]], bool, int | None, tuple[float, str, int] | None]],
) -> None:
    encoder = Encoder()
    encoded = []
    for content, is_huffman, table_size, mutation in sequence:
        if table_size is not None:
            encoder.header_table_size = table_size
        headers = [NeverIndexedHeaderTuple(*field) if is_hidden else field for field, is_hidden in content]
        block = encoder.encode(headers, huffman=is_huffman)
        encoded.append(block if mutation is None else mutated(block, mutation))
    check(encoded)


@given(st.lists(st.lists(bytes_of_interest, max_size=12).map(bytes), max_size=4))
def test_any_bytes(encoded: list[bytes]) -> None:
    check(encoded)
