"""Metrics: what clients count of themselves, for Prometheus. Takes the extra `metrics`.

    prometheus_client.REGISTRY.register(ClientCollector(producer, consumer))

What is collected is `stats` of each client at that moment; nothing is kept. Names and labels are RocketMQ's, of the
clients of 5 where they have them, of the rocketmq-exporter where it asks clients of 4:

    rocketmq_send_cost_time                topic client_id invocation_status                 histogram, ms, by request
    rocketmq_process_time                  topic client_id consumer_group invocation_status  histogram, ms, by delivery
    rocketmq_consumer_cached_messages      topic client_id consumer_group                    pulled and not done
    rocketmq_consumer_cached_bytes         topic client_id consumer_group
    rocketmq_client_consume_ok_msg_tps, _fail_msg_tps, _fail_msg_count, _rt,
    rocketmq_client_consumer_pull_tps, _pull_rt
                                           clientAddr clientId group topic                   statusTable of a consumer

and these, which count messages where the histograms count requests and deliveries, are Rucola's own:

    rocketmq_client_send_msg_total         clientId group topic status: SEND_OK NOT_STORE_OK FAILED ONEWAY
    rocketmq_client_send_in_flight         clientId group topic
    rocketmq_client_pull_msg_total         clientId group topic
    rocketmq_client_consume_msg_total      clientId group topic status: OK FAILED
    rocketmq_client_consume_in_flight      clientId group topic                              in the application's hands

`clientAddr` is empty: only brokers know the port from which a client speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rucola.client import sync
from rucola.client.consumer.push_consumer import PushConsumer
from rucola.client.producer.producer import Producer
from rucola.client.stats import Durations
from rucola.protocol.connections import ConsumeStatus

Client: TypeAlias = Producer | PushConsumer | sync.Producer | sync.PushConsumer

_OF_CLIENT = ("clientId", "group", "topic")
_OF_STATUS = ("clientAddr", "clientId", "group", "topic")
_OF_CACHE = ("topic", "client_id", "consumer_group")


class ClientCollector(Collector):
    """Collects from these clients, of asyncio or blocking, open or not. May be asked from any thread."""

    def __init__(self, *clients: Client) -> None:
        plain = [
            client.asyncio_client if isinstance(client, (sync.Producer, sync.PushConsumer)) else client
            for client in clients
        ]
        self._producers = [client for client in plain if isinstance(client, Producer)]
        self._consumers = [client for client in plain if isinstance(client, PushConsumer)]

    def collect(self) -> Iterator[Metric]:
        """Everything, now."""
        if self._producers:
            yield from self._of_producers()
        if self._consumers:
            yield from self._of_consumers()
            yield from self._of_status()

    def _of_producers(self) -> Iterable[Metric]:
        cost = HistogramMetricFamily(
            "rocketmq_send_cost_time", "ms that a request took", labels=("topic", "client_id", "invocation_status")
        )
        messages = CounterMetricFamily("rocketmq_client_send_msg", "messages sent", labels=(*_OF_CLIENT, "status"))
        in_flight = GaugeMetricFamily("rocketmq_client_send_in_flight", "messages being sent", labels=_OF_CLIENT)
        for producer in self._producers:
            client_id = producer.instance.client_id
            for topic, stats in producer.stats().items():
                _add(cost, (topic, client_id, "success"), stats.sent_ms)
                _add(cost, (topic, client_id, "failure"), stats.failed_ms)
                own = (client_id, producer.group, topic)
                messages.add_metric((*own, "SEND_OK"), stats.sent - stats.not_store_ok)
                messages.add_metric((*own, "NOT_STORE_OK"), stats.not_store_ok)
                messages.add_metric((*own, "FAILED"), stats.failed)
                messages.add_metric((*own, "ONEWAY"), stats.oneway)
                in_flight.add_metric(own, stats.in_flight)
        return cost, messages, in_flight

    def _of_consumers(self) -> Iterable[Metric]:
        process = HistogramMetricFamily(
            "rocketmq_process_time", "ms that the application took", labels=(*_OF_CACHE, "invocation_status")
        )
        held = GaugeMetricFamily("rocketmq_consumer_cached_messages", "messages pulled and not done", labels=_OF_CACHE)
        size = GaugeMetricFamily("rocketmq_consumer_cached_bytes", "bytes pulled and not done", labels=_OF_CACHE)
        pulled = CounterMetricFamily("rocketmq_client_pull_msg", "messages pulled", labels=_OF_CLIENT)
        consumed = CounterMetricFamily(
            "rocketmq_client_consume_msg", "messages consumed", labels=(*_OF_CLIENT, "status")
        )
        in_hand = GaugeMetricFamily("rocketmq_client_consume_in_flight", "messages in hand", labels=_OF_CLIENT)
        for consumer in self._consumers:
            client_id = consumer.instance.client_id
            for topic, stats in consumer.stats().items():
                cached = (topic, client_id, consumer.group)
                _add(process, (*cached, "success"), stats.consumed_ms)
                _add(process, (*cached, "failure"), stats.failed_ms)
                held.add_metric(cached, stats.held)
                size.add_metric(cached, stats.held_size)
                own = (client_id, consumer.group, topic)
                pulled.add_metric(own, stats.pulled)
                consumed.add_metric((*own, "OK"), stats.consumed)
                consumed.add_metric((*own, "FAILED"), stats.failed)
                in_hand.add_metric(own, stats.in_hand)
        return process, held, size, pulled, consumed, in_hand

    def _of_status(self) -> Iterable[Metric]:
        families = {
            field: GaugeMetricFamily(f"rocketmq_client_{name}", help_text, labels=_OF_STATUS)
            for field, name, help_text in (
                ("consume_ok_tps", "consume_ok_msg_tps", "messages consumed a second in the last minute"),
                ("consume_failed_tps", "consume_fail_msg_tps", "messages failed a second in the last minute"),
                ("consume_failed_msgs", "consume_fail_msg_count", "messages failed in the last hour"),
                ("consume_rt", "consume_rt", "ms that a delivery took in the last minute"),
                ("pull_tps", "consumer_pull_tps", "messages pulled a second in the last minute"),
                ("pull_rt", "consumer_pull_rt", "ms that a pull took in the last minute"),
            )
        }
        for consumer in self._consumers:
            for topic, status in consumer.status().items():
                for field, family in families.items():
                    family.add_metric(("", consumer.instance.client_id, consumer.group, topic), _value(status, field))
        return families.values()


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], durations: Durations) -> None:
    bounds = [*(str(float(bound)) for bound in durations.bounds_ms), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_ms)


def _value(status: ConsumeStatus, field: str) -> float:
    return float(getattr(status, field))
