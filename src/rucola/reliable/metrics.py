"""Prometheus metrics of the outbox and of idempotent listeners. Needs the extra `metrics` as well.

    prometheus_client.REGISTRY.register(ReliableCollector(engine, listeners={"billing": write_invoice}))

    rucola_reliable_messages               status            messages that are not CONFIRMED
    rucola_reliable_oldest_seconds         status            the age of the oldest of them
    rucola_reliable_relay_lag_seconds                        how long the longest overdue stub has been due
    rucola_reliable_deliveries_total       group result      done duplicate held failed, of this process

A scrape runs two queries over indexes without settled messages (on PostgreSQL and SQLite). If the database does not
respond, its metrics are missing and `rucola_reliable_up` is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rucola.outages import Outages
from rucola.reliable import operations
from rucola.reliable.database import Database
from rucola.reliable.errors import ReliableError
from rucola.reliable.idempotent import IdempotentFunction
from rucola.reliable.operations import Unsettled
from rucola.reliable.schema import CONFIRMED, STATUSES, Tables

logger = logging.getLogger(__name__)


class ReliableCollector(Collector):
    def __init__(
        self,
        engine: Engine | AsyncEngine | None = None,
        *,
        tables: Tables | None = None,
        listeners: Mapping[str, IdempotentFunction] | None = None,
    ) -> None:
        self._database = None if engine is None else Database(engine)
        self._tables = tables or Tables()
        self._listeners = dict(listeners or {})
        self._outages = Outages(logger)

    def collect(self) -> Iterator[Metric]:
        if self._database is not None:
            yield from self._of_tables(self._database)
        deliveries = CounterMetricFamily(
            "rucola_reliable_deliveries", "Deliveries to idempotent listeners.", labels=("group", "result")
        )
        for group, listener in self._listeners.items():
            counts = listener.counts
            deliveries.add_metric((group, "done"), counts.done)
            deliveries.add_metric((group, "duplicate"), counts.duplicates)
            deliveries.add_metric((group, "held"), counts.held)
            deliveries.add_metric((group, "failed"), counts.failed)
        yield deliveries

    def _of_tables(self, database: Database) -> Iterator[Metric]:
        up = GaugeMetricFamily("rucola_reliable_up", "Whether the database answered.")
        try:
            unsettled = database.run_sync(operations.unsettled, self._tables)
        except (DBAPIError, ReliableError) as error:
            self._outages.failed("a query for the metrics of the outbox", getattr(error, "orig", error))
            up.add_metric((), 0)
            yield up
            return
        self._outages.succeeded("a query for the metrics of the outbox")
        up.add_metric((), 1)
        yield up
        yield from _families(unsettled)


def _families(unsettled: Unsettled) -> Iterator[Metric]:
    messages = GaugeMetricFamily("rucola_reliable_messages", "Messages that are not settled.", labels=("status",))
    oldest = GaugeMetricFamily("rucola_reliable_oldest_seconds", "The age of the oldest of them.", labels=("status",))
    for status in STATUSES:
        if status != CONFIRMED:
            messages.add_metric((status,), unsettled.counts.get(status, 0))
            oldest.add_metric((status,), unsettled.oldest_ms.get(status, 0) / 1000)
    lag = GaugeMetricFamily("rucola_reliable_relay_lag_seconds", "How long the longest waiting due stub has been due.")
    lag.add_metric((), unsettled.relay_lag_ms / 1000)
    yield from (messages, oldest, lag)
