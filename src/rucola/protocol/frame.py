"""FrameDecoder: decodes a stream of bytes, received in chunks of any size, into commands.

A frame with an unreadable header becomes an UnreadableCommand, and decoding continues. FrameError ends the stream: the
start of the next frame is unknown, or a read has more than MAX_UNREADABLE of these. It holds the commands that were
complete before. The layout of a frame is in `rucola.protocol.command`.

Invariants: a frame above `max_frame_size` is rejected before any of it is buffered. At most one frame and one read are
held. The cost of a frame does not depend on its chunks, which are joined when it is complete.

Headers that Python decodes (tolerant JSON, ROCKETMQ) can take 0.25 s for a read. `may_decode` is called before each; if
it refuses, the rest is buffered, and the decoder `is_behind` until `receive_data` is called again, with or without
bytes.

Corresponds to `NettyDecoder` (a LengthFieldBasedFrameDecoder of 16 MiB) of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NoReturn

from rucola import speed
from rucola.errors import RemoteProtocolError
from rucola.protocol.command import (
    NotPlainJson,
    RemotingCommand,
    decode_command,
    decode_plain_json,
    decode_tolerantly,
    unreadable,
)
from rucola.protocol.header_limits import EXCERPT, HeaderError, refused

MAX_FRAME_SIZE: Final = 16 * 1024 * 1024
"""Default limit, without the length field; Apache's `com.rocketmq.remoting.frameMaxLength`."""

MAX_HEADER_SIZE: Final = 256 * 1024
"""Bytes; the longest properties, escaped as JSON, have 200 KB."""

MAX_UNREADABLE: Final = 16
"""Per read; with more, the peer is not a client. A read can have 32,768: 0.2 s."""

PART_SIZE: Final = 64 * 1024
"""Minimum bytes of a part; growing one buffer to 16 MB would move it, for up to 20 ms each time."""
LARGE_SIZE: Final = 256 * 1024
"""Frame size from which the body is joined directly from its parts."""

_LENGTH: Final = Struct(">I")
_PREFIX: Final = Struct(">II")  # length, serializer << 24 | header size


class FrameError(RemoteProtocolError):
    """The stream is not a sequence of frames. `commands` were complete before the damage."""

    def __init__(self, why: str, commands: list[RemotingCommand]) -> None:
        self.commands = commands
        super().__init__(why)


