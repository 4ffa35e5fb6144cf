"""Scraping of a broker's Prometheus endpoint."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from rucola.broker.broker import Broker
from support.cluster import HOST

Samples = dict[str, list[tuple[dict[str, str], float]]]

COUNTERS = {"rocketmq_internal_put_failures", "rocketmq_access_denied", "rocketmq_audit_dropped"}


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
    "rocketmq_internal_put_failures",
    "rocketmq_limit_refusals",
    "rocketmq_broker_switches",
    "rocketmq_connections_closed",
    "rocketmq_access_denied",
    "rocketmq_audit_dropped",
    "rocketmq_tiered_read_failures",
}


async def scrape(broker: Broker) -> Samples:
    """Every metric, with its labels and values."""
    head, body = await http_request(
        broker.config.metrics_prom_exporter_port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 OK")
    samples: Samples = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.type == ("counter" if family.name in COUNTERS else "gauge")
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def sample_value(samples: Samples, name: str, **labels: str) -> float:
    """The value with exactly these labels."""
    (found,) = [value for of, value in samples[name] if of == labels]
    return found
