"""The record codec against every message of the golden stores, against chance, and against damage."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rucola.errors import InvalidMessage
from rucola.message import Message, MessageExt, MessageInner, properties, sysflag
from rucola.message.compression import decompress
from rucola.message.host import encode_host
from rucola.message.record import decode, decode_many, encode, encode_many, encode_parts, peek
from support.errors import raises
from support.stores import batch

V4 = encode_host("127.0.0.1:10911")
V6 = encode_host("[::1]:10911")

# ---------------------------------------------------------------------------------------------------------------------
# Golden


def commit_log(store: Path) -> tuple[int, bytes]:
    """Return the log of a golden store as one piece of memory, with the size of its files."""
    files = sorted((store / "commitlog").iterdir())
    return files[0].stat().st_size, b"".join(file.read_bytes() for file in files)


@pytest.fixture(scope="session", params=["g1-clean", "g2-crash"])
def stored(request: pytest.FixtureRequest, golden: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """A golden CommitLog and what Apache's own decoder makes of it."""
    _, log = commit_log(golden / request.param / "store")
    with open(golden / request.param / "expected.jsonl") as lines:
        return log, [json.loads(line) for line in lines]


def as_inner(message: MessageExt) -> MessageInner:
    """What a broker must have put to get this record, which was decoded with `decompress=False`."""
    return MessageInner(
        topic=message.topic,
        queue_id=message.queue_id,
        body=message.body,
        properties=properties.join(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def test_every_golden_message_decodes_field_by_field(stored: tuple[bytes, list[dict[str, Any]]]) -> None:
    log, expected = stored
    assert len(expected) in (2556, 879)
    for row in expected:
        message = decode(log, row["commitLogOffset"])
        plain = decode(log, row["commitLogOffset"], decompress=False)
        assert {
            "commitLogOffset": message.physical_offset,
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "storeSize": message.store_size,
            "msgId": message.msg_id,
            "offsetMsgId": message.offset_msg_id,
            "storeTimestamp": message.store_timestamp,
            "bornTimestamp": message.born_timestamp,
            "bornHost": message.born_host,
            "storeHost": message.store_host,
            "sysFlag": message.sys_flag,
            "flag": message.flag,
            "bodyCRC": message.body_crc,
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "properties": message.properties,
            "bodyLength": len(message.body),
            "bodySha256": hashlib.sha256(message.body).hexdigest(),
            "storedBodyLength": message.stored_size,
            "storedBodySha256": hashlib.sha256(plain.body).hexdigest(),
        } == {name: value for name, value in row.items() if name not in ("tagsCode", "cq")}
        assert decompress(plain.body, plain.sys_flag) == message.body


def test_every_golden_message_encodes_to_the_same_bytes(stored: tuple[bytes, list[dict[str, Any]]]) -> None:
    log, expected = stored
    for row in expected:
        begin, size = row["commitLogOffset"], row["storeSize"]
        message = decode(log, begin, decompress=False)
        outline = peek(log, begin)
        stored_properties = log[outline.properties_begin : outline.properties_end]
        if row["topic"] != "GBatch":  # where Apache wrote WAIT twice, with the message and with the batch
            assert properties.join(message.properties) == stored_properties
        again = encode(
            replace(as_inner(message), properties=stored_properties),
            message.queue_offset,
            message.physical_offset,
            message.store_timestamp,
            encode_host(message.store_host),
        )
        assert again == log[begin : begin + size]


# ---------------------------------------------------------------------------------------------------------------------
# Chance

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(
    lambda address, port: address + port.to_bytes(4, "big"),
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 0xFFFF),
)
words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=127).filter(
    lambda topic: len(topic.encode()) <= 127
)
inners = st.builds(
    MessageInner,
    topic=topics,
    queue_id=int32,
    body=st.binary(max_size=300),
    properties=st.dictionaries(words, words, max_size=5).map(properties.join),
    flag=int32,
    sys_flag=int32.map(lambda flag: flag & ~sysflag.COMPRESSED),
    born_timestamp=int64,
    born_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


@given(inners, int64, int64, int64, hosts, st.binary(max_size=9), st.binary(max_size=9))
def test_any_message_round_trips(
    inner: MessageInner,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    before: bytes,
    after: bytes,
) -> None:
    data = encode(inner, queue_offset, physical_offset, store_timestamp, store_host)
    message = decode(memoryview(before + data + after), len(before))
    born_v6, store_v6 = len(inner.born_host) == 20, len(store_host) == 20
    assert message.sys_flag == (
        inner.sys_flag & ~sysflag.HOSTS_V6 | born_v6 * sysflag.BORN_HOST_V6 | store_v6 * sysflag.STORE_HOST_V6
    )
    assert as_inner(message) == replace(inner, sys_flag=message.sys_flag)
    assert (message.queue_offset, message.physical_offset) == (queue_offset, physical_offset)
    assert (message.store_timestamp, message.store_host_bytes) == (store_timestamp, store_host)
    outline = peek(before + data + after, len(before))
    assert outline.topic == inner.topic
    assert (outline.size, outline.queue_offset) == (len(data), queue_offset)
    assert (before + data + after)[outline.body_begin : outline.body_end] == inner.body
    assert (before + data + after)[outline.properties_begin : outline.properties_end] == inner.properties


@given(st.lists(inners, min_size=1, max_size=5), hosts, int64)
def test_a_batch_encodes_as_its_single_messages(
    messages: list[MessageInner], store_host: bytes, store_timestamp: int
) -> None:
    born_host = messages[0].born_host
    messages = [replace(message, born_host=born_host, prepared_transaction_offset=0) for message in messages]
    queue_offsets = [7 * number for number in range(len(messages))]
    expected, physical_offsets = [], []
    for message, queue_offset in zip(messages, queue_offsets, strict=True):
        physical_offsets.append(100 + sum(map(len, expected)))
        expected.append(encode(message, queue_offset, physical_offsets[-1], store_timestamp, store_host))
    encoded = encode_many(batch(*messages), queue_offsets, 100, store_timestamp, store_host)
    assert encoded == (b"".join(expected), physical_offsets, [*map(len, expected)])


@given(st.lists(inners, max_size=5))
def test_consecutive_records_are_decoded(inners: list[MessageInner]) -> None:
    records = [encode(inner, k, k, k, V4) for k, inner in enumerate(inners)]
    assert [message.topic for message in decode_many(b"".join(records))] == [inner.topic for inner in inners]


@given(st.binary(max_size=400))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(data)


# ---------------------------------------------------------------------------------------------------------------------
# Damage


def sample(store_host: bytes = V4, born_host: bytes = V4) -> bytes:
    inner = MessageInner(
        topic="Flights",
        queue_id=3,
        body=b'{"carrier":"UA"}',
        properties=properties.join({"TAGS": "UA", "KEYS": "UA1545"}),
        flag=7,
        sys_flag=0,
        born_timestamp=1_795_217_264_718,
        born_host=born_host,
    )
    return encode(inner, 11, 4711, 1_795_217_264_729, store_host)


@pytest.mark.parametrize("store_host", [V4, V6], ids=["v4", "v6"])
def test_a_changed_byte_is_refused_or_decoded(store_host: bytes) -> None:
    """No flip can make a message whose record would be another than the bytes that were read."""
    whole = sample(store_host)
    body_begin = peek(whole).body_begin
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            try:
                message = decode(damaged, decompress=False)
            except InvalidMessage:
                continue
            assert not body_begin <= position < body_begin + 16, "the CRC must tell"
            try:
                again = properties.join(message.properties)
            except InvalidMessage:
                continue  # a value that took in a separator; reading is more tolerant than writing
            if again == bytes(damaged[peek(damaged).properties_begin :]):
                assert (
                    encode(
                        as_inner(message),
                        message.queue_offset,
                        message.physical_offset,
                        message.store_timestamp,
                        message.store_host_bytes,
                    )
                    == damaged
                )


@pytest.mark.parametrize("store_host", [V4, V6], ids=["v4", "v6"])
def test_a_record_cut_at_any_byte_is_refused(store_host: bytes) -> None:
    whole = sample(store_host)
    for size in range(len(whole)):
        with raises(InvalidMessage, subject="0"):
            decode(whole[:size])
    assert decode(whole).topic == "Flights"


def test_errors_name_the_position() -> None:
    with raises(InvalidMessage, subject="5"):
        decode(bytes(5) + bytes(200), 5)
    with raises(InvalidMessage, subject="-1"):
        decode(sample(), -1)
    with raises(InvalidMessage, subject=str(len(sample()))):
        decode_many(sample() + b"x")


@pytest.mark.parametrize("size", [0x7FFFFFFF, -1, 0, 90, -(2**31)])
def test_an_impossible_size_is_refused(size: int) -> None:
    damaged = size.to_bytes(4, "big", signed=True) + sample()[4:]
    with pytest.raises(InvalidMessage):
        decode(damaged)


def test_crc_is_checked_by_default() -> None:
    damaged = sample().replace(b"UA", b"BA", 1)
    with pytest.raises(InvalidMessage):
        decode(damaged)
    assert decode(damaged, check_crc=False).body == b'{"carrier":"BA"}'


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "t" * 128},
        {"topic": "ü" * 64},
        {"topic": "\ud800"},
        {"properties": b"p" * 32768},
        {"flag": 2**31},
        {"queue_id": -(2**31) - 1},
        {"born_host": b"1234567"},
    ],
)
def test_fields_beyond_the_format_are_refused(change: dict[str, Any]) -> None:
    inner = as_inner(decode(sample()))
    with pytest.raises(InvalidMessage):
        encode(replace(inner, **change), 0, 0, 0, V4)


