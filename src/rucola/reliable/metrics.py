"""Prometheus metrics of the outbox and of idempotent listeners. Needs the extra `metrics` as well.

    prometheus_client.REGISTRY.register(ReliableCollector(engine, listeners={"billing": write_invoice}))

    rucola_reliable_messages               status            messages that are not CONFIRMED
    rucola_reliable_oldest_seconds         status            the age of the oldest of them
    rucola_reliable_relay_lag_seconds                        how long the longest overdue stub has been due
    rucola_reliable_deliveries_total       group result      done duplicate held failed, of this process

A scrape runs two queries over indexes without settled messages (on PostgreSQL and SQLite). If the database does not
respond, its metrics are missing and `rucola_reliable_up` is 0. With `tenants`, those of each tenant have the label
`tenant` as well, and one that takes longer than `TENANT_TIMEOUT_S` counts as not responding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine

from rucola.errors import missing_extra

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_extra(error, "metrics"), name=error.name) from None

from rucola.client.daemon_threads import DaemonThreads
from rucola.outages import Outages
from rucola.reliable import operations
from rucola.reliable.database import Database
from rucola.reliable.errors import ReliableError
from rucola.reliable.idempotent import IdempotentFunction
from rucola.reliable.operations import Unsettled
from rucola.reliable.schema import CONFIRMED, STATUSES, Tables
from rucola.reliable.tenants import Tenant

logger = logging.getLogger(__name__)

TENANT_TIMEOUT_S: Final = 5.0


class ReliableCollector(Collector):
    def __init__(
        self,
        engine: Engine | AsyncEngine | None = None,
        *,
        tables: Tables | None = None,
        listeners: Mapping[str, IdempotentFunction] | None = None,
        tenants: Sequence[Tenant] = (),
    ) -> None:
        self._outboxes = list(tenants)
        if engine is not None:
            self._outboxes.append(Tenant("", Database(engine), tables or Tables()))
        self._labels = ("tenant",) if tenants else ()
        self._listeners = dict(listeners or {})
        self._outages = Outages(logger)
        # One thread for each, so that a database that hangs delays no other; scrapes share a query that goes on.
        self._threads = DaemonThreads(max(1, len(self._outboxes)), "metrics of the outbox")
        self._queries: dict[str, Future[Unsettled]] = {}
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        if self._outboxes:
            yield from self._of_tables()
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

    def _of_tables(self) -> Iterator[Metric]:
        labels = self._labels
        up = GaugeMetricFamily("rucola_reliable_up", "Whether the database answered.", labels=labels)
        messages = GaugeMetricFamily(
            "rucola_reliable_messages", "Messages that are not settled.", labels=(*labels, "status")
        )
        oldest = GaugeMetricFamily(
            "rucola_reliable_oldest_seconds", "The age of the oldest of them.", labels=(*labels, "status")
        )
        lag = GaugeMetricFamily(
            "rucola_reliable_relay_lag_seconds", "How long the longest waiting due stub has been due.", labels=labels
        )
        for name, unsettled in self._unsettled().items():
            tenant = (name,) if labels else ()
            up.add_metric(tenant, unsettled is not None)
            if unsettled is None:
                continue
            for status in STATUSES:
                if status != CONFIRMED:
                    messages.add_metric((*tenant, status), unsettled.counts.get(status, 0))
                    oldest.add_metric((*tenant, status), unsettled.oldest_ms.get(status, 0) / 1000)
            lag.add_metric(tenant, unsettled.relay_lag_ms / 1000)
        yield from (up, messages, oldest, lag)

    def _unsettled(self) -> dict[str, Unsettled | None]:
        """Query all outboxes at the same time; None for one that failed, or is late."""
        with self._lock:
            for name, database, tables in self._outboxes:
                if name not in self._queries or self._queries[name].done():
                    query = self._threads.submit(partial(database.run_sync, operations.unsettled, tables))
                    self._queries[name] = query
            queries = dict(self._queries)
        wait(queries.values(), TENANT_TIMEOUT_S if self._labels else None)
        found: dict[str, Unsettled | None] = {}
        for name, query in queries.items():
            what = f"a query for the metrics of the outbox{f' of {name}' if name else ''}"
            found[name] = None
            if not query.done():
                self._outages.failed(what, f"no answer within {TENANT_TIMEOUT_S} s")
                continue
            try:
                found[name] = query.result()
            except (DBAPIError, PoolTimeoutError, ReliableError) as error:
                self._outages.failed(what, getattr(error, "orig", error))
            else:
                self._outages.succeeded(what)
        return found
