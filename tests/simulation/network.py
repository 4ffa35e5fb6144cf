"""An event loop with a simulated clock and a simulated network: hundreds of servers and clients in one process.

The clock stands still while anything can run, and then jumps to the next timer, so that an hour of an idle cluster
takes as long as its work takes. Connections lie in memory: bytes arrive some latency after they were written, in the
order of their connection. Servers and clients are those of the project, unchanged; everything else that they need, such
as stores on disk, is real.

Each of them belongs to a process of a machine, named by `on_machine`: "broker-0", or "broker-0/2" for the second
process of a machine.

    kill       a process loses its network; its code goes on
    end        a process is ended as by `kill -9`: none of its code runs any more, and its peers see the connections end
    power_off  a machine loses its power: as `end`, but its peers see nothing
    pause      none of a process's code runs until `resume`, as in a long collection of garbage or after SIGSTOP
    cut        bytes of one direction between two machines do not arrive until `heal`

Two runs with the same seed do the same in the same order, except for what threads do.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import os
import selectors
import socket
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
SYN_RETRY_S = 1.0
FIRST_PORT = 20_000
_RESOLUTION_S = 1e-6
_TCP_INFO = Struct("=44xI4xI")

_machine: ContextVar[str] = ContextVar("machine", default="")


def machine_of(process: str) -> str:
    """The machine of a process: the part of its name before the slash."""
    return process.partition("/")[0]


def current_machine() -> str:
    """The machine whose code is running; empty for the test's own."""
    return machine_of(_machine.get())


