"""The column decoder against `rucola.message.record.decode`, row by row."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, compression, record, sysflag
from rucola.spark.source import columns, record_layout
from rucola.spark.source.columns import decode
from rucola.spark.source.record_layout import DamagedRecord, batches, locate
from rucola.spark.source.schema import LAST_TIME_MS
from support.examples import examples

ALL = columns.SCHEMA.names


def rows_of(
    log: bytes, log_offset: int, positions: list[int], sizes: list[int], **options: Any
) -> list[dict[str, Any]]:
    records, damages = locate(log, log_offset, np.array(positions, np.int64), np.array(sizes, np.int64))
    assert damages == []
    rows = []
    for batch, damages in decode(records, ALL, broker_name="broker-a", **options):
        assert damages == []
        batch.validate(full=True)
        assert batch.schema.equals(columns.SCHEMA)
        rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def time_columns(name: str, timestamp_ms: int) -> dict[str, Any]:
    """A timestamp, or null and the number if pandas has no such time."""
    if 0 <= timestamp_ms <= LAST_TIME_MS:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
        return {name: time, f"{name}Raw": None}
    return {name: None, f"{name}Raw": timestamp_ms}


def row(message: MessageExt) -> dict[str, Any]:
    """What the columns must hold for a message, from its one-by-one decoding."""
    return {
        "topic": message.topic,
        "flag": message.flag,
        "body": message.body,
        "properties": message.properties,
        "brokerName": "broker-a",
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        **time_columns("bornTimestamp", message.born_timestamp),
        **time_columns("storeTimestamp", message.store_timestamp),
        "tags": message.tags,
        "keys": None if message.keys is None else [key for key in message.keys.split(" ") if key],
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyError": message.body_error,
    }


def chain(log: bytes) -> list[tuple[int, int]]:
    """Position and size of each record from the start of a CommitLog file to its blank or its end."""
    found, position = [], 0
    while position + record.MIN_RECORD_SIZE <= len(log):
        size, magic = record.FRAME.unpack_from(log, position)
        if magic != record.MESSAGE_MAGIC:
            break
        found.append((position, size))
        position += size
    return found


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_golden_logs_decode_as_single_records(golden: Path, name: str) -> None:
    count = 0
    for file in sorted((golden / name / "store" / "commitlog").iterdir()):
        log = file.read_bytes()
        places = chain(log)
        if not places:
            continue
        rows = rows_of(log, int(file.name), [p for p, _ in places], [s for _, s in places])
        assert rows == [row(record.decode(log, position)) for position, _ in places]
        count += len(rows)
    assert count == len((golden / name / "expected.jsonl").read_text().splitlines())


numbers = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
timestamps = st.one_of(
    st.integers(0, 4_000_000_000_000), longs, st.sampled_from([-1, LAST_TIME_MS, LAST_TIME_MS + 1, 2**63 - 1])
)
addresses = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
hosts = st.builds(lambda address, port: address + port.to_bytes(4, "big"), addresses, st.integers(0, 0xFFFF))
names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=6)
regular = st.dictionaries(st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY"]), names), names, max_size=5).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()
)
mangled = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"\x00", b"TAGS", b"KEYS", b"k", b" ", b"\xff", b"\xe4\xb8", "中".encode()]),
    max_size=12,
).map(b"".join)
property_strings = st.one_of(regular, regular.map(lambda text: text + b"\x02"), mangled, st.binary(max_size=20))


@st.composite
def messages(draw: st.DrawFn) -> MessageInner:
    body, flag = draw(st.binary(max_size=40)), 0
    if draw(st.booleans()):
        kind = draw(st.sampled_from(compression.CompressionType))
        body, flag = compression.compress(body, kind), kind.sys_flag
    elif draw(st.booleans()):  # a sysFlag that is wrong, maybe with an unknown type
        flag = sysflag.COMPRESSED | draw(st.integers(0, 7)) << sysflag.COMPRESSION_SHIFT
    return MessageInner(
        topic=draw(st.one_of(st.sampled_from(["Flights", "%RETRY%g"]), names)),
        queue_id=draw(numbers),
        body=body,
        properties=draw(property_strings),
        flag=draw(numbers),
        sys_flag=flag | draw(st.sampled_from([0, sysflag.TRANSACTION_COMMIT, sysflag.MULTI_TAGS])),
        born_timestamp=draw(timestamps),
        born_host=draw(hosts),
        reconsume_times=draw(numbers),
        prepared_transaction_offset=draw(longs),
    )


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(data=st.data(), log_offset=st.sampled_from([0, 1 << 30, 7 << 40]))
def test_any_records_decode_as_single_records(data: st.DataObject, log_offset: int) -> None:
    log, places = bytearray(data.draw(st.binary(max_size=3))), []
    for message in data.draw(st.lists(messages(), max_size=8)):
        queue_offset, timestamp, host = data.draw(st.tuples(longs, timestamps, hosts))
        encoded = record.encode(message, queue_offset, log_offset + len(log), timestamp, host)
        places.append((len(log), len(encoded)))
        log += encoded + data.draw(st.binary(max_size=3))
    rows = rows_of(bytes(log), log_offset, [p for p, _ in places], [s for _, s in places])
    assert rows == [row(record.decode(log, position)) for position, _ in places]


def record_of(body: bytes = b"hello", *, physical_offset: int = 0, sys_flag: int = 0, **fields: Any) -> bytes:
    inner = MessageInner("T", 0, body, fields.pop("properties", b"KEYS\x01a  b "), 0, sys_flag, 1, bytes(8), **fields)
    return record.encode(inner, 0, physical_offset, 2, bytes(8))


def found_damage(log: bytes, places: list[tuple[int, int]], **options: Any) -> tuple[list[int], list[DamagedRecord]]:
    records, damages = locate(log, 0, np.array([p for p, _ in places]), np.array([s for _, s in places]))
    left = []
    for batch, found in decode(records, ALL, broker_name="", **options):
        damages += found
        left += batch["commitLogOffset"].to_pylist()
    return left, damages


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=4))
def test_a_damaged_log_yields_readable_records_and_names_the_rest(changes: list[tuple[int, int]]) -> None:
    log, places = bytearray(), []
    for n in range(4):
        kind = compression.CompressionType.ZLIB
        encoded = record_of(
            compression.compress(b"body" * n), physical_offset=len(log), sys_flag=kind.sys_flag if n % 2 else 0
        )
        places.append((len(log), len(encoded)))
        log += encoded
    for position, value in changes:
        log[position % len(log)] = value
    sound = []
    for position, size in places:
        try:
            message = record.decode(log, position)
        except InvalidMessage:
            continue
        if (message.physical_offset, message.store_size) == (position, size):
            sound.append(position)
    left, damages = found_damage(bytes(log), places)
    assert left == sound
    assert sorted(left + [damage.physical_offset for damage in damages]) == [position for position, _ in places]


def test_offsets_outside_the_file_are_damage() -> None:
    log = record_of()
    left, damages = found_damage(log, [(-5, 95), (0, len(log)), (len(log), 91), (len(log) + 9, 200)])
    assert left == [0]
    assert [damage.physical_offset for damage in damages] == [-5, len(log), len(log) + 9]


def test_body_is_checked_only_when_it_is_wanted() -> None:
    log = bytearray(record_of(b"hello"))
    log[88] ^= 1
    places = [(0, len(log))]
    assert found_damage(bytes(log), places) == ([], [DamagedRecord(0, "the body does not match its CRC")])
    assert found_damage(bytes(log), places, check_crc=False) == ([0], [])
    records, _ = locate(bytes(log), 0, np.array([0]), np.array([len(log)]))
    ((batch, damages),) = decode(records, ["topic", "keys"], broker_name="")
    assert damages == []
    assert batch.to_pylist() == [{"topic": "T", "keys": ["a", "b"]}]


def test_large_decompressed_bodies_are_split_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_layout, "MAX_BODIES_SIZE", 50_000)
    log, places = bytearray(), []
    for n in range(9):
        encoded = record_of(zlib.compress(bytes([n]) * 20_000), physical_offset=len(log), sys_flag=0x301)
        places.append((len(log), len(encoded)))
        log += encoded
    log[places[4][0] + 100] ^= 1  # damage is named once, whatever the number of batches
    records, _ = locate(bytes(log), 0, np.array([p for p, _ in places]), np.array([s for _, s in places]))
    answers = list(decode(records, ["body"], broker_name=""))
    assert len(answers) > 3
    bodies = pa.concat_arrays([batch["body"] for batch, _ in answers]).to_pylist()
    assert bodies == [bytes([n]) * 20_000 for n in range(9) if n != 4]
    assert [damage.physical_offset for _, found in answers for damage in found] == [places[4][0]]


def test_one_unusual_row_does_not_affect_the_others() -> None:
    texts = [b"a\x01b", b"a\x01b\x02a\x01c", b"", b"x", b"a\x01\xff", b"TAGS\x01t\x02", b"a\x01b\x01c\x02\x02d\x01e"]
    encoded = []
    for text in texts:
        encoded.append(record_of(properties=text, physical_offset=sum(map(len, encoded))))
    positions = [0, *accumulate(map(len, encoded))][:-1]
    rows = rows_of(b"".join(encoded), 0, positions, [len(each) for each in encoded])
    assert [each["properties"] for each in rows] == [
        {"a": "b"}, {"a": "c"}, {}, {}, {"a": "\ufffd"}, {"TAGS": "t"}, {"a": "b\x01c", "d": "e"},
    ]  # fmt: skip
    assert [each["tags"] for each in rows] == [None, None, None, None, None, "t", None]


@given(st.lists(st.integers(91, 60 << 20), max_size=60))
def test_batches_cover_all_rows_within_their_limits(sizes: list[int]) -> None:
    array = np.array(sizes, np.int64)
    cuts = list(batches(array, array))
    assert [index for cut in cuts for index in range(len(sizes))[cut]] == list(range(len(sizes)))
    for cut in cuts:
        assert 0 < cut.stop - cut.start <= record_layout.BATCH_ROWS
        assert array[cut].sum() <= record_layout.BATCH_SIZE or cut.stop - cut.start == 1


def test_a_batch_has_a_maximum_number_of_rows() -> None:
    sizes = np.full(record_layout.BATCH_ROWS * 2 + 1, 91)
    assert [cut.stop - cut.start for cut in batches(sizes, sizes)] == [
        record_layout.BATCH_ROWS,
        record_layout.BATCH_ROWS,
        1,
    ]
