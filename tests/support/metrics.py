"""Scraping of a Prometheus endpoint."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rucola.broker.broker import Broker
from support.cluster import HOST

Samples = dict[str, list[tuple[dict[str, str], float]]]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

BROKER_LABELS = {"cluster": "DefaultCluster", "broker": "broker-a"}


async def http_request(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to a request."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


COUNTERS = {
    "process_cpu_seconds",
    "rocketmq_internal_put_failures",
    "rocketmq_limit_refusals",
    "rocketmq_broker_switches",
    "rocketmq_connections_closed",
    "rocketmq_access_denied",
    "rocketmq_audit_dropped",
    "rocketmq_tiered_read_failures",
}


async def families_of(port: int) -> list[Metric]:
    """Every metric of an endpoint."""
    head, body = await http_request(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    return list(text_string_to_metric_families(body.decode()))


def names_of(families: Iterable[Metric]) -> set[str]:
    """The names of metrics, as the page writes them."""
    return {family.name + "_total" * (family.type == "counter") for family in families}


def documented_names(section: str) -> set[str]:
    """The names in the first column of a section of docs/metrics.md."""
    text = PAGE.read_text(encoding="utf-8").split(f"# {section}\n")[1].split("\n###")[0]
    return set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))))


def samples_of(families: Iterable[Metric]) -> Samples:
    """Labels and values by the name of the sample."""
    samples: Samples = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


async def scrape(broker: Broker) -> Samples:
    """Every metric of a broker, with its labels and values."""
    families = await families_of(broker.config.metrics_prom_exporter_port)
    for family in families:
        assert family.type == ("counter" if family.name in COUNTERS else "gauge")
    return samples_of(families)


def sample_value(samples: Samples, name: str, **labels: str) -> float:
    """The value with exactly these labels."""
    (found,) = [value for of, value in samples[name] if of == labels]
    return found
