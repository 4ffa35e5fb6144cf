"""Connection: one socket that carries commands both ways.

Both sides of RocketMQ's remoting send requests: a client asks its broker, and a broker asks its client (check a
transaction, rebalance, consume directly). So there is one kind of connection for both, an asyncio protocol that

* hands each request to the processor of its code, and sends what the processor returns;
* gives each answer to whoever waits for its opaque.

A processor is a plain function `(connection, command) -> Reply`. A Reply is a RemotingCommand, or its encoded
bytes, or None for no answer (one that was held sends it later by `send`), or an awaitable of these. An error that
a processor raises becomes an answer with SYSTEM_ERROR and the error's text, and the connection lives on. One-way
requests are processed and never answered.

Work is done per read, not per message: all frames of a read are decoded and processed, then their replies leave
in one write; in a TurnLoop together with those of other connections (see `remoting.turns`). All connections of one
event loop receive into one buffer, so an idle connection costs no buffer.

A server stops reading from a peer that does not read its answers once `WRITE_LIMIT` bytes wait for it: memory per
connection stays bounded. When the peer has caught up, what is left of a read is processed, and reading goes on. A
client never stops reading, for if both sides did, two that have much to say to each other would wait for ever; what it
has under way bounds its memory.

A peer can vanish without a word (cut cable, forgetful firewall, dead machine): the connection is then half-open, writes
succeed and no answer comes. The client's side closes such a connection (Apache: clientCloseSocketIfTimeout)

    when a request timed out and nothing was received since it was sent, for MIN_SILENCE_MS at least. What else is in
    flight fails at once, so that it can be retried on a new connection. A connection that carries other answers
    meanwhile is kept: there, only the one request was slow.

The kernel's keepalive covers idle connections on both sides. How long nothing was received is asked of the kernel
(TCP_INFO), and only after a timeout: it costs no work per read, and bytes that wait unread, because this process itself
was stopped, count as received.

A whole frame whose header cannot be read is answered SYSTEM_ERROR if its opaque can be read, and else ignored; the
first of a connection is logged. A stream that is not a sequence of frames is closed with one line in the log, after the
commands before the bad bytes have been answered. Closing lets what was written go out, for `CLOSE_TIMEOUT_S` at most.

Answers to `NettyRemotingAbstract` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias, cast

from rucola.access import Caller, Refused
from rucola.errors import MQError, RemoteProtocolError, RemotingConnectError, RemotingTimeout
from rucola.protocol.codes import ResponseCode, name_of
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, UnreadableCommand
from rucola.protocol.frame import FrameDecoder, FrameError
from rucola.remoting.deadline import Deadline
from rucola.remoting.event_loop import AtOnce, Turns, turns_of
from rucola.remoting.refusals import refusal_response

logger = logging.getLogger(__name__)

Answer: TypeAlias = "RemotingCommand | bytes | None"
Reply: TypeAlias = "Answer | Awaitable[Answer]"
Processor: TypeAlias = "Callable[[Connection, RemotingCommand], Reply]"

READ_SIZE: Final = 256 * 1024
WRITE_LIMIT: Final = 4 * 1024 * 1024
CLOSE_TIMEOUT_S = 3.0
MIN_SILENCE_MS = 1000
"""Least time without a received byte, while a request waits, after which a connection counts as half-open."""
KERNEL_TICK_MS: Final = 10
"""How coarse the kernel's times of a connection are, at most."""

_TCP_INFO: Final = Struct("=44xI4xI")
"""Of the kernel's struct tcp_info: the milliseconds since data was last sent, and since some was last received."""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of idleness before the first probe, seconds between probes, and unanswered probes that end the connection."""

_USER_TIMEOUT: Final = {"TCP_USER_TIMEOUT": 30_000}
"""Milliseconds for which sent data may stay unacknowledged. Only for clients: a server waits for slow readers."""


class ReceiveBuffer:
    """The one buffer that every connection of an event loop receives into.

    asyncio calls `get_buffer` and `buffer_updated` of a connection without anything in between, and the bytes
    are copied out before `buffer_updated` returns.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_SIZE))


