"""Layout of a cluster: its servers, and a directory with a configuration file for each.

    DIR/
      size.json                 the numbers of servers
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

import shlex
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
SIZE_FILE: Final = "size.json"
LOCK_FILE: Final = "lock"
LOGS: Final = "logs"


class ServerRole(Enum):
    """The role of a server, in the order of start."""

    ETCD = "etcd"
    NAMESRV = "namesrv"
    MASTER = "master"
    SLAVE = "slave"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    directory: Path
    name: str
    role: ServerRole
    group: str = ""
    """The brokerName of a broker, with its brokerId."""
    broker_id: int = 0

    @property
    def config_file(self) -> Path:
        return self.directory / f"{self.name}.conf"

    @property
    def log(self) -> Path:
        return self.directory / LOGS / f"{self.name}.log"

    @property
    def store(self) -> Path:
        return self.directory.absolute() / self.name

    @property
    def command(self) -> list[str]:
        """The command line; `rucola` stands for this program."""
        if self.role is ServerRole.ETCD:
            return shlex.split(settings.read(self.config_file)["command"])
        return ["rucola", "namesrv" if self.role is ServerRole.NAMESRV else "broker", "-c", str(self.config_file)]

    @property
    def current_role(self) -> ServerRole:
        """The current role: an elected broker stores its role in its store directory."""
        if self.role is not ServerRole.MEMBER:
            return self.role
        path = Path(settings.read(self.config_file)["storePathRootDir"]) / "config" / "role.json"
        is_slave = not path.exists() or b"_MASTER" not in msgspec.json.decode(path.read_bytes())["current"].encode()
        return ServerRole.SLAVE if is_slave else ServerRole.MASTER

    @property
    def address(self) -> str:
        """The client address, from the configuration file."""
        properties = settings.read(self.config_file)
        return f"{properties.get('brokerIP1', properties.get('bindAddress', HOST))}:{properties.get('listenPort', '')}"


class Size(msgspec.Struct, frozen=True, rename="camel"):
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
    try:
        existing = msgspec.json.decode((directory / SIZE_FILE).read_bytes(), type=Size)
    except FileNotFoundError:
        if directory.exists() and any(path.name not in (LOCK_FILE, LOGS) for path in directory.iterdir()):
            raise ConfigError(
                f"{directory} is not empty and holds no cluster; name a new directory", subject=directory
            ) from None
        return _create(directory, size or Size())
    if size not in (None, existing):
        raise ConfigError(
            f"{directory} holds {existing}, not {size}; leave the numbers out to start it, or name a new directory",
            subject=directory,
        )
    return list(_servers(directory, existing))


def namesrv_addr(servers: list[ServerSpec]) -> str:
    return ";".join(server.address for server in servers if server.role is ServerRole.NAMESRV)


def _servers(directory: Path, size: Size) -> Iterator[ServerSpec]:
    if size.is_elected:
        yield ServerSpec(directory, "etcd", ServerRole.ETCD)
    for number in range(1, size.namesrvs + 1):
        yield ServerSpec(directory, f"namesrv-{number}", ServerRole.NAMESRV)
    groups = [f"broker-{letter}" for letter in string.ascii_lowercase[: size.masters]]
    if size.is_elected:  # all are equal: each can become master
        for group in groups:
            for number in range(1, size.slaves + 2):
                yield ServerSpec(directory, f"{group}-{number}", ServerRole.MEMBER, group, number)
        return
    for group in groups:
        yield ServerSpec(directory, group, ServerRole.MASTER, group)
    for group in groups:
        for number in range(1, size.slaves + 1):
            yield ServerSpec(directory, f"{group}-slave-{number}", ServerRole.SLAVE, group, number)


def _create(directory: Path, size: Size) -> list[ServerSpec]:
    servers = list(_servers(directory, size))
    with ExitStack() as held:
        # For clients, for replication or the peers of etcd, and for clients of gRPC.
        ports = {spec.name: (_free_pair(held), _free_port(held), _free_port(held)) for spec in servers}
    namesrvs = ";".join(f"{HOST}:{ports[one.name][0]}" for one in servers if one.role is ServerRole.NAMESRV)
    master_role = "SYNC_MASTER" if size.is_sync else "ASYNC_MASTER"
    for spec in servers:
        port, other_port, grpc_port = ports[spec.name]
        own = {"bindAddress": HOST, "listenPort": str(port)}
        if spec.role is ServerRole.ETCD:
            own["command"] = _etcd_command(spec, port, other_port)
        elif spec.role is ServerRole.NAMESRV:
            own["kvConfigPath"] = str(spec.store / "kvConfig.json")
        else:
            own |= {
                "brokerName": spec.group,
                "brokerId": str(spec.broker_id),
                "brokerRole": master_role if spec.role is ServerRole.MASTER else "SLAVE",
                "brokerIP1": HOST,
                "haListenPort": str(other_port),
                "grpcServerPort": str(grpc_port),
                "namesrvAddr": namesrvs,
                "storePathRootDir": str(spec.store),
            }
        if spec.role is ServerRole.MEMBER:
            own |= {"etcdMasterRole": master_role, "etcdEndpoints": f"http://{HOST}:{ports['etcd'][0]}"}
        replace_file(spec.config_file, settings.render(own).encode())
    replace_file(directory / SIZE_FILE, msgspec.json.encode(size))
    return servers


def _etcd_command(spec: ServerSpec, port: int, peer_port: int) -> str:
    program = shutil.which("etcd")
    if program is None:
        raise ConfigError("--etcd needs the program etcd: install Debian's etcd-server, or etcd 3.4 or later")
    client, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peer_port}"
    options = {
        "name": "rucola", "data-dir": str(spec.store), "listen-client-urls": client, "advertise-client-urls": client,
        "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"rucola={peer}",
        "logger": "zap",
    }  # fmt: skip
    return shlex.join([program, *(f"--{name}={value}" for name, value in options.items())])


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
