"""The load generator: prebuilt requests over raw sockets, to use little CPU beside the server.

Requests are whole frames, built before the clock starts and sent in rotation. Each has an opaque of its own; a rotation
is longer than the number in flight, so that opaques are unambiguous. Responses are delimited by their length field, and
each must be a success: an error ends the benchmark with its remark.
"""

from __future__ import annotations

import gc
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from struct import Struct

import numpy as np

from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from servers import Process, Server

_LENGTH = Struct(">I")
_SUCCESS = b'{"code":0,'
READ_SIZE = 256 * 1024


@dataclass(frozen=True)
class Run:
    """`count` requests to one server: their duration, the server's CPU time, and the latency of each in ns."""

    count: int
    wall_ns: int
    cpu_ns: int
    latencies: np.ndarray

    @property
    def cpu_us(self) -> float:
        """The server's CPU time per request in µs."""
        return self.cpu_ns / self.count / 1e3

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.count / self.wall_ns * 1e9

    def latency_ms(self, percentile: float) -> float:
        return float(np.percentile(self.latencies, percentile)) / 1e6


class Line:
    """One connection, with its requests in flight, oldest first, and the begin of an incomplete response."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.sent_ns: deque[int] = deque()
        self._rest = b""

    def send(self, frames: Sequence[bytes]) -> None:
        self.sent_ns.extend([time.perf_counter_ns()] * len(frames))
        # The socket blocks: the requests in flight fit the kernel's buffers, or the server is reading them.
        self.socket.sendall(frames[0] if len(frames) == 1 else b"".join(frames))

    def receive(self) -> int:
        """Read once, and return the number of completed responses."""
        data = self.socket.recv(READ_SIZE)
        if not data:
            raise ConnectionError("the server closed the connection")
        while isinstance(self.socket, ssl.SSLSocket) and (pending := self.socket.pending()):
            data += self.socket.recv(pending)  # decrypted already: no poll would report it
        if self._rest:
            data = self._rest + data
        position, end, count = 0, len(data), 0
        while end - position >= 4:
            frame_end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if frame_end > end:
                break
            if not data.startswith(_SUCCESS, position + 8):
                raise RuntimeError(f"the server refused: {_decoded(data[position:frame_end])}")
            position = frame_end
            count += 1
        self._rest = data[position:]
        return count


def ask(server: Server | Process, frame: bytes) -> bytes:
    """Send one request on a connection of its own and return the frame of its response."""
    line = Line(server.port)
    with line.socket:
        line.socket.sendall(frame)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + _LENGTH.unpack_from(answer)[0]:
            answer += line.socket.recv(READ_SIZE)
    if not answer.startswith(_SUCCESS, 8):
        raise RuntimeError(f"the server refused: {_decoded(answer)}")
    return answer


def answer_to(server: Server | Process, frame: bytes) -> RemotingCommand:
    """Like `ask`, with the response decoded."""
    return _decoded(ask(server, frame))


def drive(
    server: Server | Process,
    frames: Sequence[bytes],
    count: int,
    *,
    connections: int = 1,
    in_flight: int = 1,
    context: ssl.SSLContext | None = None,
) -> Run:
    """Send `count` requests and wait for all responses, with `in_flight` on each connection.

    With `context` the connections are by TLS.
    """
    lines = {(line := Line(server.port, context)).socket.fileno(): line for _ in range(connections)}
    source = islice(cycle(frames), count)
    latencies: list[int] = []
    poll = select.epoll()
    for fd in lines:
        poll.register(fd, select.EPOLLIN)
    gc.collect()
    gc.disable()
    cpu_ns = server.cpu_ns()
    begin_ns = time.perf_counter_ns()
    for line in lines.values():
        line.send(list(islice(source, in_flight)))
    while len(latencies) < count:
        for fd, _ in poll.poll():
            line = lines[fd]
            arrived = line.receive()
            if not arrived:
                continue
            now_ns = time.perf_counter_ns()
            for _ in range(arrived):
                latencies.append(now_ns - line.sent_ns.popleft())
            following = list(islice(source, arrived))
            if following:
                line.send(following)
    wall_ns = time.perf_counter_ns() - begin_ns
    cpu_ns = server.cpu_ns() - cpu_ns
    gc.enable()
    poll.close()
    for line in lines.values():
        line.socket.close()
    return Run(count, wall_ns, cpu_ns, np.array(latencies))


def _decoded(frame: bytes) -> RemotingCommand:
    return FrameDecoder().receive_data(frame)[0]
