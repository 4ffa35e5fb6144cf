"""gRPC over HTTP/2: calls, methods and messages (gRPC's PROTOCOL-HTTP2.md).

A request has the path /package.Service/Method and, in its data, messages: one byte that tells whether it is compressed,
four with its length, and the message. A response has headers, messages and trailers with grpc-status; a call that fails
before the first message has the trailers only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import zlib
from collections.abc import Callable, Coroutine, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import quote

from rucola.access import Caller
from rucola.http2.connection import Stream
from rucola.http2.frames import ErrorCode, header_block
from rucola.http2.headers import Headers

logger = logging.getLogger(__name__)

MAX_MESSAGE_SIZE: Final = (4 << 20) + (64 << 10)
MAX_CALL_BUFFER: Final = 1 << 20
"""Bytes of a response that may wait for the client before `Call.drain` waits."""

_PREFIX: Final = Struct(">BI")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_TIMEOUT_DIGITS: Final = 8
_CONTENT_TYPE: Final = b"application/grpc"
_ENCODINGS: Final = b"identity,gzip"
_MAX_TEXT: Final = 1024

_HEADERS: Final = header_block(
    ((b":status", b"200"), (b"content-type", _CONTENT_TYPE), (b"grpc-accept-encoding", _ENCODINGS))
)
_OK: Final = header_block(((b"grpc-status", b"0"),))


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Failed(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class MessageReceiver(Protocol):
    """The server's side of one call."""

    def message(self, message: bytes) -> None:
        """A message of the client. Failed ends the call."""

    def ended(self) -> None:
        """The client has sent all messages. Failed ends the call."""

    def cancelled(self) -> None:
        """The client has cancelled the call, its deadline has passed, or the connection is lost."""


Method: TypeAlias = "Callable[[Call], MessageReceiver]"
"""Begins a call. Failed ends it."""


