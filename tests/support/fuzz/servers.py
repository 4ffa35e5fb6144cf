"""A running broker, or name server, as a target of the fuzzer: mutated requests over a real connection.

After each input a probe is sent on the same connection. Its answer, or the end of the connection, shows that the server
has processed the input. The server runs in this process, so its CPU time and memory are those that the loop measures,
and whatever it logs as an error counts as a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.cluster import HOST, SMALL_FILES
from support.fuzz.loop import Target
from support.recorded_frames import exchanges

PROBE_TIMEOUT_S = 20.0
NAMESRV_PORT = 9877
"""The port of the name server in the recordings."""
LEFT_OUT = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""They can switch off what the fuzzer is to reach."""


class _Errors(logging.Handler):
    """Collects what servers log as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record)[-1500:])


class _Server:
    """A server in an event loop of its own, and a connection to it."""

    def __init__(self, server: Broker | Namesrv, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._server = server
        self._errors = _Errors()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        loop.set_exception_handler(lambda loop, context: self._errors.lines.append(repr(context)))

    def start(self) -> None:
        logging.getLogger("rucola").addHandler(self._errors)
        self._loop.run_until_complete(self._server.start())

    def stop(self) -> None:
        self._loop.run_until_complete(self._disconnect())
        self._loop.run_until_complete(self._server.stop())
        logging.getLogger("rucola").removeHandler(self._errors)

    def run(self, data: bytes) -> None:
        """Send one input and wait until it is processed. AssertionError if the server logs an error or stays silent."""
        self._errors.lines.clear()
        self._loop.run_until_complete(self._exchange(data))
        assert not self._errors.lines, "\n".join(self._errors.lines)

    async def _exchange(self, data: bytes) -> None:
        if self._streams is None:
            port = self._server.port if isinstance(self._server, Namesrv) else self._server.config.listen_port
            self._streams = await asyncio.open_connection(HOST, port)
        reader, writer = self._streams
        probe = RemotingCommand.request(9999)
        # The length is right, so that the rest of the frame is reached; "frames" has wrong ones.
        frame = max(len(data) - 4, 4).to_bytes(4, "big") + data[4:].ljust(4, b"\0")
        with suppress(ConnectionError):
            writer.write(frame + probe.encode())
            expected = b'"opaque":%d,' % probe.opaque
            seen = b""
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                while expected not in seen:
                    received = await reader.read(1 << 20)
                    if not received:
                        break
                    seen = seen[-64:] + received
                else:
                    return
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@contextmanager
def _running(server: Broker | Namesrv, loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[bytes], None]]:
    running = _Server(server, loop)
    running.start()
    try:
        yield running.run
    finally:
        running.stop()


@contextmanager
def broker_target(golden: Path, directory: Path) -> Iterator[Target]:
    """Yield the target of a broker; its store is checked at the end."""
    config: dict[str, Any] = {"bind_address": HOST, "listen_port": 0, "broker_name": "broker-a", "broker_ip1": HOST}
    limits = {"max_topic_nums": 300, "max_subscription_group_nums": 200, "enable_property_filter": True}
    loop = asyncio.new_event_loop()
    try:
        broker = Broker(BrokerConfig(**config, **limits), StoreConfig(store_path_root_dir=directory, **SMALL_FILES))
        with _running(broker, loop) as run:
            yield Target("broker", _requests(golden, to_namesrv=False), run)
        assert check(directory) == []
    finally:
        loop.close()


@contextmanager
def namesrv_target(golden: Path) -> Iterator[Target]:
    """Yield the target of a name server."""
    loop = asyncio.new_event_loop()
    try:
        with _running(Namesrv(HOST, 0), loop) as run:
            yield Target("namesrv", _requests(golden, to_namesrv=True), run)
    finally:
        loop.close()


def _requests(golden: Path, *, to_namesrv: bool) -> list[bytes]:
    """Return the recorded requests to a kind of server, one for each code and serializer."""
    found = {
        (exchange.code, exchange.serializer): exchange.request
        for exchange in exchanges(golden)
        if (exchange.port == NAMESRV_PORT) == to_namesrv and exchange.code not in LEFT_OUT
    }
    return list(found.values())
