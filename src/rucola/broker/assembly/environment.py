"""The inputs of a broker's parts: configuration, clock, disk probe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from rucola.access import Interceptor
from rucola.broker.background.retention import DiskUsageProbe
from rucola.broker.config import BrokerConfig
from rucola.broker.coordination import GroupRole
from rucola.broker.services.roles import RoleChanges
from rucola.coordination.write_lease import WriteLease
from rucola.remoting.held_ports import HeldPorts
from rucola.remoting.tls import ClientTls, ServerTls
from rucola.store.config import BrokerRole, StoreConfig


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """Inputs of a broker. The chosen ports are stored in the caller's `config` and `store_config`."""

    config: BrokerConfig
    store_config: StoreConfig
    clock: Callable[[], int]
    probe_disk: DiskUsageProbe
    roles: RoleChanges
    on_diverged: Callable[[int], None]
    """Called on a slave with the physical offset at which its log starts to differ from its master's."""
    may_cut: Callable[[], bool]
    """Whether a slave may cut off what its master lacks."""
    on_followed: Callable[[BrokerRole], Awaitable[None]]
    """Called on a slave with the role of a master whose log it follows."""
    on_joined: Callable[[int], Awaitable[None]]
    """Called on a master with the brokerId of a slave that has joined it."""
    config_file: Path | None
    """The broker.conf that UPDATE_BROKER_CONFIG rewrites; None keeps updates in memory."""
    interceptors: tuple[Interceptor, ...] = ()
    tls: ServerTls | None = None
    """TLS of all ports; None serves plain text."""
    coordination: GroupRole | None = None
    client_tls: ClientTls | None = None
    """TLS of connections to name servers and to the master; None connects in plain text."""
    ports: HeldPorts = field(default_factory=HeldPorts)
    """Stay bound while the broker changes its role."""

    @property
    def is_slave(self) -> bool:
        return self.store_config.is_slave

    @property
    def lease(self) -> WriteLease | None:
        return None if self.coordination is None else self.coordination.lease

    @property
    def config_directory(self) -> Path:
        return Path(self.store_config.store_path_root_dir) / "config"
