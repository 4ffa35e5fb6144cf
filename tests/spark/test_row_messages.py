"""Rows of record batches, as dicts and as parts of a batch of messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rucola.client.producer.send_request import COMPRESS_THRESHOLD, encode_part, is_alone
from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.batch import decode_batch
from rucola.message.properties import parse
from rucola.spark.source.row_messages import encode_parts, message_of, rows_of

MAPS = st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3)


@given(st.lists(MAPS, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_rows_have_their_maps(maps: list[dict[str, str | None] | None], begin: int, count: int) -> None:
    rows = [{"flag": number, "properties": value} for number, value in enumerate(maps)]
    schema = pa.schema({"flag": pa.int32(), "properties": pa.map_(pa.string(), pa.string())})
    columns = [[row["flag"] for row in rows], [value and list(value.items()) for value in maps]]
    batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)
    assert rows_of(batch.slice(begin, count)) == rows[begin : begin + count]
    picked = list(range(len(rows)))[::-2]
    assert rows_of(batch.take(pa.array(picked, pa.int64()))) == [rows[number] for number in picked]


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "TIMER_DELAY_MS", "n", "ä\x01", "\x02"])
VALUES = st.none() | st.sampled_from(["", "1", "a b", "é", "x||y", "\x01", "a\x02b\x01c"])
ROWS = st.fixed_dictionaries(
    {
        "body": st.none() | st.sampled_from([b"", b"body", bytes(COMPRESS_THRESHOLD - 1), bytes(COMPRESS_THRESHOLD)]),
        "properties": st.none() | st.dictionaries(NAMES, VALUES, max_size=4),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "msgId": st.none() | st.sampled_from(["", "0A1B", "ä", "\x02"]),
        "bodyError": st.sampled_from([None, None, "damaged"]),
        "sysFlag": st.just(sysflag.COMPRESSED),
    }
)


@given(st.lists(ROWS, max_size=6))
def test_batches_have_the_messages_of_their_rows(rows: list[dict[str, Any]]) -> None:
    """All but those that need a request of their own, or that are none."""
    text, names = pa.string(), pa.map_(pa.string(), pa.string())
    kinds = {"body": pa.binary(), "properties": names, "flag": pa.int32(), "msgId": text, "bodyError": text}
    schema = pa.schema({**kinds, "sysFlag": pa.int32()})
    lists = [{**row, "properties": row["properties"] and list(row["properties"].items())} for row in rows]
    found = encode_parts(pa.RecordBatch.from_pylist(lists, schema)).to_pylist()
    for row, part in zip(rows, found, strict=True):
        try:
            message = message_of(row, "T", 0, 0)
            wanted = None if is_alone(message, COMPRESS_THRESHOLD) else encode_part(message, None, 1 << 20)[1]
        except InvalidMessage:
            wanted = None
        else:
            if not row["msgId"]:
                wanted = None
        if wanted is None or part is None:
            assert part is wanted
        else:
            ((flags, bodies, strings), (wanted_flags, wanted_bodies, wanted_strings)) = map(
                decode_batch, (part, wanted)
            )
            assert (flags, bodies, [*map(parse, strings)]) == (
                wanted_flags,
                wanted_bodies,
                [*map(parse, wanted_strings)],
            )
