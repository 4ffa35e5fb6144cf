"""Telemetry in memory: the spans and metrics of clients and of the application, to look at."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rucola.client.otel import Telemetry


class Recorded:
    """A Telemetry whose spans and metrics stay in memory; `tracer` makes the application's spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(tracers, MeterProvider([self._reader], shutdown_on_exit=False))
        self.tracer = tracers.get_tracer("app")

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> Any:
        (found,) = self.spans(name)
        return found

    def counts(self, metric: str) -> dict[str | None, int]:
        """Return the numbers by error.type."""
        data = self._reader.get_metrics_data()
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]
        return {p.attributes.get("error.type"): getattr(p, "value", getattr(p, "count", None)) for p in points}
