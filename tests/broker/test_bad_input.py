"""Requests that are wrong, of every code: answered in words that name what is wrong, never by a failure inside."""

from __future__ import annotations

import asyncio
import random
import re
import resource
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rucola.domain.group import SubscriptionGroupConfig
from rucola.message.record import decode_many
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.pull import PullMessageResponseHeader
from support.broker_peer import broker_peer
from support.peer import Peer, pull_header

KEEPS_RUNNING = [code for code in RequestCode if code is not RequestCode.UPDATE_BROKER_CONFIG]
TEXTS = """
    a b c i topic group consumerGroup producerGroup subscription expressionType key clientID clientId groupName
    originMsgId msgId transactionId topicFilterType statsName statsKey srcGroup destGroup isForce isOffline defaultTopic
    brokerName filterGroups compareGroup k m
"""
NUMBERS = """
    d e f g h j l queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion offset timestamp
    maxNum beginTimestamp endTimestamp delayLevel commitOrRollback tranStateTableOffset commitLogOffset readQueueNums
    writeQueueNums perm bornTimestamp flag defaultTopicQueueNums index count
"""
PLAUSIBLE = dict.fromkeys(TEXTS.split(), "T") | dict.fromkeys(NUMBERS.split(), "0")
VALUES = [
    "",
    "x",
    "-1",
    "0",
    "1",
    "99999999999999999999",
    "1.5",
    "true",
    "T",
    "%RETRY%g",
    "../T",
    "\x00",
    "ü" * 200,
    "*",
    "||",
]
BODIES = [b"", b"{", b"{}", b"[]", b"null", b'{"clientID":1}', b"\xff\xfe", b'{"a":' * 100, bytes(64)]


