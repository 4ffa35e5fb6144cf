"""Http2Connection against the library h2: it accepts what h2 accepts, with the same events, and refuses the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rucola.http2 import connection as limits
from rucola.http2 import frames
from rucola.http2.connection import Http2Connection, Stream
from rucola.http2.frames import HEAD, PREFACE, SETTING, WORD, ErrorCode, frame, header_block
from rucola.http2.headers import Headers
from support.examples import examples

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/S/M"),
    (b":authority", b"a"),
    (b"te", b"trailers"),
)
CALM = ErrorCode.ENHANCE_YOUR_CALM

Event = tuple[Any, ...]


@dataclass
class Recorder:
    """A receiver that notes what it is told."""

    stream: Stream
    events: list[Event]

    def headers_received(self, headers: Headers) -> None:
        pass

    def data(self, data: bytes) -> None:
        self.events.append(("data", self.stream.id, data))

    def ended(self) -> None:
        self.events.append(("end", self.stream.id))

    def reset(self, code: ErrorCode) -> None:
        self.events.append(("reset", self.stream.id))

    def drained(self) -> None:
        self.events.append(("drained", self.stream.id))


@dataclass
class Peer:
    """A client that writes frames by hand."""

    now_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    streams: dict[int, Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = Http2Connection(self._open, clock=lambda: self.now_s)
        self.server.receive(PREFACE + frames.settings_frame(()))
        self.answer()

    def _open(self, stream: Stream, headers: Headers) -> Recorder:
        self.events.append(("request", stream.id, tuple(headers)))
        self.streams[stream.id] = stream
        return Recorder(stream, self.events)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.server.receive(part)

    def answer(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that the server has sent since: (type, flags, stream id, payload)."""
        data, found, at = self.server.take_output(), [], 0
        while at < len(data):
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            end = at + HEAD.size + (high << 8 | low)
            found.append((kind, flags, stream_id, data[at + HEAD.size : end]))
            at = end
        assert at == len(data)
        return found

    def error(self) -> ErrorCode | None:
        """The code of the GOAWAY that the server has sent since."""
        codes = [WORD.unpack_from(payload, 4)[0] for kind, _, _, payload in self.answer() if kind == frames.GOAWAY]
        assert bool(codes) == self.server.is_closed
        return ErrorCode(codes[0]) if codes else None


def request(stream_id: int, *, is_end: bool = False, fields: Any = REQUEST) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if is_end else 0)
    return frame(frames.HEADERS, flags, stream_id, header_block(fields))


@pytest.fixture
def peer() -> Peer:
    return Peer()


# -- the model --------------------------------------------------------------------------------------------------------

IDS = st.sampled_from([0, 1, 2, 3, 5, 7])
SMALL = st.binary(max_size=12)
FIELDS = st.sampled_from(
    [
        REQUEST,
        (*REQUEST, (b"x-mq-client-id", b"c@1")),
        REQUEST[1:],
        (*REQUEST, (b":path", b"/")),
        (*REQUEST, (b"Upper", b"case")),
        (*REQUEST, (b"connection", b"close")),
        (*REQUEST[:4], (b"te", b"gzip")),
        ((b"grpc-status", b"0"),),
        ((b"x", b"y"), *REQUEST),
    ]
)


