"""The sends of a read as the accelerator reads them, held against the decoders in Python."""

from __future__ import annotations

from rucola import speed
from rucola.broker.send_properties import PropertyEditor
from rucola.protocol.codes import RequestCode
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE, FrameDecoder, FrameError
from rucola.protocol.send import SendMessageRequestHeaderV2
from support.accelerator import use

MAX_COUNT = 5


def assert_usual_sends(data: bytes) -> int:
    """Return the number of sends that C reads at the begin of `data`; each must be what Python reads there."""
    editor = PropertyEditor("C")
    assert speed.usual_sends is not None
    found = speed.usual_sends(memoryview(data), MAX_FRAME_SIZE, MAX_HEADER_SIZE, *editor.editing, MAX_COUNT)
    assert found is not None
    assert len(found) <= MAX_COUNT
    with use(None):
        try:
            commands = FrameDecoder().receive_data(data)
        except FrameError as error:
            commands = error.commands
        end = 0
        for (opaque, send, send_end), command in zip(found, commands[: len(found)], strict=True):
            end += 4 + int.from_bytes(data[end : end + 4], "big")
            header = command.decode_header(SendMessageRequestHeaderV2)
            assert (command.code, command.flag) == (RequestCode.SEND_MESSAGE_V2, 0)
            assert header.batch == "false"
            assert (opaque, send_end) == (command.opaque, end)
            assert send == (
                header.topic,
                header.queue_id,
                header.sys_flag,
                header.born_timestamp,
                header.flag,
                header.reconsume_times,
                editor.edit(header.topic, header.properties),
                command.body,
            )
    return len(found)
