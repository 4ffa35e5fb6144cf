"""Sends, pulls and receives by POP as the accelerator decodes them, compared with what Python makes of each."""

from __future__ import annotations

from msgspec.structs import astuple

from rucola import speed
from rucola.access import Caller
from rucola.acl.signed_content import signed_content
from rucola.broker.remoting.pop import pop_request
from rucola.broker.remoting.pull import fetch_request
from rucola.broker.remoting.send import columns_of
from rucola.broker.services.publish import SentMessages
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE, FrameDecoder, FrameError
from rucola.protocol.pop import PopMessageRequestHeader
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.remoting.endpoints import Request
from rucola.speed import Credentials
from support.accelerator import use

MAX_COUNT = 5
MAX_MESSAGES = 3
"""Of a batch."""
MAX_BODY_SIZE = 70


def _commands(data: bytes) -> list[RemotingCommand]:
    try:
        return FrameDecoder().receive_data(data)
    except FrameError as error:
        return list(error.commands)


def _ends(data: bytes, count: int) -> list[int]:
    ends, end = [], 0
    for _ in range(count):
        end += 4 + int.from_bytes(data[end : end + 4], "big")
        ends.append(end)
    return ends


def assert_sends(data: bytes) -> int:
    """Return the number of sends that C reads at the start of `data`; each must be what Python reads there."""
    assert speed.read_sends is not None
    found = speed.read_sends(memoryview(data), MAX_FRAME_SIZE, MAX_HEADER_SIZE, MAX_COUNT, MAX_BODY_SIZE, MAX_MESSAGES)
    if found is None:
        return 0
    opaques, counts, ends, credentials, *messages = found
    assert 1 <= len(opaques) <= MAX_COUNT
    with use(None):
        commands = _commands(data)[: len(opaques)]
        assert {command.code for command in commands} <= {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
        sends = [
            Request(None, Caller(""), command, command.decode_header(SendMessageRequestHeaderV2))
            for command in commands
        ]
        assert (opaques, counts, SentMessages._make(messages)) == columns_of(sends, MAX_BODY_SIZE, MAX_MESSAGES)
        assert credentials == [_credentials(command, end) for command, end in zip(commands, ends, strict=True)]
    assert ends == _ends(data, len(opaques))
    return len(opaques)


def _credentials(command: RemotingCommand, end: int) -> Credentials | None:
    if command.signed_fields.keys().isdisjoint({"AccessKey", "Signature"}):
        return None
    content = signed_content(command)
    return content.access_key, content.signature, content.text, end - len(command.body)


def assert_fetch(data: bytes) -> RequestCode | None:
    """Return the code of the pull or receive by POP that C reads at the start of `data`, as Python reads it there."""
    assert speed.read_fetch is not None
    found = speed.read_fetch(memoryview(data), MAX_FRAME_SIZE, MAX_HEADER_SIZE)
    if found is None:
        return None
    with use(None):
        command = _commands(data)[0]
        if command.code == RequestCode.PULL_MESSAGE:
            fields = astuple(fetch_request(command.decode_header(PullMessageRequestHeader)))
        else:
            fields = astuple(pop_request(command.decode_header(PopMessageRequestHeader)))
    (end,) = _ends(data, 1)
    assert found == (command.code, command.opaque, fields, end, _credentials(command, end))
    assert command.flag == 0
    return RequestCode(command.code)
