"""Property strings that are not well formed, on every way on which the broker puts a message again."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rucola.message import properties
from rucola.message.record import decode_many
from rucola.message.topics import TRANS_HALF_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.reply import ReplyMessageRequestHeader
from support.broker_peer import broker_peer, broker_with_delays, next_messages, send_back
from support.peer import send_header
from support.requester import REPLY_TOPIC, requester
from support.transaction_store import COMMIT

LEVELS = "0s " * 20

ODD = [
    "a\x01b\x01c\x02",
    "a\x01\x01\x02",
    "a\x01b\x01",
    "a\x01b\x01c\x02d\x01e",
    "KEYS\x01\x02a\x01b\x02",
    "\x01x\x02a\x01b\x02",
    "noSeparator\x02a\x01b",
    "a\x01b\x02\x02\x02c\x01d\x02",
    "a\x011\x02a\x012\x02",
    "\x02",
    "",
]
"""Property strings as clients may send them. Apache takes all of them, and keeps what `parse` finds."""


def without_marks(found: dict[str, str]) -> dict[str, str]:
    """The properties of a message without those that the broker added on its way."""
    marks = {"CLUSTER", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG"}
    return {name: value for name, value in found.items() if name not in {*marks, "PGROUP", "TIMER_DELAY_MS"}}


@pytest.mark.parametrize("text", ODD)
async def test_a_message_keeps_its_properties_when_retried_and_dead_lettered(tmp_path: Path, text: str) -> None:
    async with broker_with_delays(tmp_path, LEVELS) as peer:
        assert (await peer.send(properties=text)).code == ResponseCode.SUCCESS
        (message,) = decode_many((await peer.pull()).body)
        assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS
        (again,) = await next_messages(peer, topic="%RETRY%g")
        assert (await send_back(peer, again.physical_offset, delay_level=-1)).code == ResponseCode.SUCCESS
        (dead,) = await next_messages(peer, topic="%DLQ%g")
        expected = properties.parse(text)
        assert [without_marks(found.properties) for found in (message, again, dead)] == [expected] * 3


@pytest.mark.parametrize("marks", ["DELAY\x012\x02", "TIMER_DELAY_MS\x011\x02"])
@pytest.mark.parametrize("text", ODD)
async def test_a_delayed_message_keeps_its_properties(tmp_path: Path, text: str, marks: str) -> None:
    async with broker_with_delays(tmp_path, LEVELS) as peer:
        await peer.send(b"before")
        sent = await peer.send(properties=marks + text)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        (message,) = await next_messages(peer, queue_offset=1)
        message.properties.pop("TIMER_OUT_MS", None)
        assert without_marks(message.properties) == properties.parse(text)


@pytest.mark.parametrize("text", ODD)
async def test_a_committed_message_keeps_its_properties(tmp_path: Path, text: str) -> None:
    async with broker_peer(tmp_path) as peer:
        sent = await peer.send(sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02" + text)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        (half,) = decode_many((await peer.pull(topic=TRANS_HALF_TOPIC)).body)
        ended = await peer.end_transaction(half.queue_offset, half.physical_offset, COMMIT)
        assert ended.code == ResponseCode.SUCCESS
        (message,) = await next_messages(peer)
        assert without_marks(message.properties) == properties.parse(text)


@pytest.mark.parametrize("text", ODD)
async def test_a_message_sent_to_a_retry_topic_keeps_its_properties(tmp_path: Path, text: str) -> None:
    async with broker_peer(tmp_path) as peer:
        sent = await peer.send(topic="%RETRY%g", reconsume_times=1, properties=text)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        (message,) = await next_messages(peer, topic="%RETRY%g")
        assert without_marks(message.properties) == properties.parse(text)


@pytest.mark.parametrize("text", ODD)
async def test_a_reply_keeps_its_properties(tmp_path: Path, text: str) -> None:
    async with broker_peer(tmp_path) as peer:
        async with requester(peer) as asker:
            header = send_header(topic=REPLY_TOPIC, properties="REPLY_TO_CLIENT\x01asker\x02" + text)
            answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"reply")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            pushed = properties.parse(asker.pushed[0].decode_header(ReplyMessageRequestHeader).properties)
        (record,) = decode_many((await peer.pull(topic=REPLY_TOPIC)).body)
        expected = {"REPLY_TO_CLIENT": "asker", **properties.parse(text)}
        pushed.pop(properties.PUSH_REPLY_TIME)
        assert (pushed, record.properties) == (expected, expected)


def batch_of(*strings: bytes) -> bytes:
    """A batch of messages of one byte each with these property strings, whatever they hold."""
    return b"".join(
        struct.pack(">iiiiisH", 23 + len(string), 0, 0, 0, 1, b"x", len(string)) + string for string in strings
    )


async def test_a_message_of_a_batch_keeps_its_properties(tmp_path: Path) -> None:
    strings = [*(text.encode() for text in ODD), b"a\x01\xff\xfe\x02b\x01c", b"\xff\x01v\x02"]

    async with broker_with_delays(tmp_path, LEVELS) as peer:
        answer = await peer.send_batch(batch_of(*strings))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for message, text in zip(decode_many((await peer.pull()).body), strings, strict=True):
            assert (await send_back(peer, message.physical_offset)).code == ResponseCode.SUCCESS
            (again,) = await next_messages(peer, topic="%RETRY%g", queue_offset=message.queue_offset)
            assert without_marks(again.properties) == without_marks(message.properties) == properties.parse(text)


@pytest.mark.parametrize("room", [0, 20, 300])
async def test_a_message_without_room_for_retry_properties_becomes_a_dead_letter(
    tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry adds properties, and a record holds 32,767 bytes of them."""
    cluster = len("\x02CLUSTER\x01DefaultCluster")
    text = "a\x01" + "v" * (properties.MAX_PROPERTIES_SIZE - cluster - 2 - room)

    async with broker_with_delays(tmp_path, LEVELS) as peer:
        sent = await peer.send(properties=text)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        (message,) = decode_many((await peer.pull()).body)
        answer = await send_back(peer, message.physical_offset)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        (again,) = await next_messages(peer, topic="%RETRY%g" if room == 300 else "%DLQ%g")
        assert without_marks(again.properties) == properties.parse(text)
        assert again.reconsume_times == 1
    assert ("leave no room for a retry" in caplog.text) == (room < 300)
