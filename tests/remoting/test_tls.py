"""TLS of listeners and clients: modes, certificates and names, reload, and the limits of handshakes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from rucola.errors import ConfigError, RemotingConnectError
from rucola.remoting import tls as tls_module
from rucola.remoting import tls_acceptor
from rucola.remoting.client import RemotingClient
from rucola.remoting.server import RemotingServer
from rucola.remoting.tls import ClientTls, ServerTls
from rucola.remoting.tls_config import ClientAuth, TlsMode
from support.certificates import Certificates, encrypt
from support.errors import raises
from support.remoting_peers import ECHO, RawPeer, echo, request, running_server
from support.waiting import DEADLINE_S, until

OPENSSL = shutil.which("openssl")


async def ask(server: RemotingServer, tls: ClientTls | None, host: str = "127.0.0.1") -> bytes:
    """Send a request on a connection of its own, and return the body of the response."""
    client = RemotingClient(tls=tls)
    try:
        return bytes((await client.invoke(f"{host}:{server.port}", request(ECHO, b"body"), DEADLINE_S * 1000)).body)
    finally:
        await client.close()


async def served_certificate(server: RemotingServer) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


# Modes.


async def test_enforcing_serves_tls_only_and_the_client_learns_why(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server(TlsMode.enforcing)) as server:
        assert await ask(server, certificates.client()) == b"body"
        with pytest.raises(RemotingConnectError, match=r"if it enforces TLS, pass tls= or set ROCKETMQ_TLS_CONFIG"):
            await ask(server, None)
    assert "127.0.0.1 sent plain text, and tls.server.mode is enforcing" in caplog.text


async def test_permissive_serves_both_on_one_port(certificates: Certificates) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server(TlsMode.permissive)) as server:
        assert await ask(server, certificates.client()) == b"body"
        assert await ask(server, None) == b"body"
        peer = await RawPeer.to(server)
        encoded = request(ECHO, b"slow").encode()
        await peer.send(encoded[:1])  # the first byte alone decides
        await peer.send(encoded[1:])
        assert (await peer.commands(1))[0].body == b"slow"
        await peer.close()


async def test_disabled_answers_a_tls_client_by_closing(certificates: Certificates) -> None:
    async with running_server({ECHO: echo}) as server:
        with pytest.raises(RemotingConnectError):
            await ask(server, certificates.client())


async def test_a_peer_that_answers_in_plain_text_is_named(certificates: Certificates) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = RemotingClient(tls=certificates.client())
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(RemotingConnectError, match=r"it does not speak TLS: set tls.server.mode there"):
        await client.invoke(f"127.0.0.1:{port}", request(ECHO))
    await client.close()
    server.close()


# Certificates.


async def test_an_unknown_authority_and_a_foreign_name_are_refused(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Certificates(tmp_path / "other")
    async with running_server({ECHO: echo}, tls=certificates.server()) as server:
        with pytest.raises(RemotingConnectError, match=r"its certificate is not accepted: .*tls.client.trustCertPath"):
            await ask(server, other.client())
    listening = RemotingServer("127.0.0.2", 0, {ECHO: echo}, tls=certificates.server())
    await listening.start()
    with pytest.raises(
        RemotingConnectError, match=r"not accepted: IP address mismatch.*127.0.0.2.*tls.client.checkHostname"
    ):
        await ask(listening, certificates.client(), "127.0.0.2")
    assert await ask(listening, certificates.client(check_hostname=False), "127.0.0.2") == b"body"
    with pytest.raises(RemotingConnectError):
        await ask(listening, other.client(check_hostname=False), "127.0.0.2")
    assert "not verified" not in caplog.text
    assert await ask(listening, ClientTls(verify=False), "127.0.0.2") == b"body"
    assert "certificates of servers are not verified: anyone on the network" in caplog.text
    await listening.stop()


async def test_mutual_tls_admits_only_certificates_of_the_authority(certificates: Certificates, tmp_path: Path) -> None:
    foreign = Certificates(tmp_path / "other")
    stranger = certificates.client(certificate=foreign.directory / "client.pem", key=foreign.directory / "client.key")
    required = certificates.server(server_need_client_auth=ClientAuth.require)
    async with running_server({ECHO: echo}, tls=required) as server:
        assert await ask(server, certificates.client_with_certificate()) == b"body"
        for client in (certificates.client(), stranger):
            with pytest.raises(RemotingConnectError, match=r"if it requires certificates, set tls.client.certPath"):
                await ask(server, client)
    optional = certificates.server(server_need_client_auth=ClientAuth.optional)
    async with running_server({ECHO: echo}, tls=optional) as server:
        assert await ask(server, certificates.client_with_certificate()) == b"body"
        assert await ask(server, certificates.client()) == b"body"
        with pytest.raises(RemotingConnectError):
            await ask(server, stranger)


async def test_old_versions_of_tls_are_refused(certificates: Certificates) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server()) as server:
        for version, is_served in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.create_default_context(cafile=certificates.directory / "ca.pem")
            context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():  # Python deprecates the old versions as well
                warnings.simplefilter("ignore")
                context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            except (ssl.SSLError, ConnectionError):
                assert not is_served
            else:
                assert is_served
                writer.close()


# Reload.


@pytest.fixture
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new connection looks at the files, not one in a second."""
    monkeypatch.setattr(tls_module, "CHECK_INTERVAL_S", 0.0)


