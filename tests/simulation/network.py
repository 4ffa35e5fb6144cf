"""An event loop with a simulated clock and a simulated network: hundreds of servers and clients in one process.

The clock stands still while anything can run, and then jumps to the next timer, so that an hour of an idle cluster
takes as long as its work takes. Connections lie in memory: bytes arrive `latency_s` after they were written, in their
order. Servers and clients are those of the project, unchanged; everything else that they need, such as stores on disk,
is real.

Each of them belongs to a machine, named by `on_machine`. A machine can be killed: its peers see its connections break,
it is unreachable, and what it writes is lost.

Two runs with the same seed do the same in the same order, except for what threads do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from struct import Struct
from typing import Any

from simulation.in_memory import InMemoryLoop, InMemoryServer, InMemoryTransport, deliver

LATENCY_S = 0.0005
BEGIN_NS = 1_700_000_000_000_000_000
_RESOLUTION_S = 1e-6
_TCP_INFO = Struct("=44xI4xI")

_machine: ContextVar[str] = ContextVar("machine", default="")


class SimulatedSelector(selectors.DefaultSelector):
    """A selector that lets the time pass instead of waiting for it."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer only a thread or a real socket can continue.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.loop.now_s += max(timeout, _RESOLUTION_S)
        return ready


class SimulatedLoop(InMemoryLoop):
    """The loop, its clock and its network. Work for threads is done at once, on the loop."""

    def __init__(self, latency_s: float = LATENCY_S) -> None:
        selector = SimulatedSelector()
        selector.loop = self
        self.now_s = 0.0
        super().__init__(selector)
        self._clock_resolution = _RESOLUTION_S
        self.latency_s = latency_s
        self.bytes_to: Counter[str] = Counter()
        """Bytes that arrived at each machine."""
        self._listeners: dict[int, tuple[Callable[[], Any], str]] = {}
        self._transports: defaultdict[str, set[SimulatedTransport]] = defaultdict(set)
        self._killed: set[str] = set()
        self._ports = iter(range(1, 1 << 30))

    def time(self) -> float:
        return self.now_s

    async def create_server(self, protocols: Callable[[], Any], *, sock: Any, **options: Any) -> Any:
        port = sock.getsockname()[1]
        self._listeners[port] = (protocols, _machine.get())

        def close() -> None:
            self._listeners.pop(port, None)
            sock.close()

        return InMemoryServer(close)

    async def create_connection(self, protocols: Callable[[], Any], host: str, port: int, **options: Any) -> Any:
        own = _machine.get()
        await asyncio.sleep(2 * self.latency_s)
        listener = self._listeners.get(port)
        if listener is None or {own, listener[1]} & self._killed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        accepting, machine = listener
        near = SimulatedTransport(self, own, ("127.0.0.1", port))
        far = SimulatedTransport(self, machine, ("127.0.0.1", next(self._ports)))
        near.connect(far, protocols())
        far.connect(near, accepting())
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol

    def kill(self, machine: str) -> None:
        """Let a machine lose its power: it is not reachable any more, and its connections break."""
        self._killed.add(machine)
        for transport in list(self._transports[machine]):
            transport.abort()

    def restart(self, machine: str) -> None:
        """Let a machine be reachable again; what ran on it has to be started again."""
        self._killed.discard(machine)

    def is_killed(self, machine: str) -> bool:
        return machine in self._killed

    def opened(self, transport: SimulatedTransport) -> None:
        self._transports[transport.machine].add(transport)

    def closed(self, transport: SimulatedTransport) -> None:
        self._transports[transport.machine].discard(transport)


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    """Let everything that is started here, and what it starts, run on a machine."""
    token = _machine.set(name)
    try:
        yield
    finally:
        _machine.reset(token)


@contextmanager
def simulated_time(loop: SimulatedLoop) -> Iterator[None]:
    """Let the functions of the module `time` return the loop's time."""
    real = {name: getattr(time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns")}
    time.time_ns = lambda: BEGIN_NS + int(loop.now_s * 1e9)
    time.time = lambda: BEGIN_NS / 1e9 + loop.now_s
    time.monotonic = lambda: loop.now_s
    time.monotonic_ns = lambda: int(loop.now_s * 1e9)
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(time, name, function)


class SimulatedTransport(InMemoryTransport):
    """One end of a connection in memory."""

    def __init__(self, loop: SimulatedLoop, machine: str, peer: tuple[str, int]) -> None:
        super().__init__(peer)
        self.machine = machine
        self.protocol: Any = None
        self._loop = loop
        # Bytes on their way to this end; None is the end of the connection.
        self._arriving: deque[bytes | None] = deque()
        self._sent_s = self._received_s = loop.time()
        self._peer: SimulatedTransport

    def connect(self, peer: SimulatedTransport, protocol: Any) -> None:
        self._peer, self.protocol = peer, protocol
        self._loop.opened(self)

    # What a connection calls.

    def write(self, data: Any) -> None:
        if not self._is_closing and not self._loop.is_killed(self.machine):
            self._sent_s = self._loop.time()
            self._peer.arrive(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.closed(self)
            self._loop.call_soon(self.protocol.connection_lost, None)
            self._peer.arrive(None)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return the idle times as Linux does (TCP_INFO)."""
        now = self._loop.time()
        return _TCP_INFO.pack(int((now - self._sent_s) * 1000), int((now - self._received_s) * 1000)).ljust(size, b"\0")

    # What the other end calls.

    def arrive(self, data: bytes | None) -> None:
        self._arriving.append(data)
        self._loop.call_later(self._loop.latency_s, self._receive)

    def _receive(self) -> None:
        data = self._arriving.popleft()
        if self._is_closing:
            return
        if data is None:
            self.close()
            return
        if self._loop.is_killed(self.machine):
            return
        self._received_s = self._loop.time()
        self._loop.bytes_to[self.machine] += len(data)
        deliver(self.protocol, data)
