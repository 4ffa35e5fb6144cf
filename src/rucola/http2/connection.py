"""One side of an HTTP/2 connection, without I/O: the server's, or the client's if nothing opens streams for the peer.

`receive` processes the peer's bytes, and calls the receivers of streams; `take_output` returns what has to be sent.
Memory and work are bounded, for any input:

- MAX_STREAMS at once, header lists of MAX_HEADER_LIST bytes in at most MAX_CONTINUATIONS further frames;
- what makes work and no progress (resets, errors of streams, PINGs, SETTINGS, empty frames) is charged to a bucket that
  fills with time. Once it is empty the connection ends with ENHANCE_YOUR_CALM;
- the caller stops calling `receive` while the peer does not read, ends streams that `reset_stalled` finds, and limits
  `held` and `buffered`, what is kept of incomplete requests and of responses. The windows for received data are
  returned at once: a window held back by one request would block those that others wait for.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from hpack.exceptions import HPACKError

from rucola.http2 import frames
from rucola.http2.frames import DEFAULT_MAX_FRAME_SIZE, DEFAULT_WINDOW, HEAD, MAX_WINDOW, WORD, ErrorCode, frame
from rucola.http2.headers import HeaderDecoder, Headers

MAX_STREAMS: Final = 1000
MAX_HEADER_LIST: Final = 16_384
"""Bytes of names and values, and 32 for each field (RFC 9113, section 6.5.2)."""
MAX_CONTINUATIONS: Final = 8
STREAM_WINDOW: Final = 5 << 20
"""Bytes that the peer may send on a stream before any are returned: a message of the greatest size."""
CONNECTION_WINDOW: Final = 16 << 20
MAX_OUTPUT: Final = 1 << 20
"""Bytes to send from which on data is kept back."""
_RETURNED: Final = 1 << 20
"""Bytes of a window that are returned together."""

_BUCKET: Final = 10_000
_REFILL_PER_S: Final = 1_000
_RESET: Final = 10
_IDLE_FRAME: Final = 1
_MAX_KEPT: Final = 64
"""Receivers of finished streams, to notify of a reset that crosses the end of their response."""
_MAX_RESETS: Final = 500
"""Resets of a client's connection, after which it gets no requests for a while; in _RESET_S one is forgotten."""
_RESET_S: Final = 0.02

_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_is_name: Final = re.compile(rb"[^:A-Z][^A-Z]*", re.DOTALL).fullmatch
_find_control: Final = re.compile(rb"[\r\n\0]").search


class Receiver(Protocol):
    """The application's side of a stream."""

    def headers_received(self, headers: Headers) -> None:
        """The headers of a response, or trailers."""

    def data(self, data: bytes) -> None: ...

    def ended(self) -> None:
        """The peer has sent everything."""

    def reset(self, code: ErrorCode) -> None:
        """The stream has ended early; nothing can be sent."""

    def drained(self) -> None:
        """Everything that was passed to `Stream.send` has been taken."""


class _ConnectionError(Exception):
    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _StreamError(Exception):
    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        self.stream_id = stream_id
        self.code = code


