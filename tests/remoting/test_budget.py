"""Peers that do not read or do not complete their frames: bounded memory for each and in total, others unharmed."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from struct import pack

import pytest

from rucola import slices
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, FrameDecoder
from rucola.remoting import budget as budgets
from rucola.remoting.budget import (
    MAX_TINY_READS,
    Budget,
    ConnectionLimits,
    Pause,
    ServerBudget,
)
from rucola.remoting.connection import Connection, Processor, ReadHooks
from rucola.remoting.server import RemotingServer
from support.faults import limited
from support.remoting_peers import BIG, ECHO, RawPeer, echo, request, running_server
from support.waiting import until

KILO = 1024
MEGA = 1024 * 1024


async def deaf(server: RemotingServer) -> socket.socket:
    """A peer that has a small receive buffer, and never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    return sock


async def ask(sock: socket.socket, count: int = 1) -> None:
    """Ask for `count` large responses."""
    frames = b"".join(request(BIG).encode() for _ in range(count))
    await asyncio.get_running_loop().sock_sendall(sock, frames)


def processors(size: int) -> dict[int, Processor]:
    return {ECHO: echo, BIG: lambda _, command: command.response(0, body=bytes(size))}


async def test_unsent_bytes_of_all_connections_are_bounded_and_the_slowest_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The total holds whatever each of them may have; a peer that reads is not closed."""
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=8 * MEGA, max_unsent_bytes=16 * MEGA))
    async with running_server(processors(6 * MEGA), budget=budget) as server:
        good = await RawPeer.to(server)
        peers = [await deaf(server) for _ in range(12)]
        for peer in peers:
            await ask(peer)
            await good.send(request(ECHO, b"x").encode())
            assert len(await good.commands(1)) == 1
            assert budget.bytes_out <= 16 * MEGA
        await until(lambda: budget.closed["maxUnsentBytes"] > 0)
        assert len(server.connections) < 13
        await good.send(request(BIG).encode())
        assert len((await good.commands(1))[0].body) == 6 * MEGA
        for peer in peers:
            peer.close()
        await until(lambda: len(server.connections) == 1)
        assert budget.bytes_out == 0
        await good.close()
    (line, *_) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("connection closed (maxUnsentBytes): 127.0.0.1:")


async def test_a_congested_connection_is_not_read_until_its_peer_reads() -> None:
    congested: list[object] = []
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=MEGA), congested.append)
    async with running_server(processors(6 * MEGA), budget=budget) as server:
        peer = await deaf(server)
        await ask(peer)
        await until(lambda: any(one.is_congested for one in server.connections))
        (connection,) = server.connections
        await ask(peer, 3)
        other = await RawPeer.to(server)
        await other.send(request(ECHO).encode())
        await other.commands(1)
        assert budget.bytes_out < 7 * MEGA, "the other requests were not read"
        assert congested == []
        received = 0
        while received < 4 * 6 * MEGA:
            data = await asyncio.get_running_loop().sock_recv(peer, MEGA)
            assert data
            received += len(data)
        await until(lambda: not connection.is_congested)
        assert connection in congested
        assert budget.bytes_out == 0
        peer.close()
        await other.close()


async def test_what_follows_served_requests_waits_until_the_peer_reads() -> None:
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=MEGA))
    frame = request(BIG).encode()
    response = RemotingCommand(0, {}, bytes(5 * MEGA)).encode()
    async with running_server(processors(MEGA), budget=budget) as server:
        server.read_hooks = ReadHooks(reads=[lambda connection, data: (response, len(frame))])
        peer = await deaf(server)
        await asyncio.get_running_loop().sock_sendall(peer, frame * 20)
        await until(lambda: any(one.is_congested for one in server.connections))
        assert budget.bytes_out < 6 * MEGA, "the rest of the read was processed"
        decoder, answers = FrameDecoder(), list[RemotingCommand]()
        while len(answers) < 20:
            answers += decoder.receive_data(await asyncio.get_running_loop().sock_recv(peer, MEGA))
        assert [len(one.body) for one in answers] == [5 * MEGA] + [MEGA] * 19
        peer.close()


class Deaf:
    """A connection whose peer reads nothing, and its budget."""

    peer = "127.0.0.1:1"
    unsent_ms = 0
    is_closed = False

    def __init__(self, server: ServerBudget) -> None:
        self.budget = Budget(self, server)

    def pause(self) -> None:
        """Nothing reads it."""

    def resume(self) -> None:
        """Nothing reads it."""

    def abort(self) -> None:
        self.is_closed = True


async def test_many_connections_share_half_of_the_total_of_unsent_bytes() -> None:
    server = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=8 * MEGA, max_unsent_bytes=16 * MEGA))
    alone = Deaf(server).budget
    alone.sent(8 * MEGA - 1)
    assert not alone.paused
    alone.sent(8 * MEGA)
    assert alone.paused == {Pause.OUTPUT}
    alone.sent(0)
    budgets = [Deaf(server).budget for _ in range(8)]
    for budget in budgets:
        budget.sent(MEGA - 1)
    assert not any(budget.paused for budget in budgets)
    for budget in budgets:
        budget.sent(MEGA)
    assert all(budget.paused == {Pause.OUTPUT} for budget in budgets)


async def test_the_connection_that_has_not_sent_for_the_longest_is_closed_first() -> None:
    server = ServerBudget(ConnectionLimits(max_unsent_bytes=16 * MEGA))
    small, stuck, large = Deaf(server), Deaf(server), Deaf(server)
    stuck.unsent_ms = 5000
    for connection, size in [(small, 2 * MEGA), (stuck, MEGA), (large, 14 * MEGA)]:
        connection.budget.sent(size)
    assert [connection.is_closed for connection in (small, stuck, large)] == [False, True, False]
    small.budget.sent(3 * MEGA)
    assert [connection.is_closed for connection in (small, stuck, large)] == [False, True, True]
    assert server.bytes_out == 3 * MEGA


async def test_a_connection_is_read_when_nothing_pauses_it_any_more() -> None:
    server = ServerBudget(ConnectionLimits())
    budget = Deaf(server).budget
    for reason in Pause:
        budget.pause(reason)
    for reason in Pause:
        assert reason in budget.paused
        budget.resume(reason)
    assert not budget.paused


async def test_a_peer_that_is_sent_much_unasked_and_reads_nothing_is_closed() -> None:
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=MEGA))
    async with running_server(processors(1), budget=budget) as server:
        peer = await deaf(server)
        await until(lambda: bool(server.connections))
        (connection,) = server.connections
        for _ in range(100):
            connection.send(request(ECHO, bytes(MEGA)))
            assert budget.bytes_out <= 34 * MEGA
        await connection.closed.wait()
        assert budget.closed == {"maxUnsentBytesPerConnection": 1}
        peer.close()


async def test_frames_wait_when_the_partial_ones_fill_their_memory_and_all_complete() -> None:
    """Thirty producers with frames of a megabyte each, written piece by piece by turns."""
    budget = ServerBudget(ConnectionLimits(max_partial_frame_bytes=4 * MEGA))
    async with running_server({ECHO: lambda _, command: command.response(0)}, budget=budget) as server:
        peers = [await RawPeer.to(server) for _ in range(30)]
        frame = request(ECHO, bytes(MEGA)).encode()
        highest = 0
        for begin in range(0, len(frame), 64 * KILO):
            for peer in peers:
                peer.writer.write(frame[begin : begin + 64 * KILO])
            await asyncio.sleep(0)
            highest = max(highest, budget.bytes_in)
        answers = await asyncio.gather(*(peer.commands(1) for peer in peers))
        assert [len(commands) for commands in answers] == [1] * 30
        assert highest <= 4 * MEGA + 30 * 256 * KILO
        assert budget.bytes_in == 0
        assert budget.closed == {}
        for peer in peers:
            await peer.close()


@pytest.mark.slow
async def test_peers_that_never_complete_their_frames_make_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """30 partial frames of 16 MB took 501 MB; a producer's own large frame now gets its turn."""
    monkeypatch.setattr(budgets, "CHECK_INTERVAL_S", 0.05)
    limit = 8 * MEGA
    budget = ServerBudget(ConnectionLimits(max_partial_frame_bytes=limit))
    async with running_server({ECHO: lambda _, command: command.response(0)}, budget=budget) as server:
        attackers = [await RawPeer.to(server) for _ in range(30)]
        piece = pack(">I", MAX_FRAME_SIZE) + bytes(MEGA)
        for attacker in attackers:
            attacker.writer.write(piece)
        await until(lambda: budget.bytes_in > limit)
        assert budget.bytes_in <= limit + 30 * 256 * KILO + 2 * MEGA  # one read each, and the one that is always read
        good = await RawPeer.to(server)
        await good.send(request(ECHO, bytes(3 * MEGA)).encode())
        assert len(await good.commands(1)) == 1
        assert budget.closed["maxPartialFrameBytes"] > 0
        for attacker in attackers:
            attacker.writer.transport.abort()
        await until(lambda: len(server.connections) == 1)
        assert budget.bytes_in == 0
        await good.close()
    assert any("bytes of a frame" in record.message for record in caplog.records)


