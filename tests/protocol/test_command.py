"""Commands in both header serializations: recorded, from unusual clients, and generated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.domain.version import VERSION
from rucola.errors import RemoteProtocolError
from rucola.message.properties import is_true
from rucola.protocol import command as command_module
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode, name_of
from rucola.protocol.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Header,
    RemotingCommand,
    SerializeType,
    decode_command,
    next_opaque,
)
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.header_limits import MAX_EXT_FIELDS, MAX_NESTED_SIZE, MAX_TOLERANT_HEADER, HeaderError
from rucola.protocol.heartbeat import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rucola.protocol.kv import KVConfigRequestHeader, PutKVConfigRequestHeader
from rucola.protocol.offset import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.pop import AckMessageRequestHeader, PopMessageRequestHeader
from rucola.protocol.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.query import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rucola.protocol.route import BrokerRequestHeader, GetRouteInfoRequestHeader, RegisterBrokerRequestHeader
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader
from rucola.protocol.topic import CreateTopicRequestHeader, GetConsumeStatsRequestHeader, TopicRequestHeader
from support.recorded_frames import decode, exchanges, frames

REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
    RequestCode.PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageRequestHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageRequestHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetRequestHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetRequestHeader,
    RequestCode.GET_MAX_OFFSET: QueueRequestHeader,
    RequestCode.GET_MIN_OFFSET: QueueRequestHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueRequestHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetRequestHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientRequestHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupRequestHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicRequestHeader,
    RequestCode.GET_TOPIC_STATS_INFO: TopicRequestHeader,
    RequestCode.GET_CONSUME_STATS: GetConsumeStatsRequestHeader,
    RequestCode.REGISTER_BROKER: RegisterBrokerRequestHeader,
    RequestCode.UNREGISTER_BROKER: BrokerRequestHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfoRequestHeader,
    RequestCode.PUT_KV_CONFIG: PutKVConfigRequestHeader,
    RequestCode.GET_KV_CONFIG: KVConfigRequestHeader,
    RequestCode.DELETE_KV_CONFIG: KVConfigRequestHeader,
}
ANSWER_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponseHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponseHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponseHeader,
    RequestCode.PULL_MESSAGE: PullMessageResponseHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageResponseHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: OffsetResponseHeader,
    RequestCode.GET_MAX_OFFSET: OffsetResponseHeader,
    RequestCode.GET_MIN_OFFSET: OffsetResponseHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OffsetResponseHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: EarliestStoreTimeResponseHeader,
}

NOT_IN_HEADERS = {"n", "bname", "ReqT", "MSG_REGION", "TRACE_ON"}
"""Fields that Apache adds to the typed headers: broker name, request type, region and tracing."""


def command_of(header: dict[str, Any] | str, body: bytes = b"") -> RemotingCommand:
    text = header if isinstance(header, str) else json.dumps(header)
    return decode_command(text.encode(), body, SerializeType.JSON)


# The examples in the documentation.


def test_documented_bytes_are_those_of_the_encoded_command() -> None:
    """The hexadecimal digits of the module's docstring, joined, are the frames of both serializations."""
    text = command_module.__doc__ or ""
    json_part, rocketmq_part = text.split("The same request:")
    command = RemotingCommand(105, {"topic": "T"}, opaque=7, language="JAVA", version=409)
    json_text = re.search(r'(\{"code":105.*?"version":409\})', json_part, re.DOTALL)
    assert json_text is not None
    header = re.sub(r"\n *", "", json_text[1]).encode()
    assert command.encode() == _documented_bytes(json_part) + header
    command.serialize_type = SerializeType.ROCKETMQ
    assert command.encode() == _documented_bytes(rocketmq_part)


def _documented_bytes(text: str) -> bytes:
    lines = re.findall(r"^    ((?:[0-9a-f]{2}[ |]+)+)", text, re.MULTILINE)
    return bytes.fromhex("".join(lines).replace("|", ""))


# Recorded frames.


def test_every_recorded_frame_decodes_and_encodes_to_an_equal_command(golden: Path) -> None:
    rows = frames(golden)
    assert len(rows) == 510
    for row in rows:
        command = decode(bytes.fromhex(row["frame"]))
        header = row["header"]
        assert command.code == header["code"]
        assert command.opaque == header["opaque"]
        assert command.flag == header["flag"]
        assert command.version == header["version"]
        assert command.remark == header.get("remark")
        assert command.ext_fields == {k: v for k, v in (header.get("extFields") or {}).items() if v is not None}
        assert command.serialize_type.name == row["serialize"]
        assert len(command.body) == row["bodyLength"]
        assert (command.is_response, command.is_oneway) == (row["type"] == "response", row["type"] == "oneway")
        language = header["language"]
        assert command.language == (language if isinstance(language, str) else LanguageCode(language).name)
        assert decode(command.encode()) == command