@st.composite
def any_frame(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([*range(10), 0, 0, 1, 1, 1, 11]))
    flags = draw(st.sampled_from([0, 1, 4, 5, 4, 5, 8, 13, 0x24, 0x25]))
    stream_id = draw(IDS)
    payload = draw(SMALL)
    if kind == frames.HEADERS:
        payload = header_block(draw(FIELDS))
        if flags & frames.HAS_PRIORITY:
            payload = WORD.pack(draw(IDS)) + b"\x0f" + payload
        if flags & frames.PADDED:
            payload = bytes((draw(st.integers(0, 3)),)) + payload + bytes(2)
    elif kind == frames.DATA and flags & frames.PADDED:
        payload = bytes((draw(st.integers(0, 3)),)) + payload
    elif kind == frames.SETTINGS:
        names, values = st.integers(1, 6), st.sampled_from([0, 1, 2, 16_384, 65_535, 1 << 24, MAX])
        payload = b"".join(SETTING.pack(draw(names), draw(values)) for _ in range(draw(st.integers(0, 2))))
    elif kind in (frames.RST_STREAM, frames.WINDOW_UPDATE):
        payload = WORD.pack(draw(st.sampled_from([0, 1, 8, 65_535, MAX])))
    elif kind == frames.PING:
        payload = bytes(draw(st.sampled_from([8, 8, 8, 7])))
    elif kind == frames.PRIORITY:
        payload = WORD.pack(draw(IDS)) + b"\x01"
    elif kind == frames.GOAWAY:
        payload = bytes(8)
    return frame(kind, flags, stream_id, payload)


MAX = frames.MAX_WINDOW


def model() -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    server = h2.connection.H2Connection(config)
    codes = h2.settings.SettingCodes
    values = {codes.MAX_CONCURRENT_STREAMS: 1000, codes.INITIAL_WINDOW_SIZE: limits.STREAM_WINDOW}
    server.local_settings = h2.settings.Settings(client=False, initial_values=values)
    server.initiate_connection()
    server.increment_flow_control_window(limits.CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
    server.receive_data(PREFACE + frames.settings_frame(()))
    return server


def events_of(found: list[h2.events.Event]) -> list[Event]:
    events: list[Event] = []
    for event in found:
        if isinstance(event, h2.events.RequestReceived):
            events.append(("request", event.stream_id, tuple((bytes(n), bytes(v)) for n, v in event.headers)))
        elif isinstance(event, h2.events.DataReceived) and event.data:
            events.append(("data", event.stream_id, bytes(event.data)))
        elif isinstance(event, h2.events.StreamEnded):
            events.append(("end", event.stream_id))
        elif isinstance(event, h2.events.StreamReset):
            events.append(("reset", event.stream_id))
    return events


def refuses(answer: list[tuple[int, int, int, bytes]]) -> bool:
    return any(kind in (frames.GOAWAY, frames.RST_STREAM) for kind, *_ in answer)


def test_a_reset_of_an_idle_stream_ends_the_connection() -> None:
    peer = Peer()
    peer.send(frame(frames.RST_STREAM, 0, 3, WORD.pack(0)))
    assert peer.server.is_closed
    assert "stream 3" in (peer.server.error or "")


@settings(max_examples=examples(400))
@given(st.lists(any_frame(), max_size=12))
def test_streams_of_frames_are_understood_as_h2_does(sent: list[bytes]) -> None:
    peer, reference = Peer(), model()
    for data in sent:
        peer.events.clear()
        kind, flags, stream_id = data[3], data[4], WORD.unpack_from(data, 5)[0]
        if kind == frames.GOAWAY:
            return  # h2 refuses requests after it
        try:
            expected = events_of(reference.receive_data(data))
        except (h2.exceptions.ProtocolError, ValueError):
            # h2 ends the connection where RFC 9113 lets a server ignore frames: on streams that were closed.
            peer.send(data)
            assert refuses(peer.answer()) or stream_id not in peer.server.streams
            return
        peer.send(data)
        answer = peer.answer()
        if peer.server.is_closed and stream_id % 2 and kind != frames.RST_STREAM:  # h2 ignores one of an idle stream
            # h2 looks at headers when they are complete.
            assert kind in (frames.HEADERS, frames.PUSH_PROMISE), (peer.server.error, expected)
            assert not flags & frames.END_HEADERS
        if peer.server.is_closed:  # h2 allows the server's streams, although it has opened none
            return
        if expected != peer.events:
            assert refuses(answer), (expected, peer.events)
            return


@settings(max_examples=examples(100))
@given(st.lists(any_frame(), max_size=8), st.data())
def test_the_division_into_reads_does_not_matter(sent: list[bytes], data: st.DataObject) -> None:
    whole, parts = Peer(), Peer()
    joined = b"".join(sent)
    whole.send(joined)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), max_size=6)))
    for begin, end in zip([0, *cuts], [*cuts, len(joined)], strict=True):
        parts.send(joined[begin:end])
    assert (parts.events, parts.answer()) == (whole.events, whole.answer())


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_error_or_wait_for_more(data: bytes) -> None:
    peer = Peer()
    peer.send(data)
    assert all(event[0] in ("request", "reset", "end", "data") for event in peer.events)


