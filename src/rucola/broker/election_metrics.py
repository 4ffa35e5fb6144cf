"""Prometheus metrics of the election of a broker's master; served with `rucola.broker.metrics`.

rocketmq_election_master                 cluster broker   1 on the master while it has the right to acknowledge, else 0
rocketmq_election_epoch                  cluster broker   the highest epoch that is known
rocketmq_election_in_sync_members        cluster broker   present members of the in-sync set, see below
rocketmq_election_right_seconds          cluster broker   how long the master may still acknowledge if nothing answers
rocketmq_election_etcd_away              cluster broker   1 while etcd does not answer: alert on it
rocketmq_election_by_promises            cluster broker   1 while the promises of the members replace etcd
rocketmq_election_etcd_failures_total    cluster broker   requests to etcd that failed since the start

On the master, the present members of the in-sync set are itself and its connected slaves; on a slave, those
that run. The set itself keeps a lost one until etcdInSyncTimeout has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from rucola.broker.metrics import counter, gauge
from rucola.coordination.coordinator import CoordinationFigures
from rucola.coordination.election import Role

_LABELS = ("cluster", "broker")


class ElectionCollector:
    """Collects the metrics of one broker's election; `figures` returns None before it begins."""

    def __init__(self, cluster: str, broker: str, figures: Callable[[], CoordinationFigures | None]) -> None:
        self._labels = (cluster, broker)
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        if figures is None:
            return
        for name, text, value in (
            ("master", "whether this broker is the master", figures.role is Role.MASTER and figures.right_s > 0),
            ("epoch", "highest epoch that is known", figures.epoch),
            ("in_sync_members", "members of the in-sync set that are there", len(figures.present)),
            ("right_seconds", "time for which the master may still acknowledge", figures.right_s),
            ("etcd_away", "whether etcd does not answer", figures.is_etcd_away),
            ("by_promises", "whether promises of the members replace etcd", figures.is_promised),
        ):
            yield gauge(f"election_{name}", text, _LABELS, {self._labels: float(value)})
        failures = {self._labels: figures.etcd_failures}
        yield counter("election_etcd_failures", "failed requests to etcd", _LABELS, failures)
