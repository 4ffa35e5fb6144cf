"""Pulls of messages of megabytes: they are written from the log in pieces, as fast as the peer reads."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rucola.message.record import decode_many
from rucola.protocol import pull
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import JSON, ROCKETMQ, RemotingCommand, SerializeType
from rucola.protocol.frame import MAX_FRAME_SIZE, FrameDecoder
from rucola.remoting.byte_stream import Stream, open_stream
from rucola.remoting.client import RemotingClient
from rucola.remoting.tls_config import TlsMode
from support.broker_peer import broker_peer
from support.certificates import Certificates
from support.peer import Peer, pull_header

LARGE = 3_900_000
STORE = {"mapped_file_size_commit_log": 16 << 20, "max_message_size": 4 << 20}
BODIES = [Random(number).randbytes(size) for number, size in enumerate((LARGE, 100, 70_000, LARGE - 1, 300_000, 5))]


@asynccontextmanager
async def filled(path: Path, **settings: Any) -> AsyncIterator[Peer]:
    """A broker with messages of all sizes in one queue."""
    async with broker_peer(path, STORE, **settings) as peer:
        for number, body in enumerate(BODIES):
            properties = f"TAGS\x01{'odd' if number % 2 else 'even'}\x02number\x01{number}\x02"
            assert (await peer.send(body, properties=properties)).code == ResponseCode.SUCCESS
        yield peer


def request(queue_offset: int, wait_ms: int = 0, kind: SerializeType = JSON, **fields: Any) -> RemotingCommand:
    flags = pull.SUBSCRIPTION | (pull.SUSPEND if wait_ms else 0)
    header = pull_header(queue_offset=queue_offset, sys_flag=flags, suspend_timeout_millis=wait_ms, **fields)
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
    command.serialize_type = kind
    return command


async def receive(stream: Stream, count: int) -> dict[int, RemotingCommand]:
    """The next responses by opaque."""
    decoder, answers = FrameDecoder(MAX_FRAME_SIZE), dict[int, RemotingCommand]()
    while len(answers) < count:
        piece = await stream.read(1 << 20)
        assert piece, "the connection ended"
        answers |= {answer.opaque: answer for answer in decoder.receive_data(memoryview(piece))}
    return answers


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_many(answer.body)]


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
async def test_messages_of_all_sizes_arrive_as_stored(tmp_path: Path, kind: SerializeType) -> None:
    async with filled(tmp_path) as peer:
        found: list[bytes] = []
        while len(found) < len(BODIES):
            answer = await peer.client.invoke(peer.broker.address, request(len(found), kind=kind), 30_000)
            header = answer.decode_header(pull.PullMessageResponseHeader)
            found += bodies(answer)
            assert header.next_begin_offset == len(found)
            assert header.max_offset == len(BODIES)
        assert [hashlib.sha256(body).digest() for body in found] == [hashlib.sha256(body).digest() for body in BODIES]


async def test_filters_apply_to_large_messages(tmp_path: Path) -> None:
    async with filled(tmp_path, enable_property_filter=True) as peer:
        for fields in (
            {"subscription": "odd"},
            {"subscription": "number > 0 AND number < 4", "expression_type": "SQL92"},
        ):
            answer = await peer.client.invoke(peer.broker.address, request(0, **fields), 30_000)
            assert bodies(answer)[0] == BODIES[1]
        answer = await peer.client.invoke(peer.broker.address, request(2, subscription="odd"), 30_000)
        assert bodies(answer) == [BODIES[3]]


async def test_responses_behind_a_large_one_are_whole(tmp_path: Path) -> None:
    """Of a peer that sends many pulls and reads slowly, in pieces that split everything."""
    async with filled(tmp_path) as peer:
        stream = await open_stream(peer.broker.address)
        commands = [request(number % len(BODIES)) for number in range(40)]
        await stream.write(b"".join(command.encode() for command in commands))
        answers = await receive(stream, len(commands))
        for number, command in enumerate(commands):
            assert bodies(answers[command.opaque])[0] == BODIES[number % len(BODIES)]
        stream.close()


async def test_a_peer_that_does_not_read_gets_everything_once_it_does(tmp_path: Path) -> None:
    """Ten of them hold two pulls each, when a message of 3.9 MB arrives."""
    async with filled(tmp_path) as peer:
        end, body = len(BODIES), Random(9).randbytes(LARGE)
        streams = [await open_stream(peer.broker.address) for _ in range(10)]
        held = [[request(end, 60_000), request(end, 60_000)] for _ in streams]
        for stream, commands in zip(streams, held, strict=True):
            await stream.write(b"".join(command.encode() for command in commands))
        assert (await peer.send(body)).code == ResponseCode.SUCCESS
        # Others are served meanwhile.
        assert bodies(await peer.pull(queue_offset=1))[0] == BODIES[1]
        for stream, commands in zip(streams, held, strict=True):
            answers = await receive(stream, 2)
            assert [bodies(answers[command.opaque]) for command in commands] == [[body]] * 2
            stream.close()


async def test_a_peer_that_goes_in_the_middle_harms_nobody(tmp_path: Path) -> None:
    async with filled(tmp_path) as peer:
        for _ in range(3):
            stream = await open_stream(peer.broker.address)
            await stream.write(b"".join(request(0).encode() for _ in range(5)))
            assert await stream.read(1000)
            stream.close()
        assert bodies(await peer.pull(queue_offset=3)) == [BODIES[3]]
        # One that reads nothing until the broker stops, which the check of the store follows.
        stream = await open_stream(peer.broker.address)
        await stream.write(request(0).encode())
        assert await stream.read(1000)
    stream.close()


async def test_large_messages_arrive_by_tls(tmp_path: Path, certificates: Certificates) -> None:
    async with filled(tmp_path, tls=certificates.config(TlsMode.permissive)) as peer:
        client = RemotingClient(tls=certificates.client())
        answers = await asyncio.gather(
            *(client.invoke(peer.broker.address, request(number % len(BODIES)), 30_000) for number in range(12))
        )
        for number, answer in enumerate(answers):
            assert bodies(answer)[0] == BODIES[number % len(BODIES)]
        await client.close()