@pytest.mark.usefixtures("_looks_at_once")
async def test_a_replaced_certificate_is_served_to_new_connections(certificates: Certificates, tmp_path: Path) -> None:
    own = certificates.copy(tmp_path / "own")
    async with running_server({ECHO: echo}, tls=own.server()) as server:
        kept = RemotingClient(tls=own.client())
        address = f"127.0.0.1:{server.port}"
        await kept.invoke(address, request(ECHO))
        (connection,) = server.connections
        before = await served_certificate(server)
        assert await served_certificate(server) == before
        tls_module_renew(own)
        assert await served_certificate(server) != before
        assert await ask(server, own.client()) == b"body"
        assert (await kept.invoke(address, request(ECHO, b"kept"))).body == b"kept"
        assert connection in server.connections
        await kept.close()


@pytest.mark.usefixtures("_looks_at_once")
async def test_unusable_files_leave_the_last_good_certificate(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = certificates.copy(tmp_path / "own")
    tls = own.server()
    async with running_server({ECHO: echo}, tls=tls) as server:
        before = await served_certificate(server)
        good = (own.directory / "server.pem").read_bytes()
        (own.directory / "server.pem").write_bytes((certificates.directory / "ca.pem").read_bytes())
        with raises(ConfigError, subject="tls.server.keyPath"):
            tls.reload()
        (own.directory / "server.pem").write_bytes(b"half a certif")
        assert await served_certificate(server) == before
        (own.directory / "server.pem").unlink()
        assert await served_certificate(server) == before
        assert await ask(server, own.client()) == b"body"
        assert "TLS certificates failed, retrying: the ones before stay in use" in caplog.text
        (own.directory / "server.pem").write_bytes(good)
        with caplog.at_level(logging.INFO):
            tls.reload()
        assert f"TLS certificates loaded: {own.directory / 'server.pem'}" in caplog.text


@pytest.mark.usefixtures("_looks_at_once")
async def test_a_client_follows_its_files_as_well(certificates: Certificates, tmp_path: Path) -> None:
    own = certificates.copy(tmp_path / "own")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((Certificates(tmp_path / "other").directory / "ca.pem").read_bytes())
    client = RemotingClient(tls=ClientTls(ca=trusted))
    async with running_server({ECHO: echo}, tls=own.server()) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(RemotingConnectError):
            await client.invoke(address, request(ECHO))
        trusted.write_bytes((own.directory / "ca.pem").read_bytes())
        assert (await client.invoke(address, request(ECHO, b"x"))).body == b"x"
        await client.close()


def tls_module_renew(certificates: Certificates) -> None:
    from rucola.cli.certificates import CertificateDirectory

    CertificateDirectory(certificates.directory).renew([], 1)


# Limits.


async def test_silent_connections_are_closed_and_cannot_occupy_all_places(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_acceptor, "PENDING_AGE_S", 0.05)
    tls = certificates.server(server_max_pending_handshakes=4, server_handshake_timeout=60_000)
    async with running_server({ECHO: echo}, tls=tls) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        assert await ask(server, certificates.client()) == b"body"
        # All but the last four, which are pending, made room.
        for reader, _ in silent[:8]:
            assert await asyncio.wait_for(reader.read(), 20) == b""
        for _, writer in silent:
            writer.close()
    assert "it made room for others, 4 being pending" in caplog.text


async def test_clients_that_connect_together_wait_for_their_turn(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server(server_max_pending_handshakes=2)) as server:
        bodies = await asyncio.gather(*[ask(server, certificates.client()) for _ in range(40)])
        assert bodies == [b"body"] * 40
    assert "connections failed" not in caplog.text


@pytest.mark.parametrize("sent", [b"", tls_acceptor.HANDSHAKE_BYTE, b"\x16\x03\x01\x02\x00\x01"])
async def test_an_unfinished_handshake_times_out(
    certificates: Certificates, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tls = certificates.server(server_handshake_timeout=100)
    async with running_server({ECHO: echo}, tls=tls) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()

        async def is_served() -> bool:
            with suppress(RemotingConnectError):  # the same 0.1 s can be too short for a good handshake
                return await ask(server, certificates.client()) == b"body"
            return False

        await until(is_served)
    assert "127.0.0.1 was not ready after 0.1 s" in caplog.text


async def test_many_failures_are_one_line(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server()) as server:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16 no handshake at all, but long enough for a record")
            assert await asyncio.wait_for(_until_closed(reader), 20) is None
            writer.close()
        assert await ask(server, certificates.client()) == b"body"
    assert len([record for record in caplog.records if "a connection failed" in record.message]) == 1


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1024):
            pass
    except ConnectionError:
        pass


async def test_a_stop_ends_pending_connections(certificates: Certificates) -> None:
    async with running_server({ECHO: echo}, tls=certificates.server()) as server:
        silent = await asyncio.open_connection("127.0.0.1", server.port)
        begun = await asyncio.open_connection("127.0.0.1", server.port)
        begun[1].write(b"\x16\x03\x01")
        assert await ask(server, certificates.client()) == b"body"
    for reader, writer in (silent, begun):
        await asyncio.wait_for(_until_closed(reader), 20)
        writer.close()


async def test_a_peer_that_ends_without_a_goodbye_is_gone(certificates: Certificates) -> None:
    """Python's ssl as a strange peer: it shuts the socket down in the middle of TLS."""
    async with running_server({ECHO: echo}, tls=certificates.server()) as server:
        context = certificates.client().follow().current()

        def talk_and_cut() -> bytes:
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                secured = context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=True)
                secured.sendall(request(ECHO, b"before").encode())
                answer = secured.recv(4096)
                plain_again = socket.socket(fileno=secured.detach())
                plain_again.shutdown(socket.SHUT_WR)
                plain_again.settimeout(20)
                while plain_again.recv(4096):
                    pass
                plain_again.close()
                return answer

        assert b"before" in await asyncio.to_thread(talk_and_cut)
        for connection in list(server.connections):
            await asyncio.wait_for(connection.closed.wait(), 20)
        assert not server.connections


