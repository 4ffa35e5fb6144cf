"""What leaves when: on a TurnLoop at the end of a turn, on any other loop at once."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting.connection import Connection
from rucola.remoting.event_loop import LARGE, MOST_UNSENT, TurnLoop
from rucola.remoting.server import RemotingServer

FIRST, LAST = 1, 2

Act = Callable[[list[Connection], list[socket.socket]], None]


@asynccontextmanager
async def one_turn(
    count: int, act: Act, *, size: int = 10, on_close: Callable[[Connection], None] | None = None
) -> AsyncIterator[list[socket.socket]]:
    """Give the sockets of so many peers who have all asked before the loop turns, each for `size` bytes.

    `act` is called with the connections that have been answered and with all sockets, when the last peer is served.
    """
    answered: list[Connection] = []
    peers: list[socket.socket] = []

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.code == LAST:
            assert len(answered) == count - 1, "all ask in one turn"
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
    """What the server sends to a peer, up to `count` commands, or to its end."""
    decoder, came = FrameDecoder(), list[RemotingCommand]()
    while len(came) < count:
        data = await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
        if not data:
            break
        came += decoder.receive_data(data)
    return came


def has_arrived(peer: socket.socket, timeout_s: float) -> bool:
    return bool(select.select([peer], [], [], timeout_s)[0])


def reset(peer: socket.socket) -> None:
    """Close a connection so that the other side cannot write any more."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


async def test_the_answers_of_a_turn_leave_at_its_end() -> None:
    in_turns = isinstance(asyncio.get_running_loop(), TurnLoop)
    early: list[bool] = []

    def look(_: list[Connection], peers: list[socket.socket]) -> None:
        early.append(has_arrived(peers[0], 0 if in_turns else 30))

    async with one_turn(3, look) as peers:
        for peer in peers:
            assert [len(command.body) for command in await commands(peer, 1)] == [10]
    assert early == [not in_turns]


async def test_a_large_answer_waits_for_nobody_and_nobody_behind_many() -> None:
    early: list[bool] = []

    def look(_: list[Connection], peers: list[socket.socket]) -> None:
        early.append(has_arrived(peers[0], 30))

    for count, size in ((2, LARGE), (MOST_UNSENT + 1, 10)):
        async with one_turn(count, look, size=size) as peers:
            for peer in peers:
                assert [len(command.body) for command in await commands(peer, 1)] == [size]
    assert early == [True, True]


async def test_a_peer_that_goes_before_its_answer_is_noticed_at_once() -> None:
    """The write that fails at the end of a turn is the last that happens: nothing else wakes the loop."""
    late: list[str] = []

    def leave(_: list[Connection], peers: list[socket.socket]) -> None:
        reset(peers[0])

    gone = asyncio.Event()
    asyncio.get_running_loop().call_later(30, late.append, "only a timer woke the loop")
    async with one_turn(2, leave, on_close=lambda _: gone.set()) as peers:
        await gone.wait()
        assert late == []
        assert len(await commands(peers[1], 1)) == 1


async def test_a_peer_that_goes_before_a_late_answer_is_noticed_at_once() -> None:
    """A late answer is given to the end of its turn; a large one is then written at once, and fails there."""
    late: list[str] = []

    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    async def answer(command: RemotingCommand) -> RemotingCommand:
        loop.call_soon(reset, peer)  # in the turn that has the answer
        return command.response(ResponseCode.SUCCESS, body=bytes(LARGE))

    server = RemotingServer("127.0.0.1", 0, {FIRST: lambda _, command: answer(command)}, on_close=lambda _: gone.set())
    await server.start()
    peer = socket.create_connection(("127.0.0.1", server.port))
    peer.sendall(RemotingCommand.request(FIRST).encode())
    loop.call_later(30, late.append, "only a timer woke the loop")
    await gone.wait()
    assert late == []
    await server.stop()


async def test_what_is_closed_has_sent_its_answer() -> None:
    async with one_turn(2, lambda answered, _: answered[0].close()) as peers:
        assert len(await commands(peers[0], 2)) == 1, "an answer, then the end"
        assert len(await commands(peers[1], 1)) == 1


async def test_what_one_peer_is_sent_keeps_its_order() -> None:
    def tell(answered: list[Connection], _: list[socket.socket]) -> None:
        for opaque in range(5):
            answered[0].send(RemotingCommand(7, opaque=opaque))

    async with one_turn(2, tell) as peers:
        answer, *told = await commands(peers[0], 6)
        assert answer.is_response
        assert [command.opaque for command in told] == list(range(5))