# -- requests and responses -------------------------------------------------------------------------------------------


def test_a_request_with_trailers_padding_and_priority(peer: Peer) -> None:
    block = header_block(REQUEST)
    first, rest = block[:5], block[5:]
    priority = WORD.pack(3) + b"\x10"
    flags = frames.PADDED | frames.HAS_PRIORITY
    peer.send(
        frame(frames.HEADERS, flags, 1, b"\x02" + priority + first + bytes(2)),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, rest),
        frame(frames.DATA, frames.PADDED, 1, b"\x03abc" + bytes(3)),
        frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, header_block(((b"a", b"b"),))),
    )
    assert peer.events == [("request", 1, REQUEST), ("data", 1, b"abc"), ("end", 1)]


def test_long_header_blocks_are_continued(peer: Peer) -> None:
    peer.send(request(1, is_end=True))
    block = header_block([(b"x", bytes([65 + k]) * 9000) for k in range(4)])
    peer.streams[1].send_headers(block)
    found = peer.answer()
    assert [kind for kind, *_ in found] == [frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION]
    assert [flags for _, flags, *_ in found] == [0, 0, frames.END_HEADERS]
    assert b"".join(payload for *_, payload in found) == block


def test_data_waits_for_the_windows_of_stream_and_connection(peer: Peer) -> None:
    peer.send(request(1, is_end=True), request(3, is_end=True))
    body = bytes(range(256)) * 400
    for number in (1, 3):
        peer.streams[number].send(body)
        peer.streams[number].finish(b"")
    received = {1: b"", 3: b""}

    def read() -> list[int]:
        found = peer.answer()
        kinds = [kind for kind, *_ in found]
        assert frames.SETTINGS not in kinds[1:]  # windows of settings count from their acknowledgement
        for kind, _, stream_id, payload in found:
            if kind == frames.DATA:
                received[stream_id] += payload
        return [stream_id for kind, _, stream_id, _ in found if kind == frames.DATA]

    read()
    assert (len(received[1]), len(received[3])) == (65_535, 0)  # the connection's window is used up
    peer.send(frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(1 << 20)))
    read()
    assert (len(received[1]), len(received[3])) == (65_535, 65_535)  # each stream's
    peer.send(frames.settings_frame([(frames.INITIAL_WINDOW_SIZE, 1 << 20)]))
    assert len(set(read()[:2])) == 2  # by turns
    assert received == {1: body, 3: body}
    assert not peer.server.streams


def test_a_smaller_initial_window_can_make_a_window_negative(peer: Peer) -> None:
    peer.send(request(1, is_end=True))
    peer.streams[1].send(bytes(60_000))
    peer.answer()
    peer.send(frames.settings_frame([(frames.INITIAL_WINDOW_SIZE, 1000)]))
    peer.streams[1].send(b"more")
    peer.send(frame(frames.WINDOW_UPDATE, 0, 1, WORD.pack(58_999)))
    assert all(kind != frames.DATA for kind, *_ in peer.answer())
    peer.send(frame(frames.WINDOW_UPDATE, 0, 1, WORD.pack(4 + 1)))
    assert [payload for kind, *_, payload in peer.answer() if kind == frames.DATA] == [b"more"]