async def test_connections_beyond_the_limit_are_not_accepted(caplog: pytest.LogCaptureFixture) -> None:
    budget = ServerBudget(ConnectionLimits(max_connections=2))
    closed: list[Connection] = []
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo}, on_close=closed.append, budget=budget)
    await server.start()
    first, second = await RawPeer.to(server), await RawPeer.to(server)
    await until(lambda: len(server.connections) == 2)
    for _ in range(3):
        third = await RawPeer.to(server)
        assert await third.end() == b""
        await third.close()
    assert budget.closed == {"maxConnections": 3}
    assert closed == []
    await first.close()
    await until(lambda: len(server.connections) == 1)
    again = await RawPeer.to(server)
    for peer in (second, again):
        await peer.send(request(ECHO).encode())
        assert len(await peer.commands(1)) == 1
        await peer.close()
    await server.stop()
    assert [record.message for record in caplog.records] == [
        "connection not accepted (maxConnections): there are 2 already"
    ]


async def test_connections_leave_descriptors_for_files() -> None:
    budget = ServerBudget(ConnectionLimits(reserved_descriptors=32))
    async with running_server({ECHO: echo}, budget=budget) as server:
        # The limit lies above every descriptor of the process, so that the reserved ones are free.
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        peers: list[socket.socket] = []
        with limited(resource.RLIMIT_NOFILE, highest + 128):
            while not budget.closed:
                peers.append(socket.create_connection(("127.0.0.1", server.port)))
                await until(lambda: bool(budget.closed) or len(server.connections) == len(peers))
            assert budget.closed == {"reservedDescriptors": 1}
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]
        for file in files:
            os.close(file)
        for peer in peers:
            peer.close()


