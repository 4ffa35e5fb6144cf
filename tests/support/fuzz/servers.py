"""A running broker, or name server, as a target of the fuzzer: mutated requests over a real connection.

After each input a probe is sent on the same connection. Its answer, or the end of the connection, shows that the server
has processed the input. The server runs in this process, so its CPU time and memory are those that the loop measures,
and whatever it logs as an error counts as a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
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


class LoggedErrors(logging.Handler):
    """Collects what servers and clients log as errors, and what an event loop complains of."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []
        self._loop = loop
        loop.set_exception_handler(lambda loop, context: self.lines.append(repr(context)))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record)[-1500:])

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the lines of the program."""
        logging.getLogger("rucola").addHandler(self)
        try:
            yield
        finally:
            logging.getLogger("rucola").removeHandler(self)

    def run(self, exchange: Coroutine[Any, Any, None]) -> None:
        """Run one exchange. AssertionError if anything is logged as an error meanwhile."""
        self.lines.clear()
        try:
            self._loop.run_until_complete(exchange)
        finally:
            assert not self.lines, "\n".join(self.lines)


class RunningServer:
    """A server in an event loop of its own, and a connection to it."""

    def __init__(self, server: Broker | Namesrv, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._server = server
        self._errors = LoggedErrors(loop)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._received = b""

    def start(self) -> None:
        logging.getLogger("rucola").addHandler(self._errors)
        self._loop.run_until_complete(self._server.start())

    def stop(self) -> None:
        self._loop.run_until_complete(self._disconnect())
        self._loop.run_until_complete(self._server.stop())
        logging.getLogger("rucola").removeHandler(self._errors)

    def run(self, data: bytes) -> None:
        """Send one input and wait until it is processed. AssertionError if the server logs an error or stays silent."""
        self._errors.run(self._exchange(data))

    def answers(self) -> list[RemotingCommand]:
        """Return the responses to the last input, without that to the probe."""
        commands = FrameDecoder(1 << 30).receive_data(self._received)
        return [command for command in commands if command.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED]

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
            seen = self._received = b""
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                while expected not in seen:
                    received = await reader.read(1 << 20)
                    if not received:
                        break
                    seen = seen[-64:] + received
                    self._received += received
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
def running(server: Broker | Namesrv, loop: asyncio.AbstractEventLoop) -> Iterator[RunningServer]:
    """Yield a started server, and stop it at the end."""
    started = RunningServer(server, loop)
    started.start()
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def broker_target(golden: Path, directory: Path) -> Iterator[Target]:
    """Yield the target of a broker; its store is checked at the end."""
    config: dict[str, Any] = {"bind_address": HOST, "listen_port": 0, "broker_name": "broker-a", "broker_ip1": HOST}
    limits = {"max_topic_nums": 300, "max_subscription_group_nums": 200, "enable_property_filter": True}
    loop = asyncio.new_event_loop()
    try:
        broker = Broker(BrokerConfig(**config, **limits), StoreConfig(store_path_root_dir=directory, **SMALL_FILES))
        with running(broker, loop) as server:
            yield Target("broker", requests_of(golden, to_namesrv=False), server.run)
        assert check(directory) == []
    finally:
        loop.close()


@contextmanager
def namesrv_target(golden: Path) -> Iterator[Target]:
    """Yield the target of a name server."""
    loop = asyncio.new_event_loop()
    try:
        with running(Namesrv(HOST, 0), loop) as server:
            yield Target("namesrv", requests_of(golden, to_namesrv=True), server.run)
    finally:
        loop.close()


def requests_of(golden: Path, *, to_namesrv: bool) -> list[bytes]:
    """Return the recorded requests to a kind of server, one for each code and serializer."""
    found = {
        (exchange.code, exchange.serializer): exchange.request
        for exchange in exchanges(golden)
        if (exchange.port == NAMESRV_PORT) == to_namesrv and exchange.code not in LEFT_OUT
    }
    return list(found.values())
