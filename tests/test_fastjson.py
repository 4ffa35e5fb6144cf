"""JSON with fastjson's habits: Apache's own files and bodies, the odd forms one by one, and broken input."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import fastjson
from rucola.domain.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rucola.errors import RemoteProtocolError
from rucola.fastjson import MAX_DEPTH, ObjectKey
from support.recorded_frames import frames

# What Apache wrote.


def test_apaches_config_files_round_trip_byte_for_byte(golden: Path) -> None:
    files = sorted(golden.glob("**/config/*.json*"))
    assert len(files) == 150
    for path in files:
        assert fastjson.dumps_pretty(fastjson.loads(path.read_bytes())).encode() == path.read_bytes(), path


def test_apaches_bodies_round_trip_byte_for_byte(golden: Path) -> None:
    bodies = [
        frame[len(frame) - row["bodyLength"] :]
        for row in frames(golden)
        if row["bodyLength"] and (frame := bytes.fromhex(row["frame"]))[len(frame) - row["bodyLength"]] in b"{["
    ]
    assert len(bodies) == 108
    for body in bodies:
        assert fastjson.dumps(fastjson.loads(body)) == body
        assert fastjson.loads(body + b"\n") == fastjson.loads(body), "C++ clients end their bodies with a newline"


# The odd forms.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"offsetTable":{"T@g":{0:33,1:32}}}', {"offsetTable": {"T@g": {0: 33, 1: 32}}}),
        ('{-1:"a","0":"b",0:"c"}', {-1: "a", "0": "b", 0: "c"}),
        ("{a:1,$b:2,_c.d:3,'e f':4}", {"a": 1, "$b": 2, "_c.d": 3, "e f": 4}),
        ("['it\\'s',\"'\",]", ["it's", "'"]),
        ('{"a":[1,2,],"b":{"c":null,},}', {"a": [1, 2], "b": {"c": None}}),
        ("{a:-1.5e3,b:1E-2,c:0.5,d:true,e:false}", {"a": -1500.0, "b": 0.01, "c": 0.5, "d": True, "e": False}),
        ("{1.5:2}", {"1.5": 2}),
        (" \t\r\n{ a\n:\t1 , }\n", {"a": 1}),
        ("{}", {}),
        ("{a:{},b:[]}", {"a": {}, "b": []}),
        ('{a:"\\u00e4\\ud83d\\ude00\\n\\t\\/\\\\\\"\\q"}', {"a": 'ä\U0001f600\n\t/\\"q'}),
        ('{a:"\\\\"}', {"a": "\\"}),
        ('{a:"\\\\\\""}', {"a": '\\"'}),
        ("{a:18446744073709551616}", {"a": 2**64}),
        ("{0:18446744073709551616,-1:-9223372036854775808}", {0: 2**64, -1: -(2**63)}),
        ('{0:1,"a":2}', {0: 1, "a": 2}),
        (
            '{a:{"b":"}{"},c:{"d":[{},"}"]},e:{0:1},f:{0:1,}}',
            {"a": {"b": "}{"}, "c": {"d": [{}, "}"]}, "e": {0: 1}, "f": {0: 1}},
        ),
    ],
)
def test_documents_that_fastjson_accepts_are_accepted(text: str, value: Any) -> None:
    assert fastjson.loads(text) == value
    assert fastjson.loads(text.encode()) == value
    assert fastjson.loads(bytearray(text.encode())) == value
    assert fastjson.loads(memoryview(text.encode())) == value


def test_objects_can_be_keys() -> None:
    text = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":5},{"topic":"U"}:{}}}'
    value = fastjson.loads(text)
    key = ObjectKey.of({"topic": "T", "queueId": 0, "brokerName": "a"})
    assert value["offsetTable"][key] == {"maxOffset": 5}
    assert key.as_dict() == {"brokerName": "a", "queueId": 0, "topic": "T"}
    assert fastjson.dumps(value) == text


def test_a_quoted_key_is_text_and_a_bare_one_a_number() -> None:
    assert list(fastjson.loads('{"0":1}')) == ["0"]
    assert list(fastjson.loads("{0:1}")) == [0]
    assert fastjson.dumps({"0": 1}) == b'{"0":1}'
    assert fastjson.dumps({0: 1}) == b"{0:1}"


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert fastjson.loads('"\\ud83d"') == "\ufffd"
    assert fastjson.loads('{a:"x\\ude00\\ud83dy"}') == {"a": "x\ufffd\ufffdy"}
    fastjson.loads('{a:"\\ud800"}')["a"].encode("utf-8")


def test_structs_are_written_by_their_wire_names() -> None:
    class Queue(msgspec.Struct, rename="camel"):
        queue_id: int
        table: dict[int, str]

    assert fastjson.dumps({"q": Queue(3, {0: "x"})}) == b'{"q":{"queueId":3,"table":{0:"x"}}}'


def test_pretty_printing_equals_fastjsons() -> None:
    value = {"a": {}, "b": {"c": [1, {"d": 2}], "e": {0: 1, 1: 2}}, "f": None, "g": 'q"'}
    assert fastjson.dumps_pretty(value) == (
        '{\n\t"a":{},\n\t"b":{\n\t\t"c":[1,{"d":2}],\n\t\t"e":{0:1,1:2\n\t\t}\n\t},\n\t"f":null,\n\t"g":"q\\""\n}'
    )


# Whatever a document may hold.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
keys = (
    texts
    | st.integers(-(2**63), 2**63)
    | st.dictionaries(texts, texts | st.integers(0, 9), max_size=3).map(ObjectKey.of)
)
documents = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | keys, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(texts, unique=True))
def test_pretty_entries_are_written_as_their_object(names: list[str]) -> None:
    table = {name: SubscriptionGroupConfig(group_name=name) for name in names}
    whole = msgspec.to_builtins(SubscriptionGroupWrapper(subscription_group_table=table))
    entries = [fastjson.pretty_entry(name, config, level=2) for name, config in table.items()]
    joined = whole | {"subscriptionGroupTable": fastjson.pretty_object(entries, level=1)}
    assert fastjson.dumps_pretty(joined) == fastjson.dumps_pretty(whole)


@given(documents)
def test_encoded_values_are_decoded(value: Any) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps_pretty(value)) == value


@given(st.recursive(scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20))
def test_plain_json_is_read_as_every_reader_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert fastjson.loads(text) == json.loads(text)
    assert fastjson._Reader(text).document() == json.loads(text)


# Broken input.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "character 0: the text ends where a value is expected"),
        ("  ", "character 2: the text ends where a value is expected"),
        ('{"a":', "character 5: the text ends where a value is expected"),
        ('{"a":1', "character 6: expected ',' or '}', the text ends"),
        ('{"a"', "character 4: expected ':' after a key"),
        ("{", "character 1: the text ends where a key is expected"),
        ("{,}", "character 1: expected a key, found ','"),
        ('{"a":1,,}', "character 7: expected a key, found ','"),
        ('{"a" 1}', "character 5: expected ':' after a key"),
        ("[1 2]", r"character 3: expected ',' or '\]', found '2'"),
        ("[1,", "character 3: the text ends where a value is expected"),
        ('{"a":"b}', "character 5: a string is not terminated"),
        ('"\\"', "character 0: a string is not terminated"),
        ("{a:NaN}", "character 3: expected a value, found 'N'"),
        ("{a:undefined}", "character 3: expected a value, found 'u'"),
        ("{a:+1}", r"character 3: expected a value, found '\+'"),
        ("{}{}", "character 2: unexpected text after the end of the document"),
        ("{{[]:1}:2}", "character 2: expected a key, found"),
        ("{{a:[]}:1}", "character 7: an object that is a key has members that cannot be compared"),
        ("{{a:1,2:3}:1}", "an object that is a key has members that cannot be compared"),
        ("\x00", r"character 0: expected a value, found '\\x00'"),
    ],
)
def test_broken_input_names_its_character(text: str, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^JSON at .*{why}"):
        fastjson.loads(text)


def test_broken_utf8_names_its_byte() -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(b'{"a":"\xff"}')


@pytest.mark.parametrize("opening", ["[", "{a:", '{"a":', "{{a:1}:", "{", '{{"a":'])
def test_deep_nesting_is_refused(opening: str) -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(opening * 100_000)


def test_deep_nesting_before_the_end_of_an_object_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads('{a:{"b":' + "[" * 100_000 + "}")


def test_nesting_up_to_the_limit_is_read() -> None:
    value = fastjson.loads("{a:" * MAX_DEPTH + "1" + "}" * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        value = value["a"]
    assert value == 1


def test_giant_numbers_are_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads("{a:" + "9" * 100_000 + "}")
    with pytest.raises(RemoteProtocolError):
        fastjson.loads("{" + "9" * 100_000 + ":1}")


def test_numbers_beyond_a_double_become_infinity_and_null() -> None:
    assert fastjson.loads("{a:1e999}") == {"a": math.inf}
    assert fastjson.dumps({"a": math.inf, "b": math.nan}) == b'{"a":null,"b":null}'


@given(st.text(max_size=40) | st.text("{}[]:,\"'\\01a \n", max_size=40))
def test_any_text_is_a_value_or_a_protocol_error(text: str) -> None:
    with suppress(RemoteProtocolError):
        fastjson.loads(text)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        fastjson.loads(data)


@given(documents, st.data())
def test_a_damaged_document_is_a_value_or_a_protocol_error(value: Any, data: st.DataObject) -> None:
    document = bytearray(fastjson.dumps(value))
    document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        fastjson.loads(document)
