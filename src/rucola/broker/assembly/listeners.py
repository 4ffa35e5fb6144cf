"""Listeners: the two ports on which a broker serves clients, with the same processors.

The second is the VIP channel, `listenPort - 2`: Apache's producers up to 4.5.0 send there by default, and a slave of
Apache 4.9.8 requests topics only there. `vipChannelEnabled=false` disables it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rucola.broker.config import BrokerConfig
from rucola.errors import RemotingError
from rucola.protocol.route import vip_port
from rucola.remoting.budget import ConnectionLimits, ServerBudget
from rucola.remoting.connection import Connection, Processor, ReadHooks
from rucola.remoting.server import RemotingServer
from rucola.remoting.tls import ServerTls

PAIR_ATTEMPTS = 100
"""Attempts to find a port for listenPort=0 with a free port two below."""


class Listeners:
    """The servers of one broker. `processors` may be filled until `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        processors: Mapping[int, Processor],
        on_close: Callable[[Connection], None],
        budget: ServerBudget | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._config = config
        self._processors = processors
        self._on_close = on_close
        self._budget = budget or ServerBudget(ConnectionLimits())
        self._tls = tls
        self._servers: list[RemotingServer] = []

    def bind(self) -> None:
        """Bind the ports, without listening yet, and store listenPort in the configuration. Raises RemotingError."""
        port, rejected = self._config.listen_port, list[RemotingServer]()
        is_chosen = port == 0
        try:
            while not self._servers:
                # A rejected port stays bound until the end, so that the system does not choose it again.
                clients = self._bound(port, is_chosen)
                rejected.append(clients)
                try:
                    vip = [self._bound_vip(clients.port, is_chosen)] if self._config.vip_channel_enabled else []
                except RemotingError:
                    if port or len(rejected) == PAIR_ATTEMPTS:
                        raise
                else:
                    self._servers = [rejected.pop(), *vip]
        finally:
            for server in rejected:
                server.unbind()
        for server in self._servers:
            server.share()
        self._config.listen_port = self._servers[0].port

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self._servers]

    async def start(self, read_hooks: ReadHooks) -> None:
        for server in self._servers:
            server.read_hooks = read_hooks
            await server.start()

    async def stop(self) -> None:
        """Stop listening and close every connection; idempotent."""
        for server in self._servers:
            await server.stop()

    async def close_idle(self, limit_ms: int) -> None:
        """Close connections without traffic for `limit_ms`."""
        for server in self._servers:
            await server.close_idle(limit_ms)

    def _bound(self, port: int, exclusive: bool) -> RemotingServer:
        server = RemotingServer(
            self._config.bind_address,
            port,
            self._processors,
            tls=self._tls,
            on_close=self._on_close,
            budget=self._budget,
        )
        server.bind(exclusive)
        return server

    def _bound_vip(self, listen_port: int, exclusive: bool) -> RemotingServer:
        port = vip_port(listen_port)
        if port < 1:
            raise RemotingError(
                f"listenPort={listen_port} leaves no port two below it for the VIP channel; choose a port above 2, or "
                "set vipChannelEnabled=false",
                subject="listenPort",
            )
        try:
            return self._bound(port, exclusive)
        except RemotingError as error:
            raise RemotingError(
                f"{error}. It is the VIP channel of listenPort={listen_port}, always two below it; set "
                "vipChannelEnabled=false if no slave of Apache and no old client needs it",
                subject="vipChannelEnabled",
            ) from None
