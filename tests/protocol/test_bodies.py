"""Bodies: recorded ones, and those of JavaScript and C++ clients."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import fastjson, slices
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.domain.queue import MessageQueue
from rucola.domain.route import ClusterInfo, RegisterBrokerBody, TopicRouteData
from rucola.domain.subscription import subscription
from rucola.domain.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper, perm_text
from rucola.errors import InvalidMessage, RemoteProtocolError
from rucola.message.hashing import string_hash
from rucola.message.record import body_crc
from rucola.protocol import route as route_module
from rucola.protocol.body import decode_body, decode_object, encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.heartbeat import GetConsumerListByGroupResponseBody
from rucola.protocol.kv import KVTable
from rucola.protocol.queue import from_key, to_key
from rucola.protocol.route import (
    RegisterBrokerRequestHeader,
    TopicList,
    encode_registration,
    registration_steps,
)
from rucola.protocol.topic import consume_stats_steps, decode_consume_stats, decode_topic_stats, topic_stats_steps
from support.errors import raises
from support.recorded_frames import decode, exchanges

REQUEST_BODIES: dict[RequestCode, type[msgspec.Struct]] = {
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
}
ANSWER_BODIES: dict[RequestCode, type[msgspec.Struct]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KVTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupResponseBody,
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigSerializeWrapper,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper,
}


def test_recorded_bodies_round_trip(golden: Path) -> None:
    seen: set[int] = set()
    for exchange in exchanges(golden):
        frames = [(exchange.request, REQUEST_BODIES)]
        if exchange.answer is not None:
            frames.append((exchange.answer, ANSWER_BODIES))
        for frame, bodies in frames:
            body = decode(frame).body
            body_type = bodies.get(exchange.code)  # type: ignore[call-overload]
            if body_type is None or not body:
                continue
            value = decode_body(body_type, body)
            quoted = exchange.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            assert json.loads(encode_body(value, quote_keys=True)) == json.loads(plain(body)), exchange
            assert encode_body(value, quote_keys=quoted) == body, exchange
            seen.add(exchange.code)
    assert seen == set(map(int, REQUEST_BODIES | ANSWER_BODIES))


def plain(body: bytes) -> bytes:
    """Return a body with every key quoted."""
    return json.dumps(fastjson.loads(body)).encode()


def test_recorded_statistics_round_trip(golden: Path) -> None:
    seen = []
    for exchange in exchanges(golden):
        if exchange.answer is None or exchange.code not in (202, 208):
            continue
        body = decode(exchange.answer).body
        if exchange.code == RequestCode.GET_TOPIC_STATS_INFO:
            assert slices.run(topic_stats_steps(decode_topic_stats(body))) == body
        else:
            assert slices.run(consume_stats_steps(decode_consume_stats(body))) == body
        seen.append(exchange.code)
    assert len(seen) >= 8


def test_recorded_registrations_carry_the_crc_of_their_bodies(golden: Path) -> None:
    registrations = [decode(exchange.request) for exchange in exchanges(golden) if exchange.code == 103]
    assert registrations
    for command in registrations:
        header = command.decode_header(RegisterBrokerRequestHeader)
        assert header.body_crc32 == body_crc(command.body)
        body = slices.run(registration_steps(header, command.body))
        assert body.topic_config_serialize_wrapper.topic_config_table
        packed = encode_registration(body, compress=True)
        header.compressed, header.body_crc32 = "true", body_crc(packed)
        assert slices.run(registration_steps(header, packed)) == body


# Heartbeats of other clients.

ALI_ONS = (
    b'{"clientID":"127.0.0.1@x","consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY",'
    b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"T",'
    b'"subString":"TagA || TagC","classFilterMode":false,"tagsSet":["TagA","TagC"],"codeSet":[2598919,2598921],'
    b'"subVersion":1795216857956}],"unitMode":false}],"producerDataSet":[{"groupName":"P"}]}'
)
CPP = (
    b'{"clientID":"127.0.0.1@y","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"G",'
    b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1795216857956","topic":"T"}],'
    b'"unitMode":"0"}]}\n'
)


@pytest.mark.parametrize(
    ("body", "expression", "first", "producers"),
    [(ALI_ONS, "TagA || TagC", "CONSUME_FROM_FIRST_OFFSET", ["P"]), (CPP, "*", "CONSUME_FROM_LAST_OFFSET", [])],
)
def test_heartbeats_are_decoded_with_names_and_ordinals(
    body: bytes, expression: str, first: str, producers: list[str]
) -> None:
    heartbeat = decode_body(HeartbeatData, body)
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type_name == "CONSUME_PASSIVELY"
    assert consumer.message_model_name == "CLUSTERING"
    assert consumer.consume_from_where_name == first
    (wanted,) = consumer.subscription_data_set
    assert (wanted.topic, wanted.sub_string, wanted.sub_version) == ("T", expression, 1795216857956)
    assert [producer.group_name for producer in heartbeat.producer_data_set] == producers


@pytest.mark.parametrize(("ordinal", "name"), [("0", "BROADCASTING"), (1, "CLUSTERING"), ("NEW", "NEW")])
def test_an_enum_is_encoded_by_name(ordinal: str | int, name: str) -> None:
    assert ConsumerData(group_name="G", message_model=ordinal).message_model_name == name


@pytest.mark.parametrize("ordinal", ["2", 9, -1])
def test_an_unknown_enum_ordinal_is_refused_and_named(ordinal: str | int) -> None:
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="G")]))
    wrong = fastjson.loads(body)
    wrong["consumerDataSet"][0]["messageModel"] = ordinal
    with pytest.raises(RemoteProtocolError):
        decode_body(HeartbeatData, fastjson.dumps(wrong))


def test_nulls_in_a_body_become_defaults() -> None:
    body = b'{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":"P"}]}'
    assert decode_body(HeartbeatData, body).consumer_data_set == []


# Subscriptions.


def test_a_subscription_expression_is_parsed() -> None:
    wanted = subscription("T", " TagA||标签 || ", version=7)
    assert wanted.tags_set == ["TagA", "标签"]
    assert wanted.code_set == [string_hash("TagA"), string_hash("标签")]
    assert wanted.sub_version == 7
    for everything in ("*", "", None):
        all_of_it = subscription("T", everything)
        assert (all_of_it.sub_string, all_of_it.tags_set, all_of_it.code_set) == ("*", [], [])
    sql = subscription("T", "a > 1", "SQL92")
    assert not sql.is_tag_type
    assert (sql.sub_string, sql.tags_set) == ("a > 1", [])


def test_a_subscription_expression_of_separators_is_refused() -> None:
    with pytest.raises(InvalidMessage):
        subscription("T", "|| ||")


# Queues as keys.


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**31 - 1))
def test_a_queue_round_trips_as_a_map_key(topic: str, broker_name: str, queue_id: int) -> None:
    queue = MessageQueue(topic, broker_name, queue_id)
    assert from_key(to_key(queue)) == queue


@pytest.mark.parametrize("key", ["T", 0, to_key(MessageQueue("T", "b", 0))[:2], None])
def test_an_invalid_queue_key_is_a_protocol_error(key: object) -> None:
    with pytest.raises(RemoteProtocolError):
        from_key(key)


def test_unreadable_statistics_are_protocol_errors() -> None:
    for body in (b"[]", b'{"offsetTable":{"T":{}}}', b'{"offsetTable":{{"topic":"T"}:{}}}', b"{"):
        with pytest.raises(RemoteProtocolError):
            decode_topic_stats(body)
    for body in (b'{"offsetTable":[]}', b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:[]}}'):
        with pytest.raises(RemoteProtocolError):
            decode_topic_stats(body)
        with pytest.raises(RemoteProtocolError):
            decode_consume_stats(body)
    with pytest.raises(RemoteProtocolError):
        decode_consume_stats(b'{"consumeTps":"fast","offsetTable":{}}')


# Bodies as such.


def test_an_unreadable_body_names_the_problem() -> None:
    with raises(RemoteProtocolError, subject="HeartbeatData"):
        decode_body(HeartbeatData, b"{}")
    with raises(RemoteProtocolError, subject="DataVersion"):
        decode_body(DataVersion, b'{"counter":"many"}')
    for body in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(RemoteProtocolError):
            decode_body(DataVersion, body)
    with raises(RemoteProtocolError, subject="KVTable"):
        decode_object(b"[]", "KVTable")


def test_none_is_left_out_of_a_body() -> None:
    assert encode_body(TopicList(topic_list=["T"])) == b'{"topicList":["T"]}'
    assert encode_body(TopicList(broker_addr="a", topic_list=[])) == b'{"brokerAddr":"a","topicList":[]}'


def test_topics_are_rendered_as_by_java() -> None:
    assert str(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)) == (
        "TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=false]"
    )
    assert [perm_text(perm) for perm in (0, 2, 4, 7)] == ["---", "-W-", "R--", "RWX"]


# Registrations.


def registration_header(compressed: bool, crc: int = 0) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(
        broker_name="a", broker_addr="b", cluster_name="c", broker_id=0, compressed=compressed, body_crc32=crc
    )


names = st.text("abcXYZ019%|_-", min_size=1, max_size=10)


@given(st.lists(names, unique=True, max_size=5), st.lists(names, max_size=2), st.booleans())
def test_a_registration_round_trips(topics: list[str], filter_servers: list[str], compress: bool) -> None:
    wrapper = TopicConfigSerializeWrapper(
        data_version=DataVersion(counter=3, timestamp=4),
        topic_config_table={name: TopicConfig(topic_name=name, perm=4) for name in topics},
    )
    body = RegisterBrokerBody(filter_server_list=filter_servers, topic_config_serialize_wrapper=wrapper)
    data = encode_registration(body, compress=compress)
    assert slices.run(registration_steps(registration_header(compress, body_crc(data)), data)) == body
    unsigned = zlib.crc32(data)
    assert slices.run(registration_steps(registration_header(compress, unsigned), data)) == body, (
        "the sign bit does not count"
    )


def test_a_registration_without_a_body_has_no_topics() -> None:
    for compressed in (True, False):
        body = slices.run(registration_steps(registration_header(compressed), b""))
        assert body.topic_config_serialize_wrapper == TopicConfigSerializeWrapper()


@given(st.binary(max_size=60))
def test_a_damaged_registration_is_a_protocol_error(garbage: bytes) -> None:
    if not garbage:
        return
    with pytest.raises(RemoteProtocolError):
        slices.run(registration_steps(registration_header(True), zlib.compress(garbage)))


def test_a_registration_over_the_size_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_module, "MAX_REGISTRATION_SIZE", 1000)
    with pytest.raises(RemoteProtocolError):
        slices.run(registration_steps(registration_header(True), zlib.compress(bytes(100_000))))


LARGE = 1 << 20
"""A plain registration above this size is read some topics at a time; leading white space makes one large."""
odd_names = st.text('ab{}[],:"\\ \té\x01', max_size=8)


@given(
    st.dictionaries(odd_names, st.dictionaries(odd_names, odd_names, max_size=2), max_size=200),
    st.lists(odd_names, max_size=2),
    st.sampled_from([None, 1]),
)
def test_a_large_registration_equals_a_small_one(
    topics: dict[str, dict[str, str]], filter_servers: list[str], indent: int | None
) -> None:
    """`attributes` are RocketMQ 5's, and any white space is allowed."""
    table = {name: {"topicName": name, "perm": 4, "attributes": pairs} for name, pairs in topics.items()}
    wrapper = {"dataVersion": {"counter": 3, "timestamp": 4}, "topicConfigTable": table}
    document = {"filterServerList": filter_servers, "topicConfigSerializeWrapper": wrapper}
    data = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    small = slices.run(registration_steps(registration_header(False), data))
    assert small.topic_config_serialize_wrapper.topic_config_table.keys() == topics.keys()
    assert slices.run(registration_steps(registration_header(False), b" " * LARGE + data)) == small


