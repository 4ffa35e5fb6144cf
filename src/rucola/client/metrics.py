"""Prometheus metrics of clients. Needs the extra `metrics`.

    prometheus_client.REGISTRY.register(ClientCollector(producer, consumer))

Names and labels are RocketMQ's, from the clients of version 5, else from the rocketmq-exporter for version 4:

    rocketmq_send_cost_time                topic client_id invocation_status                 histogram, ms per request
    rocketmq_process_time                  topic client_id consumer_group invocation_status  histogram, ms per delivery
    rocketmq_consumer_cached_messages      topic client_id consumer_group                    pulled, not completed
    rocketmq_consumer_cached_bytes         topic client_id consumer_group
    rocketmq_client_consume_ok_msg_tps, _fail_msg_tps, _fail_msg_count, _rt,
    rocketmq_client_consumer_pull_tps, _pull_rt
                                           clientAddr clientId group topic                   statusTable of a consumer

The following are Rucola's own; they count messages where the histograms count requests and deliveries:

    rocketmq_client_send_msg_total         clientId group topic status: SEND_OK NOT_STORE_OK FAILED ONEWAY
    rocketmq_client_send_in_flight         clientId group topic
    rocketmq_client_pull_msg_total         clientId group topic
    rocketmq_client_consume_msg_total      clientId group topic status: OK FAILED
    rocketmq_client_consume_in_flight      clientId group topic                              delivered, not completed

`clientAddr` is empty, because only brokers see the port of a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from rucola.errors import missing_extra

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_extra(error, "metrics"), name=error.name) from None

from rucola.client import sync
from rucola.client.consumer.push_consumer import PushConsumer
from rucola.client.producer.producer import Producer
from rucola.client.stats import Durations
from rucola.protocol.connections import ConsumeStatus

Client: TypeAlias = Producer | PushConsumer | sync.Producer | sync.PushConsumer

_CLIENT_LABELS = ("clientId", "group", "topic")
_STATUS_LABELS = ("clientAddr", "clientId", "group", "topic")
_CACHE_LABELS = ("topic", "client_id", "consumer_group")


class ClientCollector(Collector):
    """Collects the metrics of asyncio and blocking clients, open or closed. Thread-safe."""

    def __init__(self, *clients: Client) -> None:
        asyncio_clients = [
            client.asyncio_client if isinstance(client, (sync.Producer, sync.PushConsumer)) else client
            for client in clients
        ]
        self._producers = [client for client in asyncio_clients if isinstance(client, Producer)]
        self._consumers = [client for client in asyncio_clients if isinstance(client, PushConsumer)]

    def collect(self) -> Iterator[Metric]:
        if self._producers:
            yield from self._producer_metrics()
        if self._consumers:
            yield from self._consumer_metrics()
            yield from self._status_metrics()

    def _producer_metrics(self) -> Iterable[Metric]:
        cost = HistogramMetricFamily(
            "rocketmq_send_cost_time",
            "duration of send requests in ms",
            labels=("topic", "client_id", "invocation_status"),
        )
        messages = CounterMetricFamily("rocketmq_client_send_msg", "messages sent", labels=(*_CLIENT_LABELS, "status"))
        in_flight = GaugeMetricFamily("rocketmq_client_send_in_flight", "messages being sent", labels=_CLIENT_LABELS)
        for producer in self._producers:
            client_id = producer.instance.client_id
            for topic, stats in producer.stats().items():
                _add(cost, (topic, client_id, "success"), stats.sent_ms)
                _add(cost, (topic, client_id, "failure"), stats.failed_ms)
                labels = (client_id, producer.group, topic)
                messages.add_metric((*labels, "SEND_OK"), stats.sent - stats.not_store_ok)
                messages.add_metric((*labels, "NOT_STORE_OK"), stats.not_store_ok)
                messages.add_metric((*labels, "FAILED"), stats.failed)
                messages.add_metric((*labels, "ONEWAY"), stats.oneway)
                in_flight.add_metric(labels, stats.in_flight)
        return cost, messages, in_flight

    def _consumer_metrics(self) -> Iterable[Metric]:
        process = HistogramMetricFamily(
            "rocketmq_process_time", "duration of deliveries in ms", labels=(*_CACHE_LABELS, "invocation_status")
        )
        held = GaugeMetricFamily(
            "rocketmq_consumer_cached_messages", "messages pulled and not completed", labels=_CACHE_LABELS
        )
        size = GaugeMetricFamily(
            "rocketmq_consumer_cached_bytes", "bytes pulled and not completed", labels=_CACHE_LABELS
        )
        pulled = CounterMetricFamily("rocketmq_client_pull_msg", "messages pulled", labels=_CLIENT_LABELS)
        consumed = CounterMetricFamily(
            "rocketmq_client_consume_msg", "messages consumed", labels=(*_CLIENT_LABELS, "status")
        )
        in_flight = GaugeMetricFamily("rocketmq_client_consume_in_flight", "messages in flight", labels=_CLIENT_LABELS)
        for consumer in self._consumers:
            client_id = consumer.instance.client_id
            for topic, stats in consumer.stats().items():
                cached = (topic, client_id, consumer.group)
                _add(process, (*cached, "success"), stats.consumed_ms)
                _add(process, (*cached, "failure"), stats.failed_ms)
                held.add_metric(cached, stats.held)
                size.add_metric(cached, stats.held_size)
                labels = (client_id, consumer.group, topic)
                pulled.add_metric(labels, stats.pulled)
                consumed.add_metric((*labels, "OK"), stats.consumed)
                consumed.add_metric((*labels, "FAILED"), stats.failed)
                in_flight.add_metric(labels, stats.in_hand)
        return process, held, size, pulled, consumed, in_flight

    def _status_metrics(self) -> Iterable[Metric]:
        families = {
            field: GaugeMetricFamily(f"rocketmq_client_{name}", help_text, labels=_STATUS_LABELS)
            for field, name, help_text in (
                ("consume_ok_tps", "consume_ok_msg_tps", "messages consumed per second in the last minute"),
                ("consume_failed_tps", "consume_fail_msg_tps", "messages failed per second in the last minute"),
                ("consume_failed_msgs", "consume_fail_msg_count", "messages failed in the last hour"),
                ("consume_rt", "consume_rt", "mean duration of deliveries in ms in the last minute"),
                ("pull_tps", "consumer_pull_tps", "messages pulled per second in the last minute"),
                ("pull_rt", "consumer_pull_rt", "mean duration of pulls in ms in the last minute"),
            )
        }
        for consumer in self._consumers:
            for topic, status in consumer.operations.status().items():
                for field, family in families.items():
                    family.add_metric(("", consumer.instance.client_id, consumer.group, topic), _value(status, field))
        return families.values()


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], durations: Durations) -> None:
    # The last count is of the bucket "+Inf".
    bounds = [*(str(float(bound)) for bound in durations.bounds_ms), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_ms)


def _value(status: ConsumeStatus, field: str) -> float:
    return float(getattr(status, field))