def test_a_response_before_the_end_of_the_request_resets_the_rest(peer: Peer) -> None:
    peer.send(request(1))
    peer.streams[1].finish(header_block([(b":status", b"200")]))
    kinds = [(kind, payload) for kind, _, _, payload in peer.answer()]
    assert kinds[-1] == (frames.RST_STREAM, WORD.pack(ErrorCode.NO_ERROR))
    peer.send(frame(frames.DATA, frames.END_STREAM, 1, b"late"))
    assert peer.error() is None


def test_going_away_lets_calls_finish_and_takes_no_more(peer: Peer) -> None:
    peer.send(request(1, is_end=True))
    peer.server.go_away()
    peer.send(request(3), frame(frames.DATA, frames.END_STREAM, 3, b"x"))
    assert [event[:2] for event in peer.events] == [("request", 1), ("end", 1)]
    peer.streams[1].finish(b"")
    assert [kind for kind, *_ in peer.answer()] == [frames.GOAWAY, frames.HEADERS]


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_more_streams_than_announced_are_refused(peer: Peer) -> None:
    for number in range(limits.MAX_STREAMS + 1):
        peer.send(request(2 * number + 1))
    *_, (kind, _, stream_id, payload) = peer.answer()
    assert (kind, stream_id) == (frames.RST_STREAM, 2 * limits.MAX_STREAMS + 1)
    assert payload == WORD.pack(ErrorCode.REFUSED_STREAM)
    assert len(peer.events) == limits.MAX_STREAMS


@pytest.mark.parametrize(
    "reset",
    [
        lambda number: frame(frames.RST_STREAM, 0, number, WORD.pack(ErrorCode.CANCEL)),
        lambda number: frame(frames.WINDOW_UPDATE, 0, number, WORD.pack(0)),  # the server resets
        lambda number: frame(frames.PRIORITY, 0, number, WORD.pack(number) + b"\x00"),
    ],
)
def test_rapid_resets_end_the_connection(peer: Peer, reset: Any) -> None:
    sent = 0
    while not peer.server.is_closed and sent < 5000:
        peer.send(request(2 * sent + 1), reset(2 * sent + 1))
        sent += 1
    assert peer.error() is CALM
    assert 500 < sent <= 1001


def test_resets_at_a_moderate_rate_are_accepted(peer: Peer) -> None:
    for number in range(5000):
        peer.now_s += 0.02
        peer.send(request(2 * number + 1), frame(frames.RST_STREAM, 0, 2 * number + 1, WORD.pack(8)))
    assert peer.error() is None


@pytest.mark.parametrize(
    "data",
    [
        frames.settings_frame(()),
        frame(frames.SETTINGS, frames.ACK, 0),
        frame(frames.PING, 0, 0, bytes(8)),
        frame(frames.PRIORITY, 0, 1, WORD.pack(5) + b"\x00"),
        frame(frames.DATA, 0, 1),
        frame(200, 0, 1),
        frame(frames.GOAWAY, 0, 0, bytes(8)),
    ],
)
def test_floods_of_frames_without_progress_end_the_connection(peer: Peer, data: bytes) -> None:
    peer.send(request(1))
    for _ in range(11_000):
        peer.send(data)
    assert peer.error() is CALM


def test_a_flood_of_continuations_ends_the_connection(peer: Peer) -> None:
    peer.send(frame(frames.HEADERS, 0, 1, header_block(REQUEST)))
    for _ in range(limits.MAX_CONTINUATIONS + 1):
        assert not peer.server.is_closed
        peer.send(frame(frames.CONTINUATION, 0, 1))
    assert peer.error() is CALM
    peer = Peer()
    peer.send(frame(frames.HEADERS, 0, 1, bytes(16_384)))
    for _ in range(2):
        peer.send(frame(frames.CONTINUATION, 0, 1, bytes(16_384)))
    assert peer.error() is CALM