async def test_a_frame_that_hardly_grows_is_not_waited_for() -> None:
    """Between two checks; peers that complete their frames, or send a large one steadily, stay."""
    budget = ServerBudget(ConnectionLimits())
    async with running_server({ECHO: echo}, budget=budget) as server:
        frame = request(ECHO, bytes(100 * KILO)).encode()
        trickling, steady, busy = [await RawPeer.to(server) for _ in range(3)]
        await trickling.send(frame[:10])
        await steady.send(frame[: 10 * KILO])
        await busy.send(frame[:10])
        await until(lambda: budget.bytes_in == 10 * KILO + 20)
        slices.run(budget.close_slow_frames())
        assert len(server.connections) == 3
        await trickling.send(frame[10:12])
        await steady.send(frame[10 * KILO : 20 * KILO])
        await busy.send(frame[10:] + frame[:20])
        assert len(await busy.commands(1)) == 1
        await until(lambda: budget.bytes_in == 20 * KILO + 32)
        slices.run(budget.close_slow_frames())
        await until(lambda: len(server.connections) == 2)
        assert budget.closed == {"slowFrame": 1}
        await steady.send(frame[20 * KILO :])
        await busy.send(frame[20:])
        assert len(await steady.commands(1)) == len(await busy.commands(1)) == 1
        for peer in (trickling, steady, busy):
            await peer.close()
    assert budget.bytes_in == 0


async def test_a_connection_is_not_slow_while_it_is_not_read() -> None:
    """What its peer has sent meanwhile is not read yet."""
    server = ServerBudget(ConnectionLimits())
    behind, slow = Deaf(server), Deaf(server)
    for connection in (behind, slow):
        connection.budget.received(KILO, KILO, is_complete=False)
    behind.budget.pause(Pause.WORK)
    for _ in range(2):
        slices.run(server.close_slow_frames())
    assert [connection.is_closed for connection in (behind, slow)] == [False, True]
    behind.budget.resume(Pause.WORK)
    for _ in range(2):
        slices.run(server.close_slow_frames())
    assert behind.is_closed
    assert server.closed == {"slowFrame": 2}


async def test_what_waits_for_its_turn_does_not_wait_for_the_frames_of_others() -> None:
    server = ServerBudget(ConnectionLimits(max_partial_frame_bytes=MEGA))
    read, behind, late = [Deaf(server).budget for _ in range(3)]
    behind.pause(Pause.WORK)
    for budget in (read, behind, late):
        budget.received(MEGA, MEGA, is_complete=False)
    assert [budget.paused for budget in (read, behind, late)] == [set(), {Pause.WORK}, {Pause.INPUT}]


