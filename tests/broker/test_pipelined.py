"""Many requests in one read: their messages are written together, before anything reads or acknowledges them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.store.config import FlushDiskType
from support.broker_peer import Peer, broker_peer, pull_header, send_header


def _send(number: int) -> bytes:
    header = send_header(properties=f"UNIQ_KEY\x01u{number}")
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"message %d;" % number).encode()


async def _answers(peer: Peer, requests: list[bytes]) -> list[RemotingCommand]:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.broker.config.listen_port)
    writer.write(b"".join(requests))
    decoder, found = FrameDecoder(), list[RemotingCommand]()
    while len(found) < len(requests):
        found += decoder.receive_data(await reader.read(1 << 20))
    writer.close()
    await writer.wait_closed()
    return found


def _log_bytes(root: Path) -> bytes:
    """The files of the log, as another process reads them."""
    return b"".join(path.read_bytes() for path in sorted(root.glob("commitlog/*")))


@pytest.mark.parametrize("flush_disk_type", FlushDiskType)
async def test_what_is_acknowledged_is_in_the_log(tmp_path: Path, flush_disk_type: FlushDiskType) -> None:
    async with broker_peer(tmp_path, {"flush_disk_type": flush_disk_type}) as peer:
        await peer.send(b"creates the topic")
        answers = await _answers(peer, [_send(number) for number in range(100)])
        log = _log_bytes(tmp_path)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert all(b"message %d;" % number in log for number in range(100))


async def test_a_pull_among_sends_finds_those_before_it(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(b"creates the topic and the group")
        await peer.pull()
        pull = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull_header(queue_offset=1)).encode()
        answers = await _answers(peer, [_send(0), _send(1), pull, _send(2), _send(3), pull])
        pulled = [answer.body for answer in answers if answer.body]
        assert [len(decode_many(body)) for body in pulled] == [2, 4]