class Stream:
    """One request and its response."""

    __slots__ = (
        "_connection",
        "_end",
        "_has_finished",
        "_pending",
        "buffered",
        "has_ended",
        "has_headers",
        "held",
        "id",
        "is_kept",
        "is_paused",
        "receive_window",
        "receiver",
        "returned",
        "send_window",
        "stalled_s",
    )

    receiver: Receiver

    def __init__(self, connection: Http2Connection, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.returned = 0
        """Received bytes whose window has not been returned."""
        self.is_paused = False
        """Whether the window is not returned, until `resume`: the peer sends STREAM_WINDOW at most."""
        self.is_kept = False
        """Whether the receiver is notified of a reset that crosses the end of its response."""
        self.has_headers = False
        """Whether the peer has sent the headers of its request or response."""
        self.has_ended = False
        """Whether the peer has sent everything."""
        self.buffered = 0
        """Bytes that wait for the peer's windows."""
        self.held = 0
        """Bytes of an incomplete message, see `hold`."""
        self.stalled_s: float | None = None
        self._connection = connection
        self._pending: deque[memoryview] = deque()
        self._end: bytes | None = None
        self._has_finished = False

    @property
    def is_open(self) -> bool:
        return self.id in self._connection.streams

    def send_headers(self, block: bytes) -> None:
        self._connection.send_block(self.id, block, is_end=False)

    def send(self, data: bytes) -> None:
        """Send data, as far as the peer's windows allow it now, and the rest later."""
        if self.is_open and self._end is None:
            self._pending.append(memoryview(data))
            self.buffered += len(data)
            self._connection.buffered += len(data)
            self.flush()

    def hold(self, size: int) -> None:
        """Note how much the receiver keeps of a message that is not complete; less than before if one was."""
        if self.is_open:
            self._connection.messages += size < self.held
            self._connection.held += size - self.held
            self.held = size

    def resume(self) -> None:
        """Return the window that was kept back."""
        self.is_paused = False
        if self.is_open:
            self._connection.return_window(self)

    def finish(self, trailers: bytes = b"") -> None:
        """End the response with a header block, or the request with none, after all data."""
        if self.is_open and self._end is None:
            self._end = trailers
            self.flush()

    def reset(self, code: ErrorCode) -> None:
        """End the stream at once, without telling the receiver."""
        if self.is_open:
            self._connection.close_stream(self, code)

    def flush(self, limit: int = MAX_WINDOW) -> bool:
        """Send up to `limit` bytes of what waits; return whether it waits for the connection's window."""
        connection = self._connection
        sent = 0
        while self._pending:
            room = min(self.send_window, connection.send_window, connection.max_frame_size, limit - sent)
            if room <= 0 or connection.is_full:
                if self.stalled_s is None:
                    self.stalled_s = connection.clock()
                    connection.waiting[self.id] = self
                return self.send_window > 0
            data = self._pending.popleft()
            if len(data) > room:
                self._pending.appendleft(data[room:])
                data = data[:room]
            sent += len(data)
            self.buffered -= len(data)
            connection.buffered -= len(data)
            self.send_window -= len(data)
            connection.send_window -= len(data)
            connection.write(frame(frames.DATA, 0, self.id, data))
            self.stalled_s = None
        connection.waiting.pop(self.id, None)
        if self._end is not None and not self._has_finished:
            self._has_finished = True
            connection.finish_stream(self, self._end)
        elif sent:
            self.receiver.drained()
        return False

    @property
    def has_finished(self) -> bool:
        """Whether everything has been sent, with its end."""
        return self._has_finished


class Http2Connection:
    """`open_stream` gets each request's stream and headers, and returns its receiver; None is the client's side."""

    def __init__(
        self,
        open_stream: Callable[[Stream, Headers], Receiver] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_stream = open_stream
        self.clock = clock
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[int, Stream] = {}
        """Streams with data that wait for a window, the first to be served first."""
        self._kept: dict[int, Receiver] = {}
        """The receivers of the last finished streams that are kept, by stream id."""
        self.send_window = DEFAULT_WINDOW
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE
        self.is_closed = False
        """Whether nothing more is read: after an error."""
        self.error: str | None = None
        self.on_output: Callable[[], None] = _nothing
        """Called for each frame to send."""
        self.is_paused = False
        """Whether the transport is full; data is then kept back."""
        self.is_refusing = False
        """Whether new streams are refused."""
        self.held = 0
        """Bytes of incomplete messages of all streams."""
        self.messages = 0
        """Messages that receivers have completed."""
        self.buffered = 0
        """Bytes of responses that wait for the peer's windows."""
        self._input = b""
        self.max_streams = MAX_STREAMS
        """Concurrent streams that the peer allows a client."""
        self._rested_s = clock()
        """When no reset of this client counts any more."""
        self.is_left = False
        """Whether a server accepts no further requests on this connection."""
        self._output: list[bytes] = []
        self._output_size = 0
        self._has_settings = self._is_leaving = False
        self._has_preface = open_stream is None
        self._decoder = HeaderDecoder(MAX_HEADER_LIST)
        self._initial_window = DEFAULT_WINDOW
        self._receive_window = CONNECTION_WINDOW
        self._returned = 0
        self._last_id = 0 if open_stream is not None else -1
        self._block: tuple[int, bool, list[bytes]] | None = None
        """(stream id, whether it ends, fragments) of headers that are continued."""
        self._bucket: float = _BUCKET
        self._filled_s = clock()
        self._pings = 0
        if open_stream is None:
            self.write(frames.PREFACE)
        self.write(
            frames.settings_frame(
                (
                    *([(frames.ENABLE_PUSH, 0)] if open_stream is None else []),
                    (frames.MAX_CONCURRENT_STREAMS, MAX_STREAMS),
                    (frames.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
                    (frames.MAX_HEADER_LIST_SIZE, MAX_HEADER_LIST),
                )
            )
            + frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(CONNECTION_WINDOW - DEFAULT_WINDOW))
        )

    @property
    def has_settings(self) -> bool:
        """Whether the peer has sent its settings, so that it speaks HTTP/2."""
        return self._has_settings

    # -- output -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._output.append(data)
        self._output_size += len(data)
        self.on_output()

    def take_output(self) -> bytes:
        """Return the bytes to send, once. If streams are waiting, `flush_waiting` finds more."""
        output, self._output, self._output_size = b"".join(self._output), [], 0
        return output

    @property
    def is_full(self) -> bool:
        return self.is_paused or self._output_size >= MAX_OUTPUT

    def send_block(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        kind, flags = frames.HEADERS, frames.END_STREAM if is_end else 0
        while len(block) > self.max_frame_size:
            self.write(frame(kind, flags, stream_id, block[: self.max_frame_size]))
            block, kind, flags = block[self.max_frame_size :], frames.CONTINUATION, 0
        self.write(frame(kind, flags | frames.END_HEADERS, stream_id, block))

    def open_request(self, block: bytes, receiver: Receiver) -> Stream:
        """Send the headers of a request; only if `has_room`."""
        self._last_id += 2
        stream = self.streams[self._last_id] = Stream(self, self._last_id, self._initial_window)
        stream.receiver = receiver
        self.send_block(stream.id, block, is_end=False)
        return stream

    @property
    def has_room(self) -> bool:
        """Whether a client may send another request."""
        is_usable = not self.is_closed and not self.is_left and self._last_id < frames.MAX_STREAM_ID - 1
        is_calm = self._rested_s - self.clock() < _MAX_RESETS * _RESET_S
        return is_usable and is_calm and len(self.streams) < self.max_streams

    def finish_stream(self, stream: Stream, block: bytes) -> None:
        """Send the end of a stream; a client's stays open until the response has ended."""
        if self._open_stream is not None:
            self.send_block(stream.id, block, is_end=True)
            self.close_stream(stream, None if stream.has_ended else ErrorCode.NO_ERROR)
            if stream.is_kept:
                self._kept[stream.id] = stream.receiver
                if len(self._kept) > _MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
        else:
            self.write(frame(frames.DATA, frames.END_STREAM, stream.id))

    def return_window(self, stream: Stream) -> None:
        if stream.returned >= _RETURNED and not stream.is_paused:
            self.write(frame(frames.WINDOW_UPDATE, 0, stream.id, WORD.pack(stream.returned)))
            stream.receive_window += stream.returned
            stream.returned = 0

    def close_stream(self, stream: Stream, code: ErrorCode | None) -> None:
        """Forget a stream; with a code, tell the peer."""
        del self.streams[stream.id]
        self.waiting.pop(stream.id, None)
        self.held -= stream.held
        self.buffered -= stream.buffered
        if code is not None:
            self.write_reset(stream.id, code)

    def write_reset(self, stream_id: int, code: ErrorCode) -> None:
        self.write(frame(frames.RST_STREAM, 0, stream_id, WORD.pack(code)))
        self._rested_s = max(self._rested_s, self.clock()) + _RESET_S

    def ping(self) -> None:
        """Ask the peer for a sign of life; `unanswered_pings` counts them."""
        self._pings += 1
        self.write(frame(frames.PING, 0, 0, bytes(8)))

    @property
    def unanswered_pings(self) -> int:
        return self._pings

    @property
    def partial(self) -> int:
        """Bytes of incomplete frames and messages."""
        return len(self._input) + self.held

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Take no further streams; those that are open may finish."""
        if not self._is_leaving:
            self._is_leaving = True
            payload = WORD.pack(self._last_id) + WORD.pack(code) + text.encode("utf-8", "replace")[:1024]
            self.write(frame(frames.GOAWAY, 0, 0, payload))

    def reset_stalled(self, limit_s: float) -> None:
        """Reset the streams whose data the peer has not taken for a time."""
        oldest_s = self.clock() - limit_s
        for stream in [s for s in self.waiting.values() if s.stalled_s is not None and s.stalled_s < oldest_s]:
            self._reset(stream, ErrorCode.CANCEL)

    def lost(self) -> None:
        """End all streams, since the connection is lost."""
        self.is_closed = True
        streams, self.streams = list(self.streams.values()), {}
        self.waiting.clear()
        self.held = self.buffered = 0
        for stream in streams:
            stream.receiver.reset(ErrorCode.CANCEL)

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        self.close_stream(stream, code)
        stream.receiver.reset(code)

    # -- input --------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes of the peer. After an error a GOAWAY is in the output, and `is_closed` is true."""
        if self.is_closed:
            return
        data = self._input + data if self._input else data
        try:
            at = self._receive_frames(data, self._receive_preface(data))
        except _ConnectionError as error:
            self.error = f"{error.code.name}: {error}"
            self._is_leaving = False
            self.go_away(error.code, str(error))
            self._input = b""
            self.lost()
        else:
            self._input = data[at:]

    def _receive_preface(self, data: bytes) -> int:
        if self._has_preface:
            return 0
        size = len(frames.PREFACE)
        if not frames.PREFACE.startswith(data[:size]):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._has_preface = len(data) >= size
        return size if self._has_preface else 0

    def _receive_frames(self, data: bytes, at: int) -> int:
        end = len(data)
        while self._has_preface and end - at >= HEAD.size:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            length, stream_id = high << 8 | low, stream_id & frames.MAX_STREAM_ID
            if length > DEFAULT_MAX_FRAME_SIZE:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = at + HEAD.size
            if end - begin < length:
                break
            at = begin + length
            try:
                self._receive_frame(kind, flags, stream_id, data[begin:at])
            except _StreamError as error:
                self._stream_failed(error)
        return at

    def _receive_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "headers are not continued")
        if kind < len(_ON_STREAM):
            if (expected := _ON_STREAM[kind]) is not None and expected != (stream_id != 0):
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"type {kind} on stream {stream_id}")
            _RECEIVERS[kind](self, flags, stream_id, payload)
        else:
            self._charge(_IDLE_FRAME)  # of an unknown extension: to be ignored

    def _stream_failed(self, error: _StreamError) -> None:
        self._charge(_RESET)
        if (stream := self.streams.get(error.stream_id)) is not None:
            self._reset(stream, error.code)
        else:
            self.write(frame(frames.RST_STREAM, 0, error.stream_id, WORD.pack(error.code)))

    def _charge(self, cost: int) -> None:
        self._bucket -= cost
        if self._bucket < 0:
            now_s = self.clock()
            self._bucket = min(self._bucket + (now_s - self._filled_s) * _REFILL_PER_S, _BUCKET)
            self._filled_s = now_s
            if self._bucket < 0:
                raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without progress")

    def _known(self, stream_id: int) -> Stream | None:
        """Return an open stream, None if it is closed."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id > self._last_id or not stream_id % 2):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is idle")
        return stream

    # Requests.

    def _receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream, length = self._known(stream_id), len(payload)
        self._receive_window -= length
        if self._receive_window < 0:
            raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._returned += length
        if self._returned >= _RETURNED:
            self.write(frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(self._returned)))
            self._receive_window += self._returned
            self._returned = 0
        data = _without_padding(payload) if flags & frames.PADDED else payload
        if stream is None:  # the peer may not know yet that it is closed
            return self._charge(_IDLE_FRAME)
        if stream.has_ended:
            raise _StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise _StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        is_end = bool(flags & frames.END_STREAM)
        stream.returned += length
        if not is_end:
            self.return_window(stream)
        if data:
            stream.receiver.data(data)
        elif not is_end:
            self._charge(_IDLE_FRAME)
        if is_end:
            self._ended(stream)

    def _ended(self, stream: Stream) -> None:
        stream.has_ended = True
        if stream.is_open:
            if self._open_stream is None:
                self.close_stream(stream, None if stream.has_finished else ErrorCode.NO_ERROR)
            stream.receiver.ended()

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"headers on stream {stream_id}")
        if flags & frames.PADDED:
            payload = _without_padding(payload)
        depends_on = 0
        if flags & frames.HAS_PRIORITY:
            if len(payload) < 5:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "no room for the priority")
            depends_on = WORD.unpack_from(payload)[0] & frames.MAX_STREAM_ID
            payload = payload[5:]
        self._block = stream_id, bool(flags & frames.END_STREAM), [payload]
        if flags & frames.END_HEADERS:
            self._receive_block()
        if depends_on == stream_id:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        fragments = self._block[2]
        fragments.append(payload)
        if len(fragments) > MAX_CONTINUATIONS + 1 or sum(map(len, fragments)) > 2 * MAX_HEADER_LIST:
            raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large")
        if flags & frames.END_HEADERS:
            self._receive_block()

    def _receive_block(self) -> None:
        assert self._block is not None
        (stream_id, is_end, fragments), self._block = self._block, None
        try:
            headers = self._decoder.decode(b"".join(fragments))
        except HPACKError as error:
            raise _ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        if (stream := self.streams.get(stream_id)) is not None:
            return self._receive_fields(stream, headers, is_end)
        if self._open_stream is None:
            self._known(stream_id)
            return self._charge(_IDLE_FRAME)  # the peer may not know yet that it is closed
        if stream_id <= self._last_id:
            raise _StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        self._last_id = stream_id
        if self._is_leaving:
            return None
        if len(self.streams) >= MAX_STREAMS or self.is_refusing:
            raise _StreamError(stream_id, ErrorCode.REFUSED_STREAM)
        if not _is_request(headers):
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream = self.streams[stream_id] = Stream(self, stream_id, self._initial_window)
        stream.has_headers = True
        stream.receiver = self._open_stream(stream, headers)
        if is_end:
            self._ended(stream)
        return None

    def _receive_fields(self, stream: Stream, headers: Headers, is_end: bool) -> None:
        """Take the headers of a response, or trailers."""
        if stream.has_ended:
            raise _StreamError(stream.id, ErrorCode.STREAM_CLOSED)
        is_response = not stream.has_headers
        fields = headers[1:] if is_response and headers and headers[0][0] == b":status" else headers
        if not (is_end or is_response) or is_response != (fields is not headers) or not all(map(_is_field, fields)):
            raise _StreamError(stream.id, ErrorCode.PROTOCOL_ERROR)
        stream.has_headers = True
        stream.receiver.headers_received(headers)
        if is_end:
            self._ended(stream)

    def _receive_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge(_IDLE_FRAME)
        if len(payload) != 5:
            raise _StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        if WORD.unpack_from(payload)[0] & frames.MAX_STREAM_ID == stream_id:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _receive_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self._charge(_RESET)
        code = _error_code(payload)
        if (stream := self._known(stream_id)) is not None:
            self.close_stream(stream, None)
            stream.receiver.reset(code)
        elif (receiver := self._kept.pop(stream_id, None)) is not None and code is ErrorCode.CANCEL:
            receiver.reset(code)

    # The connection.

    def _receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return self._charge(_IDLE_FRAME)
        if len(payload) % frames.SETTING.size:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of 6 bytes each")
        self._charge(_IDLE_FRAME + len(payload) // frames.SETTING.size)
        self._has_settings = True
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == frames.MAX_FRAME_SIZE:
                if not DEFAULT_MAX_FRAME_SIZE <= value < 1 << 24:
                    raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
                self.max_frame_size = value
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        # First the acknowledgement: a peer counts with the windows before it until it comes.
        self.write(frame(frames.SETTINGS, frames.ACK, 0))
        self.flush_waiting()
        return None

    def _resize_windows(self, size: int) -> None:
        if size > MAX_WINDOW:
            raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {size}")
        difference, self._initial_window = size - self._initial_window, size
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > MAX_WINDOW:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream.id} overflows")

    def _receive_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "pushes are disabled")

    def _receive_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._charge(_IDLE_FRAME)
        if flags & frames.ACK:
            self._pings = 0
        else:
            self.write(frame(frames.PING, frames.ACK, 0, payload))

    def _receive_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) < 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has 8 bytes")
        self._charge(_IDLE_FRAME)
        if self._open_stream is None:
            self.is_left = True
            last_id = WORD.unpack_from(payload)[0] & frames.MAX_STREAM_ID
            for stream in [stream for stream in self.streams.values() if stream.id > last_id]:
                self.close_stream(stream, None)
                stream.receiver.reset(ErrorCode.REFUSED_STREAM)

    def _receive_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = WORD.unpack(payload)[0] & MAX_WINDOW
        stream = self._known(stream_id) if stream_id else None
        if stream_id and stream is None:
            return self._charge(_IDLE_FRAME)
        if not increment:
            if stream is not None:
                raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream is not None:
            stream.send_window += increment
            if stream.send_window > MAX_WINDOW:
                raise _StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            stream.flush()
        else:
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
            self.flush_waiting()
        return None

    def flush_waiting(self) -> None:
        """Send what waits, by turns: a frame of each stream."""
        ready = deque(self.waiting.values())
        while ready and self.send_window > 0 and not self.is_full:
            stream = ready.popleft()
            if stream.is_open and stream.flush(self.max_frame_size):
                ready.append(stream)


_RECEIVERS: Final = (
    Http2Connection._receive_data,
    Http2Connection._receive_headers,
    Http2Connection._receive_priority,
    Http2Connection._receive_reset,
    Http2Connection._receive_settings,
    Http2Connection._receive_push_promise,
    Http2Connection._receive_ping,
    Http2Connection._receive_go_away,
    Http2Connection._receive_window_update,
    Http2Connection._receive_continuation,
)
_ON_STREAM: Final = (True, True, True, True, False, True, False, False, None, True)
"""Whether a type of frame belongs to a stream; None: to either."""


def _nothing() -> None:
    pass


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _error_code(payload: bytes) -> ErrorCode:
    (code,) = WORD.unpack(payload)
    return ErrorCode(code) if code < len(ErrorCode) else ErrorCode.INTERNAL_ERROR


def _is_request(headers: Headers) -> bool:
    """Return whether a header list is that of a request (RFC 9113, section 8.3.1)."""
    pseudo: dict[bytes, bytes] = {}
    for number, (name, value) in enumerate(headers):
        if not name.startswith(b":"):
            fields = headers[number:]
            break
        if name in pseudo:
            return False
        pseudo[name] = value
    else:
        fields = []
    pseudo.pop(b":authority", None)
    return (
        pseudo.keys() == {b":method", b":path", b":scheme"}
        and pseudo[b":path"].startswith(b"/")
        and all(map(_is_field, fields))
    )


def _is_field(field: tuple[bytes, bytes]) -> bool:
    name, value = field
    return (
        _is_name(name) is not None
        and name not in _CONNECTION_FIELDS
        and (name != b"te" or value == b"trailers")
        and _find_control(value) is None
    )