def test_fields_at_the_limits_of_the_format_round_trip() -> None:
    inner = replace(as_inner(decode(sample())), topic="t" * 127, properties=b"a\x01" + b"p" * 32765)
    message = decode(encode(inner, 0, 0, 0, V4))
    assert (message.topic, message.properties) == ("t" * 127, {"a": "p" * 32765})


# ---------------------------------------------------------------------------------------------------------------------
# What users hold


def test_message_attributes_are_views_of_its_properties() -> None:
    message = Message("T", b"body", tags="A", keys=["k1", "k2"], properties={"color": "red"}, flag=3)
    assert message.properties == {"color": "red", "TAGS": "A", "KEYS": "k1 k2"}
    message.tags = None
    message.delay_level = 3
    message.unique_key = "U"
    assert message.properties == {"color": "red", "KEYS": "k1 k2", "DELAY": "3", "UNIQ_KEY": "U"}
    assert (message.tags, message.keys, message.delay_level, message.unique_key) == (None, "k1 k2", 3, "U")
    message.delay_level = 0
    assert "DELAY" not in message.properties
    assert message != Message("T", b"body")
    assert message == Message("T", b"body", properties=message.properties, flag=3)
    message.properties["DELAY"] = "soon"
    with raises(InvalidMessage, subject="DELAY"):
        _ = message.delay_level


