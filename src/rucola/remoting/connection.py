"""Connection: one socket that carries commands in both directions.

Both peers send requests: a client to its broker, and a broker to its client (transaction check, rebalance notification,
direct consumption). So one asyncio protocol serves both:

* each request is passed to the processor of its code, whose reply is sent;
* each response completes the future of the request with its opaque.

A processor is a plain function `(connection, command) -> Reply`: a RemotingCommand, its encoded bytes, an awaitable of
either, or None (a held pull is answered later). If it raises, the response is SYSTEM_ERROR with the error's text, and
the connection stays open. One-way requests are never answered.

**States.**

    state      entered by                  behaviour
    new        construction                cannot send; `is_open` is false
    open       connection_made             reads, processes, writes
    paused     its Budget                  does not read, keeps decoded requests; processes them before it reads again
    closing    close, or a damaged stream  reads nothing; `send` drops its command; sends earlier writes for
                                           CLOSE_TIMEOUT_S at most
    closed     connection_lost             requests in flight fail with RemotingConnectError; `closed` is set

**Batching.** All frames of a read are processed, and their replies leave in one write, on a BatchingEventLoop with
other connections' requests. All connections of a loop share one receive buffer. Requests that follow each other can be
served together (`ReadHooks`).

**Back pressure.** `budget` says when a server does not read from a connection. A client only lets others go first: two
peers that stop reading could wait for each other for ever. `server_requests` bounds its responses.

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias, cast

from rucola.access import Caller
from rucola.acl.challenge import Challenge
from rucola.acl.credentials import Credentials
from rucola.errors import RemoteProtocolError, RemotingConnectError, RemotingTimeout
from rucola.outages import log_rate_limited
from rucola.protocol.codes import ResponseCode, name_of
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, UnreadableCommand
from rucola.protocol.frame import LARGE_SIZE, FrameDecoder, FrameError
from rucola.remoting.addresses import address_of
from rucola.remoting.batching_event_loop import WriteBatching, write_batching_of
from rucola.remoting.budget import UNCOUNTED, Budget, Pause, ServerBudget
from rucola.remoting.deadline import Deadline
from rucola.remoting.idle_times import KERNEL_TELLS, MeasuredIdleTimes, Silence, kernel_idle_times_ms
from rucola.remoting.keepalive import enable_keepalive
from rucola.remoting.large_writes import LargeBody, LargeWrites
from rucola.remoting.refusals import error_response
from rucola.remoting.tls import hint_of_silence, subject_of
from rucola.remoting.turns import Turns, turns_of

logger = logging.getLogger(__name__)

Answer: TypeAlias = "RemotingCommand | bytes | None"
Reply: TypeAlias = "Answer | Awaitable[Answer]"
Processor: TypeAlias = "Callable[[Connection, RemotingCommand], Reply]"
ReadServer: TypeAlias = "Callable[[Connection, memoryview], tuple[bytes, int]]"
RunServer: TypeAlias = "Callable[[Connection, list[RemotingCommand]], list[bytes]]"


class ReadHooks(NamedTuple):
    """How a server serves several requests of one read together; by default their processors serve one by one."""

    reads: Sequence[ReadServer] = ()
    """Called with an undecoded read, and with the rest of it, until none serves requests at its start: returns
    responses, and the position after these requests, or 0."""
    runs: Mapping[int, RunServer] = {}
    """By request code: called, instead of a processor, with several requests that follow each other."""


READ_SIZE: Final = 256 * 1024
"""Bytes, the most that one read returns."""
SMALL_READ_SIZE: Final = 8 * 1024
"""The same while reads bring more work than fits: decoding 256 KB can take 3 ms."""
WRITE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of responses joined into one write."""
MAX_RUN: Final = 64
"""Requests that are served together."""
CLOSE_TIMEOUT_S = 3.0
"""Seconds until a closing connection drops its unsent bytes."""


def receive_buffer() -> memoryview:
    """Return a buffer for all connections of a loop: the decoder copies bytes before `buffer_updated` returns."""
    return memoryview(bytearray(READ_SIZE))


