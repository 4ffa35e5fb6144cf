"""Closed by default: what servers listen on, and what they refuse to listen on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, from_properties
from rucola.errors import ConfigError
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.remoting.exposure import check_exposure, is_loopback
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.tls_config import ClientAuth, TlsMode
from rucola.store.config import StoreConfig
from support.certificates import Certificates
from support.cluster import SMALL_FILES
from support.errors import raises


def broker_on(host: str, path: Path, **changed: object) -> Broker:
    config = BrokerConfig(bind_address=host, listen_port=0, ha_listen_port=0, **changed)  # type: ignore[arg-type]
    return Broker(config, StoreConfig(store_path_root_dir=path, **SMALL_FILES))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("LocalHost", True),
        ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.7", False), ("::ffff:10.0.0.7", False),
        ("broker-a.example.com", False), ("localhost.example.com", False),
    ],
)  # fmt: skip
def test_only_loopback_addresses_count_as_closed(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_servers_listen_on_the_loopback_address_unless_told_otherwise() -> None:
    broker, _, _ = from_properties({})
    assert (broker.bind_address, broker.broker_ip1, broker.metrics_prom_exporter_host) == ("127.0.0.1",) * 3
    assert NamesrvConfig().bind_address == "127.0.0.1"
    announced, _, _ = from_properties({"brokerIP1": "10.0.0.7"})
    assert announced.bind_address == "10.0.0.7"
    behind, _, _ = from_properties({"brokerIP1": "10.0.0.7", "bindAddress": "127.0.0.1"})
    assert behind.bind_address == "127.0.0.1"
    other, _, _ = from_properties({"bindAddress": "0.0.0.0"})
    assert other.metrics_prom_exporter_host == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.99.99.99"])
async def test_a_broker_and_a_name_server_refuse_other_machines(host: str, tmp_path: Path) -> None:
    with raises(ConfigError, subject=host):
        await broker_on(host, tmp_path / "store").start()
    with raises(ConfigError, subject=host):
        await Namesrv(host, 0).start()


@pytest.mark.parametrize("mode", [TlsMode.permissive, TlsMode.enforcing])
async def test_tls_alone_does_not_open_a_server(mode: TlsMode, certificates: Certificates, tmp_path: Path) -> None:
    with raises(ConfigError, subject="0.0.0.0"):
        await broker_on("0.0.0.0", tmp_path / "store", tls=certificates.config(mode)).start()
    with raises(ConfigError, subject="0.0.0.0"):
        await Namesrv("0.0.0.0", 0, config=NamesrvConfig(tls=certificates.config(mode))).start()


@pytest.mark.parametrize(
    ("is_tls_enforced", "has_access_control", "insecure", "is_open"),
    [
        (True, True, False, True), (True, False, False, False), (False, True, False, False),
        (False, False, True, True), (True, False, True, True),
    ],
)  # fmt: skip
def test_tls_and_access_control_together_open_a_server(
    is_tls_enforced: bool, has_access_control: bool, insecure: bool, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ways = {"is_tls_enforced": is_tls_enforced, "has_access_control": has_access_control, "insecure": insecure}
    check_exposure("the broker", "127.0.0.1", is_tls_enforced=False, has_access_control=False, insecure=False)
    if is_open:
        check_exposure("the broker", "0.0.0.0", **ways)
    else:
        with raises(ConfigError, subject="0.0.0.0"):
            check_exposure("the broker", "0.0.0.0", **ways)
    assert ("serves everyone who reaches it" in caplog.text) is insecure


async def test_insecure_opens_a_server_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Namesrv("0.0.0.0", 0, config=NamesrvConfig(insecure=True)),
        broker_on("0.0.0.0", tmp_path / "store", insecure=True) as broker,
    ):
        assert not broker.config.broker_ip1.startswith("0.")
        with socket.create_connection(("127.0.0.2", broker.config.listen_port)):
            pass
    for server in ("the name server", "the broker"):
        assert f"insecure=true: {server} on 0.0.0.0 serves everyone who reaches it" in caplog.text


async def test_metrics_for_other_machines_need_certificates_or_insecure(
    certificates: Certificates, tmp_path: Path
) -> None:
    metrics = {
        "metrics_exporter_type": MetricsExporterType.PROM,
        "metrics_prom_exporter_host": "0.0.0.0",
        "metrics_prom_exporter_port": 0,
    }
    for tls in (certificates.config(TlsMode.disabled), certificates.config()):
        with raises(ConfigError, subject="metricsPromExporterHost"):
            await broker_on("127.0.0.1", tmp_path / "store", tls=tls, **metrics).start()
    mutual = certificates.config(server_need_client_auth=ClientAuth.require)
    async with broker_on("127.0.0.1", tmp_path / "store", tls=mutual, **metrics):
        pass
    async with broker_on("127.0.0.1", tmp_path / "store", insecure=True, **metrics):
        pass
