"""Values of the metrics settings that brokers and name servers share."""

from __future__ import annotations

from enum import Enum


class MetricsExporterType(Enum):
    """Export of metrics."""

    DISABLE = 0
    PROM = 1
    """An HTTP endpoint that Prometheus scrapes."""
