"""What clients tell Prometheus, as it reads it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rucola.client import Message, Producer, PushConsumer, sync
from rucola.client.metrics import Client, ClientCollector
from support.cluster import cluster
from support.consumers import cluster_with_topic, consumer_of, take
from support.waiting import until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(*clients: Client) -> Samples:
    """Every metric, with its labels and values."""
    registry = CollectorRegistry()
    registry.register(ClientCollector(*clients))
    samples: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """The value with exactly these labels."""
    (found,) = [value for of, value in samples[name] if of == labels]
    return found


async def test_a_producer_exports_its_metrics(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T")
        assert scrape(producer) == {}
        await producer.send_batch([Message("T", b"x")] * 3)
        await producer.send_oneway(Message("T", b"x"))
        samples = scrape(producer)
        own = {"clientId": producer.instance.client_id, "group": "g", "topic": "T"}
        for status, count in (("SEND_OK", 3), ("NOT_STORE_OK", 0), ("FAILED", 0), ("ONEWAY", 1)):
            assert value(samples, "rocketmq_client_send_msg_total", **own, status=status) == count
        assert value(samples, "rocketmq_client_send_in_flight", **own) == 0
        of_cost = {"topic": "T", "client_id": producer.instance.client_id}
        for status, count in (("success", 1), ("failure", 0)):
            assert value(samples, "rocketmq_send_cost_time_count", **of_cost, invocation_status=status) == count
        bounds = [
            of["le"] for of, _ in samples["rocketmq_send_cost_time_bucket"] if of["invocation_status"] == "success"
        ]
        assert bounds == ["1.0", "5.0", "10.0", "20.0", "50.0", "200.0", "500.0", "+Inf"]
        assert value(samples, "rocketmq_send_cost_time_bucket", **of_cost, invocation_status="success", le="+Inf") == 1


async def test_a_consumer_exports_its_metrics(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(5), queues=1) as (running, _), consumer_of(running) as consumer:
        await take(consumer, 3)
        await until(lambda: consumer.stats()["T"].pulled == 5)
        samples = scrape(consumer)
        client_id = consumer.instance.client_id
        own = {"clientId": client_id, "group": "c", "topic": "T"}
        assert value(samples, "rocketmq_client_pull_msg_total", **own) == 5
        assert value(samples, "rocketmq_client_consume_msg_total", **own, status="OK") == 3
        assert value(samples, "rocketmq_client_consume_msg_total", **own, status="FAILED") == 0
        assert value(samples, "rocketmq_client_consume_in_flight", **own) == 0
        held = {"topic": "T", "client_id": client_id, "consumer_group": "c"}
        assert value(samples, "rocketmq_consumer_cached_messages", **held) == 2
        assert value(samples, "rocketmq_consumer_cached_bytes", **held) == 2
        assert value(samples, "rocketmq_process_time_count", **held, invocation_status="success") == 3
        assert value(samples, "rocketmq_client_consume_ok_msg_tps", clientAddr="", **own) > 0
        assert value(samples, "rocketmq_client_consumer_pull_tps", clientAddr="", **own) > 0
        for name in ("consume_fail_msg_tps", "consume_fail_msg_count"):
            assert value(samples, f"rocketmq_client_{name}", clientAddr="", **own) == 0
        for name in ("consume_rt", "consumer_pull_rt"):
            assert value(samples, f"rocketmq_client_{name}", clientAddr="", **own) >= 0


async def test_the_page_documents_exactly_the_exported_metrics() -> None:
    """`_fail_msg_tps` beside `rocketmq_client_consume_ok_msg_tps` has that one's beginning."""
    named = set()
    for cell in re.findall(r"^\| (`rocketmq_.*?) \|", PAGE.split("### Clients")[1], re.MULTILINE):
        first, *others = re.findall(r"`(\w+)`", cell)
        named |= {first} | {name if name.startswith("rocketmq_") else f"{beginning(first)}{name}" for name in others}

    clients = Producer("p", "127.0.0.1:1"), PushConsumer("c", "127.0.0.1:1")
    collected = {family.name for family in ClientCollector(*clients).collect()}
    assert {name.removesuffix("_total") for name in named} == collected


def beginning(name: str) -> str:
    """What the short names in a row leave out."""
    return "rocketmq_client_consumer" if "consumer" in name else "rocketmq_client_consume"


async def test_several_clients_share_a_collector(tmp_path: Path) -> None:
    """Blocking ones among them; each family is there once, as Prometheus demands."""

    async with cluster_with_topic(tmp_path, range(1), queues=1) as (running, _), Producer("a", running.namesrv) as one:

        def work() -> Samples:
            with sync.Producer("b", running.namesrv) as other, sync.PushConsumer("c", running.namesrv) as consumer:
                other.send(Message("T", b"x"))
                return scrape(one, other, consumer)

        await one.send(Message("T", b"x"))
        samples = await asyncio.to_thread(work)
        groups = {of["group"] for of, _ in samples["rocketmq_client_send_msg_total"]}
        assert groups == {"a", "b"}
        assert "rocketmq_client_consume_rt" in samples