def steps_of(body: RegisterBrokerBody, *, compress: bool) -> tuple[int, int]:
    """Return the number of steps in which a registration is decoded, and the most objects that a step makes."""
    data = encode_registration(body, compress=compress)
    decoded: list[RegisterBrokerBody] = []

    def run() -> Generator[None, None, None]:
        decoded.append((yield from registration_steps(registration_header(compress, body_crc(data)), data)))

    count, most, before = 0, 0, sys.getallocatedblocks()
    for _ in run():
        present = sys.getallocatedblocks()
        count, most, before = count + 1, max(most, present - before), present
    assert decoded == [body]
    return count, most


@pytest.mark.slow
@pytest.mark.parametrize("compress", [False, True])
def test_a_large_registration_is_decoded_in_small_steps(compress: bool) -> None:
    """The work of a step is counted in the objects that it makes: a topic has at least three."""
    names = [f"topic-{number}" for number in range(20_000)]
    wrapper = TopicConfigSerializeWrapper(topic_config_table={name: TopicConfig(topic_name=name) for name in names})
    count, most = steps_of(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compress=compress)
    assert count > 300
    assert most < 1000


@pytest.mark.parametrize(
    "table",
    [
        b'{"T":{"topicName":"T"},"U":{"topicName":"%b"}}' % (b"x" * 70_000),
        b'{"T":{"topicName":"T","attributes":{"a":{}}}}',
        b'[{"topicName":"T"}]',
        b'{"T":{"perm":6}}',
        b'{"T":{"topicName":"\xff"}}',
        b'{"T":{"topicName":"T"},"U":{"topicName":"U"}}',
    ],
)
def test_a_large_registration_that_is_not_well_formed_is_refused(table: bytes) -> None:
    data = b" " * LARGE + b'{"topicConfigSerializeWrapper":{"topicConfigTable":%b}}' % table
    with pytest.raises(RemoteProtocolError):
        slices.run(registration_steps(registration_header(False), data, 1))


@pytest.mark.parametrize(("compress", "padding"), [(False, 0), (False, LARGE), (True, 0)])
def test_a_long_name_of_a_topic_is_refused(compress: bool, padding: int) -> None:
    wrapper = TopicConfigSerializeWrapper(topic_config_table={"T": TopicConfig(topic_name="T" * 513)})
    if compress:
        wrapper.topic_config_table = {"T" * 513: wrapper.topic_config_table["T"]}
    data = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compress=compress)
    with pytest.raises(RemoteProtocolError):
        slices.run(registration_steps(registration_header(compress), b" " * padding + data))


@pytest.mark.parametrize("compress", [False, True])
def test_filter_servers_of_a_registration_are_bounded(compress: bool) -> None:
    body = RegisterBrokerBody(
        filter_server_list=["10.0.0.1:30911"] * 100_000, topic_config_serialize_wrapper=TopicConfigSerializeWrapper()
    )
    with pytest.raises(RemoteProtocolError):
        slices.run(registration_steps(registration_header(compress), encode_registration(body, compress=compress)))