class FrameDecoder:
    """Decodes the bytes of one connection."""

    __slots__ = ("_max_frame_size", "_may_decode", "_needed", "_parts", "_unreadable_count", "buffered")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE, may_decode: Callable[[], bool] = lambda: True) -> None:
        self._max_frame_size = max_frame_size
        self._may_decode = may_decode
        self._parts: list[bytearray] = []
        self.buffered = 0
        """Bytes of the incomplete frame, or all that were not decoded yet."""
        # The size of `buffered` at which the parts can contain a complete frame or length; 0 if decoding is behind.
        self._needed = 0
        self._unreadable_count = 0  # in the decoded part of a read

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream can end here without truncating a frame."""
        return not self.buffered

    @property
    def is_behind(self) -> bool:
        """Whether complete frames are buffered, since `may_decode` refused."""
        return self.buffered > 0 and not self._needed

    def receive_data(self, data: bytes | memoryview) -> list[RemotingCommand]:
        """Return the commands that `data`, which is copied, completes. FrameError ends the stream.

        1. If bytes are buffered, add `data`; return if the frame is still incomplete.
        2. Decode all complete frames from one `bytes` object; a body is a slice of it and so owns its bytes.
        3. Buffer the incomplete rest.
        """
        if self.buffered:
            if len(self._parts[-1]) < PART_SIZE:
                self._parts[-1] += data
            else:
                self._parts.append(bytearray(data))
            self.buffered += len(data)
            if self.buffered < self._needed:
                return []
            if self._needed >= LARGE_SIZE and (large := self._large_frame()) is not None:
                return large
            data = b"".join(self._parts)
            self._parts.clear()
            self.buffered = 0
        if speed.split_frames is not None and (commands := self._usual(data)) is not None:
            return commands
        return self._decode(data if isinstance(data, bytes) else data.tobytes())

    def _decode(self, data: bytes) -> list[RemotingCommand]:
        commands: list[RemotingCommand] = []
        unreadable_count, self._unreadable_count = self._unreadable_count, 0
        position, end = 0, len(data)
        try:
            while end - position >= 8:
                # 00000069 0000005E: 105 bytes follow the length, which are these 4, a header of 94 and a body of 7. The
                # top byte of the second number is the serializer.
                length, serializer_and_size = _PREFIX.unpack_from(data, position)
                if not 4 <= length <= self._max_frame_size:
                    self._refuse(length)
                frame_end = position + 4 + length
                if frame_end > end:
                    break
                header_begin = position + 8
                body_begin = header_begin + (serializer_and_size & 0xFFFFFF)
                try:
                    if body_begin > frame_end:
                        size = serializer_and_size & 0xFFFFFF
                        raise HeaderError(f"a header of {size} bytes in a frame of {length} bytes")
                    if body_begin - header_begin > MAX_HEADER_SIZE:
                        raise _too_long(
                            body_begin - header_begin, data[header_begin:body_begin], serializer_and_size >> 24
                        )
                    header, body = data[header_begin:body_begin], data[body_begin:frame_end]
                    command = self._command(header, body, serializer_and_size >> 24)
                    if command is None:
                        self._unreadable_count = unreadable_count
                        self._buffer(data[position:], needed=0)
                        return commands
                    commands.append(command)
                except HeaderError as error:
                    if (unreadable_count := unreadable_count + 1) > MAX_UNREADABLE:
                        raise _too_many_unreadable(error) from None
                    commands.append(unreadable(error, serializer_and_size >> 24))
                position = frame_end
            if position < end:
                self._buffer_rest(data[position:])
        except RemoteProtocolError as error:
            raise FrameError(str(error), commands) from None
        return commands

    def _command(self, header: bytes, body: bytes, serializer: int) -> RemotingCommand | None:
        """Decode one frame; None if it has to wait."""
        if serializer == 0:
            try:
                return decode_plain_json(header, body)
            except NotPlainJson:
                # The smallest header takes 12 µs, and each byte of nested arrays 0.95 µs.
                return decode_tolerantly(header, body) if self._may_decode() else None
        return decode_command(header, body, serializer) if self._may_decode() else None

    def _large_frame(self) -> list[RemotingCommand] | None:
        """Decode the buffered frame; None, without joining parts, if its short header is not in the first part."""
        first, last = self._parts[0], self._parts[-1]
        length, serializer_and_size = _PREFIX.unpack_from(first)
        serializer, size = serializer_and_size >> 24, serializer_and_size & 0xFFFFFF
        is_too_long = MAX_HEADER_SIZE < size <= length - 4
        if len(self._parts) == 1 or not (is_too_long or 8 + size <= len(first)):
            return None
        # A frame of 300,000 bytes, of 310,000 received: it ends 10,000 before the last part does.
        end = len(last) - (self.buffered - self._needed)
        rest = bytes(memoryview(last)[end:])
        try:
            if is_too_long:
                raise _too_long(size, self._ends_of_header(size), serializer)
            body = b"".join([memoryview(first)[8 + size :], *self._parts[1:-1], memoryview(last)[:end]])
            command = decode_command(bytes(memoryview(first)[8 : 8 + size]), body, serializer)
        except HeaderError as error:
            command = unreadable(error, serializer)
        self._parts.clear()
        self.buffered = 0
        try:
            return [command, *self.receive_data(rest)] if rest else [command]
        except FrameError as error:
            raise FrameError(str(error), [command, *error.commands]) from None

    def _ends_of_header(self, size: int) -> bytes:
        ends = bytearray(memoryview(self._parts[0])[8 : 8 + EXCERPT])
        begin = 0
        for part in self._parts:
            ends += memoryview(part)[max(8 + size - EXCERPT - begin, 0) : max(8 + size - begin, 0)]
            begin += len(part)
        return bytes(ends)

    def _usual(self, data: bytes | memoryview) -> list[RemotingCommand] | None:
        """Do steps 2 and 3 by the accelerator; None, without effect, if a frame is unusual."""
        assert speed.split_frames is not None
        split = speed.split_frames(data, self._max_frame_size, MAX_HEADER_SIZE)
        if split is None:
            return None
        headers, bodies, position = split
        try:
            commands = list(map(decode_plain_json, headers, bodies))
        except (NotPlainJson, HeaderError):
            return None  # the Python code decodes all of them again, and finds the unreadable one
        if position < len(data):
            self._buffer_rest(data[position:])
        return commands

    def _buffer_rest(self, part: bytes | memoryview) -> None:
        needed = 4
        if len(part) >= 4:
            (length,) = _LENGTH.unpack_from(part)
            if not 4 <= length <= self._max_frame_size:
                self._refuse(length)
            needed = 4 + length
        self._buffer(part, needed)

    def _buffer(self, part: bytes | memoryview, needed: int) -> None:
        self._needed = needed
        self._parts.append(bytearray(part))
        self.buffered = len(part)

    def _refuse(self, length: int) -> NoReturn:
        if length < 4:
            raise RemoteProtocolError(f"a frame of {length} bytes cannot hold its own header length")
        raise RemoteProtocolError(f"a frame of {length} bytes; the limit is {self._max_frame_size}")


def _too_long(size: int, header: bytes, serializer: int) -> HeaderError:
    return refused(header, serializer, f"a header of {size} bytes; the limit is {MAX_HEADER_SIZE}")


def _too_many_unreadable(last: HeaderError) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"more than {MAX_UNREADABLE} unreadable frames in one read (MAX_UNREADABLE), the last: {last}"
    )
