"""Turns: how long a connection processes requests before others go first."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from itertools import pairwise

import pytest

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting.connection import Connection
from rucola.remoting.turns import ITERATION_S, MAX_PYTHON_COST, PROBATION_S, SLICE_S, TURNS_S, YIELD_S, Slice, Turns
from support.remoting_peers import ECHO, RawPeer, Security, echo, request, running_server


class Sockets:
    """Time, and whether another socket is ready. Stands for the event loop that a slice asks."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.is_ready = False
        self.asked_at_s: list[float] = []

    def is_any_ready(self) -> bool:
        self.asked_at_s.append(self.now_s)
        return self.is_ready

    def begin(self, length_s: float, *, takes_turns: bool = False) -> Slice:
        begin_s = self.now_s
        return Slice(
            lambda: self.now_s, self.is_any_ready, begin_s, begin_s + YIELD_S, begin_s + length_s,
            takes_turns=takes_turns,
        )  # fmt: skip


@pytest.fixture
def sockets() -> Sockets:
    return Sockets()


def test_a_slice_lasts_to_its_end_while_no_other_socket_is_ready(sockets: Sockets) -> None:
    part = sockets.begin(SLICE_S)
    end_s = sockets.now_s + SLICE_S
    while sockets.now_s + 0.00005 < end_s:
        sockets.now_s += 0.00005
        assert not part.is_over()
    sockets.now_s = end_s + 0.0001
    assert part.is_over()
    # It asks every YIELD_S, and not at every step.
    assert all(later - earlier > YIELD_S for earlier, later in pairwise(sockets.asked_at_s))
    assert 0.5 < len(sockets.asked_at_s) * YIELD_S / SLICE_S <= 1


def test_a_slice_ends_when_another_socket_is_ready(sockets: Sockets) -> None:
    part = sockets.begin(SLICE_S)
    sockets.is_ready = True
    sockets.now_s += YIELD_S / 2
    assert not part.is_over()
    sockets.now_s += YIELD_S
    assert part.is_over()
    assert part.probation_end_s() == 0.0  # it has not used up its slice


def test_a_connection_that_uses_up_its_slice_gets_short_ones(sockets: Sockets) -> None:
    part = sockets.begin(SLICE_S)
    sockets.now_s += 2 * SLICE_S
    assert part.is_over()
    assert part.probation_end_s() == pytest.approx(sockets.now_s + PROBATION_S)


def test_a_connection_that_takes_turns_looks_at_the_clock_after_each_command(sockets: Sockets) -> None:
    part = sockets.begin(TURNS_S, takes_turns=True)
    assert part.step == 1
    sockets.now_s += TURNS_S * 1.5
    assert part.is_over()
    assert not sockets.asked_at_s
    assert part.probation_end_s() == pytest.approx(sockets.now_s + PROBATION_S)


async def test_the_slices_of_one_iteration_have_one_end() -> None:
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    begin_s = loop.time()
    slices = [turns.begin_slice(-1, takes_turns=False) for _ in range(3)]
    while loop.time() < begin_s + ITERATION_S:
        pass
    slices.append(turns.begin_slice(-1, takes_turns=False))
    while loop.time() < begin_s + 2 * ITERATION_S:
        pass
    assert all(part.is_over() for part in slices)


NOT_PLAIN = 4000
"""Bytes of a header that Python decodes, with its prefix."""


def not_plain(opaque: int) -> bytes:
    """Return an ECHO whose names are in single quotes."""
    header = (b"{'code':%d,'opaque':%d,'remark':'" % (ECHO, opaque)).ljust(NOT_PLAIN - 10, b"x") + b"'}"
    return struct.pack(">iI", 4 + len(header), len(header)) + header


async def test_headers_that_python_decodes_share_each_iteration(transport: Security) -> None:
    """Two peers send 60 of them each; both are answered in order, and their memory is counted meanwhile."""
    iteration, counted, is_done = 0, list[int](), False
    in_iteration: Counter[int] = Counter()

    def next_iteration() -> None:
        nonlocal iteration
        iteration += 1
        if not is_done:
            asyncio.get_running_loop().call_soon(next_iteration)

    def answer(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        in_iteration[iteration] += 1
        counted.append(server.memory.partial_total)
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
        assert server.memory.partial_total == 0
        for peer in peers:
            await peer.close()
    # An iteration has reads first and then turns, which begin the next share.
    share = -(-MAX_PYTHON_COST // NOT_PLAIN)
    assert max(in_iteration.values()) <= 2 * share + len(peers)


async def test_damage_behind_headers_that_wait_ends_the_stream_after_them(transport: Security) -> None:
    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        await peer.send(b"".join(map(not_plain, range(15))) + b"\xff" * 8)
        answers = FrameDecoder().receive_data(await peer.end())
        assert [answer.opaque for answer in answers] == [*range(15)]
        await peer.close()
