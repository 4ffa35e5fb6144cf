"""RemotingClient and RemotingServer as such: connecting, sharing connections, starting and stopping."""

from __future__ import annotations

import asyncio

import pytest

from rucola.errors import BrokerError, RemotingConnectError, RemotingError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting import client as client_module
from rucola.remoting.client import RemotingClient, host_and_port
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer
from support.errors import raises
from support.ports import free_port
from support.remoting_peers import full_backlog

ECHO = 1


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.response(ResponseCode.SUCCESS, body=command.body)


def refuse(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.response(ResponseCode.NO_PERMISSION, remark="not you")


async def test_a_refused_connection_names_address_and_reason() -> None:
    address = f"127.0.0.1:{free_port()}"

    client = RemotingClient()
    with raises(RemotingConnectError, subject=address):
        await client.invoke(address, RemotingCommand.request(ECHO))
    with pytest.raises(RemotingConnectError):
        (await client.connect(address)).send(RemotingCommand.oneway(ECHO))
    assert client.open_connection(address) is None
    await client.close()


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:99999", ":::"])
async def test_an_invalid_address_error_shows_the_format(address: str) -> None:
    with raises(RemotingConnectError, subject=address):
        await RemotingClient().connect(address)


async def test_an_unaccepted_connection_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_MS", 20)
    with (
        full_backlog() as address,
        raises(RemotingConnectError, subject=address),
    ):
        await RemotingClient().connect(address)


async def test_concurrent_callers_share_one_connection() -> None:
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo})
    await server.start()
    address = f"127.0.0.1:{server.port}"
    client = RemotingClient()
    answers = await asyncio.gather(
        *[client.invoke(address, RemotingCommand.request(ECHO, body=bytes([n]))) for n in range(50)]
    )
    assert [answer.body[0] for answer in answers] == list(range(50))
    assert len(server.connections) == 1
    assert client.open_connection(address) is await client.connect(address)
    await client.close()
    await server.stop()


async def test_a_cancelled_caller_leaves_the_connection_to_the_others() -> None:
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo})
    await server.start()
    client = RemotingClient()
    impatient = asyncio.ensure_future(client.connect(f"127.0.0.1:{server.port}"))
    patient = asyncio.ensure_future(client.connect(f"127.0.0.1:{server.port}"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).is_open
    assert impatient.cancelled()
    await client.close()
    await server.stop()


async def test_closing_while_connecting_raises_a_remoting_error() -> None:
    server = RemotingServer("127.0.0.1", 0, {})
    await server.start()
    client = RemotingClient()
    connecting = asyncio.ensure_future(client.connect(f"127.0.0.1:{server.port}"))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(RemotingConnectError):
        await connecting
    await server.stop()


async def test_invoke_ok_raises_for_an_error_code() -> None:
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo, 2: refuse})
    await server.start()
    address = f"127.0.0.1:{server.port}"
    client = RemotingClient()
    assert (await client.invoke(address, RemotingCommand.request(2))).code == ResponseCode.NO_PERMISSION
    assert (await client.invoke_ok(address, RemotingCommand.request(ECHO))).code == ResponseCode.SUCCESS
    with pytest.raises(BrokerError) as caught:
        await client.invoke_ok(address, RemotingCommand.request(2))
    assert (caught.value.code, caught.value.remark, caught.value.address) == (16, "not you", address)
    await client.close()
    await server.stop()


async def test_on_close_is_called_once_per_connection() -> None:
    ended: list[Connection] = []
    server = RemotingServer("127.0.0.1", 0, {}, on_close=ended.append)
    await server.start()
    client = RemotingClient(on_close=ended.append)
    ours = await client.connect(f"127.0.0.1:{server.port}")
    await client.connect(f"127.0.0.1:{server.port}")
    await server.stop()
    await ours.closed.wait()
    await client.close()
    assert len(ended) == 2
    assert ours in ended


async def test_a_server_binds_before_it_serves_and_releases_its_address() -> None:
    port = free_port()
    first = RemotingServer("127.0.0.1", port, {ECHO: echo})
    first.bind()
    client = RemotingClient()
    with pytest.raises(RemotingConnectError):
        await client.connect(f"127.0.0.1:{port}")
    second = RemotingServer("127.0.0.1", port, {})
    second.bind()
    await first.start()
    with raises(RemotingError, subject=f"127.0.0.1:{port}"):
        await second.start()
    with raises(RemotingError, subject=f"127.0.0.1:{port}"):
        second.bind()
    await client.connect(f"127.0.0.1:{port}")
    await first.stop()
    await first.stop()
    again = RemotingServer("127.0.0.1", port, {ECHO: echo})
    await again.start()
    assert (await client.invoke(f"127.0.0.1:{port}", RemotingCommand.request(ECHO))).code == 0
    await client.close()
    await again.stop()
    bound_only = RemotingServer("127.0.0.1", 0, {})
    bound_only.bind()
    assert bound_only.port != 0
    await bound_only.stop()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("no.such.host.invalid", 0)])
def test_an_unavailable_address_raises_a_remoting_error(host: str, port: int) -> None:
    with raises(RemotingError, subject=f"{host}:{port}"):
        RemotingServer(host, port, {}).bind()


@pytest.mark.parametrize(
    ("address", "parts"),
    [("localhost:9876", ("localhost", 9876)), ("[::1]:1", ("::1", 1)), ("10.0.0.7:65535", ("10.0.0.7", 65_535))],
)
def test_addresses_are_parsed(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":9876", "h:x", "h:-1", "h:65536", "h:\u0661", "h: 1"]
)
def test_invalid_addresses_are_refused(address: str) -> None:
    with raises(RemotingConnectError, subject=address):
        host_and_port(address)


@pytest.mark.parametrize(
    ("address", "meant"),
    [("http://host:9876", "host:9876"), ("http://host", "host:9876"), ("host:9876/x", "host:9876")],
)
def test_an_address_like_a_url_names_the_right_form(address: str, meant: str) -> None:
    with pytest.raises(RemotingConnectError, match=f"is no address: write host:port, as in {meant}$"):
        host_and_port(address)


async def test_a_refused_connection_says_so(unused_tcp_port: int) -> None:
    client = RemotingClient()
    with raises(RemotingConnectError, subject=f"localhost:{unused_tcp_port}"):
        await client.connect(f"localhost:{unused_tcp_port}")
    await client.close()


async def test_an_impossible_host_name_raises_a_remoting_error() -> None:
    client = RemotingClient()
    with pytest.raises(RemotingConnectError):
        await client.connect(f"{64 * 'x'}:9876")
    await client.close()


async def test_a_server_that_has_answered_before_is_not_suspected_of_tls() -> None:
    """One that closes a connection without an answer may be stopping; the hint is for a first connection."""
    server = RemotingServer("127.0.0.1", 0, {ECHO: echo})
    await server.start()
    address = f"127.0.0.1:{server.port}"
    known, new = RemotingClient(), RemotingClient()
    await known.invoke_ok(address, RemotingCommand.request(ECHO))
    await server.stop()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.close()

    async with await asyncio.start_server(close, *host_and_port(address)):
        for client, is_suspected in ((known, False), (known, False), (new, True)):
            with pytest.raises(RemotingConnectError) as lost:
                await client.invoke(address, RemotingCommand.request(ECHO))
            assert ("TLS" in str(lost.value)) is is_suspected
    await known.close()
    await new.close()
