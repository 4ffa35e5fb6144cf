"""Connection: one socket that carries commands in both directions.

Both peers send requests: a client to its broker, and a broker to its client (transaction check, rebalance notification,
direct consumption). So one asyncio protocol serves both:

* each request is passed to the processor of its code, whose reply is sent;
* each response completes the future of the request with its opaque.

A processor is a plain function `(connection, command) -> Reply`: a RemotingCommand, its encoded bytes, an awaitable of
either, or None (a held pull is answered later). If it raises, the response is SYSTEM_ERROR with the error's text, and
the connection stays open. One-way requests are never answered.

**States.**

    state      entered by                          behaviour
    new        construction                        cannot send; `is_open` is false
    open       connection_made                     reads, processes, writes
    counted    pause_writing, above UNCOUNTED      accepted connections only: as open, unsent bytes are counted
    congested  unsent bytes, or a large frame      accepted connections only: does not read, keeps decoded requests
    waiting    `wait`                              does not read: other connections complete large frames
    resting    `rest`                              does not read for some milliseconds: a frame comes byte by byte
    open       resume_writing                      processes the kept requests, reads again
    closing    close, or a damaged stream          reads nothing; `send` drops its command; sends earlier writes
                                                   for CLOSE_TIMEOUT_S at most
    closed     connection_lost                     requests in flight fail with RemotingConnectError; `closed` is set

**Batching.** All frames of a read are processed, and their replies leave in one write, on a BatchingEventLoop with
those of other connections. All connections of a loop share one receive buffer. Requests that follow each other can be
served together (`read_hooks`). Many requests, and headers that Python decodes, wait for turns (`turns`).

**Back pressure.** A server stops reading from a peer whose unsent responses reach the limit (WRITE_LIMIT by default);
`connection_memory` bounds the total. A client never stops reading: two such peers could wait for each other for ever.
`server_requests` bounds its responses.

**Half-open connections.** A client closes a connection whose peer has vanished (`idle_times.Silence`), so that its
requests can be retried. The kernel's keepalive covers idle connections.

**Damaged input.** An unreadable header is answered SYSTEM_ERROR if its opaque is readable; the first one of a
connection is logged. After a FrameError the commands before the damage are answered, one line is logged, and the
connection is closed.

Corresponds to `NettyRemotingAbstract` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, cast

from rucola.access import Caller
from rucola.acl.challenge import Challenge
from rucola.acl.credentials import Credentials
from rucola.errors import RemoteProtocolError, RemotingConnectError, RemotingTimeout
from rucola.protocol.codes import ResponseCode, name_of
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, UnreadableCommand
from rucola.protocol.frame import LARGE_SIZE, FrameDecoder, FrameError
from rucola.remoting.addresses import address_of
from rucola.remoting.batching_event_loop import WriteBatching, write_batching_of
from rucola.remoting.connection_memory import UNCOUNTED, ConnectionMemory
from rucola.remoting.deadline import Deadline
from rucola.remoting.idle_times import KERNEL_TELLS, MeasuredIdleTimes, Silence, kernel_idle_times_ms
from rucola.remoting.keepalive import enable_keepalive
from rucola.remoting.large_writes import LargeBody, LargeWrites
from rucola.remoting.receive_buffer import ReceiveBuffer
from rucola.remoting.refusals import error_response
from rucola.remoting.seldom_lines import log_seldom
from rucola.remoting.tls import hint_of_silence, subject_of
from rucola.remoting.turns import turns_of

logger = logging.getLogger(__name__)

Answer: TypeAlias = "RemotingCommand | bytes | None"
Reply: TypeAlias = "Answer | Awaitable[Answer]"
Processor: TypeAlias = "Callable[[Connection, RemotingCommand], Reply]"
ReadServer: TypeAlias = "Callable[[Connection, memoryview], tuple[bytes, int]]"
RunServer: TypeAlias = "Callable[[Connection, list[RemotingCommand]], list[bytes]]"


class Processors(Protocol):
    def get(self, code: int, default: Processor, /) -> Processor: ...


WRITE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of responses joined into one write; by default the limit of unsent bytes, too."""
UNSLICED: Final = 64
"""Commands of a read that wait for no turn."""
CLOSE_TIMEOUT_S = 3.0
"""Seconds until a closing connection drops its unsent bytes."""