class Connection(asyncio.BufferedProtocol):
    """One socket, created by RemotingServer or RemotingClient. Belongs to one event loop.

    `processor_of` returns the processor of a code, or the default. `server_budget` and `read_hooks` belong to a
    server. `on_open` and `on_close` are called with the connection. `peer` is "ip:port" of the other side. `closed` is
    set when the socket is closed. Requests are signed with `credentials`, if given. `has_answered` if a connection to
    the same address has received anything before.
    """

    def __init__(
        self,
        processor_of: Callable[[int, Processor], Processor],
        buffer: memoryview,
        max_frame_size: int,
        server_budget: ServerBudget | None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        credentials: Credentials | None = None,
        read_hooks: ReadHooks = ReadHooks(),  # noqa: B008 - immutable
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
        self._processor_of = processor_of
        self._buffer = self._view = buffer  # the part in which it receives
        self._decoder = FrameDecoder(max_frame_size, self._may_decode)
        self._server_budget = server_budget
        self._budget = Budget(self, server_budget)
        self._credentials = credentials
        self._reads, self._runs = read_hooks
        self._on_open = on_open
        self._on_close = on_close
        self.has_answered = has_answered
        """Whether any byte was received, by this connection or by one before it to the same address."""
        self._has_logged_unreadable = False  # an unreadable frame: only the first one is
        self._kept: list[RemotingCommand] = []  # while it is paused
        self._is_damaged = False  # closes when the commands before the damage are processed
        self._in_flight: dict[int, asyncio.Future[RemotingCommand]] = {}  # outgoing requests by opaque
        self._pending_replies: set[asyncio.Future[Answer]] = set()  # being computed; keeps their tasks alive
        self._large: LargeWrites | None = None  # while the transport is too full for all of a large frame
        self._outgoing: list[bytes] = []  # frames of this iteration, written together
        self._abort_timer: asyncio.TimerHandle | None = None  # aborts a closing connection after CLOSE_TIMEOUT_S
        self._silence = Silence()
        self._close_reason = "closed"  # the error of requests in flight if the transport has none
        self._transport: asyncio.Transport | None = None  # None before it is connected, and after
        self._measured_times: MeasuredIdleTimes | None = None  # None if the kernel measures idle times
        self._turns: Turns  # this one and the next three are set by `connection_made`
        self._batching: WriteBatching
        self._write: Callable[[bytes], None]
        self._write_uncounted: Callable[[bytes], None]

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_congested(self) -> bool:
        return Pause.OUTPUT in self._budget.paused

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
            self._large, self._write = large, self._write_counted
            self._budget.pause(Pause.OUTPUT)
            self._schedule_large(large)

    def answer(self, command: RemotingCommand, answer: Answer) -> None:
        """Answer a held request, in the iteration's shared write."""
        if (frame := self.encode_reply(command, answer)) is not None:
            self.send_at_iteration_end(frame)

    def send_error(self, command: RemotingCommand, error: Exception) -> None:
        self.send(error_response(self.peer, command, error))

    async def request(self, command: RemotingCommand, deadline: Deadline) -> RemotingCommand:
        """Send a request, not after the deadline, and return its response. RemotingTimeout, RemotingConnectError."""
        return (await self.request_all([command], deadline))[0]

    async def request_all(self, commands: Sequence[RemotingCommand], deadline: Deadline) -> list[RemotingCommand]:
        """Send requests in one write, and return their responses. Errors as `request`, if any of them fails."""
        name = name_of(commands[0].code)
        if not (waited_ms := deadline.left_ms):
            raise RemotingTimeout(f"no time was left to send {name} to {self.peer}", subject=self.peer)
        if len(commands) > 1:
            self.send_at_iteration_end(b"")  # what is posted follows it
        answers = [self.post(command) for command in commands]
        if len(commands) > 1:
            self._write_outgoing()
        try:
            async with deadline.scope():
                return [await answers[0]] if len(answers) == 1 else await asyncio.gather(*answers)
        except TimeoutError:
            for command in commands:
                self.timed_out(command, waited_ms)
            raise RemotingTimeout(
                f"{self.peer} sent no response to {name} within {deadline.timeout_ms:.0f} ms", subject=self.peer
            ) from None
        finally:
            for command in commands:
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
        if self._server_budget is not None or self._transport is None or self._transport.is_closing():
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

    # For its budget.

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is None:
            return
        kept, self._kept = self._kept, []
        self._process(kept)
        if self._decoder.is_behind and not self._budget.paused:
            self.buffer_updated(0)
        if self._is_damaged and not self._kept:
            self.close()
        elif not self._budget.paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def process_unreadable(self, command: UnreadableCommand) -> RemotingCommand | None:
        """Return the error response, None if the opaque is unreadable; an unreadable response fails its request."""
        if not self._has_logged_unreadable:
            log_rate_limited(
                logger, logging.WARNING, "unreadable", "%s: a frame cannot be read: %s", self.peer, command.why
            )
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
        loop = asyncio.get_running_loop()
        self._turns, self._batching = turns_of(loop), write_batching_of(loop)
        self._write = self._batching.writer_of(self._transport)
        if not KERNEL_TELLS:
            self._measured_times = MeasuredIdleTimes()
            self._write = self._measured_times.measuring(self._write)
        self._write_uncounted = self._write
        if self._server_budget is not None:
            self._transport.set_write_buffer_limits(high=UNCOUNTED)
        enable_keepalive(transport.get_extra_info("socket"), is_client=self._server_budget is None)
        name = transport.get_extra_info("peername")
        self.peer = address_of(name) if name else "?"
        self.caller = self.latest_caller = Caller(self.peer, None, subject_of(transport.get_extra_info("peercert")))
        if self._on_open:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        why = str(exc or self._close_reason)
        if self._in_flight and self._transport is not None and self._server_budget is None and not self.has_answered:
            why += hint_of_silence(self._transport)
        self._transport = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if not self._decoder.is_between_frames:
            log_rate_limited(logger, logging.INFO, "cut off", "%s: closed in the middle of a frame", self.peer)
        self._decoder = FrameDecoder()  # the other one refers to this connection
        for answer in self._in_flight.values():
            if not answer.done():
                answer.set_exception(
                    RemotingConnectError(f"the connection to {self.peer} broke: {why}", subject=self.peer)
                )
        self._in_flight.clear()
        if self._large is not None:
            self._large.release()
        self._budget.close()
        self.closed.set()
        if self._on_close:
            self._on_close(self)

    def pause_writing(self) -> None:
        if self._server_budget is not None:
            self._write = self._write_counted
            self._count_unsent()

    def resume_writing(self) -> None:
        if self._server_budget is None or self._transport is None:
            return
        if (large := self._large) is not None:
            if not large.advance():
                self._schedule_large(large)
                return
            self._large = None
            if large.is_full:
                return  # it was paused again
        self._write = self._write_uncounted
        self._budget.sent(0)
        self._budget.resume(Pause.OUTPUT)  # the replies to kept requests may cause the next pause
        if not self.is_congested:
            self._server_budget.on_writable(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.has_answered = True
        if self._measured_times is not None:
            self._measured_times.on_received()
        data, budget = self._view[:nbytes], self._budget
        if self._reads and not (self._decoder.buffered or budget.paused) and self._view is self._buffer:
            data = self._serve_undecoded(data)
            if not data:
                return
        if self._is_damaged:
            return
        try:
            commands = self._decoder.receive_data(data)
        except FrameError as error:
            log_rate_limited(logger, logging.WARNING, "damaged", "%s: closing the connection: %s", self.peer, error)
            commands, self._is_damaged = error.commands, True
        if budget.paused:  # a transport has more after it was paused
            self._kept += commands
        elif budget.bytes_in and commands and len(commands[0].body) >= LARGE_SIZE:
            self._kept = commands  # decoding a message of megabytes takes as long as storing it
            self._wait_for_turn()
        else:
            self._process(commands)
        if not commands or budget.bytes_in or budget.paused:
            budget.received(len(data), self._decoder.buffered, is_complete=bool(commands))
        if self._view is not self._buffer and nbytes and not budget.paused:
            self._view = self._buffer
        if self._is_damaged and not self._kept:
            self.close()

    def _serve_undecoded(self, data: memoryview) -> memoryview:
        """Serve requests at the start of a read, write their responses together, and return the rest of the read."""
        frames, size, turns, look_s = list[bytes](), 0, self._turns, 0.0
        while data:
            for serve in self._reads:
                responses, served = serve(self, data)
                if responses:
                    frames.append(responses)
                    size += len(responses)
                if served:
                    break
            else:
                break
            data = data[served:]
            if not data:
                break
            look_s = look_s or turns.begin()
            if turns.now_s() > look_s and not (look_s := turns.look(self.descriptor)):
                self._view = self._buffer[:SMALL_READ_SIZE]
                self._wait_for_turn()
            if size > WRITE_LIMIT or self._budget.paused:
                break
        if frames:
            self._write(frames[0] if len(frames) == 1 else b"".join(frames))
        return data

    def _may_decode(self) -> bool:
        """Whether Python may decode a header now; otherwise wait for a turn."""
        if self._turns.may_decode():
            return True
        self._wait_for_turn()
        return False

    def _wait_for_turn(self) -> None:
        if Pause.WORK not in self._budget.paused:
            self._budget.pause(Pause.WORK)
            self._turns.wait(partial(self._budget.resume, Pause.WORK))

    def _write_counted(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._large is not None:
            self._large.append(data)
        else:
            self._write_uncounted(data)
            self._batching.flush()  # otherwise the transport does not have it yet
        if self._write == self._write_counted:  # unless `resume_writing` has ended the counting
            self._count_unsent()

    def _count_unsent(self) -> None:
        self._budget.sent(self.unsent_bytes + (0 if self._large is None else self._large.size))

    def _schedule_large(self, large: LargeWrites) -> None:
        """Continue in its turn; a full transport calls `resume_writing` instead."""
        if not large.is_full:
            self._turns.wait(self.resume_writing)

    def _process(self, commands: list[RemotingCommand]) -> None:
        """Process commands, and write their replies together; once paused, keep the rest."""
        replies, size, position, end = list[bytes](), 0, 0, len(commands)
        budget, now_s, look_s = self._budget, self._turns.now_s, self._turns.begin() if end > 1 else 0.0
        while position < end:
            if position:
                if not budget.paused and now_s() > look_s and not (look_s := self._turns.look(self.descriptor)):
                    self._view = self._buffer[:SMALL_READ_SIZE]
                    self._wait_for_turn()
                if budget.paused:
                    self._kept = commands[position:]
                    break
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
                run_end = min(first + MAX_RUN, end)
                while position < run_end and self._is_next_in_run(commands[position], serve_run):
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
        if replies:
            self._write(b"".join(replies))

    def _is_next_in_run(self, command: RemotingCommand, serve_run: RunServer) -> bool:
        return not command.flag & FLAG_RESPONSE and self._runs.get(command.code) is serve_run

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