class NotingBudget(ServerBudget):
    """Notes the size of the partial frame after each read."""

    def __init__(self) -> None:
        super().__init__(ConnectionLimits())
        self.sizes: list[int] = []

    def count_in(self, budget: Budget, size: int) -> None:
        self.sizes.append(size)
        super().count_in(budget, size)


async def test_a_frame_that_comes_byte_by_byte_is_read_now_and_then() -> None:
    """After some reads, all that has arrived in the meantime is read at once, and nothing is lost."""
    budget = NotingBudget()
    async with running_server({ECHO: echo}, budget=budget) as server:
        peer = await RawPeer.to(server)
        frame = request(ECHO, bytes(100)).encode()
        for count in range(1, MAX_TINY_READS + 2):
            await peer.send(frame[count - 1 : count])
            await until(lambda count=count: budget.sizes == list(range(1, count + 1)))
        for position in range(MAX_TINY_READS + 1, len(frame)):
            await peer.send(frame[position : position + 1])
        assert len(await peer.commands(1)) == 1
        assert len(budget.sizes) < len(frame) // 2
        # A frame in three pieces does not rest: each is read before the next one is sent.
        budget.sizes.clear()
        for size in (4, len(frame) - 100):
            await peer.send(frame[:size] if size == 4 else frame[4:size])
            await until(lambda size=size: budget.sizes[-1:] == [size])
        await peer.send(frame[-100:])
        assert len(await peer.commands(1)) == 1
        await peer.close()


class Body:
    """Bytes in their place, and how often they were released."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytes(size))
        self.releases = 0

    def __len__(self) -> int:
        return len(self.view)

    def release(self) -> None:
        self.releases += 1


def sending(sent: list[Body], size: int) -> Processor:
    """A processor that sends the body of its response from its place."""

    def answer(connection: Connection, command: RemotingCommand) -> None:
        sent.append(Body(size))
        frame = command.response(0, body=bytes(size)).encode()
        connection.send_large(frame[:-size], sent[-1])

    return answer


async def test_a_large_body_stays_in_its_place_until_the_peer_reads() -> None:
    """Ten responses of 6 MB to a peer that does not read take no more than a piece, and what is behind them."""
    sent: list[Body] = []
    budget = ServerBudget(ConnectionLimits())
    async with running_server({ECHO: echo, BIG: sending(sent, 6 * MEGA)}, budget=budget) as server:
        peer = await deaf(server)
        await ask(peer, 10)
        await until(lambda: any(one.is_congested for one in server.connections))
        (connection,) = server.connections
        connection.send(request(ECHO, b"behind"))
        assert 0 < budget.bytes_out < 300_000
        assert [body.releases for body in sent] == [0], "the other requests wait"
        decoder, received = FrameDecoder(), list[RemotingCommand]()
        while len(received) < 11:
            received += decoder.receive_data(await asyncio.get_running_loop().sock_recv(peer, MEGA))
        assert [len(one.body) for one in received] == [6 * MEGA, len(b"behind")] + [6 * MEGA] * 9
        assert [body.releases for body in sent] == [1] * 10
        await until(lambda: not connection.is_congested)
        assert budget.bytes_out == 0
        peer.close()


@pytest.mark.parametrize("ends", ["the peer", "close", "abort"])
async def test_a_large_body_is_released_when_its_connection_ends(ends: str) -> None:
    sent: list[Body] = []
    async with running_server({BIG: sending(sent, 6 * MEGA)}, budget=ServerBudget(ConnectionLimits())) as server:
        peer = await deaf(server)
        await ask(peer, 2)
        await until(lambda: len(sent) == 1)
        (connection,) = server.connections
        if ends == "close":
            connection.close()  # what is to be written is copied: it may be sent later
            assert [body.releases for body in sent] == [1]
        elif ends == "abort":
            connection.abort()
        peer.close()
        await connection.closed.wait()
        assert [body.releases for body in sent] == [1]
        body = Body(MEGA)
        connection.send_large(b"too late", body)
        assert body.releases == 1


async def test_writes_behind_a_large_body_are_bounded() -> None:
    """A sender that does not heed the congestion of its connection: it is closed."""
    sent: list[Body] = []
    budget = ServerBudget(ConnectionLimits(max_unsent_bytes_per_connection=MEGA))
    async with running_server({BIG: sending(sent, 6 * MEGA)}, budget=budget) as server:
        peer = await deaf(server)
        await ask(peer)
        await until(lambda: len(sent) == 1)
        (connection,) = server.connections
        for _ in range(60):
            connection.send(bytes(MEGA))
        await connection.closed.wait()
        assert budget.closed["maxUnsentBytesPerConnection"] == 1
        assert sent[0].releases == 1
        peer.close()
