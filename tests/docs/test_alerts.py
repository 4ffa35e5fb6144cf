"""The rules of deploy/prometheus: they load, name metrics that exist, and fire and clear by real faults."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rucola.broker import metrics
from rucola.broker.broker import Broker
from rucola.client import Message, Producer
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import BrokerRole
from support.cluster import cluster
from support.metrics import PAGE
from support.prometheus import DIRECTORY, programs, running_prometheus
from support.waiting import until

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


async def test_alerts_fire_and_clear_by_real_faults(
    tmp_path: Path, prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RANK_INTERVAL_MS", 0)
    async with cluster(tmp_path) as running:
        master = await running.start_broker(store={"broker_role": BrokerRole.SYNC_MASTER}, **METERED)
        other = await running.start_broker("broker-b", **METERED)
        await running.create_topic(other, "%DLQ%g")
        ports = [broker.config.metrics_prom_exporter_port for broker in (master, other)]
        with running_prometheus(tmp_path, {"rocketmq-broker": ports}) as server:
            await until(lambda: server.is_scraping(2))

            async def fires(*names: str) -> bool:
                return await server.firing() - {"RocketmqMasterChanged"} == set(names)

            # 1. A SYNC_MASTER without a slave; then it has one.
            await until(lambda: fires("RocketmqNoSlaveInSync"))
            slave = await running.start_slave()
            await until(fires)
            # 2. Dead letters.
            async with Producer("p", running.namesrv) as producer:
                await producer.send(Message("%DLQ%g", b"x"))
            await until(lambda: fires("RocketmqDeadLetters"))
            # 3. A broker that stops, and comes back on the same port.
            await other.stop()
            await until(lambda: fires("RocketmqDeadLetters", "RocketmqServerDown"))
            again: Broker = await running.start_broker("broker-b", **METERED | {"metrics_prom_exporter_port": ports[1]})
            await until(lambda: fires("RocketmqDeadLetters"))
            # 4. The slave goes, and another time of the broker's clock.
            await slave.stop()
            await until(lambda: fires("RocketmqDeadLetters", "RocketmqNoSlaveInSync"))
            assert again.address