async def ask(peer: Peer, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand | None:
    """The answer; None where the broker holds the request."""
    command = RemotingCommand.request(code, body=body)
    command.ext_fields.update(fields)
    connection = await peer.client.connect(peer.broker.address)
    asked, probe = connection.post(command), connection.post(RemotingCommand.request(9999))
    await probe  # answered behind the other, being on the same connection
    if asked.done():
        return asked.result()
    done, _ = await asyncio.wait([asked], timeout=0.05)
    if not done:
        connection.forget(command)
        return None
    return asked.result()


def wrong(answers: Iterable[tuple[object, RemotingCommand | None]]) -> list[str]:
    return [
        f"{what}: {answer.code} {answer.remark}"
        for what, answer in answers
        if answer is not None and ("inside the server" in (answer.remark or "") or "Traceback" in (answer.remark or ""))
    ]


@pytest.mark.slow
async def test_requests_without_fields_are_answered(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send()
        answers = [((code.name, body), await ask(peer, code, {}, body)) for code in RequestCode for body in BODIES]
        assert wrong(answers) == []
        assert (await peer.send()).code == ResponseCode.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_requests_with_arbitrary_fields_are_answered(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async with broker_peer(tmp_path) as peer:
        await peer.send()
        answers = []
        for code in KEEPS_RUNNING:
            for _ in range(8):
                wild = chance.sample(sorted(PLAUSIBLE), chance.randrange(len(PLAUSIBLE) // 4))
                fields = PLAUSIBLE | {name: chance.choice(VALUES) for name in wild}
                answers.append(((code.name, fields), await ask(peer, code, fields, chance.choice(BODIES))))
        assert wrong(answers) == []


@pytest.mark.parametrize(
    ("offset", "code", "begins_at", "remark"),
    [
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0, "OFFSET_TOO_SMALL"),
        (-(2**63), ResponseCode.PULL_OFFSET_MOVED, 0, "OFFSET_TOO_SMALL"),
        (3, ResponseCode.PULL_NOT_FOUND, 3, "OFFSET_OVERFLOW_ONE"),
        (4, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
    ],
)
async def test_a_pull_outside_the_queue_returns_the_corrected_offset(
    tmp_path: Path, offset: int, code: ResponseCode, begins_at: int, remark: str
) -> None:
    async with broker_peer(tmp_path) as peer:
        for _ in range(3):
            await peer.send()
        answer = await peer.pull(queue_offset=offset)
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == begins_at


async def test_a_response_names_an_unknown_topic_group_or_queue(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, auto_create_subscription_group=False) as peer:
        await peer.send()
        for fields, code, name in (
            ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
            ({"consumer_group": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "unknown"),
            ({"consumer_group": "TOOLS_CONSUMER", "queue_id": 77}, ResponseCode.SYSTEM_ERROR, "77"),
            ({"consumer_group": "TOOLS_CONSUMER", "queue_id": -1}, ResponseCode.SYSTEM_ERROR, "-1"),
        ):
            answer = await peer.pull(**{"consumer_group": "TOOLS_CONSUMER", **fields})
            assert answer.code == code, fields
            assert name in (answer.remark or "")


async def test_a_body_over_four_megabytes_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with broker_peer(tmp_path, store={"mapped_file_size_commit_log": 8 << 20}) as peer:
        refused = await peer.send(bytes(4 * 1024 * 1024 + 1))
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "4194305 bytes; 4194304 are allowed (maxMessageSize)" in (refused.remark or "")
        assert (await peer.send(bytes(4 * 1024 * 1024))).code == ResponseCode.SUCCESS


async def test_headers_are_accepted_as_leniently_as_by_apache(tmp_path: Path) -> None:
    """A numeric language, text that is no UTF-8; and headers that cannot be read, on one connection of a broker."""

    async with broker_peer(tmp_path) as peer:
        await peer.send(b"first")
        host, port = peer.broker.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        named = [
            (b"a", b"p"),
            (b"b", b"T"),
            (b"e", b"0"),
            (b"f", b"0"),
            (b"g", b"1"),
            (b"h", b"0"),
            (b"i", b"a\x01\xff"),
        ]
        fields = b",".join(b'"%b":"%b"' % (name, value.replace(b"\x01", b"\\u0001")) for name, value in named)
        ext = b"".join(struct.pack(">hci", 1, name, len(value)) + value for name, value in named)
        headers = [
            (0, b'{"code":310,"opaque":1,"language":0,"extFields":{' + fields + b"}}"),
            (1, struct.pack(">hBhiiii", 310, 99, 409, 2, 0, 0, len(ext)) + ext),
            (0, b'{"opaque":3,"language":"JAVA"}'),
            (1, struct.pack(">hBhiiii", 310, 0, 409, 4, 0, 0, -1)),
            (0, b'{"code":"send","opaque":5}'),
        ]
        for serializer, header in headers:
            writer.write(struct.pack(">iI", 4 + len(header) + 4, serializer << 24 | len(header)) + header + b"body")
        decoder, answers = FrameDecoder(), list[RemotingCommand]()
        while len(answers) < len(headers):
            answers += decoder.receive_data(await reader.read(1 << 16))
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (3, 3), (4, 1), (5, 1)]
        assert "`b`, the topic" in str(answers[3].remark)
        writer.close()
        _, *sent = decode_many((await peer.pull()).body)
        assert [message.properties["a"] for message in sent] == ["\ufffd"] * 2


async def test_a_consumer_that_never_acknowledges_does_not_affect_others(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        for number in range(40):
            await peer.send(b"%d" % number)
        for _ in range(50):
            first = decode_many((await peer.pull(consumer_group="never")).body)
            assert [message.queue_offset for message in first] == list(range(32))
        rest = decode_many((await peer.pull(consumer_group="other", queue_offset=32)).body)
        assert [message.body for message in rest] == [b"%d" % number for number in range(32, 40)]


FIELD = r"(missing required field `|at `\$\.)(\w{2,}`|\w`, the [a-z ]+)"
"""A field whose name on the wire is one letter is named by its meaning too."""


async def test_each_missing_and_each_malformed_field_is_named(tmp_path: Path) -> None:
    """For every code that has a header: which request it was, and which of its fields."""

    async with broker_peer(tmp_path) as peer:
        await peer.send()
        named = []
        for code in KEEPS_RUNNING:
            for fields in ({}, dict.fromkeys(PLAUSIBLE, "x")):
                answer = await ask(peer, code, fields)
                if answer is not None and (answer.remark or "").startswith("header of "):
                    assert re.fullmatch(rf"header of {code.name} {code.value}: .*{FIELD}", answer.remark or "")
                    named.append(code)
        assert len(set(named)) > 30
        assert len(named) > 45


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": "x" * 128}, "has 128 characters; 127 are allowed"),
        ({"topic": "No Such"}, "'No Such' contains other characters"),
        ({"topic": "../T"}, "contains other characters"),
        ({"topic": ""}, "is blank"),
        ({"read_queue_nums": -1}, "readQueueNums is -1; 0 to 65536 are allowed"),
        ({"write_queue_nums": 10**9}, "writeQueueNums is 1000000000; 0 to 65536 are allowed"),
        ({"perm": 99}, "perm is 99; 0 to 15 are allowed"),
    ],
)
async def test_invalid_topic_names_are_refused(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.alter_topic(**fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert why in (answer.remark or "")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SubscriptionGroupConfig(group_name="x" * 256), "has 256 characters; 255 are allowed"),
        (SubscriptionGroupConfig(group_name="No Such"), "'No Such' contains other characters"),
        (SubscriptionGroupConfig(group_name=""), "is blank"),
        (SubscriptionGroupConfig(group_name="g", retry_queue_nums=10**9), "retryQueueNums is 1000000000; 0 to 65536"),
    ],
)
async def test_invalid_group_names_are_refused(tmp_path: Path, config: SubscriptionGroupConfig, why: str) -> None:
    async with broker_peer(tmp_path) as peer:
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert why in (answer.remark or "")


async def test_a_consumer_that_reads_no_answers_takes_little_memory(tmp_path: Path) -> None:
    """It asks for 250 MB at once, takes none of it, and goes."""

    async with broker_peer(tmp_path) as peer:
        for _ in range(64):
            await peer.send(bytes(4000))
        host, port = peer.broker.address.rsplit(":", 1)
        before = resident_bytes()
        with socket.create_connection((host, int(port))) as lazy:
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            pull = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(max_msg_nums=64))
            await loop.sock_sendall(lazy, pull.encode() * 1000)
            await loop.sock_recv(lazy, 1)  # the first answers have come
            for _ in range(20):
                assert (await peer.pull(max_msg_nums=64)).code == ResponseCode.SUCCESS
                assert resident_bytes() - before < 40 << 20
        assert (await peer.pull()).code == ResponseCode.SUCCESS


def resident_bytes() -> int:
    """How much memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