class SimulatedSelector(selectors.DefaultSelector):
    """A selector that lets the time pass instead of waiting for it."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer only a thread or a real socket can continue.
        has_threads = self.loop.thread_time is None
        ready = super().select(None if timeout is None else 0) if has_threads or timeout is None else []
        if not ready and timeout:
            self.loop.now_s += max(timeout, _RESOLUTION_S)
        return ready


class _ReadyHandles(deque[Any]):
    """The callbacks that are ready, without those of processes that are ended or paused."""

    loop: SimulatedLoop

    def popleft(self) -> Any:
        handle = super().popleft()
        process = handle._context.get(_machine, "")
        if process in self.loop.stopped:
            self.loop.stopped[process].append(handle)
            return self.loop.nothing
        return handle


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: a set of tasks has the same order in each run, and with each Python."""

    def __init__(self, work: Any, *, loop: SimulatedLoop, **options: Any) -> None:
        self._number = next(loop.task_numbers)
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(InMemoryLoop):
    """The loop, its clock and its network. Work for threads is done at once, on the loop."""

    def __init__(self, latency_s: float = LATENCY_S) -> None:
        selector = SimulatedSelector()
        selector.loop = self
        self.now_s = 0.0
        self.task_numbers = itertools.count()
        super().__init__(selector)
        self.set_task_factory(lambda loop, work, **options: _Task(work, loop=self, **options))
        self._clock_resolution = _RESOLUTION_S
        ready = _ReadyHandles(self._ready)
        ready.loop = self
        self._ready = ready
        self.nothing = asyncio.Handle(lambda: None, (), self)
        self.nothing.cancel()
        self.latency_s = latency_s
        self.latency_of: Callable[[str, str], float] = lambda source, target: self.latency_s
        """The latency of the next bytes from one machine to another."""
        self.clock_offsets: defaultdict[str, float] = defaultdict(float)
        """Seconds by which the wall clock of a machine is wrong."""
        self.bytes_to: Counter[str] = Counter()
        """Bytes that arrived at each machine."""
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of machines; no bytes of the first arrive at the second."""
        self.powered_off: set[str] = set()
        self.ended: set[str] = set()
        """Processes of which no code runs any more."""
        self.stopped: dict[str, list[Any]] = {}
        """The callbacks of ended and paused processes. What ended ones hold is kept, so that none of it is closed."""
        self._kept: list[Any] = []
        self._listeners: dict[int, tuple[Callable[[], Any], str, contextvars.Context]] = {}
        self._bound: dict[int, SimulatedSocket] = {}
        """The last socket that was bound to each port."""
        self._listening: dict[int, SimulatedSocket] = {}
        self._ends: defaultdict[str, dict[SimulatedEnd, None]] = defaultdict(dict)
        self._killed: set[str] = set()
        self._ports = iter(range(1, 1 << 30))
        self._readers: dict[Any, Callable[[], Any]] = {}

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        if self.thread_time is None:
            return super().run_in_executor(executor, work, *arguments)
        done = self.create_future()

        def run() -> None:
            result = InMemoryLoop.run_in_executor(self, executor, work, *arguments)
            if not done.cancelled():
                error = result.exception()
                done.set_result(result.result()) if error is None else done.set_exception(error)
            else:
                result.exception()

        self.call_later(self.thread_time(), run)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    # Servers and connections.

    async def create_server(self, protocols: Callable[[], Any], *, sock: Any, **options: Any) -> Any:
        port = sock.getsockname()[1]
        self._listeners[port] = (protocols, _machine.get(), contextvars.copy_context())

        def close() -> None:
            self._listeners.pop(port, None)
            sock.close()

        return InMemoryServer(close)

    async def create_connection(self, protocols: Callable[[], Any], host: str, port: int, **options: Any) -> Any:
        own = _machine.get()
        accepting, machine, context = await self._reach(own, port, self._listeners)
        near = SimulatedTransport(self, own, ("127.0.0.1", port), contextvars.copy_context())
        far = SimulatedTransport(self, machine, ("127.0.0.1", next(self._ports)), context.copy())
        near.connect(far, protocols())
        far.connect(near, far.context.run(accepting))
        far.context.run(far.protocol.connection_made, far)
        near.protocol.connection_made(near)
        return near, near.protocol

    async def _reach(self, own: str, port: int, listeners: dict[int, Any]) -> Any:
        """Return the listener of a port, as soon as its machine can be reached; ConnectionRefusedError without one."""
        source = machine_of(own)
        await asyncio.sleep(2 * self.latency_of(source, self._machine_at(port)))
        # TCP repeats its first packet.
        while (target := self._machine_at(port)) in self.powered_off or self.is_cut(source, target):  # noqa: ASYNC110
            await asyncio.sleep(SYN_RETRY_S)
        listener = listeners.get(port)
        if listener is None or {own, listener[1] if isinstance(listener, tuple) else listener.process} & self._killed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return listener

    def _machine_at(self, port: int) -> str:
        """The machine that has bound a port, or did so last."""
        if port in self._listeners:
            return machine_of(self._listeners[port][1])
        return machine_of(self._bound[port].process) if port in self._bound else ""

    def is_cut(self, one: str, other: str) -> bool:
        """Whether bytes do not arrive in both directions."""
        return (one, other) in self.cuts or (other, one) in self.cuts

    # Faults.

    def kill(self, machine: str) -> None:
        """Let a machine lose its network: it is not reachable any more, and its connections break."""
        self._killed.add(machine)
        for end in list(self._ends[machine]):
            end.abort()

    def restart(self, machine: str) -> None:
        """Let a machine be reachable again; what ran on it has to be started again."""
        self._killed.discard(machine)

    def is_killed(self, machine: str) -> bool:
        return machine in self._killed

    def end(self, process: str, *, is_noticed: bool = True) -> None:
        """End a process as by `kill -9`: none of its code runs any more. Its peers see that if `is_noticed`."""
        self._kept += asyncio.all_tasks(self)
        self.ended.add(process)
        self.stopped.setdefault(process, [])
        for port in [port for port, listener in self._listeners.items() if listener[1] == process]:
            self._kept.append(self._listeners.pop(port))
        for port in [port for port, sock in self._listening.items() if sock.process == process]:
            self._kept.append(self._listening.pop(port))
        for end in list(self._ends[process]):
            end.vanish(is_noticed=is_noticed)

    def power_off(self, machine: str, process: str) -> None:
        """Let a machine lose its power with the process on it; nobody can connect until `power_on`."""
        self.powered_off.add(machine)
        self.end(process, is_noticed=False)

    def power_on(self, machine: str) -> None:
        """Let a machine answer again: bytes of connections that it has forgotten are answered with a reset."""
        self.powered_off.discard(machine)

    def pause(self, process: str) -> None:
        """Let none of a process's code run; its time passes."""
        self.stopped.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Let a paused process go on, unless it was ended."""
        if process not in self.ended and process in self.stopped:
            self._ready.extend(self.stopped.pop(process))

    def cut(self, source: str, target: str) -> None:
        """Let bytes from one machine to another not arrive until `heal`."""
        self.cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Let bytes arrive again, those that were sent in the meantime included, as TCP does."""
        self.cuts.discard((source, target))
        for ends in list(self._ends.values()):
            for end in list(ends):
                end.wake()

    def reset_connections(self, one: str, other: str) -> int:
        """Break the connections between two machines: each end gets ECONNRESET. Return how many there were."""
        ends = [end for process, ends in self._ends.items() if machine_of(process) == one for end in list(ends)]
        broken = [end for end in ends if machine_of(end.peer.process) == other]
        for end in broken:
            end.reset()
            end.peer.reset()
        return len(broken)

    def opened(self, end: SimulatedEnd) -> None:
        self._ends[end.process][end] = None

    def closed(self, end: SimulatedEnd) -> None:
        self._ends[end.process].pop(end, None)

    # Sockets that the program reads and writes itself.

    def bind(self, sock: SimulatedSocket, port: int) -> int:
        if port == 0:
            port = next(port for port in range(FIRST_PORT, 1 << 16) if port not in self._bound)
        if port in self._listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._bound[port] = sock
        return port

    def listen(self, sock: SimulatedSocket, port: int) -> None:
        self._listening[port] = sock

    def unlisten(self, sock: SimulatedSocket, port: int) -> None:
        if self._listening.get(port) is sock:
            del self._listening[port]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        listening = await self._reach(sock.process, address[1], self._listening)
        accepted = SimulatedSocket(self, listening.process, listening.context.copy())
        sock.join(accepted, ("127.0.0.1", address[1]))
        accepted.join(sock, ("127.0.0.1", next(self._ports)))
        listening.accept(accepted)

    async def sock_accept(self, sock: Any) -> Any:
        while not sock.accepted:
            await sock.readable()
        accepted = sock.accepted.popleft()
        return accepted, accepted.getpeername()

    async def sock_recv(self, sock: Any, size: int) -> bytes:
        while True:
            try:
                return sock.recv(size)
            except BlockingIOError:
                await sock.readable()

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        sock.send(data)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *arguments: Any) -> Any:
        if not isinstance(fd, SimulatedSocket):
            return super().add_reader(fd, callback, *arguments)
        fd.callback = lambda: callback(*arguments)
        fd.notify()

    def remove_reader(self, fd: Any) -> Any:
        if not isinstance(fd, SimulatedSocket):
            return super().remove_reader(fd)
        was_there, fd.callback = fd.callback is not None, None
        return was_there


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

    def wall_ns() -> int:
        return BEGIN_NS + int((loop.now_s + loop.clock_offsets.get(current_machine(), 0.0)) * 1e9)

    names = ("time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime")
    real = {name: getattr(time, name) for name in names}
    time.time_ns = wall_ns
    time.time = lambda: wall_ns() / 1e9
    time.monotonic = lambda: loop.now_s
    time.monotonic_ns = lambda: int(loop.now_s * 1e9)
    time.clock_gettime = lambda clock: loop.now_s
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(time, name, function)


