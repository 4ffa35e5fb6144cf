"""Layout of a cluster: its servers, and a directory with a configuration file for each.

    DIR/
      etcd.conf                 of etcd, if it elects the masters
      namesrv-1.conf            of a name server
      broker-a.conf             of the master of the group broker-a
      broker-a-slave-1.conf     of its first slave
      broker-a-1.conf           instead of both, if masters are elected: of the first broker of the group
      broker-a/                 store directory of the broker
      logs/broker-a.log         its log
      status.json               of the supervisor
      lock                      held by the supervisor

Configuration files are written once: ports stay the same across restarts, and operators may edit any key.
"""

from __future__ import annotations

import shutil
import socket
import string
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

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
ETCD: Final = "etcd"


class ServerRole(Enum):
    """The role of a server, in the order of start."""

    ETCD = "etcd"
    NAMESRV = "namesrv"
    MASTER = "master"
    SLAVE = "slave"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    name: str
    role: ServerRole
    config_file: Path
    log: Path

    @property
    def command(self) -> str:
        return "namesrv" if self.role is ServerRole.NAMESRV else "broker"

    @property
    def program(self) -> list[str] | None:
        """The command line of a server that is not part of Rucola."""
        if self.role is not ServerRole.ETCD:
            return None
        properties = settings.read(self.config_file)
        client, peer = (f"http://{HOST}:{properties[key]}" for key in ("listenPort", "peerPort"))
        return [
            properties["program"], "--name", "rucola", "--data-dir", properties["dataDir"],
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"rucola={peer}", "--logger", "zap",
        ]  # fmt: skip

    @property
    def current_role(self) -> ServerRole:
        """The current role: an elected broker stores its role in its store directory."""
        if self.role is not ServerRole.MEMBER:
            return self.role
        path = Path(settings.read(self.config_file)["storePathRootDir"]) / "config" / "role.json"
        is_slave = not path.exists() or b"_MASTER" not in msgspec.json.decode(path.read_bytes())["current"].encode()
        return ServerRole.SLAVE if is_slave else ServerRole.MASTER

    @property
    def group(self) -> str:
        return settings.read(self.config_file)["brokerName"]

    @property
    def address(self) -> str:
        """The client address, from the configuration file."""
        properties = settings.read(self.config_file)
        return f"{properties.get('brokerIP1', properties.get('bindAddress', HOST))}:{properties.get('listenPort', '')}"


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of servers. `is_sync` makes the masters SYNC_MASTER, `is_elected` lets etcd elect them."""

    masters: int = 1
    slaves: int = 0
    namesrvs: int = 1
    is_sync: bool = False
    is_elected: bool = False

    def __str__(self) -> str:
        kind = "sync" if self.is_sync else "async"
        replicas = f"{self.masters * self.slaves}s-{kind}" if self.slaves else "noslave"
        etcd = " and etcd" if self.is_elected else ""
        return f"{self.masters}m-{replicas} with {self.namesrvs} name server{'s'[: self.namesrvs > 1]}{etcd}"


def open_layout(directory: Path, size: Size | None) -> list[ServerSpec]:
    """Return a directory's servers in start order, creating them if missing. ConfigError if size or contents differ."""
    servers = list(_servers(directory))
    if not servers:
        if directory.exists() and any(path.name not in (LOCK_FILE, LOGS) for path in directory.iterdir()):
            raise ConfigError(f"{directory} is not empty and holds no cluster; name a new directory", subject=directory)
        return _create(directory, size or Size())
    if size is not None and (existing := _size_of(servers)) != size:
        raise ConfigError(
            f"{directory} holds {existing}, not {size}; leave the numbers out to start it, or name a new directory",
            subject=directory,
        )
    return servers


def namesrv_addr(servers: list[ServerSpec]) -> str:
    return ";".join(server.address for server in servers if server.role is ServerRole.NAMESRV)


def _servers(directory: Path) -> Iterator[ServerSpec]:
    found: dict[ServerRole, list[ServerSpec]] = {role: [] for role in ServerRole}
    for path in sorted(directory.glob("*.conf")):
        role = ServerRole.MASTER
        if path.stem.startswith("namesrv"):
            role = ServerRole.NAMESRV
        elif path.stem == ETCD:
            role = ServerRole.ETCD
        elif "etcdEndpoints" in (properties := settings.read(path)):
            role = ServerRole.MEMBER
        elif properties.get("brokerRole") == "SLAVE":
            role = ServerRole.SLAVE
        found[role].append(ServerSpec(path.stem, role, path, directory / LOGS / f"{path.stem}.log"))
    for servers in found.values():
        yield from servers


