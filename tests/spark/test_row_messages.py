"""Rows of record batches, as dicts."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rucola.spark.source.row_messages import rows_of

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