@contextmanager
def same_gather() -> Iterator[None]:
    """Let `asyncio.gather` need as many iterations with each Python: 3.11 needs one more for what is done already."""
    real = asyncio.gather

    async def result(done: Any) -> Any:
        return await done

    def gather(*awaited: Any, **options: Any) -> Any:
        return real(*[result(each) if asyncio.isfuture(each) and each.done() else each for each in awaited], **options)

    asyncio.gather = gather
    try:
        yield
    finally:
        asyncio.gather = real


@contextmanager
def simulated_sockets(loop: SimulatedLoop) -> Iterator[None]:
    """Let `socket.socket` make sockets of the simulated network, with the same ports in each run."""
    real = socket.socket
    socket.socket = lambda *kind: SimulatedSocket(loop)  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        socket.socket = real  # type: ignore[misc]


class SimulatedEnd:
    """One end of a connection: bytes on their way to it, in their order. None is the end of the connection."""

    def __init__(self, loop: SimulatedLoop, process: str, context: contextvars.Context) -> None:
        self._loop = loop
        self.process = process
        self.context = context
        context.run(_machine.set, process)
        self.peer: SimulatedEnd
        self.is_gone = False
        """Whether its process was ended: it takes and sends nothing."""
        self._arriving: deque[tuple[float, bytes | None]] = deque()
        self._last_due_s = 0.0

    def transmit(self, data: bytes | None) -> None:
        """Send bytes to the other end, or the end of the connection."""
        loop, peer = self._loop, self.peer
        source, target = machine_of(self.process), machine_of(peer.process)
        if peer.is_gone:
            if data is not None and target not in loop.powered_off and not loop.is_cut(source, target):
                loop.call_later(2 * loop.latency_of(source, target), self.reset, context=self.context)
            return
        peer._last_due_s = max(peer._last_due_s, loop.time() + loop.latency_of(source, target))
        peer._arriving.append((peer._last_due_s, data))
        loop.call_at(peer._last_due_s, peer.wake, context=peer.context)

    def wake(self) -> None:
        """Take what has arrived, unless the way is cut."""
        arriving, loop = self._arriving, self._loop
        way = machine_of(self.peer.process), machine_of(self.process)
        now_s = loop.time() + _RESOLUTION_S  # asyncio calls what is due so soon
        while arriving and arriving[0][0] <= now_s and way not in loop.cuts and not self.is_gone:
            _, data = arriving.popleft()
            # In a callback of its own, and in the context of its process: that may be paused.
            loop.call_soon(self.received, data, context=self.context)

    def vanish(self, *, is_noticed: bool) -> None:
        """End with the process; the other end gets the end of the connection if `is_noticed`."""
        if is_noticed:
            self.transmit(None)
        self.is_gone = True
        self._loop._kept.append(self)
        self._loop.closed(self)

    def received(self, data: bytes | None) -> None:
        """Take bytes, or the end of the connection."""
        raise NotImplementedError

    def reset(self) -> None:
        """Break with ECONNRESET."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError


class SimulatedTransport(SimulatedEnd, InMemoryTransport):
    """One end of a connection in memory, for a protocol."""

    def __init__(self, loop: SimulatedLoop, process: str, peer: tuple[str, int], context: contextvars.Context) -> None:
        InMemoryTransport.__init__(self, peer)
        SimulatedEnd.__init__(self, loop, process, context)
        self.protocol: Any = None
        self._sent_s = self._received_s = loop.time()

    def connect(self, peer: SimulatedEnd, protocol: Any) -> None:
        self.peer, self.protocol = peer, protocol
        self._loop.opened(self)

    # What a connection calls.

    def write(self, data: Any) -> None:
        if not self._is_closing and not self._loop.is_killed(self.process):
            self._sent_s = self._loop.time()
            self.transmit(bytes(data))

    def close(self) -> None:
        self._close(None)

    def abort(self) -> None:
        self.close()

    def _close(self, error: Exception | None) -> None:
        if not self._is_closing and not self.is_gone:
            self._is_closing = True
            self._loop.closed(self)
            self._loop.call_soon(self.protocol.connection_lost, error, context=self.context)
            self.transmit(None)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return the idle times as Linux does (TCP_INFO)."""
        now = self._loop.time()
        return _TCP_INFO.pack(int((now - self._sent_s) * 1000), int((now - self._received_s) * 1000)).ljust(size, b"\0")

    # What the network calls.

    def received(self, data: bytes | None) -> None:
        if self._is_closing or self.is_gone:
            return
        if data is None:
            self._close(None)
            return
        if self._loop.is_killed(self.process):
            return
        self._received_s = self._loop.time()
        self._loop.bytes_to[self.process] += len(data)
        deliver(self.protocol, data)

    def reset(self) -> None:
        self._close(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))