class MessageReader:
    """Splits the data of a stream into messages, for `deliver`, which returns whether it takes another one."""

    __slots__ = ("_deliver", "_input", "_max_size", "_needed", "encoding")

    def __init__(self, deliver: Callable[[bytes], bool], max_size: int = MAX_MESSAGE_SIZE) -> None:
        self._deliver = deliver
        self._max_size = max_size
        self.encoding = "identity"
        """That of compressed messages."""
        self._input = bytearray()
        """The first part of a message that is not complete."""
        self._needed = 0
        """The size of `_input` at which there may be a message."""

    def receive(self, data: bytes, stream: Stream) -> None:
        """Take data of a stream. Raises Failed."""
        if self._input:
            self._input += data
            if len(self._input) < self._needed:
                stream.hold(len(self._input))
                return
            data = bytes(self._input)
        at, end = 0, len(data)
        self._needed = _PREFIX.size
        while end - at >= _PREFIX.size:
            is_compressed, size = _PREFIX.unpack_from(data, at)
            if size > self._max_size:
                raise Failed(Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes; {self._max_size} are the most")
            begin = at + _PREFIX.size
            if end - begin < size:
                self._needed = _PREFIX.size + size
                break
            at = begin + size
            message = data[begin:at]
            if not self._deliver(self._decompress(message) if is_compressed else message):
                break
        if at < end or self._input:
            self._input = bytearray(data[at:])
            stream.hold(end - at)

    def receive_end(self) -> None:
        """Raise Failed if a message is not complete."""
        if self._input:
            raise Failed(Status.INTERNAL, "the stream ends within a message")

    def _decompress(self, message: bytes) -> bytes:
        if self.encoding != "gzip":
            raise Failed(Status.INTERNAL, "a compressed message without grpc-encoding")
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            inflated = inflater.decompress(message, MAX_MESSAGE_SIZE + 1)
        except zlib.error as error:
            raise Failed(Status.INTERNAL, f"a compressed message is damaged: {error}") from None
        if len(inflated) > MAX_MESSAGE_SIZE:
            raise Failed(Status.RESOURCE_EXHAUSTED, f"a message inflates to more than {MAX_MESSAGE_SIZE} bytes")
        if not inflater.eof:
            raise Failed(Status.INTERNAL, "a compressed message is cut off")
        return inflated


def framed(message: bytes) -> bytes:
    """Return the data of a message that is not compressed."""
    return _PREFIX.pack(0, len(message)) + message


class Call:
    """One call. `metadata` is `headers`, those named -bin decoded; `deadline_s` is in the loop's time."""

    def __init__(self, stream: Stream, methods: Mapping[str, Method], headers: Headers, caller: Caller) -> None:
        self.caller = caller
        self.path = ""
        self.headers = headers
        self.metadata: dict[str, str | bytes] = {}
        self.deadline_s: float | None = None
        self.receiver: MessageReceiver | None = None
        self.on_cancelled: Callable[[], None] | None = None
        """Called when the call is cancelled before the client has received its whole response."""
        self._stream = stream
        self._has_headers = False
        self._reader = MessageReader(self._deliver)
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        try:
            self._begin(methods, headers)
        except Failed as error:
            self.fail(error.status, str(error))

    def _begin(self, methods: Mapping[str, Method], headers: Headers) -> None:
        fields = self.metadata
        for raw_name, raw_value in headers:
            name = raw_name.decode("ascii", "replace")
            fields[name] = _binary(raw_value) if name.endswith("-bin") else raw_value.decode("utf-8", "replace")
        self.path = str(fields.get(":path"))
        if fields[":method"] != "POST":
            return self._refuse_http(b"405", b"gRPC calls are POST requests")
        if not str(fields.get("content-type", "")).startswith("application/grpc"):
            return self._refuse_http(b"415", b"gRPC calls have the content type application/grpc")
        self._reader.encoding = encoding = str(fields.get("grpc-encoding", "identity"))
        if encoding not in ("identity", "gzip"):
            raise Failed(Status.UNIMPLEMENTED, f"messages are compressed by {encoding}; gzip is known")
        if (timeout := fields.get("grpc-timeout")) is not None:
            loop = asyncio.get_running_loop()
            self.deadline_s = loop.time() + parse_timeout(str(timeout))
        method = methods.get(self.path)
        if method is None:
            raise Failed(Status.UNIMPLEMENTED, f"there is no method {self.path}")
        self.receiver = method(self)
        if self.deadline_s is not None and self.is_open:
            self._timer = loop.call_at(self.deadline_s, self._deadline_passed)
        return None

    def _refuse_http(self, status: bytes, text: bytes) -> None:
        fields = ((b":status", status), (b"content-type", b"text/plain"), (b"grpc-message", text))
        self._stream.finish(header_block(fields))

    # -- the response -------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._stream.is_open

    @property
    def is_congested(self) -> bool:
        """Whether more than MAX_CALL_BUFFER bytes of the response wait for the client."""
        return self._stream.buffered > MAX_CALL_BUFFER

    def send(self, *messages: bytes) -> None:
        """Send messages of the response."""
        if not self._has_headers:
            self._has_headers = True
            self._stream.send_headers(_HEADERS)
        self._stream.send(b"".join(map(framed, messages)))

    def reply(self, *messages: bytes) -> None:
        """Send the only messages of the response, and end it."""
        if self.is_open:
            self.send(*messages)
            self.finish()

    def finish(self) -> None:
        self._end(_OK if self._has_headers else None, Status.OK, "")

    def fail(self, status: Status, text: str) -> None:
        self._end(None, status, text)

    async def drain(self) -> None:
        """Wait while this call is congested."""
        while self.is_open and self.is_congested:
            if self._drained is None:
                self._drained = asyncio.Event()
            self._drained.clear()
            await self._drained.wait()

    def _end(self, trailers: bytes | None, status: Status, text: str) -> None:
        self._stop_timer()
        if trailers is None:
            fields = [(b"grpc-status", b"%d" % status)]
            if text:
                fields.append((b"grpc-message", quote(text[:_MAX_TEXT], safe=" !\"#$&'()*+,/:;<=>?@[]^`{|}~").encode()))
            if not self._has_headers:
                fields[:0] = [(b":status", b"200"), (b"content-type", _CONTENT_TYPE)]
                if status is Status.UNIMPLEMENTED:
                    fields.append((b"grpc-accept-encoding", _ENCODINGS))
            trailers = header_block(fields)
        self._stream.is_kept = self.on_cancelled is not None
        self._stream.finish(trailers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deadline_passed(self) -> None:
        self.fail(Status.DEADLINE_EXCEEDED, "the deadline has passed")
        self._cancelled()

    def _cancelled(self) -> None:
        self._stop_timer()
        if self._drained is not None:
            self._drained.set()
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.cancelled()

    # -- the request, as a receiver of the stream ----------------------------------------------------------------------

    def headers_received(self, headers: Headers) -> None:
        """Ignore trailers, which no client of gRPC sends."""

    def data(self, data: bytes) -> None:
        if self.receiver is not None:
            self._guarded(self._reader.receive, data, self._stream)

    def ended(self) -> None:
        if self.receiver is not None:
            self._guarded(self._receive_end)

    def reset(self, code: ErrorCode) -> None:
        self._cancelled()

    def drained(self) -> None:
        if self._drained is not None:
            self._drained.set()

    def _deliver(self, message: bytes) -> bool:
        if self.receiver is not None:
            self.receiver.message(message)
        return self.receiver is not None

    def _receive_end(self) -> None:
        self._reader.receive_end()
        if self.receiver is not None:
            self.receiver.ended()

    def _guarded(self, receive: Callable[..., None], *arguments: Any) -> None:
        try:
            receive(*arguments)
        except Failed as error:
            self.fail(error.status, str(error))
            self._cancelled()
        except Exception:
            logger.exception("%s: %s failed", self.caller.address, self.path)
            self.fail(Status.INTERNAL, "the server failed; its log says why")
            self._cancelled()


def parse_timeout(text: str) -> float:
    """Return the seconds of a grpc-timeout: up to 8 digits and a unit. Failed."""
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_TIMEOUT_DIGITS and unit in _SECONDS):
        raise Failed(Status.INTERNAL, f"grpc-timeout is {text!r}")
    return int(digits) * _SECONDS[unit]


def _binary(value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        raise Failed(Status.INTERNAL, "a -bin field is not base64") from None


class _Unary:
    """Collects the one message of a request."""

    def __init__(self, call: Call, handle: Callable[[Call, bytes], None]) -> None:
        self._call = call
        self._handle = handle
        self._message: bytes | None = None

    def message(self, message: bytes) -> None:
        if self._message is not None:
            raise Failed(Status.INTERNAL, "more than one message")
        self._message = message

    def ended(self) -> None:
        if self._message is None:
            raise Failed(Status.INTERNAL, "a call without its message")
        self._handle(self._call, self._message)

    def cancelled(self) -> None:
        if self._call.on_cancelled is not None:
            self._call.on_cancelled()


class _Spawned(_Unary):
    """Runs a coroutine for the message of a request."""

    def __init__(self, call: Call, handle: Callable[[Call, bytes], Coroutine[Any, Any, None]]) -> None:
        super().__init__(call, self._spawn)
        self._coroutine = handle
        self._task: asyncio.Task[None] | None = None

    def _spawn(self, call: Call, message: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(call, message))

    async def _run(self, call: Call, message: bytes) -> None:
        try:
            await self._coroutine(call, message)
        except Failed as error:
            call.fail(error.status, str(error))
        except Exception:
            logger.exception("%s: %s failed", call.caller.address, call.path)
            call.fail(Status.INTERNAL, "the server failed; its log says why")

    def cancelled(self) -> None:
        super().cancelled()
        if self._task is not None:
            self._task.cancel()


def unary(handle: Callable[[Call, bytes], None]) -> Method:
    """A method with one message in the request; `handle` calls `reply`, `send` or `fail`, now or later."""
    return lambda call: _Unary(call, handle)


def spawned(handle: Callable[[Call, bytes], Coroutine[Any, Any, None]]) -> Method:
    """The same for a coroutine function, which is cancelled with the call."""
    return lambda call: _Spawned(call, handle)
