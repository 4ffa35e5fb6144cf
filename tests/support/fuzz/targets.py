"""The targets of the fuzzer: every parser of bytes that come from a network, a disk or a lake."""

from __future__ import annotations

import random
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from rucola import fastjson, settings, slices, speed
from rucola.broker.config import from_properties
from rucola.broker.send_properties import PropertyEditor
from rucola.client.route import topic_route
from rucola.domain.client import ConsumerConnection, HeartbeatData, ProducerConnection
from rucola.domain.route import ClusterInfo, RegisterBrokerBody, TopicRouteData
from rucola.domain.subscription import subscription
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import MQError
from rucola.message import Message, MessageInner, MessageInnerBatch, properties, sql92
from rucola.message.batch import decode_batch, encode_batch
from rucola.message.compression import CompressionType, compress, decompress
from rucola.message.record import MIN_RECORD_SIZE, body_crcs, decode_many, encode, encode_many, peek, place_of
from rucola.protocol import route, topic, trace
from rucola.protocol.body import decode_body, decode_request, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import Header, RemotingCommand, SerializeType, decode_command
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.group import decode_consume_stats_list, decode_offset_table
from rucola.protocol.pop import PopMessageRequestHeader
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.replication import ReportDecoder, TransferDecoder, encode_header, encode_report
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.store.consume_queue import UNIT_SIZE, iter_units, pack_unit
from rucola.store.dispatch_request import read_requests
from support.accelerator import assert_same
from support.fast_requests import assert_fetch, assert_sends
from support.fuzz.loop import Target
from support.recorded_frames import decode, exchanges

HEADERS: tuple[type[Header], ...] = (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    route.RegisterBrokerRequestHeader,
    topic.CreateTopicRequestHeader,
)
EXPRESSIONS = [
    *("a = 1", "a > 5.5 AND b = 'x' OR NOT (c IS NULL)", "a IN ('x', 'y') AND b BETWEEN 1 AND 9", "a <> -1.5e3"),
    *("'a' = b", "a NOT IN ('x')", "a NOT BETWEEN -1 AND 1 -- end", "TRUE OR a IS NOT NULL /* b */", "((a)) = 0x1F"),
]

SHARED = ("", "WAIT\x01true\x02", "TAGS\x01shared")
"""Properties in the header of a batch, which hold for all of its messages."""
MAX_MESSAGES = 1024


def parser_targets(golden: Path) -> list[Target]:
    """Return the targets that need no server, with seeds from the recordings of Apache's broker."""
    recorded = exchanges(golden)
    frames = [exchange.request for exchange in recorded] + [exchange.answer for exchange in recorded if exchange.answer]
    headers = [frame[8 : 8 + int.from_bytes(frame[5:8], "big")] for frame in frames]
    kinds = [frame[4] for frame in frames]
    bodies = [body for frame in frames if (body := decode(frame).body)]
    documents = [body for body in bodies if body[:1] in (b"{", b"[")]
    log = sorted(golden.glob("g1-clean/**/commitlog/*"))[0].read_bytes()
    table = TopicConfigSerializeWrapper(topic_config_table={name: TopicConfig(topic_name=name) for name in ("T", "U")})
    registration = RegisterBrokerBody(topic_config_serialize_wrapper=table)
    messages = [Message("T", b"body", tags="a", keys=["k"], properties={"a": "1"}), Message("T", b"")]
    return [
        Target("frames", [*frames, b"".join(frames[:20])], _frames),
        Target("header-json", [h for h, kind in zip(headers, kinds, strict=True) if kind == 0], _json_header),
        Target("header-rocketmq", [h for h, kind in zip(headers, kinds, strict=True) if kind == 1], _rocketmq_header),
        Target("fastjson", [*documents, b"{{\"a\":1}:[{0:33,'b':null,},],c:\"\\ud83d\\ude00\"}"], _fastjson),
        Target("bodies", documents, _bodies),
        Target("requests", [body for body in documents if len(body) < 4096], _request),
        Target("registration", [route.encode_registration(registration, compress=True)], _registration),
        Target("inflated-registration", [zlib.decompress(route.encode_registration(registration, compress=True))],
               lambda data: _registration(zlib.compress(data, 1))),
        Target("large-registration", [encode_body(registration)], _large_registration),
        Target("batch", [encode_batch(messages)], lambda data: [*map(properties.parse, decode_batch(data)[2])]),
        Target("accelerated-frames", [b"".join(frames[:5]), b"".join(frames[5:10])[:-9]], _accelerated_frames),
        Target("accelerated-requests", [_requests(), _requests() + b"".join(frames[:2])], _accelerated_requests),
        Target("accelerated-batch", [encode_batch(messages)], _accelerated_batch),
        Target("accelerated-properties", [properties.join(each.properties) for each in messages], _accelerated_edit),
        Target("accelerated-log", [log[:6000]], _accelerated_log),
        Target("accelerated-units", [_units_and_log()], _accelerated_units),
        Target("records", [log[:6000], *(body for body in bodies if body[4:8] == log[4:8])], decode_many),
        Target("compressed", _compressed_seeds(), _decompress),
        Target("replication", [encode_header(0, 4) + b"abcd" + encode_header(4, 0), encode_report(9)], _replication),
        Target("visible-end", [encode_header(0, 4, 2) + b"abcd" + encode_header(4, 0, 4)],
               lambda data: [*TransferDecoder(has_visible_end=True).receive_data(data)]),
        Target("sql92", [expression.encode() for expression in EXPRESSIONS], _sql92),
        Target("tags", [b"a || b", b"*"], lambda data: subscription("T", _text(data))),
        Target("settings", [b"maxMessageSize=9\\\n9\nbrokerName:b\n"],
               lambda data: from_properties(settings.parse(_text(data)))),
        Target("trace", [body for body in bodies if b"Pub" in body[:300]] or [b"Pub\x011\x01r\x01g\x01T\x02"],
               lambda data: list(trace.decode(_text(data)))),
    ]  # fmt: skip