def test_properties_of_the_caller_are_copied_not_changed() -> None:
    given = {"color": "red"}
    Message("T", b"", tags="A", properties=given)
    assert given == {"color": "red"}


@given(inners, int64, int64, int64, hosts)
def test_a_record_in_parts_has_the_same_bytes(
    message: MessageInner, queue_offset: int, physical_offset: int, now_ms: int, store_host: bytes
) -> None:
    record = encode(message, queue_offset, physical_offset, now_ms, store_host)
    parts = encode_parts(message, queue_offset, physical_offset, now_ms, store_host)
    assert b"".join(parts.parts) == record
    assert len(parts) == len(record)
    assert parts.parts[1] is message.body, "the body is not copied"


@pytest.mark.parametrize("duplicate", [copy.copy, dataclasses.replace, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_message_whose_properties_nobody_has_read_is_like_any_other(duplicate: Callable[[Any], MessageExt]) -> None:
    data = encode(MessageInner("T", 0, b"x", b"TAGS\x01a\x02k\x01v", 0, 0, 1, bytes(8)), 1, 2, 3, bytes(8))
    message = duplicate(decode(data))
    assert message == decode(data)
    assert message.properties == {"TAGS": "a", "k": "v"}
    message.tags = "b"
    message.properties["k"] = "w"
    assert (message.tags, message.properties) == ("b", {"TAGS": "b", "k": "w"})
    assert message != decode(data)
    message.properties = {}
    assert "properties={}" in repr(message)
