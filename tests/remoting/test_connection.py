"""Connections over real sockets: responses, back pressure, damaged input, requests in both directions, closing."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path

import pytest

from rucola.errors import InvalidMessage, RemotingConnectError, RemotingTimeout
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand, SerializeType
from rucola.protocol.frame import FrameDecoder
from rucola.remoting import connection as connection_module
from rucola.remoting import turns
from rucola.remoting.addresses import address_of
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import WRITE_LIMIT, Connection, Processor, ReadHooks, Reply
from rucola.remoting.deadline import Deadline
from support.errors import raises
from support.remoting_peers import BIG, ECHO, HOLD, NOTIFY, SECURITY, RawPeer, echo, request, running_server
from support.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("transport")

# Answers.


async def test_pipelined_requests_are_answered_in_order_in_one_write() -> None:
    writes: list[int] = []

    def note_writes(connection: Connection) -> None:
        write = connection._write

        def noted(data: bytes) -> None:
            writes.append(len(data))
            write(data)

        connection._write = noted

    async with running_server({ECHO: echo}, on_open=note_writes) as server:
        peer = await RawPeer.to(server)
        requests = [request(ECHO, str(n).encode()) for n in range(50)]
        await peer.send(b"".join(command.encode() for command in requests))
        expected = b"".join(command.response(0, body=command.body).encode() for command in requests)
        first = await peer.reader.read(1 << 20)
        rest = await peer.reader.readexactly(len(expected) - len(first))
        assert first + rest == expected
        assert writes == [len(expected)]
        await peer.close()


async def test_requests_that_follow_each_other_are_served_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "WRITE_LIMIT", 1000)
    runs: list[list[bytes]] = []

    def serve(connection: Connection, commands: list[RemotingCommand]) -> list[bytes]:
        runs.append([command.body for command in commands])
        return [command.response(0, body=command.body).encode() for command in commands if command.body != b"held"]

    async with running_server({ECHO: echo, 7: echo, 8: echo, 9: lambda connection, command: None}) as server:
        server.read_hooks = ReadHooks(runs={7: serve, 8: serve, 9: lambda connection, commands: []})
        peer = await RawPeer.to(server)
        large = bytes(2000)
        requests = [(7, b"1"), (8, b"2"), (ECHO, b"3"), (7, b"held"), (7, large), (9, b"held"), (8, b"4")]
        await peer.send(b"".join(request(code, body).encode() for code, body in requests))
        answers = await peer.commands(5)
        assert [answer.body for answer in answers] == [b"1", b"2", b"3", large, b"4"]
        assert runs == [[b"1", b"2"], [b"held", large]]
        await peer.close()


async def test_a_response_has_the_serialization_of_its_request() -> None:
    async with running_server({ECHO: echo}) as server:
        client = RemotingClient(tls=SECURITY.client)
        address = f"127.0.0.1:{server.port}"
        for serialize_type in SerializeType:
            command = request(ECHO, b"x")
            command.serialize_type = serialize_type
            assert (await client.invoke(address, command)).serialize_type is serialize_type
        await client.close()


async def test_one_way_requests_are_processed_without_a_response() -> None:
    seen: list[bytes] = []

    def note(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        seen.append(command.body)
        return echo(connection, command)

    def fail(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise InvalidMessage("no")

    async def later(command: RemotingCommand) -> RemotingCommand:
        return echo_later(command)

    def echo_later(command: RemotingCommand) -> RemotingCommand:
        seen.append(command.body)
        return command.response(0)

    async with running_server({ECHO: note, HOLD: lambda _, command: later(command), BIG: fail}) as server:
        peer = await RawPeer.to(server)
        for code in (ECHO, HOLD, BIG, 99):
            await peer.send(RemotingCommand.oneway(code, body=str(code).encode()).encode())
        last = request(ECHO, b"last")
        await peer.send(last.encode())
        (answer,) = await peer.commands(1)
        assert answer.opaque == last.opaque
        assert sorted(seen) == [b"1", b"2", b"last"]
        await peer.close()


async def test_a_failed_one_way_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise InvalidMessage("the topic is empty")

    async with running_server({ECHO: fail, HOLD: echo}) as server:
        peer = await RawPeer.to(server)
        await peer.send(RemotingCommand.oneway(ECHO).encode() + request(HOLD).encode())
        await peer.commands(1)
        await peer.close()
    (record,) = caplog.records
    assert record.message.endswith("one-way request code 1 failed: the topic is empty")


async def test_failures_that_a_peer_causes_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each code has its line, and the responses stay as they are."""

    def fail(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise InvalidMessage("the topic is empty")

    def defect(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise KeyError("secret")

    async with running_server({1: fail, 2: fail, 3: defect}) as server:
        peer = await RawPeer.to(server)
        await peer.send(b"".join(RemotingCommand.oneway(code).encode() for code in (1, 2) * 500))
        await peer.send(b"".join(request(code).encode() for code in (1, 3) * 50))
        answers = await peer.commands(100)
        assert {answer.remark for answer in answers} == {
            "the topic is empty", "request code 3 failed inside the server (KeyError); its log says more"
        }  # fmt: skip
        await peer.close()
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "one-way request code 1 failed: the topic is empty",
        "one-way request code 2 failed: the topic is empty",
        "request code 3 failed",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (request(1).encode()[:-1], "closed in the middle of a frame"),
        (b"\xff" * 8, "closing the connection: "),
        (b"\0\0\0\5\0\0\0\1{", "a frame cannot be read: "),
    ],
)
async def test_connections_that_a_peer_ends_badly_fill_no_log(
    data: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened: asyncio.Queue[Connection] = asyncio.Queue()
    caplog.set_level(logging.INFO, "rucola.remoting.connection")
    async with running_server({}, on_open=opened.put_nowait) as server:
        for _ in range(5):
            peer = await RawPeer.to(server)
            await peer.send(data)
            await peer.close()
            await (await opened.get()).closed.wait()
    assert [line in record.message for record in caplog.records] == [True]


async def test_an_error_of_a_processor_becomes_a_response(caplog: pytest.LogCaptureFixture) -> None:
    def ours(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise InvalidMessage("the topic is empty")

    def other(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise KeyError("secret")

    async def late(command: RemotingCommand) -> RemotingCommand:
        raise InvalidMessage("late")

    def unsendable(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(0, remark="\ud800")

    async with running_server({1: ours, 2: other, 3: lambda _, command: late(command), 4: unsendable}) as server:
        client = RemotingClient(tls=SECURITY.client)
        address = f"127.0.0.1:{server.port}"
        answers = [await client.invoke(address, request(code)) for code in (1, 2, 3, 4, 5)]
        assert [answer.code for answer in answers] == [
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ]
        assert answers[0].remark == "the topic is empty"
        assert answers[1].remark == "request code 2 failed inside the server (KeyError); its log says more"
        assert answers[2].remark == "late"
        assert "failed inside the server" in (answers[3].remark or "")
        assert answers[4].remark == " request type 5 not supported"
        assert len(server.connections) == 1, "the connection lives on"
        await client.close()
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


async def test_awaitable_replies_are_sent_together_when_they_are_done() -> None:
    held: list[asyncio.Future[RemotingCommand]] = []

    def hold(connection: Connection, command: RemotingCommand) -> Reply:
        future = asyncio.get_running_loop().create_future()
        future.command = command
        held.append(future)
        return future

    async with running_server({ECHO: echo, HOLD: hold}) as server:
        peer = await RawPeer.to(server)
        first, second, third = request(HOLD), request(ECHO), request(HOLD)
        await peer.send(first.encode() + second.encode() + third.encode())
        assert [answer.opaque for answer in await peer.commands(1)] == [second.opaque]
        held[1].set_result(third.response(0, body=b"as bytes").encode())  # type: ignore[arg-type]
        held[0].set_result(first.response(0))
        assert [answer.opaque for answer in await peer.commands(2)] == [third.opaque, first.opaque]
        await peer.close()


async def test_a_held_reply_to_a_closed_peer_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    processors: dict[int, Processor] = {ECHO: echo}
    async with running_server(processors) as server:
        asked, release = asyncio.Event(), asyncio.Event()

        async def hold(command: RemotingCommand) -> RemotingCommand:
            asked.set()
            await release.wait()
            return command.response(0)

        processors[HOLD] = lambda _, command: hold(command)
        peer = await RawPeer.to(server)
        await peer.send(request(HOLD).encode())
        await asked.wait()
        (served,) = server.connections
        await peer.close()
        await served.closed.wait()
        release.set()
        served.send(request(ECHO))
        other = await RawPeer.to(server)
        await other.send(request(ECHO).encode())
        assert len(await other.commands(1)) == 1
        await other.close()
    assert caplog.records == []


# Bad peers.


@pytest.mark.parametrize(
    "garbage",
    [b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x01"],
)
async def test_garbage_closes_its_connection_only_with_one_log_line(
    caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    async with running_server({ECHO: echo}) as server:
        good, bad = await RawPeer.to(server), await RawPeer.to(server)
        before = request(ECHO, b"before")
        await bad.send(before.encode() + garbage)
        (answer,) = FrameDecoder().receive_data(await bad.end())
        assert (answer.opaque, answer.body) == (before.opaque, b"before")
        await good.send(request(ECHO).encode())
        assert len(await good.commands(1)) == 1
        await bad.close()
        await good.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "closing the connection: " in record.message


async def test_a_frame_over_the_servers_limit_closes_the_connection() -> None:
    async with running_server({ECHO: echo}, max_frame_size=1000) as server:
        peer = await RawPeer.to(server)
        await peer.send(request(ECHO, bytes(1000)).encode())
        assert await peer.end() == b""
        await peer.close()


async def test_a_peer_that_closes_in_the_middle_of_a_frame_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with running_server({ECHO: echo}) as server:
            peer = await RawPeer.to(server)
            await peer.send(request(ECHO).encode() + request(ECHO).encode()[:-1])
            assert len(await peer.commands(1)) == 1
            (served,) = server.connections
            await peer.close()
            await served.closed.wait()
    assert [record.message.partition(": ")[2] for record in caplog.records if record.name.startswith("rucola")] == [
        "closed in the middle of a frame"
    ]


async def test_a_peer_that_does_not_read_has_bounded_memory_and_recovers() -> None:
    size, count = 256 * 1024, 100

    opened: asyncio.Queue[Connection] = asyncio.Queue()
    body = bytes(size)
    async with running_server(
        {ECHO: echo, BIG: lambda _, command: command.response(0, body=body)}, on_open=opened.put_nowait
    ) as server:
        peer = await RawPeer.to(server)
        stuck = asyncio.Event()
        (served,) = server.connections or {await opened.get()}
        transport = served._transport
        assert transport is not None
        pause = served.pause_writing

        def noted() -> None:
            pause()
            stuck.set()

        served.pause_writing = noted  # type: ignore[method-assign]
        requests = [request(BIG) for _ in range(count)]
        peer.writer.write(b"".join(command.encode() for command in requests[: count // 2]))
        await stuck.wait()
        peer.writer.write(b"".join(command.encode() for command in requests[count // 2 :]))
        other = await RawPeer.to(server)
        await other.send(request(ECHO).encode())
        await other.commands(1)
        assert transport.get_write_buffer_size() <= 2 * (WRITE_LIMIT + size + 200)  # of 12 MiB asked for in one read
        assert not transport.is_reading()
        answers = await peer.commands(count)
        assert [answer.opaque for answer in answers] == [command.opaque for command in requests]
        await other.close()
        await peer.close()


async def test_many_requests_of_one_read_leave_turns_to_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YIELD_S", "ITERATION_S", "TURNS_S"):
        monkeypatch.setattr(turns, name, 0)
    processed: list[bytes] = []

    def note(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        processed.append(command.body)
        return echo(connection, command)

    async with running_server({ECHO: note}) as server:
        greedy, other = await RawPeer.to(server), await RawPeer.to(server)
        for peer in (greedy, other):
            await peer.send(request(ECHO, b"first").encode())
            await peer.commands(1)
        requests = [request(ECHO, b"%d" % number) for number in range(100)]
        greedy.writer.write(b"".join(command.encode() for command in requests))
        other.writer.write(request(ECHO, b"other").encode())
        answers = await greedy.commands(100)
        assert [answer.opaque for answer in answers] == [command.opaque for command in requests]
        assert processed.index(b"other") < processed.index(b"50")
        await greedy.close()
        await other.close()


async def test_requests_before_damage_are_answered_in_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YIELD_S", "ITERATION_S", "TURNS_S"):
        monkeypatch.setattr(turns, name, 0)
    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        requests = [request(ECHO, b"x") for _ in range(100)]
        await peer.send(b"".join(command.encode() for command in requests) + b"\xff" * 8)
        answers = FrameDecoder().receive_data(await peer.end())
        assert [answer.opaque for answer in answers] == [command.opaque for command in requests]
        await peer.close()


async def test_two_peers_that_send_much_do_not_block_each_other() -> None:
    async with running_server({ECHO: echo}) as server:
        client = RemotingClient(tls=SECURITY.client)
        connection = await client.connect(f"127.0.0.1:{server.port}")
        body = bytes(512 * 1024)
        answers = await asyncio.gather(*[connection.post(request(ECHO, body)) for _ in range(64)])
        assert all(answer.body == body for answer in answers)
        await client.close()


@pytest.mark.slow
async def test_two_hundred_connections_are_served_and_closed() -> None:
    async with running_server({ECHO: echo}) as server:
        clients = [RemotingClient(tls=SECURITY.client) for _ in range(200)]
        address = f"127.0.0.1:{server.port}"
        for _ in range(3):
            answers = await asyncio.gather(
                *[
                    client.invoke(address, request(ECHO, str(n).encode()), DEADLINE_S * 1000)
                    for n, client in enumerate(clients)
                ]
            )
            assert [int(answer.body) for answer in answers] == list(range(200))
        assert len(server.connections) == 200
        served = list(server.connections)
        await asyncio.gather(*[client.close() for client in clients])
        await asyncio.gather(*[connection.closed.wait() for connection in served])
        assert not server.connections


@pytest.mark.slow
async def test_only_idle_connections_are_closed() -> None:
    async with running_server({ECHO: echo}) as server:
        idle, used = await RawPeer.to(server), await RawPeer.to(server)
        await used.send(request(ECHO).encode())
        await used.commands(1)  # so that both have been accepted
        idle_served = next(served for served in server.connections if served.peer == idle.name)
        assert idle_served.idle_ms < 3_600_000
        await server.close_idle(3_600_000)
        is_idle = False
        while not is_idle:
            is_idle = idle_served.idle_ms >= 1000
            await used.send(request(ECHO).encode())
            await used.commands(1)
        await server.close_idle(1000)
        assert await idle.end() == b""
        await used.send(request(ECHO).encode())
        await used.commands(1)
        await idle_served.closed.wait()
        assert idle_served.idle_ms == 0
        assert [served.peer for served in server.connections] == [used.name]
        await used.close()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["plain"], indirect=True)
async def test_five_thousand_idle_connections_take_little_memory_and_delay_no_other() -> None:
    """A connection takes a few KB, most of them asyncio's; `close_idle` closes all of them."""

    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count = min(
        5000, (limit - 500) // 2
    )  # where the system gives this process fewer descriptors, with as many as can be
    async with running_server({ECHO: echo}) as server:
        before = resident_bytes()
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        other = await RawPeer.to(server)
        await other.send(request(ECHO, b"body").encode())
        (answer,) = await other.commands(1)
        assert answer.body == b"body"
        assert len(server.connections) == count + 1
        assert (resident_bytes() - before) / count < 20_000, "of both sides, since the peers are in this process too"
        await server.close_idle(0)
        for reader, writer in peers:
            assert await reader.read() == b""
            writer.close()
        await other.close()


def resident_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# Requests from the server.


async def test_a_servers_request_is_answered_over_the_same_connection() -> None:
    async def ask_back(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        back = await connection.request(request(NOTIFY, b"how are you"), Deadline(3000))
        return command.response(0, body=back.body)

    async with running_server({HOLD: ask_back}) as server:
        client = RemotingClient(
            {NOTIFY: lambda _, command: command.response(0, body=command.body + b"? fine")}, tls=SECURITY.client
        )
        answer = await client.invoke(f"127.0.0.1:{server.port}", request(HOLD))
        assert answer.body == b"how are you? fine"
        await client.close()


async def test_a_response_to_no_request_is_dropped() -> None:
    async with running_server({ECHO: echo}) as server:
        peer = await RawPeer.to(server)
        await peer.send(request(ECHO).response(0).encode() + request(ECHO, b"x").encode())
        (answer,) = await peer.commands(1)
        assert answer.body == b"x"
        await peer.close()


# Closing.


async def test_close_sends_written_responses_first() -> None:
    size = 8 * 1024 * 1024

    def answer_and_close(connection: Connection, command: RemotingCommand) -> None:
        connection.send(command.response(0, body=bytes(size)))
        connection.close()
        connection.close()
        assert not connection.is_open

    async with running_server({BIG: answer_and_close}) as server:
        peer = await RawPeer.to(server)
        await peer.send(request(BIG).encode())
        (answer,) = FrameDecoder().receive_data(await peer.end())
        assert len(answer.body) == size
        await peer.close()


async def test_close_does_not_wait_for_a_peer_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CLOSE_TIMEOUT_S", 0.05)

    called = asyncio.Event()

    def big(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        called.set()
        return command.response(0, body=bytes(16 * 1024 * 1024))

    async with running_server({BIG: big}) as server:
        peer = await RawPeer.to(server)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(request(BIG).encode())
        await called.wait()
        (served,) = server.connections
        served.close()
        await served.closed.wait()
        peer.writer.transport.abort()


async def test_a_request_in_flight_fails_when_the_connection_breaks() -> None:
    async with running_server({ECHO: echo, HOLD: lambda connection, _: connection.close()}) as server:
        client = RemotingClient(tls=SECURITY.client)
        address = f"127.0.0.1:{server.port}"
        connection = await client.connect(address)
        with raises(RemotingConnectError, subject=address):
            await client.invoke(address, request(HOLD))
        posted = connection.post(request(ECHO))
        with raises(RemotingConnectError, subject=address):
            await posted
        with raises(RemotingConnectError, subject=address):
            await connection.request(request(ECHO), Deadline(1000))
        assert (await client.invoke(address, request(ECHO))).code == 0, "a new connection is made"
        await client.close()


async def test_a_request_times_out_and_the_connection_stays_open() -> None:
    async with running_server({ECHO: echo, HOLD: lambda connection, command: None}) as server:
        client = RemotingClient(tls=SECURITY.client)
        address = f"127.0.0.1:{server.port}"
        await client.connect(address)
        with raises(RemotingTimeout, subject=address):
            await client.invoke(address, request(HOLD), timeout_ms=20)
        assert (await client.invoke(address, request(ECHO))).code == 0
        assert len(server.connections) == 1
        await client.close()


async def test_a_forgotten_request_is_cancelled() -> None:
    async with running_server({HOLD: lambda connection, command: None}) as server:
        client = RemotingClient(tls=SECURITY.client)
        connection = await client.connect(f"127.0.0.1:{server.port}")
        command = request(HOLD)
        answer = connection.post(command)
        connection.forget(command)
        connection.forget(command)
        assert answer.cancelled()
        await client.close()


async def test_peers_are_named_by_address() -> None:
    async with running_server(
        {ECHO: lambda connection, command: command.response(0, body=connection.peer.encode())}
    ) as server:
        client = RemotingClient(tls=SECURITY.client)
        connection = await client.connect(f"127.0.0.1:{server.port}")
        answer = await connection.request(request(ECHO), Deadline(3000))
        assert connection.peer == f"127.0.0.1:{server.port}"
        assert connection._transport is not None
        host, port = connection._transport.get_extra_info("sockname")
        assert answer.body.decode() == f"{host}:{port}"
        await client.close()


def test_ipv6_addresses_are_in_brackets() -> None:
    assert address_of(("::1", 10911, 0, 0)) == "[::1]:10911"
    assert address_of(("127.0.0.1", 10911)) == "127.0.0.1:10911"
