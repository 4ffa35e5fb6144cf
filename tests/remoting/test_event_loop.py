"""The time of writes: at the end of the iteration on a BatchingEventLoop, at once on any other loop."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting.batching_event_loop import LARGE_WRITE, MAX_BATCH, MAX_EVENTS, BatchingEventLoop, write_batching_of
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer

FIRST, LAST = 1, 2

Act = Callable[[list[Connection], list[socket.socket]], None]


@asynccontextmanager
async def one_iteration(
    count: int, act: Act, *, size: int = 10, on_close: Callable[[Connection], None] | None = None
) -> AsyncIterator[list[socket.socket]]:
    """Yield the sockets of `count` peers whose requests, each for `size` bytes, the server reads in one iteration.

    `act` is called with the connections whose requests were processed and with all sockets, when the server processes
    the last request.
    """
    answered: list[Connection] = []
    peers: list[socket.socket] = []

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.code == LAST:
            assert len(answered) == count - 1, "all requests are in one iteration"
            act(answered, peers)
        answered.append(connection)
        return command.response(ResponseCode.SUCCESS, body=bytes(size))

    opened = asyncio.Semaphore(0)
    server = RemotingServer(
        "127.0.0.1", 0, {FIRST: answer, LAST: answer}, on_open=lambda _: opened.release(), on_close=on_close
    )
    await server.start()
    with ExitStack() as stack:
        for _ in range(count):
            peers.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            await opened.acquire()
        for number, peer in enumerate(peers, 1):
            peer.sendall(RemotingCommand.request(LAST if number == count else FIRST).encode())
            peer.setblocking(False)
        yield peers
    await server.stop()


async def commands(peer: socket.socket, count: int) -> list[RemotingCommand]:
    """Receive `count` commands, or those until the server closes."""
    decoder, received = FrameDecoder(), list[RemotingCommand]()
    while len(received) < count:
        data = await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
        if not data:
            break
        received += decoder.receive_data(data)
    return received


def has_arrived(peer: socket.socket, timeout_s: float) -> bool:
    return bool(select.select([peer], [], [], timeout_s)[0])


def reset(peer: socket.socket) -> None:
    """Close a connection so that the other side cannot write any more."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


async def test_replies_of_one_iteration_are_sent_at_its_end() -> None:
    is_batching = isinstance(asyncio.get_running_loop(), BatchingEventLoop)
    early: list[bool] = []

    def look(_: list[Connection], peers: list[socket.socket]) -> None:
        early.append(has_arrived(peers[0], 0 if is_batching else 30))

    async with one_iteration(3, look) as peers:
        for peer in peers:
            assert [len(command.body) for command in await commands(peer, 1)] == [10]
    assert early == [not is_batching]


@pytest.mark.parametrize(("count", "size"), [(2, LARGE_WRITE), (MAX_BATCH + 1, 10)])
async def test_a_large_reply_or_a_full_batch_is_sent_at_once(count: int, size: int) -> None:
    early: list[bool] = []

    def look(_: list[Connection], peers: list[socket.socket]) -> None:
        early.append(has_arrived(peers[0], 30))

    async with one_iteration(count, look, size=size) as peers:
        for peer in peers:
            assert [len(command.body) for command in await commands(peer, 1)] == [size]
    assert early == [True]


async def test_a_peer_lost_before_its_response_is_noticed_at_once() -> None:
    """The failed write is the last event of the iteration: nothing else would wake the loop."""
    late: list[str] = []

    def leave(_: list[Connection], peers: list[socket.socket]) -> None:
        reset(peers[0])

    gone = asyncio.Event()
    asyncio.get_running_loop().call_later(30, late.append, "only a timer woke the loop")
    async with one_iteration(2, leave, on_close=lambda _: gone.set()) as peers:
        await gone.wait()
        assert late == []
        assert len(await commands(peers[1], 1)) == 1


async def test_a_peer_lost_before_a_late_response_is_noticed_at_once() -> None:
    """A late response is written at the end of its iteration; a large one is sent, and fails, at once."""
    late: list[str] = []

    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    async def answer(command: RemotingCommand) -> RemotingCommand:
        loop.call_soon(reset, peer)  # in the iteration that has the response
        return command.response(ResponseCode.SUCCESS, body=bytes(LARGE_WRITE))

    server = RemotingServer("127.0.0.1", 0, {FIRST: lambda _, command: answer(command)}, on_close=lambda _: gone.set())
    await server.start()
    peer = socket.create_connection(("127.0.0.1", server.port))
    peer.sendall(RemotingCommand.request(FIRST).encode())
    loop.call_later(30, late.append, "only a timer woke the loop")
    await gone.wait()
    assert late == []
    await server.stop()