def test_a_binary_frame_encodes_to_the_same_bytes(golden: Path) -> None:
    recorded = [bytes.fromhex(row["frame"]) for row in frames(golden) if row["serialize"] == "ROCKETMQ"]
    assert len(recorded) > 200
    for frame in recorded:
        assert decode(frame).encode() == frame


def test_typed_headers_of_recorded_commands_carry_every_field(golden: Path) -> None:
    """Every field on the wire is a field of the struct, and the struct encodes to the same values."""
    seen: set[tuple[str, int]] = set()
    for exchange in exchanges(golden):
        code = RequestCode(exchange.code) if exchange.code in RequestCode.__members__.values() else None
        pairs = [(exchange.request, REQUEST_HEADERS, "request")]
        if exchange.answer is not None:
            pairs.append((exchange.answer, ANSWER_HEADERS, "answer"))
        for frame, headers, kind in pairs:
            command = decode(frame)
            header_type = headers.get(code) if code is not None else None
            fields = {name: value for name, value in command.ext_fields.items() if name not in NOT_IN_HEADERS}
            if header_type is None or not fields:  # an error, or a request that provokes one
                continue
            again = RemotingCommand.request(command.code, command.decode_header(header_type)).ext_fields
            assert {name: again.get(name) for name in fields} == fields, f"{exchange} {kind}"
            seen.add((kind, exchange.code))
    assert {code for kind, code in seen if kind == "request"} == set(map(int, REQUEST_HEADERS))
    assert {code for kind, code in seen if kind == "answer"} == set(map(int, ANSWER_HEADERS))


# What odd clients send.


def test_ext_values_can_be_numbers_booleans_strings_and_nulls() -> None:
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 3,
        "queueOffset": "17",
        "maxMsgNums": 32,
        "sysFlag": "6",
        "commitOffset": -1,
        "suspendTimeoutMillis": 15000,
        "subscription": None,
        "subVersion": 1795216857956,
        "classFilterMode": False,
        "AccessKey": "",
        "OnsChannel": "ALIYUN",
        "Signature": "x",
    }
    command = command_of({"code": 11, "extFields": ext, "language": "CPP", "opaque": 5, "version": 63, "flag": 0})
    header = command.decode_header(PullMessageRequestHeader)
    assert (header.queue_id, header.queue_offset, header.max_msg_nums) == (3, 17, 32)
    assert (header.sys_flag, header.commit_offset, header.sub_version) == (6, -1, 1795216857956)
    assert header.subscription is None
    assert command.ext_fields["queueId"] == "3"
    assert command.ext_fields["classFilterMode"] == "false"
    assert "subscription" not in command.ext_fields
    assert decode(command.encode()) == command


def test_a_null_becomes_the_default_of_a_field_that_cannot_be_null() -> None:
    command = command_of({"code": 10, "extFields": {"topic": "T", "queueId": 0, "properties": None, **REQUIRED_SEND}})
    assert command.decode_header(SendMessageRequestHeader).properties == ""


REQUIRED_SEND = {"producerGroup": "G", "sysFlag": 0, "bornTimestamp": "1", "flag": 0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", False), ("1", False), ("true", True), ("TRUE", True), (True, True), (False, False), (None, False)],
)
def test_booleans_follow_javas_rule(value: bool | str | None, expected: bool) -> None:
    """C++ clients send 0 and 1, which Java's parseBoolean decodes as false."""
    header = command_of(
        {"code": 10, "extFields": {"topic": "T", "queueId": 0, "unitMode": value, **REQUIRED_SEND}}
    ).decode_header(SendMessageRequestHeader)
    assert is_true(header.unit_mode) is expected


def test_numbers_are_accepted_as_text() -> None:
    command = command_of({"code": 14, "extFields": {"consumerGroup": 123, "topic": True, "queueId": "1"}})
    header = command.decode_header(QueryConsumerOffsetRequestHeader)
    assert (header.consumer_group, header.topic, header.queue_id) == ("123", "true", 1)


