"""Rows encoded in columns are the messages that each of them is by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.client.producer.send_request import COMPRESS_THRESHOLD
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.batch import encode_batch
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.spark.jobs.replay_sender import COLUMNS
from rucola.spark.source import columns
from rucola.spark.source.message_encoding import encode_rows
from rucola.spark.source.row_messages import COPIED_PROPERTIES, message_of

NAMES = st.one_of(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT", "TIMER_DELIVER_MS"]), st.text(max_size=3)
)
ROWS = st.lists(
    st.builds(
        lambda body, properties, flag, key: {"body": body, "properties": properties, "flag": flag, "msgId": key},
        st.binary(max_size=6),
        st.dictionaries(NAMES, st.one_of(st.none(), st.text(max_size=4)), max_size=5),
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.text(st.characters(codec="utf-8", min_codepoint=3), min_size=1, max_size=8),
    ),
    max_size=20,
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    full = [{"brokerName": "b", "topic": "T", "queueId": 0, "commitLogOffset": n, **row} for n, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(full, columns.schema_of(COLUMNS))


def alone(row: dict[str, Any]) -> bytes | None:
    """The row as the only message of a batch; None where it cannot be one."""
    try:
        return encode_batch([message_of(row, "T", 0, 0)])
    except InvalidMessage:
        return None


@given(ROWS, st.integers(0, 3))
def test_rows_are_encoded_as_single_messages(rows: list[dict[str, Any]], first: int) -> None:
    batch = batch_of(rows).slice(first)
    encoded = encode_rows(batch)
    assert encoded.unique_keys == [row["msgId"] for row in rows[first:]]
    for number, row in enumerate(rows[first:]):
        message = bytes(encoded.data[encoded.offsets[number] : encoded.offsets[number + 1]])
        expected = alone(row)
        is_valid = expected is not None and row["body"] != b""
        # The row's msgId replaces a property of that name, and system properties are not copied.
        left_out = (properties.RESERVED - COPIED_PROPERTIES) | {"UNIQ_KEY"}
        others = [value or "" for name, value in dict(row["properties"]).items() if name not in left_out]
        has_separator = any("\x01" in value for value in others)
        # A value with the separator is legal; its row is sent as a single message.
        assert bool(encoded.is_batched[number]) == (is_valid and not has_separator)
        if encoded.is_batched[number]:
            assert message == expected


@pytest.mark.parametrize(
    ("row", "is_batched"),
    [
        ({"body": bytes(COMPRESS_THRESHOLD - 1)}, True),
        ({"body": bytes(COMPRESS_THRESHOLD)}, False),
        ({"body": bytes(4 << 20)}, False),
        ({"properties": {"n": "x" * (MAX_PROPERTIES_SIZE - len("n\x01\x02UNIQ_KEY\x01U"))}}, True),
        ({"properties": {"n": "x" * (MAX_PROPERTIES_SIZE - len("n\x01\x02UNIQ_KEY\x01U") + 1)}}, False),
        ({"properties": {"a": "b\x01c"}}, False),
        ({"properties": {"a": "b\x02c"}}, False),
    ],
)
def test_messages_that_cannot_be_batched_are_left_out(row: dict[str, Any], is_batched: bool) -> None:
    plain = {"body": b"body", "properties": {"TAGS": "A"}, "flag": 0, "msgId": "U"}
    encoded = encode_rows(batch_of([plain, {**plain, **row}, plain]))
    assert encoded.is_batched.tolist() == [True, is_batched, True]
    for number in (0, 2):
        assert bytes(encoded.data[encoded.offsets[number] : encoded.offsets[number + 1]]) == alone(plain)