def _accelerated_frames(data: bytes) -> None:
    """Decode a read of many frames, in C and in Python."""

    def receive() -> object:
        decoder = FrameDecoder()
        return [(repr(command), command.json_header) for command in decoder.receive_data(data)], decoder.buffered

    assert_same(receive)


def _requests() -> bytes:
    """A send, a batch, a pull and a receive by POP of the usual form."""
    header = SendMessageRequestHeaderV2(
        topic="T", queue_id=1, sys_flag=0, born_timestamp=2, flag=3, properties="TAGS\x01a\x02KEYS\x01k"
    )
    batch = SendMessageRequestHeaderV2(topic="T", queue_id=1, sys_flag=0, born_timestamp=2, flag=3, batch="true")
    body = encode_batch([Message("T", b"body", tags="a")])
    send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"body").encode()
    pull = PullMessageRequestHeader(
        consumer_group="g", topic="T", queue_id=1, queue_offset=2, max_msg_nums=3, sys_flag=4, subscription="*"
    )
    pop = PopMessageRequestHeader(
        consumer_group="g", topic="T", queue_id=-1, max_msg_nums=3, invisible_time=4, poll_time=5, order=True
    )
    fetches = (RequestCode.PULL_MESSAGE, pull), (RequestCode.POP_MESSAGE, pop)
    fetched = b"".join(RemotingCommand.request(code, header).encode() for code, header in fetches)
    return send + RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, batch, body).encode() + fetched


def _accelerated_requests(data: bytes) -> None:
    """Read the requests at the start of a read, in C and in Python."""
    if speed.read_sends is not None:
        assert_sends(data)
        assert_fetch(data)


def _accelerated_batch(data: bytes) -> None:
    """Split a batch and encode its records, in C and in Python."""

    def records() -> object:
        flags, bodies, strings = decode_batch(data)
        zeros = [0] * len(flags)
        batch = MessageInnerBatch(
            ["T"] * len(flags), zeros, flags, bodies, strings, zeros, zeros, zeros, bytes(8), [], [], []
        )
        return encode_many(batch, zeros, 0, 0, bytes(8))

    assert_same(records)


def _accelerated_edit(data: bytes) -> None:
    """Edit property strings, in C and in Python."""
    strings = data.split(b"\n")
    assert_same(lambda: PropertyEditor("C").edit(strings, 100))


def _accelerated_log(data: bytes) -> None:
    """Check the records of a log, and parse ranges of it as properties, in C and in Python."""
    bounds = np.sort(np.random.default_rng(len(data)).integers(1, len(data) + 2, 8)) if data else np.ones(8, np.int64)
    begins, ends = bounds[0::2], bounds[1::2] - 1
    ends = np.maximum(begins, ends)
    source = np.frombuffer(b"#" + data + b"##", np.uint8)
    assert_same(lambda: body_crcs(source, begins, ends).tolist())  # type: ignore[arg-type]
    assert_same(lambda: decode_many(data, decompress=False, max_count=3))
    assert_same(lambda: read_requests(data, 0, len(data)))
    if speed.read_records is not None:
        for at in range(0, len(data), 97):
            found = speed.read_records(data, 0, len(data), [at], 0)  # type: ignore[arg-type]
            assert found is not None, at
            try:
                outline = peek(data, at)
                reference = data[at : at + outline.size] if outline.physical_offset == at else None
            except MQError:
                reference = None
            assert found == [reference], at


