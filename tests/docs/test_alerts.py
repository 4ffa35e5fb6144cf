"""The rules of deploy/prometheus: they load, name metrics that exist, and fire and clear by real faults."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from rucola.admin import AdminClient
from rucola.broker import metrics
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.cli.certificates import CertificateDirectory
from rucola.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from rucola.client.consumer import push_consumer
from rucola.domain.topic import PERM_READ
from rucola.errors import ConfigError
from rucola.message.properties import DELAY
from rucola.reliable import Outbox, Tables, migration, operations
from rucola.reliable.schema import MANUAL
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.tls_config import TlsMode
from rucola.spark.jobs import archive, lake_status
from rucola.spark.session import LazySession
from rucola.store.config import BrokerRole
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from support.certificates import Certificates
from support.cluster import Cluster, cluster
from support.metrics import PAGE
from support.ports import HOST, free_ports
from support.prometheus import DIRECTORY, Prometheus, alert_names, programs, running_prometheus
from support.servers import Server

PATIENT_MS = 60_000
"""Many servers share a machine here."""
METERED = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}


@pytest.fixture
def prometheus() -> str:
    """Names the program, so that `make quick` leaves the test out."""
    return programs()[1]


def test_the_files_are_valid(prometheus: str) -> None:
    done = subprocess.run(
        [prometheus, "check", "config", DIRECTORY / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_behave_over_time(prometheus: str) -> None:
    done = subprocess.run(
        [prometheus, "test", "rules", DIRECTORY / "alerts_test.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_metric_of_a_rule_is_documented() -> None:
    named = set(re.findall(r"\b(?:rocketmq|rucola|process)_\w+", (DIRECTORY / "alerts.yml").read_text()))
    pages = PAGE.read_text() + (PAGE.parent / "pipeline-archive.md").read_text()
    known = set(re.findall(r"`(\w+)`", pages)) | {"rocketmq_archive_lag", "rocketmq_archive_latency_ms"}
    assert named - known == set()


class World:
    """A cluster and the Prometheus that watches it. Each fault has brokers of its own, and all happen at once."""

    def __init__(self, path: Path, running: Cluster, prometheus: Prometheus, admin: AdminClient) -> None:
        self.path = path
        self.running = running
        self.prometheus = prometheus
        self.admin = admin
        self.fires, self.clears = prometheus.fires, prometheus.clears

    async def broker(self, name: str, topic: str = "", **options: Any) -> tuple[Broker, str]:
        """A broker that is scraped, with a topic of one queue, and its label `instance`."""
        broker = await self.running.start_broker(name, **METERED | options)
        if topic:
            await self.running.create_topic(broker, topic, queues=1)
        return broker, await self.prometheus.scrape("rocketmq-broker", broker.config.metrics_prom_exporter_port)

    def configure(self, name: str, **settings: object) -> Path:
        path = self.path / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


async def full_disk(world: World) -> None:
    """More than 1,000 delayed messages are due while it is full."""
    percent = 50

    def probe(path: Path) -> DiskUsage:
        return DiskUsage(path, percent << 30, 100 << 30)

    store = {"clean_resource_interval": 100, "message_delay_level": "5s"}
    _, instance = await world.broker("full", "Full", store=store, probe_disk=probe)
    async with Producer("p", world.running.namesrv) as producer:
        for _ in range(11):
            delayed = [Message("Full", b"x", properties={DELAY: "1"}) for _ in range(100)]
            await asyncio.gather(*(producer.send(message, timeout_ms=PATIENT_MS) for message in delayed))
        percent = 95
        for alert in ("RocketmqDiskFills", "RocketmqNotAccepting", "RocketmqInternalPutsFail", "RocketmqDeliveredLate"):
            await world.fires(alert, instance=instance)
        percent = 50
        for alert in ("RocketmqDiskFills", "RocketmqNotAccepting", "RocketmqInternalPutsFail", "RocketmqDeliveredLate"):
            await world.clears(alert, instance=instance)


async def slave_that_stops(world: World) -> None:
    """No slave, one that hangs, and none again."""
    role = {"broker_role": BrokerRole.SYNC_MASTER}
    master, instance = await world.broker("replicated", "Replicated", store=role | {"sync_flush_timeout": 100})
    at = {"broker": "replicated"}
    await world.fires("RocketmqNoSlaveInSync", **at)
    (port,) = free_ports(1, 1)
    conf = world.configure(
        "slave", brokerName="replicated", brokerId=1, brokerRole="SLAVE", listenPort=port, haListenPort=port + 1,
        bindAddress=HOST, brokerIP1=HOST, namesrvAddr=world.running.namesrv, storePathRootDir=world.path / "slave",
        mappedFileSizeCommitLog=1 << 20, cleanFileForciblyEnable="false",
    )  # fmt: skip
    async with process(world, "broker", conf) as slave, Producer("p", world.running.namesrv) as producer:
        await world.clears("RocketmqNoSlaveInSync", **at)
        slave.send_signal(signal.SIGSTOP)
        await producer.send(Message("Replicated", b"x"), timeout_ms=PATIENT_MS)
        await world.fires("RocketmqSlaveBehind", instance=instance)
        slave.send_signal(signal.SIGCONT)
        await world.clears("RocketmqSlaveBehind", instance=instance)
    await world.fires("RocketmqNoSlaveInSync", **at)
    assert master.address


async def groups_that_do_not_consume(world: World) -> None:
    """A stopped group whose backlog grows, a slow one, and messages that wait."""
    broker, instance = await world.broker("groups", "Growing")
    await world.running.create_topic(broker, "Slow", queues=1)
    admin, gate, is_slow = world.admin, asyncio.Semaphore(0), True
    await admin.offsets.commit(broker.address, "growing", MessageQueue("Growing", "groups", 0), 0)
    consumer = PushConsumer("slow", world.running.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("Slow")

    async def listen(_: MessageExt) -> None:
        if is_slow:
            await gate.acquire()

    async def trickle() -> None:
        while True:
            gate.release()
            await asyncio.sleep(0.2)  # five messages a second

    consumer.listen(listen)
    async with Producer("p", world.running.namesrv) as producer:
        for topic in ("Growing", "Slow"):
            await producer.send_batch([Message(topic, b"x") for _ in range(1500)], timeout_ms=PATIENT_MS)
        async with asyncio.TaskGroup() as group:

            async def grow() -> None:
                while True:
                    await producer.send(Message("Growing", b"x"), timeout_ms=PATIENT_MS)
                    await asyncio.sleep(0.05)

            growing = group.create_task(grow())
            await world.fires("RocketmqBacklogGrows", group="growing", topic="Growing")
            await world.fires("RocketmqConsumedLate", group="growing", instance=instance)
            growing.cancel()
            await world.clears("RocketmqBacklogGrows", group="growing", topic="Growing")
            trickling = group.create_task(trickle())
            async with consumer:
                await world.fires("RocketmqBacklogDrainsSlowly", group="slow", topic="Slow")
                is_slow = False
                for _ in range(100):
                    gate.release()
                await world.clears("RocketmqBacklogDrainsSlowly", group="slow", topic="Slow")
                trickling.cancel()
    late = PushConsumer("growing", world.running.namesrv)
    late.subscribe("Growing")
    late.listen(lambda message: None)
    async with late:
        await world.clears("RocketmqConsumedLate", group="growing", instance=instance)


async def dead_letters(world: World) -> None:
    _, instance = await world.broker("letters", "Letters")
    consumer = PushConsumer("dying", world.running.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("Letters")
    async with Producer("p", world.running.namesrv) as producer, consumer:
        await producer.send(Message("Letters", b"x"), timeout_ms=PATIENT_MS)
        messages = consumer.messages()
        await consumer.reconsume_later(await anext(messages), -1)
        await world.fires("RocketmqDeadLetters", instance=instance)
        async for _ in world.admin.dead_letters.redrive("dying"):
            pass
        consumer.ack(await anext(messages))
        await world.clears("RocketmqDeadLetters", instance=instance)


async def transaction_without_a_producer(world: World) -> None:
    checks = {"transaction_time_out": 100, "transaction_check_interval": 100}
    _, instance = await world.broker("transactions", "Orders", **checks)
    address, unknown = world.running.namesrv, LocalTransactionState.UNKNOW
    async with TransactionProducer("tx", address, check=lambda _: unknown) as producer:
        await producer.send_in_transaction(Message("Orders", b"x"), lambda *_: unknown)
    await world.fires("RocketmqOpenTransactions", instance=instance)
    committed = LocalTransactionState.COMMIT_MESSAGE
    async with TransactionProducer("tx", address, check=lambda _: committed, topics=["Orders"]):
        await world.clears("RocketmqOpenTransactions", instance=instance)


async def outage_of_the_only_broker(world: World) -> None:
    """Its clock is wrong, it is restarted, and the relay of an outbox waits for it."""
    ahead_ms = 0
    metrics_port, port = free_ports(2)
    options: dict[str, Any] = {"clock": lambda: wall_clock_ms() + ahead_ms, "metrics_prom_exporter_port": metrics_port}
    database = create_engine(f"sqlite:///{world.path / 'shop.db'}")
    with database.begin() as connection:
        migration.init(connection, Tables())
    async with cluster(world.path / "alone") as running:
        broker, instance = await World(world.path, running, world.prometheus, world.admin).broker("only", **options)
        await running.create_topic(broker, "Outbox")
        where = ("-n", running.namesrv, "--database", str(database.url), "--metricsPort", str(port))
        async with process(world, "reliable", "relay", *where):
            relay = await world.prometheus.scrape("rucola-relay", port)
            ahead_ms = 10_000
            await world.fires("RocketmqClockDiffers", instance=instance)
            ahead_ms = 0
            await world.clears("RocketmqClockDiffers", instance=instance)
            await broker.stop()
            await world.fires("RocketmqServerDown", instance=instance)
            with database.begin() as connection:
                Outbox([]).add(connection, Message("Outbox", b"x"))
            await world.fires("RucolaRelayBehind", instance=relay)
            broker = await running.start_broker("only", broker.config.listen_port, **METERED | options)
            await world.clears("RocketmqServerDown", instance=instance)
            await world.clears("RucolaRelayBehind", instance=relay)
            await broker.stop()  # for less than the range of the rule
            broker = await running.start_broker("only", broker.config.listen_port, **METERED | options)
            await world.fires("RocketmqMasterChanged", instance=instance)
            await world.clears("RocketmqMasterChanged", instance=instance)
        # A topic that accepts no messages: the relay gives up after its first try, until the message is sent again.
        await running.create_topic(broker, "Closed", perm=PERM_READ)
        with database.begin() as connection:
            message_id = Outbox([]).add(connection, Message("Closed", b"x"))
        async with process(world, "reliable", "relay", *where, "--max-sends", "1"):
            await world.fires("RucolaReliableMessageUnsettled", instance=relay, status=MANUAL)
            await running.create_topic(broker, "Closed")
            with database.begin() as connection:
                operations.resend(connection, Tables(), [message_id])
            await world.clears("RucolaReliableMessageUnsettled", instance=relay, status=MANUAL)
    database.dispose()


async def certificate_of_a_day(world: World) -> None:
    """It is renewed, and loaded as by SIGHUP."""
    certificates = Certificates(world.path / "certificates")
    broker, instance = await world.broker("tls", tls=certificates.config(TlsMode.permissive))
    await world.fires("RocketmqCertificateExpires", instance=instance)
    CertificateDirectory(certificates.directory).renew([], 90)
    with pytest.raises(ConfigError):  # it has no file of settings to read again
        await broker.reload()
    await world.clears("RocketmqCertificateExpires", instance=instance)


async def archive_that_does_not_run(world: World) -> None:
    """The metrics are those that `rucola pipeline status --prometheus` writes for node_exporter."""
    await world.broker("archived", "Archived")
    store, lake = world.path / "archived", world.path / "lake"
    session = LazySession("alerts", use_spark=False)
    text = ""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    async def write_status() -> None:
        nonlocal text
        log = {"storePath": str(store), "brokerName": "archived"}
        text = lake_status.metrics(await asyncio.to_thread(lake_status.run, lake, log))

    async def run_archive() -> None:
        await asyncio.to_thread(archive.run, session, store, lake, broker_name="archived")
        await write_status()

    with ThreadingHTTPServer((HOST, 0), Handler) as server, ExitStack() as serving:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        serving.callback(thread.join)
        serving.callback(server.shutdown)
        async with Producer("p", world.running.namesrv) as producer, asyncio.TaskGroup() as group:
            await producer.send(Message("Archived", b"x"), timeout_ms=PATIENT_MS)
            await run_archive()
            instance = await world.prometheus.scrape("node", server.server_port)
            await producer.send(Message("Archived", b"x"), timeout_ms=PATIENT_MS)

            async def cron() -> None:
                while True:
                    await write_status()
                    await asyncio.sleep(0.5)

            writing = group.create_task(cron())
            await world.fires("RocketmqArchiveBehind", instance=instance, topic="Archived")
            writing.cancel()
            await run_archive()
            await world.clears("RocketmqArchiveBehind", instance=instance, topic="Archived")


async def descriptors_of_a_name_server(world: World) -> None:
    port, metrics_port = free_ports(2)
    conf = world.configure(
        "namesrv", listenPort=port, bindAddress=HOST, metricsExporterType="PROM", metricsPromExporterPort=metrics_port,
        reservedDescriptors=1,
    )  # fmt: skip
    async with process(world, "namesrv", conf) as namesrv:
        instance = await world.prometheus.scrape("rocketmq-namesrv", metrics_port)
        used = len(os.listdir(f"/proc/{namesrv.pid}/fd"))
        resource.prlimit(namesrv.pid, resource.RLIMIT_NOFILE, (10 * used, 10 * used))
        connections = [await asyncio.open_connection(HOST, port) for _ in range(8 * used)]
        await world.fires("RocketmqDescriptors", instance=instance)
        for _, writer in connections:
            writer.close()
        await world.clears("RocketmqDescriptors", instance=instance)


@asynccontextmanager
async def process(world: World, *arguments: str | Path) -> AsyncIterator[subprocess.Popen[str]]:
    """A server of its own process, which ends by SIGKILL."""
    where = ("-c",) if isinstance(arguments[-1], Path) else ()
    log = world.path / f"{arguments[0]}.log"
    command = (*arguments[:-1], *where, arguments[-1])
    running = await asyncio.to_thread(lambda: Server(*command, log=log))
    try:
        assert running.first_line, log.read_text()
        yield running.process
    finally:
        running.process.kill()
        await asyncio.to_thread(running.process.wait)
        running.stdout.close()


FAULTS = [
    full_disk, slave_that_stops, groups_that_do_not_consume, dead_letters, transaction_without_a_producer,
    outage_of_the_only_broker, certificate_of_a_day, archive_that_does_not_run, descriptors_of_a_name_server,
]  # fmt: skip


async def test_each_alert_fires_by_a_real_fault_and_clears_by_its_repair(
    tmp_path: Path, prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prometheus
    monkeypatch.setattr(metrics, "RANK_INTERVAL_MS", 0)
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_MS", 100)
    with running_prometheus(tmp_path / "prometheus") as server:
        async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
            watching = asyncio.create_task(server.watch())
            world = World(tmp_path, running, server, admin)
            async with asyncio.TaskGroup() as group:
                for fault in FAULTS:
                    group.create_task(fault(world))
            watching.cancel()
    assert server.fired == server.cleared == alert_names()
    for store in running.stores:
        assert check(store) == []
