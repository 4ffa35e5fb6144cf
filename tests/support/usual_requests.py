"""The requests of a read as the accelerator reads them, held against the decoders in Python."""

from __future__ import annotations

from msgspec.structs import astuple

from rucola import speed
from rucola.broker.send_properties import PropertyEditor
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE, FrameDecoder, FrameError
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from support.accelerator import use

MAX_COUNT = 5
MAX_MESSAGES = 3
"""Of a batch."""


def assert_usual_requests(data: bytes) -> int:
    """Return the number of requests that C reads at the begin of `data`; each must be what Python reads there."""
    editor = PropertyEditor("C")
    assert speed.usual_requests is not None
    found = speed.usual_requests(
        memoryview(data), MAX_FRAME_SIZE, MAX_HEADER_SIZE, *editor.editing, MAX_COUNT, MAX_MESSAGES
    )
    assert found is not None
    assert len(found) <= MAX_COUNT
    with use(None):
        try:
            commands = FrameDecoder().receive_data(data)
        except FrameError as error:
            commands = error.commands
        end = 0
        for (code, opaque, request, request_end), command in zip(found, commands[: len(found)], strict=True):
            end += 4 + int.from_bytes(data[end : end + 4], "big")
            assert (code, opaque, 0, request_end) == (command.code, command.opaque, command.flag, end)
            assert request == _READ[code](command, editor)
    return len(found)


def _send(command: RemotingCommand, editor: PropertyEditor) -> object:
    header = command.decode_header(SendMessageRequestHeaderV2)
    assert header.batch == "false"
    return (
        header.topic,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.reconsume_times,
        editor.edit(header.topic, header.properties),
        command.body,
    )


def _batch(command: RemotingCommand, editor: PropertyEditor) -> object:
    header = command.decode_header(SendMessageRequestHeaderV2)
    assert header.batch == "true"
    columns, end = editor.read_batch(command.body, header.properties, 0, MAX_MESSAGES)
    assert end == len(command.body)
    return (
        header.topic,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.reconsume_times,
        tuple(map(list, columns)),
        end,
    )


def _pull(command: RemotingCommand, editor: PropertyEditor) -> object:
    header = command.decode_header(PullMessageRequestHeader)
    assert PullMessageRequestHeader(*astuple(header)) == header
    return astuple(header)


_READ = {
    RequestCode.SEND_MESSAGE_V2: _send,
    RequestCode.SEND_BATCH_MESSAGE: _batch,
    RequestCode.PULL_MESSAGE: _pull,
}