def test_nested_ext_values_become_json_text() -> None:
    command = command_of({"code": 1, "extFields": {"a": {"b": [1, None]}, "c": 1.5}})
    assert command.ext_fields == {"a": '{"b":[1,null]}', "c": "1.5"}


def test_a_header_that_only_fastjson_accepts_is_read() -> None:
    command = command_of("{code:105,'extFields':{topic:'T',1:2,},language:\"GO\",opaque:9,remark:null,version:\"7\",}")
    assert (command.code, command.opaque, command.language, command.version) == (105, 9, "GO", 7)
    assert command.ext_fields == {"topic": "T", "1": "2"}
    assert command.decode_header(GetRouteInfoRequestHeader).topic == "T"


def test_every_header_member_is_optional() -> None:
    assert command_of("{}").code == 0
    command = command_of({"code": 105})
    assert (command.flag, command.opaque, command.version, command.language) == (0, 0, 0, "OTHER")
    assert command.ext_fields == {}
    assert command == command_of({"code": 105, "extFields": None, "remark": "", "language": None, "flag": None})
    with pytest.raises(RemoteProtocolError):
        command.decode_header(GetRouteInfoRequestHeader)


def test_unknown_header_members_are_ignored() -> None:
    command = command_of(
        {"code": 1, "body": "eA==", "ext": {"a": "b"}, "serialize_type": 1, "serializeTypeCurrentRPC": "JSON"}, b"real"
    )
    assert (command.body, command.ext_fields, command.serialize_type) == (b"real", {}, SerializeType.JSON)
    assert command_of({"code": 1, "body": ["no text"], "serialize_type": "x"}).code == 1


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ('{"code":1,"flag":1.5}', r"flag"),
        ('{"code":1,"extFields":{"a":1}', "character 29"),
        ('{"code":1,"extFields":' + "[" * 4_000, "nested deeper"),
        ('{"a":' * 800, "nested deeper"),
        ('{"a":' * 1_000, r"the limit for other forms is 4096 bytes \(MAX_TOLERANT_HEADER\)"),
    ],
)
def test_an_unreadable_header_is_a_protocol_error(header: str, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        command_of(header).ext_fields  # noqa: B018


# Limits of ext fields. What a typed header does not declare becomes text in Python, which a client could keep busy.


@pytest.mark.parametrize("nested", ["[[1],[2]],", '{"a":[1]},'])
def test_nested_ext_values_above_their_limit_are_refused(nested: str) -> None:
    few, many = nested * 300, nested * (MAX_NESTED_SIZE // len(nested) + 1)
    text = '{"code":310,"extFields":{"a":"g","x":"%s","z":[%s0]},"flag":0,"opaque":7}'
    assert command_of(text % ("y" * 5000, few)).ext_fields["z"] == f"[{few}0]"
    with pytest.raises(HeaderError) as raised:
        command_of(text % ("", many))
    assert raised.value.opaque == 7


@pytest.mark.parametrize("serializer", SerializeType)
def test_more_ext_fields_than_the_limit_are_refused(serializer: SerializeType) -> None:
    most = {str(number): "" for number in range(MAX_EXT_FIELDS)}
    command = RemotingCommand(310, most, opaque=7, serialize_type=serializer)
    assert decode(command.encode()) == command
    command.ext = most | {"one": "more"}
    with pytest.raises(HeaderError) as raised:
        decode_command(command.encode()[8:], b"", serializer)
    assert raised.value.opaque == 7


def test_pairs_of_one_name_in_a_binary_header_are_counted() -> None:
    pairs = bytes(6) * (MAX_EXT_FIELDS + 1)
    header = bytes(13) + bytes(4) + len(pairs).to_bytes(4, "big") + pairs
    with pytest.raises(HeaderError):
        decode_command(header, b"", SerializeType.ROCKETMQ)


@pytest.mark.parametrize("ext", ["topic:'%s'", '"topic":"\\ud800%s"'])
def test_only_a_short_header_may_have_the_forms_of_fastjson(ext: str) -> None:
    text = '{"code":105,"extFields":{' + ext + '},"flag":1,"opaque":7}'
    assert command_of(text % "T").ext_fields["topic"].endswith("T")
    with pytest.raises(HeaderError) as raised:
        command_of(text % ("T" * MAX_TOLERANT_HEADER))
    assert (raised.value.opaque, raised.value.flag) == (7, 1)


def test_a_long_header_of_unusual_types_is_read() -> None:
    header = b'{"code":"105","extFields":{"topic":"%b\xff","n":1,"o":null},"language":3,"opaque":7,"remark":5,"x":[1]}'
    command = decode_command(header % (b"T" * MAX_TOLERANT_HEADER), b"", SerializeType.JSON)
    assert (command.code, command.opaque, command.language, command.remark) == (105, 7, "PYTHON", "5")
    assert command.ext_fields == {"topic": "T" * MAX_TOLERANT_HEADER + "\ufffd", "n": "1"}
    assert command.signed_fields == command.ext_fields


# The binary header.


def test_a_truncated_binary_header_is_a_protocol_error(golden: Path) -> None:
    row = next(row for row in frames(golden) if row["serialize"] == "ROCKETMQ" and row["code"] == 310)
    frame = bytes.fromhex(row["frame"])
    size = int.from_bytes(frame[5:8], "big")
    header = frame[8 : 8 + size]
    assert decode_command(header, b"", SerializeType.ROCKETMQ).code == 310
    for cut in range(size):
        with pytest.raises(RemoteProtocolError):
            decode_command(header[:cut], b"", SerializeType.ROCKETMQ)


def test_a_name_that_no_binary_header_can_hold_is_a_protocol_error() -> None:
    """11,000 bytes that are no UTF-8 are read as replacement characters, of three bytes each."""
    name = b"\xff" * 11_000
    pair = len(name).to_bytes(2, "big") + name + (1).to_bytes(4, "big") + b"x"
    header = bytes(13) + bytes(4) + len(pair).to_bytes(4, "big") + pair
    command = decode_command(header, b"", SerializeType.ROCKETMQ)
    with pytest.raises(RemoteProtocolError):
        command.encode()


# Whatever a command may hold.

int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
text = st.text(max_size=20)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    return RemotingCommand(
        draw(int16),
        draw(st.dictionaries(text, text, max_size=5)),
        draw(st.binary(max_size=50)),
        flag=draw(int32),
        opaque=draw(int32),
        remark=draw(st.none() | text),
        language=draw(st.sampled_from(LanguageCode)).name,
        version=draw(int16),
        serialize_type=draw(st.sampled_from(SerializeType)),
    )


@given(commands())
def test_commands_round_trip(command: RemotingCommand) -> None:
    assert decode(command.encode()) == command


# Making commands.


def test_requests_and_responses_are_distinguished() -> None:
    header = KVConfigRequestHeader(namespace="n", key="k")
    request = RemotingCommand.request(RequestCode.GET_KV_CONFIG, header, b"body")
    assert (request.flag, request.language, request.version) == (0, "PYTHON", VERSION)
    assert request.ext_fields == {"namespace": "n", "key": "k"}
    request.serialize_type = SerializeType.ROCKETMQ
    answer = request.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=7), b"b", "fine")
    assert (answer.opaque, answer.flag, answer.remark) == (request.opaque, FLAG_RESPONSE, "fine")
    assert answer.serialize_type is SerializeType.ROCKETMQ
    assert answer.ext_fields == {"offset": "7"}
    assert answer.is_response
    oneway = RemotingCommand.oneway(RequestCode.HEART_BEAT)
    assert (oneway.flag, oneway.is_oneway, oneway.is_response) == (FLAG_ONEWAY, True, False)
    assert oneway.opaque != request.opaque