class Connection(asyncio.BufferedProtocol):
    """One socket, created by RemotingServer or RemotingClient. Belongs to one event loop.

    `memory` and `read_hooks` (see ReadHooks) are those of a server. `on_open` and `on_close` are called with the
    connection. `peer` is "ip:port" of the other side. `closed` is set when the socket is closed. Requests are signed
    with `credentials`, if given. `has_answered` if a connection to the same address has received anything before.
    """

    def __init__(
        self,
        processors: Processors,
        buffer: ReceiveBuffer,
        max_frame_size: int,
        memory: ConnectionMemory | None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        credentials: Credentials | None = None,
        read_hooks: tuple[Sequence[ReadServer], Mapping[int, RunServer]] = ((), {}),
        *,
        has_answered: bool = False,
    ) -> None:
        self.peer = ""
        self.caller = Caller("")
        """Without a user: requests of several users can share a connection."""
        self.latest_caller = self.caller
        """For `AccessGate`, which uses it again for the same user."""
        self.challenge = Challenge()
        """For signatures of version 2, in the direction of the server."""
        self.closed = asyncio.Event()
        self._processor_of = processors.get
        self._buffer = buffer
        self._view, self._turns_until_s = buffer.view, 0.0  # where to receive; end of short slices (0: none)
        self._decoder = FrameDecoder(max_frame_size, self._may_decode)
        self._memory = memory
        self._credentials = credentials
        self._reads, self._runs = read_hooks
        self._on_open = on_open
        self._on_close = on_close
        self.has_answered = has_answered
        """Whether any byte was received, by this connection or by one before it to the same address."""
        self._has_logged_unreadable = False  # an unreadable frame: only the first one is
        self._is_congested = self.is_sliced = False  # unsent bytes are at their limit; kept bytes wait for a turn
        self._is_waiting = self._has_partial_frame = False  # for others' partial frames; its own is counted
        self._is_resting = False  # see `rest`
        self._kept: list[RemotingCommand] = []
        self._in_flight: dict[int, asyncio.Future[RemotingCommand]] = {}  # outgoing requests by opaque
        self._pending_replies: set[asyncio.Future[Answer]] = set()  # being computed; keeps their tasks alive
        self._large: LargeWrites | None = None  # while the transport is too full for all of a large frame
        self._outgoing: list[bytes] = []  # frames of this iteration, written together
        self._abort_timer: asyncio.TimerHandle | None = None  # aborts a closing connection after CLOSE_TIMEOUT_S
        self._silence = Silence()
        self._close_reason = "closed"  # the error of requests in flight if the transport has none
        self._transport: asyncio.Transport | None = None  # None before it is connected, and after
        self._measured_times: MeasuredIdleTimes | None = None  # None if the kernel measures idle times
        self._batching: WriteBatching  # this one and the next two are set by `connection_made`
        self._write: Callable[[bytes], None]
        self._write_uncounted: Callable[[bytes], None]

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_congested(self) -> bool:
        return self._is_congested

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the last byte was sent or received. 0 if closed."""
        return 0 if self._transport is None else min(self._idle_times_ms())

    @property
    def descriptor(self) -> int:
        """The socket's descriptor; -1 if closed."""
        return -1 if self._transport is None else self._transport.get_extra_info("socket").fileno()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport holds. 0 if closed."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def pending_replies(self) -> int:
        """Requests of the peer that are not answered yet."""
        return len(self._pending_replies)

    @property
    def unsent_ms(self) -> int:
        """Milliseconds since the last byte was sent. 0 if closed."""
        return 0 if self._transport is None else self._idle_times_ms()[0]

    @property
    def silent_ms(self) -> int:
        """Milliseconds since the last received byte; 0 if closed or without a request in flight."""
        return self._idle_times_ms()[1] if self._in_flight and self._transport is not None else 0

    def send(self, command: RemotingCommand | bytes) -> None:
        """Send a one-way request or a held request's response, unless the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            frame = command if isinstance(command, bytes) else self._encode(command)
            if self._outgoing:
                self._outgoing.append(frame)  # keeps the order: earlier frames wait for the end of the iteration
            else:
                self._write(frame)

    def send_large(self, head: bytes, body: LargeBody) -> None:
        """Send a frame whose body stays in place; it is released once sent, or on close. Congested until then."""
        self._write_outgoing()
        if self._transport is None or self._transport.is_closing():
            body.release()
            return
        large = self._large or LargeWrites(self._transport, self._write_uncounted, self._batching.flush, UNCOUNTED)
        large.append(head)
        large.append(body)
        if self._large is None and not large.advance():
            self._large, self._write = large, self._write_behind
            self._is_congested = True
            self._set_reading()
            self._schedule_large(large)

    def answer(self, command: RemotingCommand, answer: Answer) -> None:
        """Answer a held request, in the iteration's shared write."""
        if (frame := self.encode_reply(command, answer)) is not None:
            self.send_at_iteration_end(frame)

    def send_error(self, command: RemotingCommand, error: Exception) -> None:
        self.send(error_response(self.peer, command, error))

    async def request(self, command: RemotingCommand, deadline: Deadline) -> RemotingCommand:
        """Send a request, not after the deadline, and return its response. RemotingTimeout, RemotingConnectError."""
        if not (waited_ms := deadline.left_ms):
            raise RemotingTimeout(f"no time was left to send {name_of(command.code)} to {self.peer}", subject=self.peer)
        answer = self.post(command)
        try:
            async with deadline.scope():
                return await answer
        except TimeoutError:
            self.timed_out(command, waited_ms)
            raise RemotingTimeout(
                f"{self.peer} sent no response to {name_of(command.code)} within {deadline.timeout_ms:.0f} ms",
                subject=self.peer,
            ) from None
        finally:
            self._in_flight.pop(command.opaque, None)

    def post(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Return a future of the response or RemotingConnectError. To stop waiting, call `forget` or `timed_out`."""
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(RemotingConnectError(f"the connection to {self.peer} is closed", subject=self.peer))
            return answer
        is_alone = not self._in_flight
        self._in_flight[command.opaque] = answer
        if is_alone:
            self.send(command)
        else:
            self.send_at_iteration_end(self._encode(command))
        return answer

    def _encode(self, command: RemotingCommand) -> bytes:
        if self._credentials is not None and not command.flag & FLAG_RESPONSE:
            command.ext = command.ext_fields
            challenge = self.challenge if self._credentials.signature_version == 2 else None
            self._credentials.sign(command.ext, command.body, command.code, challenge)
        return command.encode()

    def forget(self, command: RemotingCommand) -> None:
        if (answer := self._in_flight.pop(command.opaque, None)) is not None:
            answer.cancel()

    def timed_out(self, command: RemotingCommand, waited_ms: float) -> None:
        """Forget a request that timed out, and close the connection if it is half-open."""
        self.forget(command)
        if self._memory is not None or self._transport is None or self._transport.is_closing():
            return
        now_ms = asyncio.get_running_loop().time() * 1000
        if silence_ms := self._silence.timed_out(now_ms, waited_ms, self._idle_times_ms()[1]):
            self._close_reason = f"nothing received for {silence_ms:.0f} ms with a request in flight"
            logger.warning("%s: closing the connection: %s", self.peer, self._close_reason)
            self._transport.abort()

    def close(self) -> None:
        """Close when all written bytes are sent, or after CLOSE_TIMEOUT_S."""
        if self._transport is not None and not self._transport.is_closing():
            self._write_outgoing()
            if self._large is not None:
                self._large.advance(is_last=True)
            self._batching.flush()
            self._transport.close()
            self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self) -> None:
        """Close at once; unsent bytes are dropped."""
        if self._transport is not None:
            self._transport.abort()

    def wait(self, is_waiting: bool) -> None:
        """Pause or resume reading while other connections complete large frames."""
        self._is_waiting = is_waiting
        self._set_reading()

    def rest(self, is_resting: bool) -> None:
        """Pause or resume reading a frame that comes byte by byte."""
        self._is_resting = is_resting
        self._set_reading()

    def process_unreadable(self, command: UnreadableCommand) -> RemotingCommand | None:
        """Return the error response, None if the opaque is unreadable; an unreadable response fails its request."""
        if not self._has_logged_unreadable:
            log_seldom(logger, logging.WARNING, "unreadable", "%s: a frame cannot be read: %s", self.peer, command.why)
        self._has_logged_unreadable = True
        if not command.opaque_is_known:
            return None
        if not command.is_answer:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=command.why)
        request = self._in_flight.pop(command.opaque, None)
        if request is not None and not request.done():
            request.set_exception(RemoteProtocolError(f"{self.peer} gave an answer that cannot be read: {command.why}"))
        return None

    # Callbacks of asyncio, see the table of states.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._batching = write_batching_of(asyncio.get_running_loop())
        self._write = self._batching.writer_of(self._transport)
        if not KERNEL_TELLS:
            self._measured_times = MeasuredIdleTimes()
            self._write = self._measured_times.measuring(self._write)
        self._write_uncounted = self._write
        if self._memory is not None:
            self._transport.set_write_buffer_limits(high=UNCOUNTED)
        enable_keepalive(transport.get_extra_info("socket"), is_client=self._memory is None)
        name = transport.get_extra_info("peername")
        self.peer = address_of(name) if name else "?"
        self.caller = self.latest_caller = Caller(self.peer, None, subject_of(transport.get_extra_info("peercert")))
        if self._on_open:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        why = str(exc or self._close_reason)
        if self._in_flight and self._transport is not None and self._memory is None and not self.has_answered:
            why += hint_of_silence(self._transport)
        self._transport = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if not self._decoder.is_between_frames:
            log_seldom(logger, logging.INFO, "cut off", "%s: closed in the middle of a frame", self.peer)
        self._decoder = FrameDecoder()  # the other one refers to this connection
        for answer in self._in_flight.values():
            if not answer.done():
                answer.set_exception(
                    RemotingConnectError(f"the connection to {self.peer} broke: {why}", subject=self.peer)
                )
        self._in_flight.clear()
        if self._large is not None:
            self._large.release()
        if self._memory is not None:
            self._memory.forget(self)
        self.closed.set()
        if self._on_close:
            self._on_close(self)

    def pause_writing(self) -> None:
        if self._memory is not None and self._transport is not None:
            if self._large is None:
                self._write = self._write_counted
            self._count_unsent(self._transport)

    def resume_writing(self) -> None:
        if self._memory is None or self._transport is None:
            return
        if (large := self._large) is not None:
            if not large.advance():
                self._schedule_large(large)
                return
            self._large, self._write = None, self._write_counted
            if large.is_full:
                return  # it was paused again
        self._write = self._write_uncounted
        self._memory.unsent(self, 0)
        # Kept requests come first. Their replies may congest the connection again.
        if self._is_congested:
            self._is_congested = False
            self._process_kept()
        if not self._is_congested:
            self._memory.on_writable(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.has_answered = True
        if self._measured_times is not None:
            self._measured_times.on_received()
        data = self._view[:nbytes]
        is_behind = self._decoder.buffered or self._kept or self._turns_until_s or self._is_congested
        for serve in self._reads if not is_behind else ():
            responses, served = serve(self, data)
            if responses:
                self._write(responses)
            if served == nbytes:
                return
            if served:
                data = data[served:]
                break
        try:
            commands = self._decoder.receive_data(data)
        except FrameError as error:
            self._process(error.commands)
            log_seldom(logger, logging.WARNING, "damaged", "%s: closing the connection: %s", self.peer, error)
            self.close()
        else:
            if self._kept or self._is_congested:  # by `read_hooks`, or a transport has more after it was paused
                self._kept += commands
            elif self._has_partial_frame and commands and len(commands[0].body) >= LARGE_SIZE:
                self._process_later(commands)  # decoding a message of megabytes takes as long as storing it
            else:
                self._process(commands, is_rest=len(data) < nbytes)
            if (self._has_partial_frame or not commands) and self._memory is not None and self._transport is not None:
                self._has_partial_frame = (size := self._decoder.buffered) > 0
                self._memory.on_read(self, len(data), size, is_complete=bool(commands))
        if self._turns_until_s and not self._kept and asyncio.get_running_loop().time() > self._turns_until_s:
            self._turns_until_s, self._view = 0.0, self._buffer.view

    def _may_decode(self, cost: int) -> bool:
        """Whether Python may decode a header now; otherwise wait for a turn."""
        if turns_of(asyncio.get_running_loop()).may_decode(cost):
            return True
        self._has_partial_frame = self._memory is not None
        self._wait_for_turn()
        return False

    def _write_counted(self, data: bytes) -> None:
        if self._transport is not None:
            self._write_uncounted(data)
            self._batching.flush()  # otherwise the transport does not have it yet
            # Unless `resume_writing` has ended the counting.
            if self._write == self._write_counted:
                self._count_unsent(self._transport)

    def _schedule_large(self, large: LargeWrites) -> None:
        """Continue in its turn; a full transport calls `resume_writing` instead."""
        if not large.is_full:
            turns_of(asyncio.get_running_loop()).wait(self.resume_writing)

    def _write_behind(self, data: bytes) -> None:
        if self._transport is not None and self._large is not None:
            self._large.append(data)
            self._count_unsent(self._transport)

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        assert self._memory is not None
        size = transport.get_write_buffer_size() + (0 if self._large is None else self._large.size)
        self._memory.unsent(self, size)
        if not self._is_congested and self._memory.is_congested(size):
            self._is_congested = True
            self._set_reading()

    def _set_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_congested or self._is_waiting or self.is_sliced or self._is_resting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _process(self, commands: list[RemotingCommand], *, is_rest: bool = False) -> None:
        """Process a read and write its replies together; once congested, keep the rest for `resume_writing`."""
        replies, size, position = list[bytes](), 0, 0
        takes_turns = is_rest or len(commands) > UNSLICED or self._turns_until_s
        for end in self._slice_ends(commands) if takes_turns else (len(commands),):
            while position < end:
                command = commands[position]
                position += 1
                if command.flag & FLAG_RESPONSE:
                    request = self._in_flight.pop(command.opaque, None)
                    if request is not None and not request.done():
                        request.set_result(command)
                    continue
                serve_run = self._runs.get(command.code) if position < end else None
                if serve_run is not None and self._is_next_in_run(commands[position], serve_run):
                    first = position - 1
                    while position < end and self._is_next_in_run(commands[position], serve_run):
                        position += 1
                    frame = b"".join(serve_run(self, commands[first:position])) or None
                else:
                    try:
                        reply = self._processor_of(command.code, _not_supported)(self, command)
                        # Spares a call: `encode_reply` would return the bytes unchanged.
                        if isinstance(reply, bytes) and not command.flag:
                            frame = reply
                        else:
                            frame = self.encode_reply(command, reply)
                    except Exception as error:
                        frame = self.encode_reply(command, error_response(self.peer, command, error))
                if frame is not None:
                    replies.append(frame)
                    size += len(frame)
                    if size > WRITE_LIMIT:
                        self._write(b"".join(replies))
                        replies, size = [], 0
                        if self._is_congested:
                            self._kept = commands[position:]
                            return
        if replies:
            self._write(b"".join(replies))

    def _is_next_in_run(self, command: RemotingCommand, serve_run: RunServer) -> bool:
        return not command.flag & FLAG_RESPONSE and self._runs.get(command.code) is serve_run

    def _slice_ends(self, commands: list[RemotingCommand]) -> Iterator[int]:
        """Yield the ends of parts for a slice of time; the rest waits for the next turn."""
        part = turns_of(asyncio.get_running_loop()).begin_slice(self.descriptor, takes_turns=self._turns_until_s > 0)
        for begin in range(0, len(commands), part.step):
            if begin and part.is_over():
                if until_s := part.probation_end_s():
                    self._turns_until_s, self._view = until_s, self._buffer.small_view
                self._process_later(commands[begin:])
                return
            yield min(begin + part.step, len(commands))

    def _process_later(self, commands: list[RemotingCommand]) -> None:
        self._kept = commands
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self.is_sliced:
            self.is_sliced = True
            self._set_reading()
            turns_of(asyncio.get_running_loop()).wait(self._process_next_slice)

    def _process_next_slice(self) -> None:
        self.is_sliced = False
        if not self._is_congested and self._transport is not None:
            self._process_kept()

    def _process_kept(self) -> None:
        kept, self._kept = self._kept, []
        self._process(kept)
        if self._decoder.is_behind and not (self._kept or self._is_congested or self.is_sliced):
            self.buffer_updated(0)
        self._set_reading()

    def encode_reply(self, command: RemotingCommand, reply: Reply) -> bytes | None:
        """Encode the response to a request; None if there is none (yet)."""
        if reply is not None and not isinstance(reply, (bytes, RemotingCommand)):
            self._reply_when_done(command, reply)
            return None
        if reply is None or command.flag & FLAG_ONEWAY:
            return None
        return reply if isinstance(reply, bytes) else reply.encode()

    def _reply_when_done(self, command: RemotingCommand, answer: Awaitable[Answer]) -> None:
        future = asyncio.ensure_future(answer)
        self._pending_replies.add(future)

        def done(future: asyncio.Future[Answer]) -> None:
            self._pending_replies.discard(future)
            if future.cancelled():
                return
            error = future.exception()
            reply = self.encode_reply(command, error_response(self.peer, command, error) if error else future.result())
            if reply is not None:
                self.send_at_iteration_end(reply)

        future.add_done_callback(done)

    def send_at_iteration_end(self, frame: bytes) -> None:
        """Send complete frames, in the iteration's shared write."""
        if not self._outgoing:
            self._batching.call_at_iteration_end(self._write_outgoing)
        self._outgoing.append(frame)

    def _write_outgoing(self) -> None:
        frames, self._outgoing = self._outgoing, []
        if frames and self._transport is not None and not self._transport.is_closing():
            self._write(b"".join(frames))

    def _idle_times_ms(self) -> tuple[int, int]:
        assert self._transport is not None
        sock: socket.socket = self._transport.get_extra_info("socket")
        return kernel_idle_times_ms(sock) if self._measured_times is None else self._measured_times.read_ms(sock)


def _not_supported(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
    if isinstance(command, UnreadableCommand):
        return connection.process_unreadable(command)
    return command.response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
    )