if OPENSSL is not None:

    def s_client(server: RemotingServer, certificates: Certificates, *options: str, sent: bytes) -> str:
        done = subprocess.run(
            [OPENSSL or "", "s_client", "-connect", f"127.0.0.1:{server.port}", "-CAfile",
             str(certificates.directory / "ca.pem"), "-verify_return_error", *options],
            input=sent, capture_output=True, timeout=60,
        )  # fmt: skip
        return (done.stdout + done.stderr).decode("utf-8", "replace")

    @pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
    async def test_openssl_is_served(certificates: Certificates, version: str) -> None:
        async with running_server({ECHO: echo}, tls=certificates.server()) as server:
            frame = request(ECHO, b"from openssl").encode()
            text = await asyncio.to_thread(s_client, server, certificates, version, "-quiet", "-no_ign_eof", sent=frame)
            assert "verify return:1" in text
            assert await ask(server, certificates.client()) == b"body"

    async def test_renegotiation_is_refused(certificates: Certificates) -> None:
        async with running_server({ECHO: echo}, tls=certificates.server()) as server:
            text = await asyncio.to_thread(s_client, server, certificates, "-tls1_2", sent=b"R\n")
            assert "RENEGOTIATING" in text
            assert "no renegotiation" in text
            assert await ask(server, certificates.client()) == b"body"


# Settings.


@pytest.mark.parametrize(
    ("changed", "subject"),
    [
        ({"server_cert_path": None}, "tls.server.certPath"),
        ({"server_key_path": None}, "tls.server.keyPath"),
        ({"server_key_path": Path("nowhere.key")}, "tls.server.keyPath"),
        ({"server_need_client_auth": ClientAuth.require, "server_trust_cert_path": None}, "tls.server.trustCertPath"),
        ({"server_need_client_auth": ClientAuth.optional, "server_auth_client": False}, "tls.server.authClient"),
        (
            {"server_need_client_auth": ClientAuth.require, "server_trust_cert_path": Path("no.pem")},
            "tls.server.trustCertPath",
        ),
        ({"server_handshake_timeout": 0}, "tls.server.handshakeTimeoutMillis"),
        ({"server_max_pending_handshakes": -1}, "tls.server.maxPendingHandshakes"),
        ({"test_mode_enable": True}, "tls.test.mode.enable"),
    ],
)  # fmt: skip
def test_a_server_without_usable_certificates_is_an_error(
    certificates: Certificates, changed: dict[str, object], subject: str
) -> None:
    with raises(ConfigError, subject=subject):
        ServerTls(certificates.config(**changed))


def test_an_authority_file_without_certificates_is_an_error(certificates: Certificates) -> None:
    with raises(ConfigError, subject="tls.client.trustCertPath"):
        ClientTls(ca=certificates.directory / "server.key").follow()
    with raises(ConfigError, subject="tls.client.keyPath"):
        ClientTls(key=certificates.directory / "client.key").follow()


def test_the_password_of_a_clients_key_is_not_shown(certificates: Certificates, tmp_path: Path) -> None:
    own = certificates.copy(tmp_path / "own")
    encrypt(own.directory / "client.key", b"swordfish")
    files = {"certificate": own.directory / "client.pem", "key": own.directory / "client.key"}
    with raises(ConfigError, subject="tls.client.keyPassword"):
        own.client(**files).follow()
    client = own.client(**files, key_password="swordfish")
    client.follow()
    assert "swordfish" not in repr(client)


def test_a_key_that_others_can_read_is_warned_about(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = certificates.copy(tmp_path / "own")
    own.server()
    assert "chmod" not in caplog.text
    (own.directory / "server.key").chmod(0o644)
    own.server()
    assert f"`chmod 600 {own.directory / 'server.key'}` mends it" in caplog.text
