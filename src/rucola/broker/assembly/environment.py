"""Configuration, clock and disk probe of one broker: everything that its parts take from outside."""

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
    """Inputs of a broker.

    `config` and `store_config` are shared with the caller: the assembly stores the chosen ports in them.
    """

    config: BrokerConfig
    store_config: StoreConfig
    clock: Callable[[], int]
    """Returns milliseconds since 1970."""
    probe_disk: DiskUsageProbe
    roles: RoleChanges
    """The broker itself, as far as requests may change its role."""
    on_diverged: Callable[[int], None]
    """Called on a slave with the physical offset from which on its log differs from its master's."""
    may_cut: Callable[[], bool]
    """Tells whether a slave may cut off what its master lacks."""
    on_followed: Callable[[BrokerRole], Awaitable[None]]
    """Called on a slave with the role of a master whose log it is known to follow."""
    config_file: Path | None
    """The broker.conf that UPDATE_BROKER_CONFIG rewrites; None keeps updates in memory."""
    interceptors: tuple[Interceptor, ...] = ()
    """Interceptors that see every request before the broker's own."""
    tls: ServerTls | None = None
    """TLS of all ports; None serves plain text."""
    coordination: GroupRole | None = None
    """The election of the master; None if the configuration decides."""
    client_tls: ClientTls | None = None
    """TLS of connections to name servers and to the master; None connects in plain text."""
    ports: HeldPorts = field(default_factory=HeldPorts)
    """The ports of the broker, also while it changes its role."""

    @property
    def is_slave(self) -> bool:
        """Return whether brokerRole is SLAVE."""
        return self.store_config.is_slave

    @property
    def lease(self) -> WriteLease | None:
        """Return the right of an elected master to acknowledge messages; None without an election."""
        return None if self.coordination is None else self.coordination.lease

    @property
    def config_directory(self) -> Path:
        """The directory of the JSON tables, `config/` in the store directory."""
        return Path(self.store_config.store_path_root_dir) / "config"
