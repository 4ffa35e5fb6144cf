"""TLS of a whole cluster: clients, administration, replication and metrics; settings and their secrets."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rucola import settings
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, from_properties
from rucola.client import ClientInstance, ConsumeFromWhere, Message, Producer, PushConsumer, SendStatus, sync
from rucola.errors import ConfigError, RemotingConnectError
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.replication import encode_report
from rucola.remoting.byte_stream import open_stream
from rucola.remoting.client import RemotingClient
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.tls import ClientTls
from rucola.remoting.tls_config import ClientAuth, TlsConfig, TlsMode, with_tls_file
from rucola.store.config import BrokerRole, StoreConfig
from rucola.store.tools.check import check
from rucola.testing.rocketmq import RocketMQ
from support.certificates import Certificates, encrypt
from support.cluster import HOST, SMALL_FILES
from support.errors import raises
from support.waiting import until


def broker_of(path: Path, tls: TlsConfig, namesrv: str = "", role: str = "ASYNC_MASTER", **changed: object) -> Broker:
    config = BrokerConfig(
        broker_name="broker-a", broker_id=int(role == "SLAVE"), listen_port=0, ha_listen_port=0, namesrv_addr=namesrv,
        metrics_prom_exporter_port=0, tls=tls, **changed,  # type: ignore[arg-type]
    )  # fmt: skip
    store = StoreConfig(store_path_root_dir=path, broker_role=BrokerRole[role], **SMALL_FILES)
    return Broker(config, store)


@pytest.mark.parametrize("need", [ClientAuth.none, ClientAuth.require])
async def test_a_cluster_works_by_tls_alone(certificates: Certificates, tmp_path: Path, need: ClientAuth) -> None:
    """Broker, slave, clients and administration; every connection is by TLS, with certificates if they are required."""
    tls = certificates.config(server_need_client_auth=need)
    client = certificates.client_with_certificate() if need is ClientAuth.require else certificates.client()
    async with Namesrv(port=0, config=NamesrvConfig(tls=tls)) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        async with (
            broker_of(tmp_path / "master", tls, address, "SYNC_MASTER"),
            broker_of(tmp_path / "slave", tls, address, "SLAVE"),
            AdminClient(address, tls=client) as admin,
            Producer("p", address, tls=client) as producer,
        ):
            assert [*(await admin.cluster.info()).broker_addr_table] == ["broker-a"]
            await until(lambda: is_replicated(producer))
            results = [await producer.send(Message("T", bytes([number]) * 10_000)) for number in range(20)]
            assert {result.status for result in results} == {SendStatus.SEND_OK}  # so the slave has them
            consumer = PushConsumer("g", address, tls=client, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            async with consumer:
                consumer.subscribe("T")
                received = set()
                async for message in consumer.messages(idle_timeout_ms=20_000):
                    received.add(message.body[0])
                    consumer.ack(message)
                    if len(received) == 20:
                        break
            with pytest.raises(RemotingConnectError):
                async with AdminClient(address) as plain:
                    await plain.cluster.info()
    assert check(tmp_path / "master") == []
    assert check(tmp_path / "slave") == []
    logs = [(tmp_path / name / "commitlog" / f"{0:020d}").read_bytes() for name in ("master", "slave")]
    assert logs[0] == logs[1]


async def test_a_permissive_master_has_slaves_and_clients_of_both_kinds(
    certificates: Certificates, tmp_path: Path
) -> None:
    """As while a cluster changes over: the name server and one slave still speak plain text."""
    secured = certificates.config(TlsMode.permissive)
    plain, heartbeats = replace(secured, enable=False), {"ha_send_heartbeat_interval": 50}
    async with Namesrv(HOST, 0) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        async with broker_of(tmp_path / "master", plain, address, "SYNC_MASTER", **heartbeats) as master:
            ha_address = f"{HOST}:{master.config.ha_listen_port}"
            for tls in (None, certificates.client().follow()):
                stream = await open_stream(ha_address, tls)
                await stream.write(encode_report(0))
                head = await stream.read(12)
                assert len(head) == 12  # a transfer, or the heartbeat of an empty log
                stream.close()
            async with broker_of(tmp_path / "slave", plain, address, "SLAVE"), Producer("p", address) as producer:
                await until(lambda: is_replicated(producer))
            for client in (RemotingClient(), RemotingClient(tls=certificates.client())):
                request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
                assert (await client.invoke(master.address, request)).code == 0
                await client.close()
    assert check(tmp_path / "master") == []
    assert check(tmp_path / "slave") == []


async def is_replicated(producer: Producer) -> bool:
    """Whether the slave has connected, so that the master answers SEND_OK."""
    return (await producer.send(Message("Warming", b"up"))).status is SendStatus.SEND_OK


def test_blocking_clients_take_tls(certificates: Certificates, tmp_path: Path) -> None:
    conf = str(certificates.directory / "server.properties")
    with RocketMQ(tmp_path, {"tls.config.file": conf}) as rocketmq:
        rocketmq.send("T", b"from the fixture")
        with sync.Producer("p", rocketmq.namesrv, tls=certificates.client()) as producer:
            assert producer.send(Message("T", b"blocking")).status is SendStatus.SEND_OK
        assert {message.body for message in rocketmq.messages("T")} == {b"from the fixture", b"blocking"}
        assert rocketmq.variables["ROCKETMQ_TLS_CONFIG_FILE"] == conf
        with rocketmq.broker_down():
            pass
        rocketmq.send("T", b"again")
    assert check(tmp_path / "store") == []


async def test_the_clients_within_an_admin_client_connect_as_it_does(
    certificates: Certificates, tmp_path: Path
) -> None:
    tls, client = certificates.config(), certificates.client()
    async with Namesrv(port=0, config=NamesrvConfig(tls=tls)) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        async with broker_of(tmp_path / "store", tls, address):
            async with Producer("p", address, tls=client) as producer:
                sent = await producer.send(Message("%DLQ%kitchen", b"burnt", properties={"RETRY_TOPIC": "Orders"}))
                await producer.send(Message("Orders", b"one pizza"))
            async with AdminClient(address, tls=client) as admin:
                assert [letter.message.body async for letter in admin.dead_letters.read("kitchen")] == [b"burnt"]
                assert (await admin.dead_letters.stats("kitchen")).waiting == 1
                redriven = [result async for result in admin.dead_letters.redrive("kitchen", only_group=True)]
                assert [result.message.offset_msg_id for result in redriven] == [sent.offset_msg_id]
    assert check(tmp_path / "store") == []


async def test_metrics_are_served_by_https(certificates: Certificates, tmp_path: Path) -> None:
    tls = certificates.config(TlsMode.permissive)
    metrics = {"metrics_exporter_type": MetricsExporterType.PROM}
    async with broker_of(tmp_path / "store", tls, **metrics) as broker:
        for context in (certificates.client().follow().current(), None):
            port = broker.config.metrics_prom_exporter_port
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"rocketmq_broker_tps" in answer
            writer.close()
    async with broker_of(tmp_path / "store", certificates.config(), **metrics) as broker:
        reader, writer = await asyncio.open_connection(HOST, broker.config.metrics_prom_exporter_port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    assert check(tmp_path / "store") == []


async def test_a_reload_loads_certificates_of_broker_and_name_server(
    certificates: Certificates, tmp_path: Path
) -> None:
    own = certificates.copy(tmp_path / "own")
    async with (
        Namesrv(port=0, config=NamesrvConfig(tls=own.config())) as namesrv,
        broker_of(tmp_path / "store", own.config(), f"{HOST}:{namesrv.port}") as broker,
    ):
        (own.directory / "server.key").write_text("no key")
        for server in (namesrv, broker):
            with raises(ConfigError, subject="tls.server.keyPath"):
                await server.reload()
        async with AdminClient(f"{HOST}:{namesrv.port}", tls=own.client()) as admin:
            assert await admin.cluster.info()


# Clients without tls=.


async def test_a_client_reads_the_file_that_the_environment_names(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with Namesrv(port=0, config=NamesrvConfig(tls=certificates.config())) as namesrv:
        monkeypatch.setenv("ROCKETMQ_TLS_CONFIG_FILE", str(certificates.directory / "client.properties"))
        async with AdminClient(f"{HOST}:{namesrv.port}") as admin:
            assert await admin.cluster.info()
        assert ClientInstance("127.0.0.1:1").remoting.tls == certificates.client_with_certificate()
        off = tmp_path / "off.properties"
        off.write_text("tls.enable=false\n")
        monkeypatch.setenv("ROCKETMQ_TLS_CONFIG_FILE", str(off))
        assert ClientInstance("127.0.0.1:1").remoting.tls is None
        monkeypatch.setenv("ROCKETMQ_TLS_CONFIG_FILE", str(tmp_path / "none"))
        with pytest.raises(ConfigError):
            AdminClient("127.0.0.1:1")


# Settings and secrets.


def test_an_unknown_mode_names_the_three() -> None:
    with raises(ConfigError, subject="tls.server.mode"):
        from_properties({"tls.server.mode": "strict"})
    with raises(ConfigError, subject="tls.server.need.client.auth"):
        from_properties({"tls.server.need.client.auth": "maybe"})


def test_a_tls_file_is_read_like_apaches(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=certs/s.pem\ntls.server.mode=permissive\ntls.server.keyPath=/k/s.key\n")
    config, _, _ = from_properties({"tls.config.file": str(file), "tls.server.mode": "enforcing"})
    assert config.tls.server_mode is TlsMode.enforcing  # broker.conf wins
    assert config.tls.server_cert_path == tmp_path / "certs" / "s.pem"
    assert config.tls.server_key_path == Path("/k/s.key")
    file.write_text("tls.server.certpath=x\n")
    with raises(ConfigError, subject=str(file)):
        with_tls_file({"tls.config.file": str(file)})
    with pytest.raises(ConfigError):
        with_tls_file({"tls.config.file": str(tmp_path / "none")})


@pytest.mark.parametrize("source", ["swordfish", "env:KEY_PASSWORD_OF_A_TEST", "file:{path}"])
async def test_the_password_of_a_key_is_told_to_nobody(
    certificates: Certificates,
    tmp_path: Path,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    own = certificates.copy(tmp_path / "own")
    encrypt(own.directory / "server.key", b"swordfish")
    (tmp_path / "password").write_text("swordfish\n")
    monkeypatch.setenv("KEY_PASSWORD_OF_A_TEST", "swordfish")
    with raises(ConfigError, subject="tls.server.keyPassword"):
        own.server()
    conf = {
        "tls.config.file": str(own.directory / "server.properties"),
        "tls.server.keyPassword": source.format(path=tmp_path / "password"),
    }
    config, _, _ = from_properties(conf)
    assert "swordfish" not in repr(config) + settings.render(settings.to_properties(config))
    async with broker_of(tmp_path / "store", config.tls) as broker:
        client = RemotingClient(tls=own.client())
        answer = await client.invoke(broker.address, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG))
        shown = settings.parse(bytes(answer.body).decode())
        assert shown["tls.server.mode"] == "enforcing"
        assert "tls.server.keyPassword" not in shown
        for key, value in (("tls.server.keyPassword", "another"), ("tls.server.mode", "disabled")):
            change = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())
            answer = await client.invoke(broker.address, change)
            assert f"{key}: read at start-up only" in (answer.remark or "")
        await client.close()
    (tmp_path / "password").unlink()
    monkeypatch.delenv("KEY_PASSWORD_OF_A_TEST")
    wrong = from_properties(conf | {"tls.server.keyPassword": "hunter2" if source == "swordfish" else source})[0].tls
    with pytest.raises(ConfigError) as error:
        Broker(BrokerConfig(tls=wrong), StoreConfig(store_path_root_dir=tmp_path / "store"))
    assert not {"swordfish", "hunter2"} & {*str(error.value).split()}
    assert "swordfish" not in caplog.text
    assert "hunter2" not in str(error.value) + caplog.text


def test_the_oldest_version_is_1_2(certificates: Certificates) -> None:
    for context in (certificates.server().context, ClientTls().follow().current()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
