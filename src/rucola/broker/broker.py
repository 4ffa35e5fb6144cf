"""The broker: one store, served to clients and, as master or slave, replicated.

Corresponds to `BrokerController` of Apache RocketMQ 4.9.8. Deliberate difference: the parts do not depend on this
class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from rucola.access import Interceptor
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.startup import OpenedParts, RoleStart, RunningParts, open_broker, start_broker
from rucola.broker.background.retention import DiskUsageProbe, disk_usage
from rucola.broker.background.scheduler import in_thread
from rucola.broker.config import BrokerConfig
from rucola.broker.coordination import BrokerCoordination
from rucola.broker.role_control import BrokerRoleControl
from rucola.remoting.tls import ClientTls, ServerTls
from rucola.store.config import BrokerRole, StoreConfig
from rucola.store.directory_lock import check_store_directory


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Broker:
    """One broker over one store directory. Use `start` and `stop`, or `async with`.

    If `listen_port` is 0 the system chooses a port, which `config.listen_port` and `address` have after the start.
    Settings changed at runtime are written into `config_file`. `interceptors` see every request before the broker's own
    checks (see `rucola.access`). Raises ConfigError if the certificates of `config.tls` cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        probe_disk: DiskUsageProbe = disk_usage,
        config_file: Path | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.config = config
        self.store_config = store_config
        client_tls = ClientTls.of(config.tls)
        self._coordination: BrokerCoordination | None = None
        if config.coordination.is_enabled:
            self._coordination = BrokerCoordination(config, store_config, client_tls)
        self.role = BrokerRoleControl(self, config, store_config, clock)
        self._environment = BrokerEnvironment(
            config,
            store_config,
            clock,
            probe_disk,
            self.role,
            self.role.on_diverged,
            self.role.may_cut,
            self.role.on_followed,
            self.role.on_joined,
            config_file,
            tuple(interceptors),
            ServerTls.of(config.tls),
            self._coordination,
            client_tls,
        )
        self._running = AsyncExitStack()
        self._opened: OpenedParts | None = None
        self.parts: RunningParts | None = None
        """None while stopped."""

    @property
    def address(self) -> str:
        """The address for clients, "ip:port"."""
        return f"{self.config.broker_ip1}:{self.config.listen_port}"

    @property
    def grpc_endpoint(self) -> str:
        """The address for clients of RocketMQ 5, "ip:port"; empty if it serves none."""
        is_served = self.config.grpc_server_enabled and not self.store_config.is_slave
        return f"{self.config.broker_ip1}:{self.config.grpc_server_port}" if is_served else ""

    async def open(self) -> None:
        """Open the store without binding a port. Raises StoreError. `start` or `stop` follows."""
        if not self.role.is_loaded:
            store_config = self._environment.store_config
            # Before anything is read or written in the directory, which the store itself locks later.
            await in_thread(check_store_directory, store_config.store_path_root_dir, store_config.commit_log_directory)
            if self._coordination is not None:
                await self._coordination.prepare()
                self.role.load(BrokerRole[self.config.coordination.etcd_master_role.name])
            else:
                self.role.load()
        async with AsyncExitStack() as opening:
            opened = await open_broker(self._environment, opening)
            if self._coordination is not None:
                storage = opened.storage
                await self._coordination.compare(storage.store.max_physical_offset, storage.mastership.epochs)
            self._opened = opened
            self._running = opening.pop_all()

    async def start(self) -> None:
        """Open the store, unless `open` did, and start serving. Raises StoreError, ConfigError or RemotingError."""
        try:
            if self._opened is None:
                await self.open()
            await self.start_parts(RoleStart(is_promotion=self.role.record.is_promotion))
            await self.role.keep()
            if self._coordination is not None:
                await self._coordination.start(self.role)
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Load the certificates, and read `config_file` again. Raises ConfigError; the failed part is unchanged."""
        if self._environment.tls is not None:
            self._environment.tls.reload()
        if self.parts is not None:
            await self.parts.services.configuration.reload()

    async def stop(self) -> None:
        """Stop serving and close the store. Idempotent. All acknowledged messages are on disk afterwards."""
        if self._coordination is not None:
            await self._coordination.stop()
        async with self.role.changing:
            parts = self.parts
            await self.stop_parts()
            self._environment.ports.release()
            if self._coordination is not None and parts is not None:
                await self._coordination.keep_end(parts.storage.store.max_physical_offset)

    async def wait_failed(self) -> None:
        """Wait until a change of the role leaves the broker stopped, and raise the reason."""
        await self.role.wait_failed()

    async def start_parts(self, start: RoleStart) -> None:
        """Start all parts in the configured role. Raises as `start`."""
        if self._opened is None:
            await self.open()
        assert self._opened is not None
        opened, self._opened = self._opened, None
        async with self._running.pop_all() as starting:
            self.parts = await start_broker(self._environment, opened, starting, start)
            self.role.role_since_ms = self._environment.clock()
            self._running = starting.pop_all()

    async def stop_parts(self) -> None:
        self._opened = self.parts = None
        await self._running.aclose()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
