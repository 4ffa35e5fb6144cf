"""Connections part: the listeners, the registry of clients, held pulls, and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.listeners import Listeners
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.client_calls import ProducerCalls, ProducerCallsByChannel
from rucola.broker.client_registry import ClientChannel, ClientRegistry
from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.stats import BrokerStats
from rucola.errors import RemotingError
from rucola.http2.server import GrpcServer
from rucola.rates import SAMPLE_INTERVAL_MS
from rucola.remoting.budget import BudgetedConnection, ServerBudget
from rucola.remoting.connection import Connection, Processor, ReadHooks
from rucola.remoting.exposure import check_exposure
from rucola.slices import in_slices
from rucola.store.dispatch import TopicArrivals

EXPIRE_CLIENTS_INTERVAL_MS = 10_000
CLOSE_IDLE_INTERVAL_MS = 10_000


class Connections:
    """The listeners and their connections. `Serving` fills `processors`."""

    def __init__(self, environment: BrokerEnvironment, metadata: Metadata) -> None:
        config = environment.config
        self._environment = environment
        self._metadata = metadata
        self.processors: dict[int, Processor] = {}
        self.hold = PullRequestHold(config.max_held_pulls_per_connection, config.max_held_pulls)
        self.pops = PopHold(config.max_held_pulls_per_connection, config.max_held_pulls)
        self.stats = BrokerStats(environment.clock(), config.broker_cluster_name)
        self.remoting_calls = RemotingClientCalls()
        self.grpc_calls: ProducerCalls | None = None
        self.producer_calls = ProducerCallsByChannel(self._calls_to)
        self.clients = ClientRegistry(
            self._should_notify,
            self.remoting_calls.notify_consumer_ids_changed,
            self._on_group_left,
            lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )
        self.clients.on_member_left = self.pops.left
        self.budget = ServerBudget(config.connection_limits, self._on_writable)
        self._listeners = Listeners(config, self.processors, self._on_close, self.budget, environment.tls)
        self.grpc: GrpcServer | None = None
        """`Serving` sets its methods, `grpc_calls`, and `end_grpc_streams`."""
        self.end_grpc_streams: Callable[[], None] = _nothing
        if config.grpc_server_enabled and not environment.is_slave:
            self.grpc = GrpcServer(
                config.bind_address, config.grpc_server_port, {}, tls=environment.tls, budget=self.budget
            )

    def bind(self, running: AsyncExitStack) -> None:
        """Bind the ports, without listening yet, and store them in both configurations. RemotingError, ConfigError."""
        config = self._environment.config
        check_exposure(
            "the broker",
            config.bind_address,
            is_tls_enforced=config.tls.is_enforced,
            has_access_control=config.has_access_control,
            insecure=config.insecure,
        )
        self._listeners.bind()
        running.push_async_callback(self._listeners.stop)
        for port in self._listeners.ports:
            self._environment.ports.hold(config.bind_address, port)
        if self.grpc is not None:
            self._bind_grpc(self.grpc)
            running.push_async_callback(self.grpc.stop)
        config.ha_listen_port = self._environment.ports.hold(config.bind_address, config.ha_listen_port)
        self._environment.store_config.store_host = config.store_host

    def _bind_grpc(self, server: GrpcServer) -> None:
        config = self._environment.config
        try:
            server.bind()
        except RemotingError as error:
            raise RemotingError(
                f"{error}. It is grpcServerPort; grpcServerEnabled=false serves no clients of RocketMQ 5",
                subject="grpcServerPort",
            ) from None
        config.grpc_server_port = self._environment.ports.hold(config.bind_address, server.port)

    def schedule(self, scheduler: Scheduler) -> None:
        clock = self._environment.clock
        scheduler.every(
            EXPIRE_CLIENTS_INTERVAL_MS, "expire clients", lambda: in_slices(self.clients.expire_steps(clock()))
        )
        scheduler.every(SAMPLE_INTERVAL_MS, "sample statistics", lambda: in_slices(self.stats.sample_steps(clock())))
        idle_ms = self._environment.config.server_channel_max_idle_time_seconds * 1000
        if idle_ms > 0:
            interval_ms = min(CLOSE_IDLE_INTERVAL_MS, idle_ms // 2)
            scheduler.every(interval_ms, "close idle connections", lambda: self._listeners.close_idle(idle_ms))

    async def listen(self, running: AsyncExitStack, read_hooks: ReadHooks) -> None:
        """Accept connections. At the stop, held pulls are answered before the connections close."""
        # Stopping twice is allowed: this one closes the connections, the one of `bind` the port after a failed start.
        await self._listeners.start(read_hooks)
        running.push_async_callback(self._listeners.stop)
        if self.grpc is not None:
            await self.grpc.start()
            running.push_async_callback(self.grpc.stop)
            running.callback(self.end_grpc_streams)
        running.callback(self.hold.release_all)
        running.callback(self.pops.release_all)
        if self.grpc is not None:
            running.push_async_callback(self.grpc.go_away)  # first, so that clients do not receive again here

    def on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        self.stats.record_put(topics)

    def _calls_to(self, channel: ClientChannel) -> ProducerCalls:
        return self.remoting_calls if self.grpc_calls is None or isinstance(channel, Connection) else self.grpc_calls

    def _on_close(self, connection: Connection) -> None:
        self.clients.closed(connection)
        self.remoting_calls.closed(connection)
        self.hold.closed(connection)
        self.pops.closed(connection)

    def _on_writable(self, connection: BudgetedConnection) -> None:
        assert isinstance(connection, Connection)
        self.remoting_calls.writable(connection)
        self.hold.writable(connection)
        self.pops.writable(connection)

    def _should_notify(self, group: str) -> bool:
        is_enabled = self._environment.config.notify_consumer_ids_changed_enable
        return is_enabled and self._metadata.groups.should_notify(group)

    def _on_group_left(self, group: str) -> None:
        self._metadata.filters.unregister(group, self._environment.clock())


def _nothing() -> None:
    pass