def test_a_header_bomb_is_not_expanded(peer: Peer) -> None:
    """One entry of 4 kB in the table, then references of one byte."""
    value = b"v" * 3900
    entry = b"\x40\x01x" + b"\x7f" + bytes(((len(value) - 127) % 128 + 128, (len(value) - 127) // 128)) + value
    peer.send(frame(frames.HEADERS, frames.END_HEADERS, 1, header_block(REQUEST) + entry + b"\xbe" * 1000))
    assert peer.error() is ErrorCode.COMPRESSION_ERROR
    assert not peer.events


def test_responses_that_are_not_taken_are_given_up(peer: Peer) -> None:
    peer.send(
        frames.settings_frame([(frames.INITIAL_WINDOW_SIZE, 0)]), request(1, is_end=True), request(3, is_end=True)
    )
    peer.streams[1].send(b"held")
    peer.now_s = 30
    peer.streams[3].send(b"held")
    peer.server.reset_stalled(60)
    assert set(peer.server.streams) == {1, 3}
    peer.now_s = 61
    peer.server.reset_stalled(60)
    assert set(peer.server.streams) == {3}
    assert peer.events[-1] == ("reset", 1)


def test_a_full_transport_holds_data_back(peer: Peer) -> None:
    peer.send(request(1, is_end=True))
    peer.server.is_paused = True
    peer.streams[1].send(b"later")
    assert peer.streams[1].buffered == 5
    assert all(kind != frames.DATA for kind, *_ in peer.answer())
    peer.server.is_paused = False
    peer.server.flush_waiting()
    assert [payload for kind, *_, payload in peer.answer() if kind == frames.DATA] == [b"later"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(frames.DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (request(2), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frames.settings_frame([(frames.INITIAL_WINDOW_SIZE, 1 << 31)]), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(MAX)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, 0, 1) + frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_violations_end_the_connection(peer: Peer, data: bytes, code: ErrorCode) -> None:
    peer.send(data)
    assert peer.error() is code


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 30, PREFACE + frame(frames.PING, 0, 0, bytes(8))])
def test_other_protocols_are_refused(first: bytes) -> None:
    server = Http2Connection(lambda stream, headers: pytest.fail("a request"))
    server.receive(first)
    assert server.is_closed


def test_more_data_than_the_windows_is_refused(peer: Peer) -> None:
    peer.send(request(1))
    peer.server.streams[1].receive_window = 10
    peer.send(frame(frames.DATA, 0, 1, bytes(11)))
    assert (frames.RST_STREAM, 0, 1, WORD.pack(ErrorCode.FLOW_CONTROL_ERROR)) in peer.answer()


def test_windows_are_returned(peer: Peer) -> None:
    peer.send(request(1))
    for _ in range(4096):  # 64 MiB through windows of 5 and 16
        peer.send(frame(frames.DATA, 0, 1, bytes(16_384)))
    returned = [(stream_id, WORD.unpack(payload)[0]) for kind, _, stream_id, payload in peer.answer() if kind == 8]
    assert not peer.server.is_closed
    assert sum(size for stream_id, size in returned if stream_id == 0) == 64 << 20
    assert sum(size for stream_id, size in returned if stream_id == 1) == 64 << 20


def test_a_call_that_has_ended_is_not_reset() -> None:
    """RFC 9113, section 5.1: no frame but PRIORITY is sent on a closed stream."""
    connection = Http2Connection(None)
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    recorder = Recorder(cast("Stream", None), [])
    recorder.stream = stream = connection.open_request(header_block(REQUEST), recorder)
    stream.finish()
    server.receive_data(connection.take_output())
    server.send_headers(stream.id, [(":status", "200")], end_stream=True)
    connection.receive(server.data_to_send())
    connection.take_output()
    stream.reset(ErrorCode.CANCEL)
    assert (recorder.events, stream.is_open, connection.take_output()) == ([("end", 1)], False, b"")
