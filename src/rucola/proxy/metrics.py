"""Prometheus metrics of a proxy, by methods, codes and brokers, which are few; never by clients or topics.

    rocketmq_proxy_requests_total           method code     calls that have ended
    rocketmq_proxy_telemetry_streams                        clients whose settings are known
    rocketmq_proxy_held_receives                            receives that wait for a message
    rocketmq_proxy_broker_connected         broker          1 if the broker can be reached, else 0
    rocketmq_proxy_broker_failures_total    broker status   calls that it did not answer
    rocketmq_proxy_connections                              open connections of clients
    rocketmq_proxy_connections_closed_total limit           closed or not accepted, by limit
    rocketmq_proxy_unsent_bytes, _partial_frame_bytes       memory of slow clients, in bytes
    process_...                                             memory, processor time and descriptors of the process

`metricsExporterType=PROM` of proxy.conf enables the endpoint (`rucola.remoting.metrics_server`).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from rucola.broker.metrics import counter, gauge
from rucola.http2.server import GrpcServer
from rucola.proxy.brokers import Brokers
from rucola.proxy.forward import Forwarder
from rucola.proxy.telemetry import TelemetryStreams


class ProxyCollector:
    def __init__(self, server: GrpcServer, brokers: Brokers, forwarder: Forwarder, telemetry: TelemetryStreams) -> None:
        self._server = server
        self._brokers = brokers
        self._forwarder = forwarder
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        brokers, budget = list(self._brokers), self._server.budget
        for name, text, value in (
            ("telemetry_streams", "clients whose settings are known", len(self._telemetry.streams)),
            ("held_receives", "receives that wait for a message", self._forwarder.held_receives),
            ("connections", "open connections of clients", len(self._server.connections)),
            ("unsent_bytes", "bytes that congested connections have not sent", budget.bytes_out),
            ("partial_frame_bytes", "bytes of frames that are not complete", budget.bytes_in),
        ):
            yield gauge(f"proxy_{name}", text, (), {(): value})
        connected = {(broker.name,): float(broker.is_connected) for broker in brokers}
        yield gauge("proxy_broker_connected", "1 if the broker can be reached, else 0", ("broker",), connected)
        failures = {
            (broker.name, status): count for broker in brokers for status, count in sorted(broker.failures.items())
        }
        closed = {(limit,): count for limit, count in sorted(budget.closed.items())}
        requests = dict(sorted(self._forwarder.requests.items()))
        for name, text, labels, values in (
            ("requests", "calls that have ended", ("method", "code"), requests),
            ("broker_failures", "calls that the broker did not answer", ("broker", "status"), failures),
            ("connections_closed", "connections that a limit closed, or did not accept", ("limit",), closed),
        ):
            yield counter(f"proxy_{name}", text, labels, values)
