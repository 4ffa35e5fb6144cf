"""Supervisor of a cluster on one machine.

Start order, each kind once the previous one is ready: etcd, name servers, masters, slaves. Stop order: masters (after
finishing replication), slaves, name servers, etcd.

A server that ends is restarted: at once after a minute in service, otherwise after 1 s, doubling up to 30 s. If one
fails at the first start, all are stopped: its configuration is wrong.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from rucola.cluster.layout import LOCK_FILE, LOGS, ServerRole, ServerSpec, Size, open_layout
from rucola.cluster.server import PROBE_PAUSE_S, SupervisedServer
from rucola.errors import ConfigError, MQError
from rucola.files import make_directory, replacing

STATUS_FILE: Final = "status.json"
ELECTION_TIMEOUT_S: Final = 60.0
_STOP_ORDER: Final = (ServerRole.MASTER, ServerRole.SLAVE, ServerRole.MEMBER, ServerRole.NAMESRV, ServerRole.ETCD)


class ServerStatus(msgspec.Struct, rename="camel"):
    """One server in `status.json`, which is replaced at every change."""

    name: str
    role: str
    address: str
    state: str
    pid: int | None
    since: float
    """Time of the last state change, in seconds since 1970."""
    restarts: int
    last_exit: str | None
    log: str


class ClusterNotRunning(MQError):
    """No supervisor runs the cluster."""


class Supervisor:
    """Runs the servers of a directory and holds its lock. Call `start`, `wait`, `stop` on one event loop."""

    def __init__(self, directory: Path, servers: Sequence[ServerSpec]) -> None:
        self.servers = [SupervisedServer(spec, self._write_status) for spec in servers]
        self._directory = directory
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all servers. If one ends before it is ready, stop all and raise MQError."""
        try:
            for role in ServerRole:
                await asyncio.gather(*(self._start(server) for server in self._of(role)))
            await self._wait_elected()
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> None:
        """Wait until cancelled; raise the error that ended a server's supervision."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    def reload(self) -> None:
        """Let all servers read their configuration files again."""
        for server in self.servers:
            if server.spec.program is None:
                server.signal(signal.SIGHUP)

    async def stop(self) -> None:
        for role in _STOP_ORDER:
            await asyncio.gather(*(server.stop() for server in self._of(role)))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, server: SupervisedServer) -> None:
        task = asyncio.create_task(server.run(), name=server.spec.name)
        self._tasks.append(task)
        if await server.started():
            return
        if task.done():
            task.result()
        raise MQError(
            f"{server.spec.name} does not start: {server.last_exit}, {server.log.last_line!r}; "
            f"its configuration is {server.spec.config_file}, its log {server.spec.log}"
        )

    async def _wait_elected(self) -> None:
        """Wait until every electing group has a master. MQError after `ELECTION_TIMEOUT_S`."""
        members = [server.spec for server in self._of(ServerRole.MEMBER)]
        groups = {spec.group for spec in members}
        deadline_s = asyncio.get_running_loop().time() + ELECTION_TIMEOUT_S
        while groups:
            groups -= {spec.group for spec in members if spec.current_role is ServerRole.MASTER}
            if asyncio.get_running_loop().time() >= deadline_s:
                raise MQError(f"{', '.join(sorted(groups))}: no master was elected; the logs of the brokers say why")
            await asyncio.sleep(PROBE_PAUSE_S if groups else 0)

    def _of(self, role: ServerRole) -> list[SupervisedServer]:
        return [server for server in self.servers if server.spec.role is role]

    def _write_status(self) -> None:
        status = [
            ServerStatus(
                name=server.spec.name,
                role=server.spec.role.value,
                address=server.spec.address,
                state=server.state.value,
                pid=server.pid,
                since=server.since,
                restarts=server.restarts,
                last_exit=server.last_exit,
                log=str(server.spec.log),
            )
            for server in self.servers
        ]
        # Not flushed to disk: it describes processes, which end with the machine.
        with replacing(self._directory / STATUS_FILE, is_flushed=False) as file:
            file.write(msgspec.json.encode(status))


@contextmanager
def supervisor(directory: Path, size: Size | None) -> Iterator[Supervisor]:
    """Lock a directory and yield its supervisor. ConfigError if locked, or from `open_layout`."""
    make_directory(directory / LOGS)
    with (directory / LOCK_FILE).open("a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another supervisor runs {directory}; `rucola cluster {directory} --status` shows it"
            ) from None
        yield Supervisor(directory, open_layout(directory, size))


def read_status(directory: Path) -> list[ServerStatus]:
    """Return the status of a directory's servers. ClusterNotRunning if no supervisor runs there."""
    try:
        with (directory / LOCK_FILE).open("r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        found = msgspec.json.decode((directory / STATUS_FILE).read_bytes(), type=list[ServerStatus])
        specs = {spec.name: spec for spec in open_layout(directory, None)}
        return [structs.replace(each, role=specs[each.name].current_role.value) for each in found]
    except FileNotFoundError:
        raise ClusterNotRunning(f"{directory} holds no cluster; `rucola cluster {directory}` creates one") from None
    raise ClusterNotRunning(f"no supervisor runs {directory}; `rucola cluster {directory}` starts it")
