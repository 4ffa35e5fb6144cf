"""What C reads of sends: what Python reads, on input of any kind."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import speed
from rucola.message import Message
from rucola.message.batch import encode_batch
from rucola.protocol.codes import RequestCode
from support.fast_requests import MAX_BODY_SIZE, MAX_COUNT, assert_fetch, assert_sends


def _frame(header: bytes, body: bytes = b"body") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


PROPERTIES = rb"TAGS\u0001A\u0002KEYS\u0001k \"1\"\u0002UNIQ_KEY\u00017F\u0002WAIT\u0001true\u0002"
SEND = {
    "a": b'"p"',
    "b": b'"T"',
    "c": b'"TBW102"',
    "d": b'"4"',
    "e": b'"3"',
    "f": b'"1"',
    "g": b'"1700000000000"',
    "h": b'"-7"',
    "i": b'"' + PROPERTIES + b'"',
    "j": b'"0"',
    "k": b'"false"',
    "l": b'"16"',
    "m": b'"false"',
}
PULL = {
    "consumerGroup": b'"g"',
    "topic": b'"T"',
    "queueId": b'"3"',
    "queueOffset": b'"1700000000000"',
    "maxMsgNums": b'"32"',
    "sysFlag": b'"7"',
    "commitOffset": b'"17"',
    "suspendTimeoutMillis": b'"15000"',
    "subscription": b'"TagA || TagB"',
    "subVersion": b'"1700000000001"',
    "expressionType": b'"TAG"',
}
POP = {
    "consumerGroup": b'"g"',
    "topic": b'"T"',
    "queueId": b'"-1"',
    "maxMsgNums": b'"32"',
    "invisibleTime": b'"60000"',
    "pollTime": b'"15000"',
    "bornTime": b'"1700000000000"',
    "initMode": b'"1"',
    "expType": b'"SQL92"',
    "exp": b'"a > 1"',
    "order": b'"false"',
    "attemptId": b'"a-1"',
    "clientId": b'"10.0.0.1@7"',
}
CREDENTIALS = {"AccessKey": b'"billing"', "Signature": b'"c2ln+/Q="'}
MEMBERS = {
    "code": b"310",
    "extFields": b"",
    "flag": b"0",
    "language": b'"JAVA"',
    "opaque": b"17",
    "serializeTypeCurrentRPC": b'"JSON"',
    "version": b"395",
}


def _header(members: dict[str, bytes], fields: dict[str, bytes]) -> bytes:
    ext = b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items()) + b"}"
    given = members | {"extFields": ext} if "extFields" in members else members
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in given.items()) + b"}"


PULL_CODE, POP_CODE, BATCH_CODE = {"code": b"11"}, {"code": b"200050"}, {"code": b"320"}
BATCH = SEND | {"i": b'""', "m": b'"true"'}
MESSAGES = encode_batch([Message("T", b"body", tags="A", keys="k l"), Message("T", b"", tags="B")])
USUAL = _header(MEMBERS, SEND)
USUAL_PULL = _header(MEMBERS | PULL_CODE, PULL)
USUAL_POP = _header(MEMBERS | POP_CODE, POP)
USUAL_BATCH = _header(MEMBERS | BATCH_CODE, BATCH)
JSON_VALUES = st.sampled_from(
    [
        *(b"0", b"-1", b"310", b"2147483648", b"-2147483649", b"1e3", b"07", b"null", b"true", b"{}", b'""', b'"310"'),
        *(b'"-0"', b'"007"', b'"+1"', b'" 1"', b'"9223372036854775807"', b'"9223372036854775808"', b'"true"', b'"1"'),
        *(b'"\\n"', b'"\\u0001"', b'"\\u00e4"', b'"\\ud83d\\ude00"', b'"\\u007F"', b'"\\x"', b'"\x01"', b'"a\\u0001b"'),
        *('"\u00e4"'.encode(), b'"\xff"', b'"a\\u0001\xc3"', b'"DELAY\\u00013"', b'"\\/\\"\\\\"', b'"%RETRY%g"'),
        b'"' + b"a" * 5000 + b'"',
        b'"p\\u0001' + b"v" * 5000 + b'"',
    ]
)
CHANGED_MEMBERS = st.dictionaries(st.sampled_from([*MEMBERS, "remark", "cod"]), JSON_VALUES, max_size=2)


@st.composite
def _headers(draw: st.DrawFn) -> bytes:
    kinds = [(MEMBERS, SEND), (MEMBERS | BATCH_CODE, BATCH), (MEMBERS | PULL_CODE, PULL), (MEMBERS, PULL)]
    kinds += [(MEMBERS | POP_CODE, POP), (MEMBERS | POP_CODE, PULL)]
    members, fields = draw(st.sampled_from(kinds))
    if draw(st.booleans()):
        fields = fields | CREDENTIALS
    changed = st.dictionaries(
        st.sampled_from([*fields, *CREDENTIALS, "SignatureNumber", "n", "aa", "bname", ""]), JSON_VALUES, max_size=2
    )
    members, fields = members | draw(CHANGED_MEMBERS), fields | draw(changed)
    for one in draw(st.lists(st.sampled_from([*members, *fields]), max_size=2)):
        members.pop(one, None), fields.pop(one, None)
    ordered = [
        dict(draw(st.permutations(list(each.items())))) if draw(st.booleans()) else each for each in (members, fields)
    ]
    header = _header(*ordered)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(header)))
        header = header[:at] + draw(st.binary(max_size=3)) + header[at + draw(st.integers(0, 3)) :]
    return header


BODIES = st.sampled_from([b"body", MESSAGES, MESSAGES, MESSAGES * 2, MESSAGES[:-1], b""]) | st.binary(max_size=60)


@given(st.lists(st.sampled_from([USUAL, USUAL_PULL, USUAL_POP, USUAL_BATCH]) | _headers(), max_size=7), st.data())
def test_c_reads_no_request_otherwise_than_python(headers: list[bytes], data_of: st.DataObject) -> None:
    if speed.read_sends is not None:
        data = b"".join(_frame(header, data_of.draw(BODIES)) for header in headers)
        cut = data_of.draw(st.integers(0, 400))
        data = data[: len(data) - cut if cut < 200 else len(data)]
        assert_sends(data)
        assert_fetch(data)


def test_a_usual_pull_is_read_in_c() -> None:
    if speed.read_fetch is not None:
        pull = _frame(USUAL_PULL, b"")
        assert assert_fetch(pull + _frame(USUAL))
        assert not assert_fetch(pull[:-1])
        assert not assert_fetch(_frame(USUAL))
        assert assert_fetch(_frame(_header(MEMBERS | PULL_CODE, {name: PULL[name] for name in list(PULL)[:6]})))
        assert assert_fetch(_frame(_header(MEMBERS | PULL_CODE, CREDENTIALS | PULL)))


def test_a_usual_receive_by_pop_is_read_in_c() -> None:
    if speed.read_fetch is not None:
        pop = _frame(USUAL_POP, b"")
        assert assert_fetch(pop + _frame(USUAL)) == RequestCode.POP_MESSAGE
        assert not assert_fetch(pop[:-1])
        assert assert_fetch(_frame(_header(MEMBERS | POP_CODE, {name: POP[name] for name in list(POP)[:6]})))
        assert assert_fetch(_frame(_header(MEMBERS | POP_CODE, CREDENTIALS | POP | {"order": b'"true"'})))
        assert assert_fetch(_frame(_header(MEMBERS | POP_CODE, POP | {"exp": b'""', "expType": b'""'})))


@pytest.mark.parametrize(
    "changed",
    [
        {"consumerGroup": b'"\xc3\xa4"'}, {"topic": b'""'}, {"maxMsgNums": b"32"}, {"queueId": b'"2147483648"'},
        {"invisibleTime": b'"1e3"'}, {"pollTime": b'""'}, {"exp": b'"a\\u0020b"'}, {"attemptId": b"null"},
        {"order": b'"TRUE"'}, {"initMode": b'"01"'}, {"bornTime": b'"x"'}, {"bname": b'"broker-a"'},
        {"queueOffset": b'"1"'}, {"AccessKey": b'"billing"'},
    ],
)  # fmt: skip
def test_an_unusual_receive_is_left_to_python(changed: dict[str, bytes]) -> None:
    if speed.read_fetch is not None:
        assert not assert_fetch(_frame(_header(MEMBERS | POP_CODE, POP | changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"consumerGroup": b'"\xc3\xa4"'}, {"topic": b'""'}, {"queueId": b"3"}, {"queueId": b'"2147483648"'},
        {"queueOffset": b'"1e3"'}, {"queueOffset": b'""'}, {"subscription": b'"a\\u0020b"'}, {"subscription": b"null"},
        {"sysFlag": b'"007"'}, {"bname": b'"broker-a"'}, {"AccessKey": b'"billing"'},
    ],
)  # fmt: skip
def test_an_unusual_pull_is_left_to_python(changed: dict[str, bytes]) -> None:
    if speed.read_fetch is not None:
        assert not assert_fetch(_frame(_header(MEMBERS | PULL_CODE, PULL | changed)))


def test_usual_sends_are_read_in_c() -> None:
    if speed.read_sends is not None:
        send, batch = _frame(USUAL), _frame(USUAL_BATCH, MESSAGES)
        assert assert_sends(send + batch + send + _frame(USUAL_PULL)) == 3
        assert assert_sends(batch + send[:-1]) == 1
        assert assert_sends(send * 9) == MAX_COUNT
        other = _frame(_header(MEMBERS | {"flag": b"2"}, SEND | {"b": b'"%RETRY%g"', "e": b'"-1"'}))
        assert assert_sends(send + other + send) == 3
        few = {name: SEND[name] for name in "befgh"}
        assert assert_sends(_frame(_header(MEMBERS, few), b"") + send) == 2
        assert assert_sends(send + _frame(USUAL, bytes(MAX_BODY_SIZE + 1))) == 1
        signed = _frame(_header(MEMBERS, SEND | CREDENTIALS)), _frame(_header(MEMBERS, CREDENTIALS | BATCH), MESSAGES)
        assert assert_sends(signed[0] + send + signed[1]) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"b": b'"\xc3\xa4"'}, {"b": b'""'}, {"e": b"3"}, {"e": b'"2147483648"'}, {"i": b'"a\\u0001\xff"'},
        {"m": b'"1"'}, {"n": b'"broker"'}, {"f": b'"4"'}, {"f": b'"12"'}, {"AccessKey": b'"billing"'},
        CREDENTIALS | {"AccessKey": b'"\\u0061"'}, CREDENTIALS | {"SignatureNumber": b'"1"'},
    ],
)  # fmt: skip
def test_an_unusual_send_ends_what_is_read_in_c(changed: dict[str, bytes]) -> None:
    if speed.read_sends is not None:
        unusual = _frame(_header(MEMBERS, SEND | changed))
        assert assert_sends(_frame(USUAL) + unusual + _frame(USUAL)) == 1


@pytest.mark.parametrize("string", [b"", rb"WAIT\u0001true", rb"WAIT\u0001true\u0002"])
def test_a_batch_whose_own_properties_add_nothing_is_read_in_c(string: bytes) -> None:
    if speed.read_sends is not None:
        header = _header(MEMBERS | BATCH_CODE, BATCH | {"i": b'"%b"' % string})
        assert assert_sends(_frame(header, MESSAGES)) == 1


@pytest.mark.parametrize(
    "changed",
    [{"i": rb'"WAIT\u0001false"'}, {"i": rb'"TAGS\u0001A"'}, {"b": b'""'}, {"f": b'"1e3"'}, {"f": b'"8"'}],
)
def test_an_unusual_batch_ends_what_is_read_in_c(changed: dict[str, bytes]) -> None:
    if speed.read_sends is not None:
        unusual = _frame(_header(MEMBERS | BATCH_CODE, BATCH | changed), MESSAGES)
        assert assert_sends(_frame(USUAL_BATCH, MESSAGES) + unusual) == 1


@pytest.mark.parametrize("body", [b"", MESSAGES[:-1], MESSAGES * 2])
def test_a_batch_that_is_damaged_or_too_large_ends_what_is_read_in_c(body: bytes) -> None:
    """Nothing of it stays after the send before it."""
    if speed.read_sends is not None:
        assert assert_sends(_frame(USUAL) + _frame(USUAL_BATCH, body) + _frame(USUAL)) == 1
