"""The endpoint for Prometheus withstands whoever reaches its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from rucola import slices
from rucola.remoting import metrics_server
from rucola.remoting.metrics_server import MAX_CONNECTIONS, Collect, MetricsServer, exposition_steps
from support.metrics import http_request
from support.waiting import until

HOST = "127.0.0.1"
REQUEST = b"GET /metrics HTTP/1.1\r\n\r\n"


def families() -> Iterator[Metric]:
    many = GaugeMetricFamily("many", "a line\nand another", labels=("n",))
    for number in range(100):
        many.add_metric((f'"{number}"',), number)
    yield many
    yield CounterMetricFamily("one", "counted", 7)
    yield GaugeMetricFamily("none", "without a sample", labels=("n",))


def collected() -> Iterator[Metric | None]:
    for metric in families():
        yield None
        yield metric


@asynccontextmanager
async def serving(collect: Collect = collected) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(HOST, 0, collect)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def test_pieces_are_rendered_as_the_whole() -> None:
    class Families:
        def collect(self) -> Iterable[Metric]:
            return families()

    registry = CollectorRegistry()
    registry.register(Families())  # type: ignore[arg-type]
    assert slices.run(exposition_steps(collected())) == generate_latest(registry)


async def test_connections_that_send_nothing_make_room() -> None:
    async with serving() as server:
        silent = [await asyncio.open_connection(HOST, server.port) for _ in range(MAX_CONNECTIONS + 5)]
        head, _ = await http_request(server.port, REQUEST)
        assert head.startswith(b"HTTP/1.1 200 OK")
        for reader, _ in silent[:6]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_request_beyond_those_that_are_answered_is_closed() -> None:
    """While all wait for the same collection."""
    begun, may_end = asyncio.Event(), False

    def endless() -> Iterator[Metric | None]:
        begun.set()
        while not may_end:
            yield None
        yield from families()

    async with serving(endless) as server:
        asking = []
        for _ in range(MAX_CONNECTIONS):
            asking.append(asyncio.create_task(http_request(server.port, REQUEST)))
            await until(lambda: len(server.answering) == len(asking))
        await begun.wait()
        reader, writer = await asyncio.open_connection(HOST, server.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        may_end = True
        answers = await asyncio.gather(*asking)
        assert all(head.startswith(b"HTTP/1.1 200") for head, _ in answers)


async def test_a_response_that_is_not_read_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 0.5)

    def large() -> Iterator[Metric]:
        for number in range(20):
            yield GaugeMetricFamily(f"large_{number}", "x" * 1_000_000, 1)

    async with serving(large) as server:
        # The transport stops reading at twice the limit.
        _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        writer.write(REQUEST)
        await until(lambda: len(server.answering) == 1)
        await until(lambda: len(server.answering) == 0)
        writer.close()
