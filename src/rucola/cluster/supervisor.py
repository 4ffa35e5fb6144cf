"""Supervisor of a cluster on one machine.

The servers start in this order, each kind once the one before is ready: etcd, name servers, masters, slaves. They stop
in this order: masters, which first finish what they replicate, then slaves, then name servers and etcd.

A server that ends is started again: at once after a minute in service, otherwise after a pause of 1 s that doubles up
to 30 s. If a server fails at the first start, all are stopped, since its configuration is wrong rather than its luck.

`status.json` describes the servers and is replaced at every change (see `ServerStatus`).
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
from rucola.files import make_directory

STATUS_FILE: Final = "status.json"
ELECTION_TIMEOUT_S: Final = 60.0
_STOP_ORDER: Final = (ServerRole.MASTER, ServerRole.SLAVE, ServerRole.MEMBER, ServerRole.NAMESRV, ServerRole.ETCD)


class ServerStatus(msgspec.Struct, rename="camel"):
    """One server in `status.json`."""

    name: str
    role: str
    address: str
    state: str
    pid: int | None
    since: float
    """Time of the last change of the state, in seconds since 1970."""
    restarts: int
    last_exit: str | None
    log: str


class ClusterNotRunning(MQError):
    """A cluster of which no supervisor is running."""


class Supervisor:
    """Supervisor that runs the servers of a directory, and holds the lock.

    Call `start`, then `wait`, then `stop`, on one event loop.
    """

    def __init__(self, directory: Path, servers: Sequence[ServerSpec]) -> None:
        self.servers = [SupervisedServer(spec, self._write_status) for spec in servers]
        self._directory = directory
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all servers. MQError, after all were stopped, if one ends before it is ready."""
        try:
            for role in ServerRole:
                await asyncio.gather(*(self._start(server) for server in self._of(role)))
            await self._wait_elected()
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> None:
        """Wait until cancelled; raise the error that ended a server's supervision, if one did."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    def reload(self) -> None:
        """Let all servers read their configuration files again."""
        for server in self.servers:
            if server.spec.program is None:
                server.signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Stop all servers in order."""
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
        """Wait until each group that elects its master has one.

        Raises MQError if one has none for `ELECTION_TIMEOUT_S`.
        """
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
        temporary = self._directory / f"{STATUS_FILE}.tmp"
        temporary.write_bytes(msgspec.json.encode(status))
        temporary.replace(self._directory / STATUS_FILE)


@contextmanager
def supervisor(directory: Path, size: Size | None) -> Iterator[Supervisor]:
    """Lock a directory and yield the supervisor of its servers.

    The servers are created if the directory has none. Raises ConfigError if another supervisor runs them, or if
    `open_layout` refuses the directory or the size.
    """
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
    """Return the status of the servers of a directory. ClusterNotRunning if no supervisor runs there."""
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