def _size_of(servers: list[ServerSpec]) -> Size:
    count = {role: sum(server.role is role for server in servers) for role in ServerRole}
    properties = [settings.read(server.config_file) for server in servers]
    roles = {each.get("etcdMasterRole") or each.get("brokerRole") for each in properties}
    masters, slaves = max(1, count[ServerRole.MASTER]), count[ServerRole.SLAVE]
    if members := count[ServerRole.MEMBER]:
        masters = len({each["brokerName"] for each in properties if "etcdEndpoints" in each})
        slaves = members - masters
    is_elected = count[ServerRole.ETCD] > 0
    return Size(masters, slaves // masters, count[ServerRole.NAMESRV], "SYNC_MASTER" in roles, is_elected)


def _create(directory: Path, size: Size) -> list[ServerSpec]:
    groups = [f"broker-{letter}" for letter in string.ascii_lowercase[: size.masters]]
    # The port of a broker, the one below for the VIP channel, and one for replication.
    per_group = 1 + size.slaves
    with ExitStack() as held:
        namesrv_ports = [_free_port(held) for _ in range(size.namesrvs)]
        broker_ports = [_free_pair(held) for _ in range(size.masters * per_group)]
        ha_ports = [_free_port(held) for _ in range(size.masters * per_group)]
        etcd_ports = [_free_port(held) for _ in range(2)]
    addresses = ";".join(f"{HOST}:{port}" for port in namesrv_ports)
    for number, port in enumerate(namesrv_ports, 1):
        own = {
            "bindAddress": HOST,
            "listenPort": str(port),
            "kvConfigPath": str(directory.absolute() / f"namesrv-{number}" / "kvConfig.json"),
        }
        _write(directory / f"namesrv-{number}.conf", own)
    if size.is_elected:
        own = {
            "program": etcd_program(),
            "listenPort": str(etcd_ports[0]),
            "peerPort": str(etcd_ports[1]),
            "dataDir": str(directory.absolute() / ETCD),
        }
        _write(directory / f"{ETCD}.conf", own)
    ports = iter(zip(broker_ports, ha_ports, strict=True))
    for group in groups:
        for broker_id in range(per_group):
            port, ha_port = next(ports)
            name = f"{group}-slave-{broker_id}" if broker_id else group
            master_role = "SYNC_MASTER" if size.is_sync else "ASYNC_MASTER"
            role = {"brokerId": str(broker_id), "brokerRole": "SLAVE" if broker_id else master_role}
            if size.is_elected:  # all are equal: each can become master
                name = f"{group}-{broker_id + 1}"
                endpoint = f"http://{HOST}:{etcd_ports[0]}"
                role = {"brokerId": str(broker_id + 1), "brokerRole": "SLAVE", "etcdMasterRole": master_role}
                role["etcdEndpoints"] = endpoint
            own = {
                "brokerName": group,
                **role,
                "bindAddress": HOST,
                "brokerIP1": HOST,
                "listenPort": str(port),
                "haListenPort": str(ha_port),
                "namesrvAddr": addresses,
                "storePathRootDir": str(directory.absolute() / name),
            }
            _write(directory / f"{name}.conf", own)
    return list(_servers(directory))


def etcd_program() -> str:
    """Return the path of etcd. ConfigError if it is not installed."""
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError("--etcd needs the program etcd: install Debian's etcd-server, or etcd 3.4 or later")
    return found


def _write(path: Path, properties: dict[str, str]) -> None:
    replace_file(path, settings.render(properties).encode())


def _free_port(held: ExitStack, port: int = 0) -> int:
    """Return a free port, reserved until `held` closes."""
    listener = held.enter_context(socket.socket())
    listener.bind((HOST, port))
    chosen: int = listener.getsockname()[1]
    return chosen


def _free_pair(held: ExitStack) -> int:
    """Return a free port for a broker whose VIP channel's port is free as well."""
    for _ in range(PAIR_ATTEMPTS):
        port = _free_port(held)
        with suppress(OSError):
            _free_port(held, vip_port(port))
            return port
    raise ConfigError(f"{HOST} has too few free ports: no pair was found in {PAIR_ATTEMPTS} attempts")