class SimulatedSocket(SimulatedEnd):
    """A socket that never blocks, of the simulated network; for listening as well."""

    def __init__(
        self, loop: SimulatedLoop, process: str | None = None, context: contextvars.Context | None = None
    ) -> None:
        own = contextvars.copy_context() if context is None else context
        super().__init__(loop, _machine.get() if process is None else process, own)
        self.is_closed = False
        self.accepted: deque[SimulatedSocket] = deque()
        self.callback: Callable[[], Any] | None = None
        self._port = 0
        self._peer_name: tuple[str, int] | None = None
        self._received: deque[bytes] = deque()
        self._has_ended = False
        self._error: OSError | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._is_notifying = False

    # What a program calls.

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *option: Any) -> None:
        """There are no options."""

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1

    def bind(self, address: tuple[str, int]) -> None:
        self._port = self._loop.bind(self, address[1])

    def connect(self, address: tuple[str, int]) -> None:
        """Datagrams have no connection."""

    def listen(self, backlog: int = 0) -> None:
        self._loop.listen(self, self._port)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def getpeername(self) -> tuple[str, int]:
        if self._peer_name is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer_name

    def recv(self, size: int) -> bytes:
        if self._received:
            data = self._received.popleft()
            if len(data) > size:
                self._received.appendleft(data[size:])
            return data[:size]
        self._check()
        if not self._has_ended:
            raise BlockingIOError
        return b""

    def send(self, data: Any) -> int:
        self._check()
        self.transmit(bytes(data))
        return len(data)

    def sendmsg(self, parts: Any) -> int:
        return self.send(b"".join(bytes(part) for part in parts))

    def close(self) -> None:
        if not self.is_closed and not self.is_gone:
            self.is_closed, self.callback = True, None
            self._loop.closed(self)
            self._loop.unlisten(self, self._port)
            if self._peer_name is not None:
                self.transmit(None)

    def abort(self) -> None:
        self.reset()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    # What the network calls.

    def join(self, peer: SimulatedSocket, peer_name: tuple[str, int]) -> None:
        self.peer, self._peer_name = peer, peer_name
        self._loop.opened(self)

    def accept(self, accepted: SimulatedSocket) -> None:
        self.accepted.append(accepted)
        self._loop.call_soon(self.notify, context=self.context)

    def received(self, data: bytes | None) -> None:
        if self.is_closed or self.is_gone:
            return
        if data is None:
            self._has_ended = True
        else:
            self._loop.bytes_to[self.process] += len(data)
            self._received.append(data)
        self.notify()

    def reset(self) -> None:
        if not self.is_closed and not self.is_gone:
            self._error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._received.clear()
            self._loop.closed(self)
            self.transmit(None)
            self._loop.call_soon(self.notify, context=self.context)

    def has_data(self) -> bool:
        return bool(self._received)

    async def readable(self) -> None:
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def notify(self) -> None:
        """Call the reader as often as there is something to read, and wake who waits for that."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        if self.callback is not None and not self._is_notifying and self._is_readable():
            self._is_notifying = True
            self._loop.call_soon(self._call, context=self.context)

    def _is_readable(self) -> bool:
        return bool(self._received) or self._has_ended or self._error is not None

    def _call(self) -> None:
        self._is_notifying = False
        if self.callback is not None and self._is_readable():
            self.callback()
            self.notify()
