"""Received messages in protobuf's format, compared with what the generated classes make of them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.grpc.encoding import OWN, TRACE_CONTEXT, Delivery, encoded_message, varint
from rucola.message import MessageInner, properties
from rucola.message.record import decode, encode
from rucola.protocol.grpc.definition_pb2 import DigestType, Encoding, Message, MessageType, SystemProperties
from rucola.protocol.grpc.service_pb2 import ReceiveMessageResponse

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02"), min_size=1, max_size=200)
NAMES = st.sampled_from([properties.TAGS, properties.KEYS, properties.SHARDING_KEY, properties.UNIQ_KEY, TRACE_CONTEXT])
LAST_MS = 253_402_300_799_999
"""The last time that protobuf accepts, in the year 9999."""


def record_of(pairs: dict[str, str], body: bytes = b"body", born_ms: int = 1, **more: Any) -> Any:
    host = bytes([127, 0, 0, 1, 0, 0, 31, 144])
    inner = MessageInner("stored", more.pop("queue_id", 3), body, properties.join(pairs), 0, 0, born_ms, host)
    return decode(encode(inner, more.pop("queue_offset", 4), 0, 2000, host))


def expected(pairs: dict[str, str], record: Any) -> Message:
    message = Message(body=record.body)
    message.topic.name = "T"
    for name in pairs.keys() - OWN:
        message.user_properties[name] = pairs[name]
    system = message.system_properties
    system.message_id = pairs.get(properties.UNIQ_KEY) or record.offset_msg_id
    system.keys.extend(pairs.get(properties.KEYS, "").split())
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(record.body).hexdigest().upper()
    system.body_encoding, system.message_type = Encoding.IDENTITY, MessageType.NORMAL
    system.born_timestamp.FromMilliseconds(record.born_timestamp)
    system.store_timestamp.FromMilliseconds(2000)
    system.born_host = system.store_host = "127.0.0.1:8080"
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    if properties.TAGS in pairs:
        system.tag = pairs[properties.TAGS]
    if TRACE_CONTEXT in pairs:
        system.trace_context = pairs[TRACE_CONTEXT]
    if properties.SHARDING_KEY in pairs:
        system.message_group, system.message_type = pairs[properties.SHARDING_KEY], MessageType.FIFO
    return message


@given(
    st.dictionaries(NAMES | TEXT, TEXT, max_size=6),
    st.binary(max_size=300),
    st.integers(0, LAST_MS),
    st.integers(0, 1 << 31),
    st.integers(0, 1 << 40),
)
def test_a_record_becomes_the_message_that_protobuf_encodes(
    pairs: dict[str, str], body: bytes, born_ms: int, queue_id: int, queue_offset: int
) -> None:
    record = record_of(pairs, body, born_ms, queue_id=min(queue_id, (1 << 31) - 1), queue_offset=queue_offset)
    assert Message.FromString(encoded_message(record, "T")) == expected(pairs, record)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_is_encoded_as_by_protobuf(number: int) -> None:
    encoded = SystemProperties(queue_offset=number).SerializeToString()
    assert encoded == b"\x70" + varint(number)


def test_a_delivery_is_part_of_its_message() -> None:
    record = record_of({})
    response = Delivery("0 5 60000 0 0 b 3 ", 60_001).encode(record, "T", 4, 200)
    message = expected({}, record)
    system = message.system_properties
    system.receipt_handle, system.delivery_attempt = "0 5 60000 0 0 b 3 4", 200
    system.invisible_duration.FromMilliseconds(60_001)
    assert ReceiveMessageResponse.FromString(response) == ReceiveMessageResponse(message=message)


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        ({properties.TRAN_MSG: "true", properties.SHARDING_KEY: "a"}, MessageType.TRANSACTION),
        ({properties.TIMER_DELIVER_MS: "1500"}, MessageType.DELAY),
        ({properties.DELAY: "3"}, MessageType.DELAY),
    ],
)
def test_the_type_follows_from_properties(pairs: dict[str, str], kind: MessageType) -> None:
    system = Message.FromString(encoded_message(record_of(pairs), "T")).system_properties
    assert system.message_type == kind
    assert system.delivery_timestamp.ToMilliseconds() == int(pairs.get(properties.TIMER_DELIVER_MS, 0))


@pytest.mark.parametrize("born_ms", [-1, LAST_MS + 1, (1 << 63) - 1])
def test_a_time_beyond_those_of_protobuf_blocks_no_message(born_ms: int) -> None:
    """Senders claim it: some in other units, others before 1970."""
    encoded = encoded_message(record_of({properties.TIMER_DELIVER_MS: "9" * 5000}, born_ms=born_ms), "T")
    born = Message.FromString(encoded).system_properties.born_timestamp
    assert born.ToMilliseconds() == min(born_ms, LAST_MS)