UNITS = 4
"""The number of units at the begin of the input of `_accelerated_units`."""


def _units_and_log() -> bytes:
    units, log = b"", b""
    for number in range(UNITS):
        record = encode(MessageInner("T", 0, b"body", b"a\x01b", 0, 0, 1, bytes(8)), number, len(log), 2, bytes(8))
        units += pack_unit(len(log), len(record), 0)
        log += record + bytes(number % 2)
    return units + log


def _accelerated_units(data: bytes) -> None:
    """Read the records that units point at, in C, and compare them with those found one by one."""
    units, log = data[: UNITS * UNIT_SIZE], data[UNITS * UNIT_SIZE :]
    if speed.read_units is None or len(units) < UNITS * UNIT_SIZE:
        return
    found = speed.read_units(units, 0, log, 0, len(log), UNITS, 1 << 40, None)  # type: ignore[arg-type]
    records = []
    for number, (offset, size, _) in enumerate(iter_units(units)):
        is_inside = size >= MIN_RECORD_SIZE and 0 <= offset <= len(log) - size
        if not is_inside or place_of(log, offset) != (size, number, offset):
            assert found is None
            return
        records.append(log[offset : offset + size])
    assert found == (b"".join(records), UNITS, UNITS)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _frames(data: bytes) -> None:
    """Decode a stream, cut into pieces, and everything that its commands declare."""
    decoder = FrameDecoder()
    cuts = sorted(random.Random(len(data)).randrange(len(data) + 1) for _ in range(3))
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for command in decoder.receive_data(data[begin:end]):
            _use(command)


def _use(command: RemotingCommand) -> None:
    for header in HEADERS:
        with suppress(MQError):
            command.decode_header(header)
    (again,) = FrameDecoder().receive_data(command.encode())
    assert again.ext_fields == command.ext_fields


def _json_header(data: bytes) -> None:
    _use(decode_command(data, b"", SerializeType.JSON))


def _rocketmq_header(data: bytes) -> None:
    _use(decode_command(data, b"", SerializeType.ROCKETMQ))


def _fastjson(data: bytes) -> None:
    """Parse a document; what is written again must be read as the same."""
    value = fastjson.loads(data, fastjson.MAX_TOLERANT_SIZE)
    written = fastjson.dumps(value)
    if b"e" not in data and b"E" not in data:  # a number beyond all doubles is read as infinity, which JSON has not
        assert fastjson.loads(written) == value, written[:200]


def _bodies(data: bytes) -> None:
    """Decode a response as every kind of body that clients and operators read."""
    with suppress(MQError):
        topic_route("T", decode_body(TopicRouteData, data))
    for kind in (ClusterInfo, route.TopicList, ConsumerConnection, ProducerConnection):
        with suppress(MQError):
            decode_body(kind, data)
    for read in (topic.decode_topic_stats, topic.decode_consume_stats, decode_consume_stats_list, decode_offset_table):
        with suppress(MQError):
            read(data)


def _request(data: bytes) -> None:
    heartbeat = decode_request(HeartbeatData, data)
    for consumer in heartbeat.consumer_data_set:
        _ = consumer.subscriptions, consumer.consume_type_name


def _registration(data: bytes) -> None:
    header = route.RegisterBrokerRequestHeader(
        broker_name="a", broker_addr="b", cluster_name="c", broker_id=0, compressed="true"
    )
    slices.run(route.registration_steps(header, data))


def _large_registration(data: bytes) -> None:
    """Decode a plain registration as a large one, which white space makes of it, and as it is."""
    header = route.RegisterBrokerRequestHeader(broker_name="a", broker_addr="b", cluster_name="c", broker_id=0)
    body = slices.run(route.registration_steps(header, b" " * (1 << 20) + data))
    assert body == slices.run(route.registration_steps(header, data))


def _compressed_seeds() -> list[bytes]:
    return [bytes([kind]) + compress(bytes(size) + b"body", kind) for kind in CompressionType for size in (0, 300_000)]


def _decompress(data: bytes) -> None:
    decompress(data[1:], CompressionType(data[0] % 3 + 1).sys_flag if data else 1)


def _replication(data: bytes) -> None:
    list(TransferDecoder().receive_data(data))
    ReportDecoder().receive_data(data)


def _sql92(data: bytes) -> None:
    wanted = sql92.compile(_text(data))
    for pairs in ({}, {"a": "1", "b": "x"}, {"a": _text(data), "b": "9" * 3000, "c": "-1.5e-5"}):
        wanted.matches(pairs)
