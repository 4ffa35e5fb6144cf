"""MetricsServer: the HTTP endpoint of a server from which Prometheus scrapes metrics, and for probes.

    /metrics    the metrics; 503 with the reason before the server serves clients
    /ready      200 if the server serves clients, otherwise 503 with the reason, such as the progress of a recovery
    /live       200 while the process answers, also during a recovery

It runs in the server's event loop, bounded against anything that reaches its port:

1. A request has REQUEST_TIMEOUT_S in total, and its head MAX_REQUEST_SIZE bytes.
2. At most MAX_CONNECTIONS are open. A further one ends the oldest without a complete head, or is closed.
3. Metrics are collected in slices (`rucola.slices`), once for all concurrent requests. A collector yields each metric
   when it is complete, and None at every small step before. Those of the process are read in a thread, since counting
   its descriptors takes a microsecond for each.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import platform
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final, TypeAlias, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rucola import __version__
from rucola.remoting.exposure import cannot_listen
from rucola.remoting.tls import ServerTls
from rucola.remoting.tls_acceptor import TlsAcceptor, connect_to
from rucola.slices import in_slices
from rucola.version import COMMIT

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 10
MAX_REQUEST_SIZE: Final = 16 * 1024
MAX_CONNECTIONS: Final = 16
_SAMPLES_PER_STEP: Final = 16

Collect: TypeAlias = Callable[[], Iterable[Metric | None]]


class MetricsServer:
    """GET, one request per connection; HTTPS with `tls`, in the mode permissive both."""

    def __init__(
        self,
        host: str,
        port: int,
        collect: Collect,
        tls: ServerTls | None = None,
        unready: Callable[[], str] = lambda: "",
    ) -> None:
        self.host = host
        self.port = port
        self.collect = collect
        self.unready = unready
        """Returns why clients are not served yet, in one line, or an empty text."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._acceptor: TlsAcceptor | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Connections without a complete head, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._collecting: asyncio.Task[bytes] | None = None
        self._process = ProcessCollector(registry=None)

    async def start(self) -> None:
        """Listen and set `port`. RemotingError for an address in use."""
        try:
            if self._tls is None:
                self._server = await asyncio.start_server(
                    self._accept, self.host, self.port, limit=MAX_REQUEST_SIZE, backlog=MAX_CONNECTIONS
                )
                listening = self._server.sockets[0]
            else:
                family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
                listening = socket.create_server((self.host, self.port), family=family, backlog=MAX_CONNECTIONS)
                self._acceptor = TlsAcceptor(listening, self._tls, connect_to(self._protocol))
        except OSError as error:
            raise cannot_listen(self.host, self.port, error, " for metrics") from None
        self.port = listening.getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            await self._acceptor.stop()
        tasks: list[asyncio.Task[None] | asyncio.Task[bytes]] = [*self._tasks]
        if self._collecting is not None:
            tasks.append(self._collecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def clear(self) -> None:
        """Have no metrics any more; a collection that runs is cancelled."""
        self.collect = tuple
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)

    @property
    def answering(self) -> set[asyncio.Task[None]]:
        """The requests whose head has arrived."""
        return self._tasks - self._waiting.keys()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_REQUEST_SIZE), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS and self._waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._tasks.discard(oldest)
            oldest.cancel()
        if len(self._tasks) >= MAX_CONNECTIONS:
            logger.warning("metrics: a connection is closed, since %d requests are being answered", MAX_CONNECTIONS)
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._waiting[task] = None
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
                    head = await reader.readuntil(b"\r\n\r\n")
                    task = asyncio.current_task()
                    assert task is not None
                    self._waiting.pop(task, None)
                    writer.write(await self._response(head.split(b"\r\n", 1)[0].split(b" ")))
                    writer.close()
                    await writer.wait_closed()  # the response is sent
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()

    async def _response(self, request: list[bytes]) -> bytes:
        method, path, *_ = *request, b"", b""
        if method != b"GET":
            return _http("405 Method Not Allowed", "text/plain", b"only GET is answered\n")
        name = path.partition(b"?")[0]
        if name not in (b"/metrics", b"/ready", b"/live"):
            return _http("404 Not Found", "text/plain", b"metrics are at /metrics; probes ask /ready and /live\n")
        if (reason := self.unready()) and name != b"/live":
            return _http("503 Service Unavailable", "text/plain", f"{reason}\n".encode())
        if name != b"/metrics":
            return _http("200 OK", "text/plain", b"yes\n")
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collected())
        # A request that ends early does not cancel the collection for others.
        return await asyncio.shield(self._collecting)

    async def _collected(self) -> bytes:
        process = await asyncio.to_thread(lambda: list(self._process.collect()))
        metrics = chain([build_info()], process, self.collect())
        return _http("200 OK", CONTENT_TYPE_LATEST, await in_slices(exposition_steps(metrics)))


def build_info() -> Metric:
    """Return the metric that says which Rucola runs, by its labels."""
    labels = {"version": __version__, "commit": COMMIT, "python": platform.python_version()}
    metric = GaugeMetricFamily(
        "rucola_build_info", "The version that runs, and its commit if known", labels=list(labels)
    )
    metric.add_metric(list(labels.values()), 1)
    return metric


def exposition_steps(metrics: Iterable[Metric | None]) -> Generator[None, None, bytes]:
    """Render metrics in small steps."""
    parts: list[bytes] = []
    for metric in metrics:
        yield
        if metric is None:
            continue
        samples = metric.samples
        for begin in range(0, len(samples) or 1, _SAMPLES_PER_STEP):
            piece = copy.copy(metric)
            piece.samples = samples[begin : begin + _SAMPLES_PER_STEP]
            text = generate_latest(cast(CollectorRegistry, _OneMetric(piece)))
            # Only the first piece keeps the lines HELP and TYPE.
            parts.append(text.split(b"\n", 2)[2] if begin else text)
            yield
    return b"".join(parts)


class _OneMetric:
    """The part of a registry that the renderer uses."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _http(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
