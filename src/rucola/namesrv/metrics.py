"""Prometheus metrics of a name server; Apache's exporter has none.

    rocketmq_namesrv_connections                       open connections
    rocketmq_namesrv_brokers, _topics                  registered addresses, and topics with a route
    rocketmq_namesrv_registrations_total               registrations since the start
    rocketmq_namesrv_refused_registrations_total       malformed, above a limit, or a second address of a broker
    rocketmq_namesrv_access_denied_total               requests that access control denied
    rocketmq_namesrv_connections_closed_total  limit   closed or not accepted, by limit
    rocketmq_namesrv_unsent_bytes, _partial_frame_bytes    memory of slow peers, in bytes
    process_...                                        memory, processor time and descriptors of the process (Linux)

`metricsExporterType=PROM` of namesrv.conf enables the endpoint (`rucola.remoting.metrics_server`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rucola.namesrv.routes import RouteTable
from rucola.namesrv.services import RouteService
from rucola.remoting.budget import ServerBudget

_PREFIX = "rocketmq_namesrv_"


class NamesrvCollector:
    def __init__(
        self,
        connections: Sized,
        routes: RouteTable,
        service: RouteService,
        budget: ServerBudget,
        denied: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._service = service
        self._budget = budget
        self._denied = denied

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (
            ("connections", "open connections", len(self._connections)),
            ("brokers", "registered addresses of brokers", self._routes.broker_count),
            ("topics", "topics that have a route", self._routes.topic_count),
            ("unsent_bytes", "bytes that congested connections have not sent", self._budget.bytes_out),
            ("partial_frame_bytes", "bytes of frames that are not complete", self._budget.bytes_in),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value)
        for name, text, value in (
            ("registrations", "registrations of brokers", self._service.registrations),
            ("refused_registrations", "registrations that were refused", self._service.refused_registrations),
            ("access_denied", "requests that access control denied", self._denied()),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value)
        text = "connections that a limit closed, or did not accept"
        closed = CounterMetricFamily(f"{_PREFIX}connections_closed", text, labels=("limit",))
        for key, count in sorted(self._budget.closed.items()):
            closed.add_metric((key,), count)
        yield closed
