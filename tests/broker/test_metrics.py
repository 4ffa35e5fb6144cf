"""The metrics of a broker, as Prometheus gets them and reads them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rucola.broker.broker import Broker
from rucola.broker.config import MetricsExporterType
from rucola.client import ConsumeFromWhere, Message, Producer, PullConsumer, PushConsumer
from rucola.errors import RemotingError
from rucola.protocol.replication import encode_report
from rucola.remoting.stream import open_stream
from support.cluster import HOST, Cluster, cluster
from support.replication import end_of, send, until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
Samples = dict[str, list[tuple[dict[str, str], float]]]
OF_BROKER = {"cluster": "DefaultCluster", "broker": "broker-a"}


async def http(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to a request."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def scrape(broker: Broker) -> Samples:
    """Every metric, with its labels and values."""
    head, body = await http(broker.config.metrics_prom_exporter_port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    samples: Samples = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.type == ("counter" if family.name == "rocketmq_internal_put_failures" else "gauge")
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """The value with exactly these labels."""
    (found,) = [value for of, value in samples[name] if of == labels]
    return found


def play(path: Path, act: Callable[[Cluster, Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster(path) as running:
            broker = await running.start_broker(
                metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0
            )
            await running.create_topic(broker, "T", 2)
            await act(running, broker)

    asyncio.run(run())


def test_what_came_and_what_was_done(tmp_path: Path) -> None:
    async def act(running: Cluster, broker: Broker) -> None:
        async with Producer("p", running.namesrv) as producer, PullConsumer("g", running.namesrv) as consumer:
            queue, _ = await consumer.queues("T")
            for _ in range(5):
                await producer.send(Message("T", b"x"), queue)
            await consumer.pull(queue, 0)
            await consumer.commit(queue, 2)
        samples = await scrape(broker)
        of_topic = OF_BROKER | {"topic": "T"}
        of_group = of_topic | {"group": "g"}
        assert value(samples, "rocketmq_producer_offset", **of_topic) == 5
        assert value(samples, "rocketmq_producer_tps", **of_topic) > 0
        assert value(samples, "rocketmq_producer_message_size", **of_topic) > 0
        assert value(samples, "rocketmq_broker_tps", **OF_BROKER, brokerIP=broker.address) > 0
        assert value(samples, "rocketmq_consumer_offset", **of_group) == 2
        assert value(samples, "rocketmq_consumer_tps", **of_group) > 0
        assert value(samples, "rocketmq_group_get_latency_by_storetime", **of_group) >= 0
        assert value(samples, "rocketmq_group_diff", group="g", topic="T", countOfOnlineConsumers="0", msgModel="") == 3
        runtime = {name: values for name, values in samples.items() if name.startswith("rocketmq_brokeruntime_")}
        assert len(runtime) == 33
        ((labels, count),) = runtime["rocketmq_brokeruntime_putmessage_times_total"]
        assert (labels["brokerIP"], labels["brokerHost"], labels["des"]) == (broker.address, "broker-a", "V4_9_8")
        assert count == 5
        ((_, free),) = runtime["rocketmq_brokeruntime_commitlogdir_capacity_free"]
        ((_, total),) = runtime["rocketmq_brokeruntime_commitlogdir_capacity_total"]
        assert 0 < free <= total

    play(tmp_path, act)


def test_the_page_names_every_metric_and_no_other(tmp_path: Path) -> None:
    broker_table, _ = PAGE.split("### Clients")
    named = set(re.findall(r"`(rocketmq_\w+)`", "".join(re.findall(r"^\| (.*?) \|", broker_table, re.MULTILINE))))

    async def act(running: Cluster, broker: Broker) -> None:
        _, body = await http(broker.config.metrics_prom_exporter_port, b"GET /metrics HTTP/1.1\r\n\r\n")
        families = text_string_to_metric_families(body.decode())
        told = {family.name + "_total" * (family.type == "counter") for family in families}
        assert {name for name in told if not name.startswith("rocketmq_brokeruntime_")} == named

    play(tmp_path, act)


async def test_how_far_slaves_are_behind(tmp_path: Path) -> None:
    name = "rocketmq_slave_behind_bytes"
    settings = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}

    async with cluster(tmp_path) as running:
        master = await running.start_broker(**settings)
        await running.create_topic(master, "T")
        await send(running, 5)

        async def is_told(expected: float) -> bool:
            return [value for _, value in (await scrape(master)).get(name, [])] == [expected]

        lazy = await open_stream(f"{HOST}:{master.config.ha_listen_port}")
        assert name not in await scrape(master), "it has not said yet where to begin"
        end = await end_of(running, master)
        await lazy.write(encode_report(end - 100))
        await until(lambda: is_told(100))
        ((labels, _),) = (await scrape(master))[name]
        assert labels.pop("slave").startswith(f"{HOST}:")
        assert labels == OF_BROKER
        await lazy.write(encode_report(end))
        await until(lambda: is_told(0))
        lazy.close()
        slave = await running.start_slave(**settings)
        await until(lambda: is_told(0))
        assert name not in await scrape(slave)


def test_members_retries_and_dead_letters(tmp_path: Path) -> None:
    async def act(running: Cluster, broker: Broker) -> None:
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"x"))
            await producer.instance.send_heartbeats()
            assert value(await scrape(broker), "rocketmq_producer_count", **OF_BROKER, group="p") == 1
        consumer = PushConsumer("g", running.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("T")
        async with consumer:
            message = await anext(consumer.messages())
            await consumer.reconsume_later(message, -1)
        async with consumer:  # which has told how far it is
            samples = await scrape(broker)
            assert value(samples, "rocketmq_send_back_nums", **OF_BROKER, topic="T", group="g") == 1
            ((labels, count),) = samples["rocketmq_group_count"]
            assert (labels["localaddr"], labels["group"], count) == (consumer.instance.client_id, "g", 1)
            assert labels["caddr"].startswith(f"{HOST}:")
        samples = await scrape(broker)
        assert "rocketmq_group_count" not in samples
        assert value(samples, "rocketmq_topic_dlq_offset", **OF_BROKER, group="g") == 1
        assert value(samples, "rocketmq_topic_retry_offset", **OF_BROKER, topic="%RETRY%g") == 0

    play(tmp_path, act)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET / HTTP/1.1", b"404"), (b"POST /metrics HTTP/1.1", b"405"), (b"GET", b"404"), (b"GET /metrics?x=1", b"200")],
)
def test_other_requests(tmp_path: Path, request_line: bytes, status: bytes) -> None:
    async def act(running: Cluster, broker: Broker) -> None:
        head, _ = await http(broker.config.metrics_prom_exporter_port, request_line + b"\r\n\r\n")
        assert head.split(b" ")[1] == status

    play(tmp_path, act)


def test_whoever_sends_no_request_gets_none(tmp_path: Path) -> None:
    async def act(running: Cluster, broker: Broker) -> None:
        port = broker.config.metrics_prom_exporter_port
        assert await http(port, 20_000 * b"x") == (b"", b"")
        _, silent = await asyncio.open_connection(HOST, port)
        assert await scrape(broker)
        await broker.stop()  # and does not wait for it
        silent.close()

    play(tmp_path, act)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def act(running: Cluster, broker: Broker) -> None:
        with pytest.raises(RemotingError, match="for metrics"):
            await running.start_broker(
                "broker-b",
                metrics_exporter_type=MetricsExporterType.PROM,
                metrics_prom_exporter_port=broker.config.metrics_prom_exporter_port,
            )

    play(tmp_path, act)
