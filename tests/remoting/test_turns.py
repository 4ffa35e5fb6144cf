"""Turns: how long a connection processes requests before others go first."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Iterator

import pytest

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting import turns
from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.remoting.connection import Connection
from rucola.remoting.turns import ITERATION_S, TURNS_S, YIELD_S, Turns
from support.remoting_peers import ECHO, RawPeer, Security, echo, request, running_server


class ClockLoop(BatchingEventLoop):
    """Time passes as a test says."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def iterate(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()


@pytest.fixture
def loop() -> Iterator[ClockLoop]:
    loop = ClockLoop()
    yield loop
    loop.close()


def test_work_lasts_while_no_other_socket_is_ready(loop: ClockLoop) -> None:
    work = Turns(loop)
    begin_s = loop.now_s
    look_s, looks = work.begin(), 0
    while look_s:
        assert loop.now_s < look_s <= loop.now_s + YIELD_S
        loop.now_s = look_s
        look_s, looks = work.look(-1), looks + 1
    assert ITERATION_S <= loop.now_s - begin_s < ITERATION_S + 2 * YIELD_S
    assert looks >= ITERATION_S / YIELD_S
    # Other connections of this iteration have the least that each has.
    assert work.begin() == loop.now_s + YIELD_S
    assert not work.look(-1)


def test_another_socket_that_is_ready_goes_first(loop: ClockLoop) -> None:
    work = Turns(loop)
    here, peer = socket.socketpair()
    with here, peer:
        loop.add_reader(here, lambda: None)
        work.begin()
        assert work.look(-1)
        peer.send(b"x")
        assert work.look(here.fileno())
        assert not work.look(-1)
        loop.remove_reader(here)


def test_turns_share_a_part_of_each_iteration(loop: ClockLoop) -> None:
    """At least one request of one connection, after the reads; then the next one's."""
    work = Turns(loop)
    served: list[str] = []

    def serve(name: str, cost_s: float) -> None:
        served.append(name)
        assert work.begin() <= loop.now_s + TURNS_S
        loop.now_s += cost_s
        assert not work.look(-1), "others wait"
        work.wait(lambda: serve(name, cost_s))

    for name, cost_s in (("a", 2 * TURNS_S), ("b", TURNS_S / 2), ("c", TURNS_S / 2)):
        work.wait(lambda name=name, cost_s=cost_s: serve(name, cost_s))
    assert not work.look(-1)
    shares: list[str] = []
    for _ in range(5):
        loop.iterate()
        shares.append("".join(served))
        served.clear()
    assert "".join(shares).startswith("abcabc")
    assert set(shares) - {""} == {"a", "bc"}


NOT_PLAIN = 4000
"""Bytes of a header that Python decodes, with its prefix."""


def not_plain(opaque: int) -> bytes:
    """Return an ECHO whose names are in single quotes."""
    header = (b"{'code':%d,'opaque':%d,'remark':'" % (ECHO, opaque)).ljust(NOT_PLAIN - 10, b"x") + b"'}"
    return struct.pack(">iI", 4 + len(header), len(header)) + header


async def test_headers_that_python_decodes_share_each_iteration(
    transport: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two peers send 60 of them each; both are answered in order, and their memory is counted meanwhile."""
    for name in ("ITERATION_S", "TURNS_S"):
        monkeypatch.setattr(turns, name, 0)
    iteration, counted, is_done = 0, list[int](), False
    in_iteration: Counter[int] = Counter()

    def next_iteration() -> None:
        nonlocal iteration
        iteration += 1
        if not is_done:
            asyncio.get_running_loop().call_soon(next_iteration)

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        in_iteration[iteration] += 1
        counted.append(server.budget.bytes_in)
        return echo(connection, command)

    async with running_server({ECHO: answer}) as server:
        peers = [await RawPeer.to(server) for _ in range(2)]
        next_iteration()
        flood = b"".join(map(not_plain, range(60)))
        last = request(ECHO, b"plain")
        await asyncio.gather(*(peer.send(flood + last.encode()) for peer in peers))
        for peer in peers:
            answers = await peer.commands(61)
            assert [answer.opaque for answer in answers] == [*range(60), last.opaque]
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        is_done = True
        assert max(counted) > NOT_PLAIN
        assert server.budget.bytes_in == 0
        for peer in peers:
            await peer.close()
    # An iteration has reads first and then turns; the last request of a peer needs no Python.
    assert max(in_iteration.values()) <= 2 + len(peers)


async def test_damage_behind_headers_that_wait_ends_the_stream_after_them(transport: Security) -> None:
    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        await peer.send(b"".join(map(not_plain, range(15))) + b"\xff" * 8)
        answers = FrameDecoder().receive_data(await peer.end())
        assert [answer.opaque for answer in answers] == [*range(15)]
        await peer.close()
