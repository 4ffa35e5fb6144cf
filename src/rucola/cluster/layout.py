"""Layout of a cluster: its servers, and a directory with a configuration file for each.

    DIR/
      namesrv-1.conf            of a name server
      broker-a.conf             of the master of the group broker-a
      broker-a-slave-1.conf     of its first slave
      broker-a/                 store directory of the broker
      logs/broker-a.log         its log
      status.json               of the supervisor
      lock                      held by the supervisor

The files are written once and never changed again: they are ordinary configuration files, whose ports stay the same
from start to start, and in which an operator may change any key.
"""

from __future__ import annotations

import socket
import string
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rucola import settings
from rucola.errors import ConfigError
from rucola.files import replace_file
from rucola.protocol.route import vip_port

HOST: Final = "127.0.0.1"
MOST_MASTERS: Final = len(string.ascii_lowercase)
MOST_SLAVES: Final = 8
MOST_NAMESRVS: Final = 8
PAIR_ATTEMPTS: Final = 100
LOCK_FILE: Final = "lock"
LOGS: Final = "logs"


class ServerRole(Enum):
    """The role of a server, in the order of start."""

    NAMESRV = "namesrv"
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a layout."""

    name: str
    role: ServerRole
    config_file: Path
    log: Path

    @property
    def command(self) -> str:
        """The subcommand of `rucola` that runs it."""
        return "namesrv" if self.role is ServerRole.NAMESRV else "broker"

    @property
    def address(self) -> str:
        """The address for clients, from the configuration file."""
        properties = settings.read(self.config_file)
        return f"{properties.get('brokerIP1', properties.get('bindAddress', HOST))}:{properties.get('listenPort', '')}"


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of servers. `is_sync` makes the masters SYNC_MASTER."""

    masters: int = 1
    slaves: int = 0
    namesrvs: int = 1
    is_sync: bool = False

    def __str__(self) -> str:
        kind = "sync" if self.is_sync else "async"
        replicas = f"{self.masters * self.slaves}s-{kind}" if self.slaves else "noslave"
        return f"{self.masters}m-{replicas} with {self.namesrvs} name server{'s'[: self.namesrvs > 1]}"


def open_layout(directory: Path, size: Size | None) -> list[ServerSpec]:
    """Return the servers of a directory in the order of start; create them if it has none.

    With a size that is not that of an existing layout, and for a directory with other contents, raises ConfigError.
    """
    servers = list(_servers(directory))
    if not servers:
        if directory.exists() and any(path.name not in (LOCK_FILE, LOGS) for path in directory.iterdir()):
            raise ConfigError(f"{directory} is not empty and holds no cluster; name a new directory")
        return _create(directory, size or Size())
    if size is not None and (existing := _size_of(servers)) != size:
        raise ConfigError(
            f"{directory} holds {existing}, not {size}; leave the numbers out to start it, or name a new directory"
        )
    return servers


def namesrv_addr(servers: list[ServerSpec]) -> str:
    """Return the addresses of the name servers, as clients take them."""
    return ";".join(server.address for server in servers if server.role is ServerRole.NAMESRV)


def _servers(directory: Path) -> Iterator[ServerSpec]:
    found: dict[ServerRole, list[ServerSpec]] = {role: [] for role in ServerRole}
    for path in sorted(directory.glob("*.conf")):
        role = ServerRole.MASTER
        if path.stem.startswith("namesrv"):
            role = ServerRole.NAMESRV
        elif settings.read(path).get("brokerRole") == "SLAVE":
            role = ServerRole.SLAVE
        found[role].append(ServerSpec(path.stem, role, path, directory / LOGS / f"{path.stem}.log"))
    for servers in found.values():
        yield from servers


def _size_of(servers: list[ServerSpec]) -> Size:
    count = {role: sum(server.role is role for server in servers) for role in ServerRole}
    masters = max(1, count[ServerRole.MASTER])
    roles = [settings.read(server.config_file).get("brokerRole") for server in servers]
    return Size(masters, count[ServerRole.SLAVE] // masters, count[ServerRole.NAMESRV], "SYNC_MASTER" in roles)


def _create(directory: Path, size: Size) -> list[ServerSpec]:
    groups = [f"broker-{letter}" for letter in string.ascii_lowercase[: size.masters]]
    # The port of a broker, the one below for the VIP channel, and one for replication.
    per_group = 1 + size.slaves
    with ExitStack() as held:
        namesrv_ports = [_free_port(held) for _ in range(size.namesrvs)]
        broker_ports = [_free_pair(held) for _ in range(size.masters * per_group)]
        ha_ports = [_free_port(held) for _ in range(size.masters * per_group)]
    addresses = ";".join(f"{HOST}:{port}" for port in namesrv_ports)
    for number, port in enumerate(namesrv_ports, 1):
        own = {
            "bindAddress": HOST,
            "listenPort": str(port),
            "kvConfigPath": str(directory.absolute() / f"namesrv-{number}" / "kvConfig.json"),
        }
        _write(directory / f"namesrv-{number}.conf", own)
    ports = iter(zip(broker_ports, ha_ports, strict=True))
    for group in groups:
        for broker_id in range(per_group):
            port, ha_port = next(ports)
            name = f"{group}-slave-{broker_id}" if broker_id else group
            master_role = "SYNC_MASTER" if size.is_sync else "ASYNC_MASTER"
            own = {
                "brokerName": group,
                "brokerId": str(broker_id),
                "brokerRole": "SLAVE" if broker_id else master_role,
                "bindAddress": HOST,
                "brokerIP1": HOST,
                "listenPort": str(port),
                "haListenPort": str(ha_port),
                "namesrvAddr": addresses,
                "storePathRootDir": str(directory.absolute() / name),
            }
            _write(directory / f"{name}.conf", own)
    return list(_servers(directory))


def _write(path: Path, properties: dict[str, str]) -> None:
    replace_file(path, settings.render(properties).encode())


def _free_port(held: ExitStack, port: int = 0) -> int:
    """Return a free port, and keep it until `held` is closed, so that it is not chosen twice."""
    listener = held.enter_context(socket.socket())
    listener.bind((HOST, port))
    chosen: int = listener.getsockname()[1]
    return chosen


def _free_pair(held: ExitStack) -> int:
    """Return a free port for a broker, for which the port of its VIP channel is free as well."""
    for _ in range(PAIR_ATTEMPTS):
        port = _free_port(held)
        with suppress(OSError):
            _free_port(held, vip_port(port))
            return port
    raise ConfigError(f"{HOST} has too few free ports: no pair was found in {PAIR_ATTEMPTS} attempts")