async def test_close_sends_the_batch_first() -> None:
    async with one_iteration(2, lambda answered, _: answered[0].close()) as peers:
        assert len(await commands(peers[0], 2)) == 1, "an answer, then the end"
        assert len(await commands(peers[1], 1)) == 1


async def test_commands_to_one_peer_keep_their_order() -> None:
    def tell(answered: list[Connection], _: list[socket.socket]) -> None:
        for opaque in range(5):
            answered[0].send(RemotingCommand(7, opaque=opaque))

    async with one_iteration(2, tell) as peers:
        answer, *told = await commands(peers[0], 6)
        assert answer.is_response
        assert [command.opaque for command in told] == list(range(5))


def test_many_ready_sockets_are_served_in_several_iterations() -> None:
    """What was called meanwhile runs in between, and a socket that got another reader has lost nothing."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for number, (one, _) in enumerate(pairs):
            loop.add_reader(one, served.append, number)
        between: list[int] = []
        rounds_s: list[float] = []
        while len(between) < 4:
            await asyncio.sleep(0)
            between.append(len(served))
            rounds_s.append(write_batching_of(loop).round_s())
        assert 0 < rounds_s[0] < rounds_s[1] < rounds_s[2], "for flow control: how long the last ones wait"
        assert between == [0, MAX_EVENTS, 2 * MAX_EVENTS, count]
        assert sorted(served) == list(range(count))
        served.clear()
        # While their events wait, the readers of the sockets that were served last are replaced.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = sorted(set(range(count)) - set(served))
        for number in waiting:
            loop.remove_reader(pairs[number][0])
            loop.add_reader(pairs[number][0], replaced.append, number)
        served.clear()
        for _ in range(4):
            await asyncio.sleep(0)
        assert set(replaced) == set(waiting)
        assert not set(waiting) & set(served)
        for one, _ in pairs:
            loop.remove_reader(one)
        for _ in range(5):
            await asyncio.sleep(0)
        assert write_batching_of(loop).round_s() == 0

    count = 2 * MAX_EVENTS + 10
    served: list[int] = []
    replaced: list[int] = []
    with ExitStack() as stack, asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
        pairs = [socket.socketpair() for _ in range(count)]
        for one, other in pairs:
            stack.enter_context(one)
            stack.enter_context(other)
            other.send(b"x")
        runner.run(serve())


def test_the_loop_tells_whether_another_socket_is_ready() -> None:
    async def ask() -> tuple[bool, bool, bool]:
        loop = asyncio.get_running_loop()
        for one in (first, second):
            loop.add_reader(one, list)
        batching = write_batching_of(loop)
        first_peer.send(b"x")
        alone = batching.is_any_ready(but=first.fileno())
        from_outside = batching.is_any_ready(but=second.fileno())
        second_peer.send(b"x")
        both = batching.is_any_ready(but=first.fileno())
        for one in (first, second):
            loop.remove_reader(one)
        return alone, from_outside, both

    with ExitStack() as stack:
        first, first_peer = map(stack.enter_context, socket.socketpair())
        second, second_peer = map(stack.enter_context, socket.socketpair())
        with asyncio.Runner(loop_factory=BatchingEventLoop) as runner:
            assert runner.run(ask()) == (False, True, True)
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            second.recv(1)
            assert runner.run(ask()) == (False, False, False), "a loop that cannot be asked"


async def test_many_writes_to_a_lost_peer_are_dropped_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio warns of the sixth write after the one that found the peer gone."""
    gone = asyncio.Event()

    def write(answered: list[Connection], peers: list[socket.socket]) -> None:
        reset(peers[0])
        for _ in range(20):
            answered[0].send(RemotingCommand.request(FIRST))

    async with one_iteration(2, write, on_close=lambda _: gone.set()) as peers:
        await gone.wait()
        assert len(await commands(peers[1], 1)) == 1
    assert [record for record in caplog.records if record.name == "asyncio"] == []