class Connection(asyncio.BufferedProtocol):
    """One socket. Made by RemotingServer and RemotingClient, not by users.

    `is_accepted` tells a server's connection from a client's. `peer` is "ip:port" of the other side. `closed` is set
    when the socket is gone.
    """

    def __init__(
        self,
        processors: Mapping[int, Processor],
        buffer: ReceiveBuffer,
        max_frame_size: int,
        is_accepted: bool,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.peer = ""
        self.caller = Caller("")
        """The peer as services and interceptors know it."""
        self.closed = asyncio.Event()
        self._processors = processors
        self._view = buffer.view
        self._decoder = FrameDecoder(max_frame_size)
        self._is_accepted = is_accepted
        self._sent_unreadable = False
        self._is_full = False
        self._postponed: list[RemotingCommand] = []
        self._on_open = on_open
        self._on_close = on_close
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._later: set[asyncio.Future[Answer]] = set()
        self._outgoing: list[bytes] = []
        self._abort: asyncio.TimerHandle | None = None
        self._asked_ms = 0.0
        self._end = "closed"
        self._transport: asyncio.Transport | None = None
        self._turns: Turns | AtOnce
        self._write: Callable[[bytes], None]

    # What users of a connection call.

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle_ms(self) -> int:
        """How long nothing was sent or received, by the kernel's account; 0 if the connection is closed."""
        return 0 if self._transport is None else min(self._quiet_ms())

    @property
    def silent_ms(self) -> int:
        """How long nothing was received, if an answer is awaited; 0 if none is, or if the connection is closed."""
        return self._quiet_ms()[1] if self._waiting and self._transport is not None else 0

    def send(self, command: RemotingCommand | bytes) -> None:
        """Send a one-way request or a late answer. On a closed connection it goes nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            frame = command if isinstance(command, bytes) else command.encode()
            if self._outgoing:
                self._outgoing.append(frame)  # behind those that wait for the end of this turn
            else:
                self._write(frame)

    async def request(self, command: RemotingCommand, deadline: Deadline) -> RemotingCommand:
        """Send a request and wait for its answer.

        RemotingTimeout if none came in time, RemotingConnectError if the connection is or gets closed. Without time
        left, nothing is sent.
        """
        if not (waited_ms := deadline.left_ms):
            raise RemotingTimeout(f"no time was left to send {name_of(command.code)} to {self.peer}")
        answer = self.post(command)
        try:
            async with deadline.scope():
                return await answer
        except TimeoutError:
            self.give_up(command, waited_ms)
            raise RemotingTimeout(
                f"{self.peer} gave no answer to {name_of(command.code)} within {deadline.timeout_ms:.0f} ms"
            ) from None
        finally:
            self._waiting.pop(command.opaque, None)

    def post(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Send a request, and return the future of its answer, or of RemotingConnectError. No timeout runs.

        While other answers are awaited, a request leaves with those of this turn of the event loop in one write: a
        system call that wakes the peer can cost more than everything else about a request. A caller that stops
        waiting calls `forget` or, after a timeout, `give_up`.
        """
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(RemotingConnectError(f"the connection to {self.peer} is closed"))
            return answer
        is_alone = not self._waiting
        self._waiting[command.opaque] = answer
        if is_alone:
            self.send(command)
        else:
            self._write_soon(command.encode())
        return answer

    def forget(self, command: RemotingCommand) -> None:
        """Wait no longer for the answer to a posted request; its future is cancelled."""
        if (answer := self._waiting.pop(command.opaque, None)) is not None:
            answer.cancel()

    def give_up(self, command: RemotingCommand, waited_ms: float) -> None:
        """Like `forget`, after the request timed out: the connection is closed if it is half-open."""
        self.forget(command)
        if self._is_accepted or self._transport is None or self._transport.is_closing():
            return
        now_ms = asyncio.get_running_loop().time() * 1000
        _, received_ms = self._quiet_ms()
        if received_ms + KERNEL_TICK_MS < waited_ms:
            return
        if now_ms - self._asked_ms > received_ms + KERNEL_TICK_MS:  # no earlier timeout belongs to this silence
            self._asked_ms = now_ms - waited_ms
        silence_ms = now_ms - self._asked_ms
        if silence_ms >= MIN_SILENCE_MS:
            self._end = f"nothing received for {silence_ms:.0f} ms while a request waited"
            logger.warning("%s: closing the connection: %s", self.peer, self._end)
            self._transport.abort()

    def close(self) -> None:
        """Close once what was written is sent, or when the peer does not take it."""
        if self._transport is not None and not self._transport.is_closing():
            self._write_outgoing()
            self._turns.flush()
            self._transport.close()
            self._abort = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def unreadable(self, command: UnreadableCommand) -> RemotingCommand | None:
        """Answer a request whose header cannot be read, if that is possible; fail the request of such an answer."""
        if not self._sent_unreadable:
            logger.warning("%s: a frame cannot be read: %s", self.peer, command.why)
        self._sent_unreadable = True
        if not command.opaque_is_known:
            return None
        if not command.is_answer:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=command.why)
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(RemoteProtocolError(f"{self.peer} gave an answer that cannot be read: {command.why}"))
        return None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._turns = turns_of(asyncio.get_running_loop())
        self._write = self._turns.writing_to(self._transport)
        self._transport.set_write_buffer_limits(high=WRITE_LIMIT)
        self._keep_alive(transport.get_extra_info("socket"))
        name = transport.get_extra_info("peername")
        self.peer = address_of(name) if name else "?"
        self.caller = Caller(self.peer)
        if self._on_open:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._abort is not None:
            self._abort.cancel()
        if not self._decoder.is_between_frames:
            logger.info("%s: closed in the middle of a frame", self.peer)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RemotingConnectError(f"the connection to {self.peer} broke: {exc or self._end}"))
        self._waiting.clear()
        self.closed.set()
        if self._on_close:
            self._on_close(self)

    def pause_writing(self) -> None:
        if self._is_accepted and self._transport is not None:
            self._is_full = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        postponed, self._postponed = self._postponed, []
        self._process(postponed)
        if not self._is_full and self._transport is not None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        try:
            commands = self._decoder.receive_data(self._view[:nbytes])
        except FrameError as error:
            self._process(error.commands)
            logger.warning("%s: closing the connection: %s", self.peer, error)
            self.close()
        else:
            self._process(commands)

    # The way of a read.

    def _process(self, commands: list[RemotingCommand]) -> None:
        replies: list[bytes] = []
        size = 0
        left = iter(commands)
        for command in left:
            if command.flag & FLAG_RESPONSE:
                waiting = self._waiting.pop(command.opaque, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
                continue
            try:
                reply = self._processors.get(command.code, _not_supported)(self, command)
                if reply.__class__ is not bytes or command.flag:  # most are what `_encoded` would return
                    reply = self._encoded(command, reply)
            except Exception as error:
                reply = self._encoded(command, self._failure(command, error))
            if reply is not None:
                replies.append(reply)
                size += len(reply)
                if size > WRITE_LIMIT:
                    self._write(b"".join(replies))
                    replies, size = [], 0
                    if self._is_full:
                        self._postponed = list(left)
        if replies:
            self._write(b"".join(replies))

    def _encoded(self, command: RemotingCommand, reply: Reply) -> bytes | None:
        """The encoded answer to a request, or None where there is none yet or none at all."""
        if reply is not None and not isinstance(reply, (bytes, RemotingCommand)):
            self._answer_later(command, reply)
            return None
        if reply is None or command.flag & FLAG_ONEWAY:
            return None
        return reply if isinstance(reply, bytes) else reply.encode()

    def _answer_later(self, command: RemotingCommand, answer: Awaitable[Answer]) -> None:
        """Send the answer when it is there, in one write with others that become ready in the same turn."""
        future = asyncio.ensure_future(answer)
        self._later.add(future)

        def done(future: asyncio.Future[Answer]) -> None:
            self._later.discard(future)
            if future.cancelled():
                return
            error = future.exception()
            reply = self._encoded(command, self._failure(command, error) if error else future.result())
            if reply is not None:
                self._write_soon(reply)

        future.add_done_callback(done)

    def _write_soon(self, frame: bytes) -> None:
        if not self._outgoing:
            self._turns.at_end(self._write_outgoing)
        self._outgoing.append(frame)

    def _write_outgoing(self) -> None:
        frames, self._outgoing = self._outgoing, []
        if frames and self._transport is not None and not self._transport.is_closing():
            self._write(b"".join(frames))

    def _quiet_ms(self) -> tuple[int, int]:
        """Return for how long nothing was sent, and nothing received."""
        assert self._transport is not None
        sock: socket.socket = self._transport.get_extra_info("socket")
        sent_ms, received_ms = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        return sent_ms, received_ms

    def _keep_alive(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (_KEEPALIVE if self._is_accepted else _KEEPALIVE | _USER_TIMEOUT).items():
            if hasattr(socket, name):  # not on every platform
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _failure(self, command: RemotingCommand, error: BaseException) -> RemotingCommand:
        """The answer that tells of a processor's error: the text of ours, only the kind of anything else."""
        if isinstance(error, Refused):
            return refusal_response(command, error)
        if isinstance(error, MQError):
            remark = str(error)
            if command.is_oneway:
                logger.warning("%s: one-way %s failed: %s", self.peer, name_of(command.code), error)
        else:
            logger.error("%s: %s failed", self.peer, name_of(command.code), exc_info=error)
            remark = f"{name_of(command.code)} failed inside the server ({type(error).__name__}); its log says more"
        return command.response(ResponseCode.SYSTEM_ERROR, remark=remark)


def _not_supported(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
    """The processor of all codes that have none, and of headers that cannot be read."""
    if isinstance(command, UnreadableCommand):
        return connection.unreadable(command)
    return command.response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
    )


def address_of(name: tuple[Any, ...]) -> str:
    """A socket name as text: `ip:port`, an IPv6 address in brackets."""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
