"""Metrics of the outbox and of idempotent listeners, as Prometheus reads them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import create_engine

from rucola.reliable import idempotent
from rucola.reliable.metrics import ReliableCollector
from support.databases import OutboxDatabase
from support.outbox import add, change


def scraped(collector: ReliableCollector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_metrics_count_messages_by_state_and_deliveries_by_result(db: OutboxDatabase) -> None:
    add(db, "T", [b"x"] * 3, groups=["billing"])
    change(db, status="STUCK", created_at=0, due_at=None)
    add(db, "T", [b"x"])

    def nothing(message: Any, session: Any) -> None: ...

    listener = idempotent(db.engine(), "billing", tables=db.tables)(nothing)
    listener.counts.duplicates = 7
    lines = scraped(ReliableCollector(db.engine(), tables=db.tables, listeners={"billing": listener})).splitlines()
    assert "rucola_reliable_up 1.0" in lines
    assert 'rucola_reliable_messages{status="STUCK"} 3.0' in lines
    assert 'rucola_reliable_messages{status="NEW"} 1.0' in lines
    assert 'rucola_reliable_deliveries_total{group="billing",result="duplicate"} 7.0' in lines
    oldest = next(line for line in lines if line.startswith('rucola_reliable_oldest_seconds{status="STUCK"}'))
    assert float(oldest.split()[1]) > 1_000_000_000


def test_database_outage_is_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/x")
    assert "rucola_reliable_up 0.0" in scraped(ReliableCollector(engine))
    assert "a query for the metrics of the outbox failed" in caplog.text
