"""`rucola tls`: certificates, their names and modes, and servers that use them."""

from __future__ import annotations

import signal
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from rucola import settings
from rucola.remoting.tls_config import TlsConfig, read_tls_file
from support.servers import run, run_here, server

KEYS = {"ca.key", "server.key", "client.key"}
FILES = KEYS | {"ca.pem", "server.pem", "client.pem", "server.properties", "client.properties"}


def names_in(certificate: Path) -> list[str]:
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


@pytest.mark.slow
def test_init_makes_certificates_that_only_their_owner_reads(tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    done = run("tls", "init", made, "broker-a.example.com", "10.0.0.7", "--days", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"export ROCKETMQ_TLS_CONFIG_FILE={made}/client.properties" in done.stdout
    assert {path.name for path in made.iterdir()} == FILES
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}
    names = names_in(made / "server.pem")
    assert {"localhost", "127.0.0.1", "::1", "broker-a.example.com", "10.0.0.7"} <= {*names}
    for file in ("server.properties", "client.properties"):
        config = settings.fill(TlsConfig, read_tls_file(made / file))
        assert config.verifies_servers
        assert config.enable
    again = run("tls", "init", made)
    assert (again.returncode, "has an authority already; `rucola tls renew`" in again.stderr) == (1, True)
    before = {name: (made / name).read_bytes() for name in FILES}
    assert run("tls", "renew", made, "broker-b").returncode == 0
    assert names_in(made / "server.pem") == [*names, "broker-b"]
    changed = {name for name in FILES if (made / name).read_bytes() != before[name]}
    assert changed == {"server.pem", "server.key", "client.pem", "client.key"}
    ssl.create_default_context(cafile=made / "ca.pem").load_cert_chain(made / "server.pem", made / "server.key")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(("renew", "none"), "none has no server.pem; `rucola tls init`"), (("init", "x", "höst"), "write names in ASCII")],
)
def test_what_cannot_be_made_is_one_sentence(arguments: tuple[str, ...], why: str, tmp_path: Path) -> None:
    command, directory, *hosts = arguments
    done = run("tls", command, tmp_path / directory, *hosts)
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_servers_and_commands_use_the_files_and_follow_a_renewal(tmp_path: Path) -> None:
    made, log = tmp_path / "certificates", tmp_path / "log"
    assert run("tls", "init", made).returncode == 0
    arguments = ["--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0"]
    with server("standalone", *arguments, "-c", made / "server.properties", log=log) as running:
        namesrv, _ = running.addresses()
        client = {"ROCKETMQ_TLS_CONFIG_FILE": str(made / "client.properties")}
        sent = run_here("admin", "sendMessage", "-n", namesrv, "-t", "T", "-p", "by TLS", **client)
        assert "SEND_OK" in sent.stdout, sent.stderr
        plain = run_here("admin", "clusterList", "-n", namesrv)
        assert plain.returncode == 1
        assert "if it enforces TLS, pass tls= or set ROCKETMQ_TLS_CONFIG_FILE" in plain.stderr
        assert run("tls", "renew", made).returncode == 0
        running.process.send_signal(signal.SIGHUP)
        again = run_here("admin", "consumeMessage", "-n", namesrv, "-t", "T", **client)
        assert "by TLS" in again.stdout, again.stderr
        assert running.stop() == 0
    assert "TLS certificates loaded: " in log.read_text()
    assert run_here("store", "check", tmp_path / "store").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["broker", "namesrv", "standalone"])
def test_a_server_for_other_machines_names_the_ways_out(command: str, tmp_path: Path) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text("bindAddress=0.0.0.0\nlistenPort=0\n")
    options = ["--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0"]
    if command == "broker":
        conf.write_text(conf.read_text() + f"storePathRootDir={tmp_path / 'store'}\n")
    done = run(command, *(options if command == "standalone" else []), "-c", conf)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "tls.server.mode=enforcing and aclEnable=true, or insecure=true" in line