def test_ext_values_of_responses_are_json_strings() -> None:
    """C++ clients ignore values of other types."""
    answer = command_of({"code": 11}).response(
        0, PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=5, min_offset=0, max_offset=2**40)
    )
    header = json.loads(answer.encode()[8:])
    assert header["extFields"] == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "0",
        "maxOffset": str(2**40),
    }
    assert header["serializeTypeCurrentRPC"] == "JSON"
    assert "remark" not in header


def test_fields_added_to_a_response_are_sent() -> None:
    answer = command_of({"code": 10}).response(0)
    answer.ext_fields["MSG_REGION"] = "DefaultRegion"
    assert decode(answer.encode()).ext_fields == {"MSG_REGION": "DefaultRegion"}


def test_changed_ext_fields_are_read_back() -> None:
    for _ in range(2):
        command = command_of({"code": 105, "extFields": {"topic": "T"}})
        assert command.decode_header(GetRouteInfoRequestHeader).topic == "T"
        command.ext_fields["topic"] = "U"
        assert command.decode_header(GetRouteInfoRequestHeader).topic == "U"


# Decoding in one pass, from the second request of a code on.


def plain(header: dict[str, Any]) -> RemotingCommand:
    """Decode a header without whitespace, as clients send it."""
    return command_of(json.dumps(header, separators=(",", ":")))


