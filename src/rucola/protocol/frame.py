"""FrameDecoder: a stream of bytes, cut anywhere, in; whole commands out.

The decoder is a pure machine: it owns no socket. Feed it what arrived with `receive_data`; it returns the
commands that are now complete, in order. What is incomplete stays inside. A whole frame whose header cannot be read
comes out as an UnreadableCommand, and the stream goes on behind it. After FrameError the stream cannot go on, since
nothing says where the next frame begins: the connection must be closed. Commands that were complete before are in the
error's `commands`.

Layout of a frame: see `rucola.protocol.command`.

Invariants: a frame longer than `max_frame_size` is refused as soon as its length is known, before a byte of it is
stored, so a peer cannot make this side allocate; memory held is at most one frame and one read. The cost of a
frame does not depend on how it was cut: bytes wait in one buffer and are parsed when the frame is whole.

Answers to `NettyDecoder` (a LengthFieldBasedFrameDecoder of 16 MiB) of Apache RocketMQ 4.9.8, which closes the
connection for an unreadable header too.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NoReturn

from rucola.errors import RemoteProtocolError
from rucola.protocol.command import HeaderError, RemotingCommand, decode_command, unreadable

MAX_FRAME_SIZE: Final = 16 * 1024 * 1024
"""Largest frame accepted by default, the length field not counted; Apache's `com.rocketmq.remoting.frameMaxLength`."""

_LENGTH: Final = Struct(">I")
_PREFIX: Final = Struct(">II")


class FrameError(RemoteProtocolError):
    """The stream is no sequence of frames any more. `commands` came whole before the bad bytes."""

    def __init__(self, why: str, commands: list[RemotingCommand]) -> None:
        self.commands = commands
        super().__init__(why)


class FrameDecoder:
    """Cuts one connection's bytes into commands."""

    __slots__ = ("_max_frame_size", "_needed", "_waiting")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self._max_frame_size = max_frame_size
        self._waiting = bytearray()
        self._needed = 0  # bytes that must be there before a look at `_waiting` can find something new

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream could end here without cutting a frame."""
        return not self._waiting

    def receive_data(self, data: bytes | memoryview) -> list[RemotingCommand]:
        """The commands that `data` completes. `data` is not kept; FrameError ends the stream."""
        waiting = self._waiting
        if waiting:
            waiting += data
            if len(waiting) < self._needed:
                return []
            data = bytes(waiting)
            waiting.clear()
        elif not isinstance(data, bytes):
            data = data.tobytes()
        commands: list[RemotingCommand] = []
        position, end = 0, len(data)
        try:
            while end - position >= 8:
                length, marked_size = _PREFIX.unpack_from(data, position)
                if not 4 <= length <= self._max_frame_size:
                    self._refuse(length)
                frame_end = position + 4 + length
                if frame_end > end:
                    break
                header_begin = position + 8
                body_begin = header_begin + (marked_size & 0xFFFFFF)
                try:
                    if body_begin > frame_end:
                        size = marked_size & 0xFFFFFF
                        raise HeaderError(f"a header of {size} bytes in a frame of {length} bytes")
                    commands.append(
                        decode_command(data[header_begin:body_begin], data[body_begin:frame_end], marked_size >> 24)
                    )
                except HeaderError as error:
                    commands.append(unreadable(error, marked_size >> 24))
                position = frame_end
            if position < end:
                self._keep(data[position:])
        except RemoteProtocolError as error:
            raise FrameError(str(error), commands) from None
        return commands

    def _keep(self, part: bytes) -> None:
        """Wait for the rest of a frame, or of its length."""
        self._needed = 4
        if len(part) >= 4:
            (length,) = _LENGTH.unpack_from(part)
            if not 4 <= length <= self._max_frame_size:
                self._refuse(length)
            self._needed = 4 + length
        self._waiting += part

    def _refuse(self, length: int) -> NoReturn:
        if length < 4:
            raise RemoteProtocolError(f"a frame of {length} bytes cannot hold its own header length")
        raise RemoteProtocolError(f"a frame of {length} bytes; the limit is {self._max_frame_size}")
