"""The HTTP server of a console."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Final, Self

import uvicorn

from rucola.client.connection_options import ConnectionOptions
from rucola.console.app import application
from rucola.console.config import ConsoleConfig
from rucola.console.console import Console
from rucola.remoting.listener import Listener

MAX_CONNECTIONS: Final = 500


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to the process, which may run a broker as well."""
        yield


class ConsoleServer:
    """`async with ConsoleServer(namesrv, config) as server` serves a console until the block ends."""

    def __init__(self, namesrv: str | ConnectionOptions | None, config: ConsoleConfig) -> None:
        self.console = Console(namesrv, config)
        self._listener = Listener(config.bind_address, config.port)
        self._running = AsyncExitStack()

    @property
    def url(self) -> str:
        host = f"[{self._listener.host}]" if ":" in self._listener.host else self._listener.host
        return f"http://{host}:{self._listener.port}{self.console.config.prefix}/"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as started:
            listening = self._listener.listen_shared()
            started.callback(listening.close)
            await started.enter_async_context(self.console)
            server = _Server(
                uvicorn.Config(
                    application(self.console), loop="none", http="h11", ws="none", lifespan="off", log_config=None,
                    access_log=False, log_level="warning",
                    server_header=False, proxy_headers=False, timeout_graceful_shutdown=3,
                    limit_concurrency=MAX_CONNECTIONS,
                )
            )  # fmt: skip
            serving = asyncio.create_task(server.serve(sockets=[listening]))

            async def stop() -> None:
                server.should_exit = True
                await self.console.tails.close()  # connections that stay open end with them
                await serving

            started.push_async_callback(stop)
            # The socket listens: a request that comes before uvicorn accepts waits in the backlog.
            self._running = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()