FOUR_FIELDS = {
    "code": 34,
    "extFields": {"topic": "T", "queueId": "3", "later": 1, "no": None},
    "opaque": 9,
    "remark": "r",
}


def test_cached_header_shapes_lose_no_fields() -> None:
    """Fields that the typed header does not know are there, and so is everything else of the header."""
    first, *later = [plain(FOUR_FIELDS) for _ in range(3)]
    for command in (first, *later):
        assert command.decode_header(QueueRequestHeader) == QueueRequestHeader(topic="T", queue_id=3)
    for command in later:
        assert command.ext_fields == {"topic": "T", "queueId": "3", "later": "1"}
        assert (command.code, command.opaque, command.remark, command.language) == (34, 9, "r", "OTHER")
        assert decode(command.encode()) == first == command


def test_a_header_type_may_change_within_a_code() -> None:
    for _ in range(3):
        command = plain({"code": 35, "extFields": {"consumerGroup": "G", "topic": "T", "queueId": "3"}})
        assert command.decode_header(QueueRequestHeader).queue_id == 3
        assert command.decode_header(QueryConsumerOffsetRequestHeader).consumer_group == "G"
        assert plain({"code": 35, "extFields": {"topic": "T"}}).decode_header(TopicRequestHeader).topic == "T"


@pytest.mark.parametrize(
    ("ext", "why"),
    [
        ({"a": "G", "b": "T", "f": 0, "g": "1", "h": 0}, "SEND_MESSAGE_V2 310: .*`e`, the queue id$"),
        ({"a": "G", "b": "T", "e": "x", "f": 0, "g": "1", "h": 0}, r"SEND_MESSAGE_V2 310: .*`\$\.e`, the queue id$"),
        ({"a": "G", "b": "T", "e": 1, "f": None, "g": "1", "h": 0}, "SEND_MESSAGE_V2 310: .*`f`, the sys flag$"),
        (None, "SEND_MESSAGE_V2 310: .*`b`, the topic$"),
    ],
)
def test_errors_are_equal_for_first_and_cached_headers(ext: dict[str, Any] | None, why: str) -> None:
    sound = {"a": "G", "b": "T", "e": 2, "f": 0, "g": "1", "h": 0}
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match=why):
            plain({"code": 310, "extFields": ext}).decode_header(SendMessageRequestHeaderV2)
        assert plain({"code": 310, "extFields": sound}).decode_header(SendMessageRequestHeaderV2).queue_id == 2


def test_a_response_is_not_decoded_as_a_request_of_its_code() -> None:
    sound = {"code": 30, "extFields": {"topic": "T", "queueId": "1"}}
    assert plain(sound).decode_header(QueueRequestHeader).queue_id == 1
    for ext in ({"offset": "7"}, {"topic": "T", "queueId": "1", "offset": "7"}):
        answer = plain({"code": 30, "flag": 1, "extFields": ext})
        assert answer.decode_header(OffsetResponseHeader).offset == 7


def test_commands_compare_by_value() -> None:
    command = command_of({"code": 1, "remark": "x"})
    assert command != command_of({"code": 1, "remark": "y"})
    assert command != "a command"
    with pytest.raises(TypeError):
        hash(command)
    assert "code=1" in repr(command)


def test_opaques_wrap_to_positive_numbers() -> None:
    assert 0 <= next_opaque() < next_opaque() < 2**31


def test_codes_have_names() -> None:
    assert name_of(310) == "SEND_MESSAGE_V2 310"
    assert name_of(9999) == "request code 9999"


def test_codes_that_begin_alike_are_decoded_with_their_own_headers() -> None:
    """From the second request of a code on, its header is decoded with the whole frame."""
    pop = PopMessageRequestHeader(
        consumer_group="g", topic="T", queue_id=0, max_msg_nums=1, invisible_time=1, poll_time=1
    )
    ack = AckMessageRequestHeader(consumer_group="g", topic="T", queue_id=0, extra_info="e", offset=1)
    received = [(RequestCode.POP_MESSAGE, pop), (RequestCode.ACK_MESSAGE, ack)]
    for _ in range(2):
        commands = [FrameDecoder().receive_data(RemotingCommand.request(*each).encode())[0] for each in received]
        headers = [one.decode_header(type(header)) for one, (_, header) in zip(commands, received, strict=True)]
        assert headers == [pop, ack]
    assert [type(command.received_ext) for command in commands] == [PopMessageRequestHeader, AckMessageRequestHeader]
