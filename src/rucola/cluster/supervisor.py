"""Supervisor of a cluster on one machine.

Start order, each kind once the previous one is ready: etcd, name servers, masters, slaves. Stop order: masters (after
finishing replication), slaves, name servers, etcd.

A server that ends is restarted: at once after a minute in service, otherwise after 1 s, doubling up to 30 s. If one
fails at the first start, all are stopped: its configuration is wrong.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from rucola.cluster.layout import LOCK_FILE, LOGS, ServerRole, ServerSpec, Size, open_layout
from rucola.errors import ConfigError, MQError
from rucola.files import make_directory, replacing

logger = logging.getLogger(__name__)

STATUS_FILE: Final = "status.json"
FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 30.0
STABLE_S: Final = 60.0
"""Time in service after which the next restart is immediate."""
STOP_TIMEOUT_S: Final = 60.0
ELECTION_TIMEOUT_S: Final = 60.0
PROBE_PAUSE_S: Final = 0.05
LOG_SIZE: Final = 16 << 20
"""Bytes from which on a log is renamed to `.1` at the next start of its server."""
_STOP_ORDER: Final = (ServerRole.MASTER, ServerRole.SLAVE, ServerRole.MEMBER, ServerRole.NAMESRV, ServerRole.ETCD)


class ServerStatus(msgspec.Struct, rename="camel"):
    """One server in `status.json`, which is replaced at every change."""

    name: str
    role: str
    address: str
    log: str
    state: str = "starting"
    """`starting`, `ready`, `restarting` or `stopped`."""
    since: float = 0.0
    """Time of the last state change, in seconds since 1970."""
    pid: int | None = None
    restarts: int = 0
    last_exit: str | None = None
    """How the process last ended: `exit code 1` or `SIGKILL`."""


class ClusterNotRunning(MQError):
    """No supervisor runs the cluster."""


class SupervisedServer:
    """One server, restarted whenever it ends. `on_change` is called after every state change."""

    def __init__(self, spec: ServerSpec, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.status = ServerStatus(spec.name, spec.role.value, spec.address, str(spec.log), since=time.time())
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._started = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> None:
        backoff_s = 0.0
        try:
            while True:
                begin = time.monotonic()
                await self._run_once()
                if self._stopping.is_set():
                    break
                backoff_s = next_backoff_s(backoff_s, time.monotonic() - begin)
                logger.warning(
                    "%s: %s after %d s, starting it again in %d s; %s", self.spec.name, self.status.last_exit,
                    time.monotonic() - begin, backoff_s, self.last_line,
                )  # fmt: skip
                self._set("restarting")
                self._started.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff_s):
                        await self._stopping.wait()
                if self._stopping.is_set():
                    break
                self.status.restarts += 1
        finally:
            self._set("stopped")
            self._started.set()

    async def started(self) -> bool:
        """Wait until the server is ready or has ended; return whether it is ready."""
        await self._started.wait()
        return self.status.state == "ready"

    @property
    def last_line(self) -> str:
        """The end of the log."""
        with self.spec.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            return log.read().decode(errors="replace").strip().rpartition("\n")[2]

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop the server, killing it after `STOP_TIMEOUT_S`."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._process is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                logger.error("%s did not stop within %d s and is killed", self.spec.name, STOP_TIMEOUT_S)
                self.signal(signal.SIGKILL)

    async def _run_once(self) -> None:
        if self.spec.log.exists() and self.spec.log.stat().st_size > LOG_SIZE:
            self.spec.log.replace(self.spec.log.with_name(f"{self.spec.log.name}.1"))
        # In a separate session: Ctrl-C reaches only the supervisor, which stops the servers in order.
        with self.spec.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rucola.cli.supervised", str(os.getpid()), *self.spec.command,
                stdin=DEVNULL, stdout=PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._process, self.status.pid = process, process.pid
        self._set("starting")
        if self._stopping.is_set():  # `stop` found no process to signal
            self.signal(signal.SIGTERM)
        if await self._is_ready(process):
            logger.info("%s is ready at %s, pid %d", self.spec.name, self.spec.address, process.pid)
            self._set("ready")
            self._started.set()
        assert process.stdout is not None
        await process.stdout.read()
        code = await process.wait()
        self._process = self.status.pid = None
        self.status.last_exit = signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def _is_ready(self, process: Process) -> bool:
        """Wait until the server is ready; return False if the process ends first."""
        if self.spec.role is not ServerRole.ETCD:
            assert process.stdout is not None
            return bool(await process.stdout.readline())  # the only line of a server, or the end
        host, _, port = self.spec.address.rpartition(":")
        while process.returncode is None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                return True
            await asyncio.sleep(PROBE_PAUSE_S)
        return False

    def _set(self, state: str) -> None:
        self.status.state, self.status.since = state, time.time()
        self._on_change()


def next_backoff_s(backoff_s: float, ran_s: float) -> float:
    """Return the pause before a process is started again, from the pause before and how long it ran."""
    return 0.0 if ran_s >= STABLE_S else min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, backoff_s * 2))


class Supervisor:
    """Runs the servers of a directory and holds its lock. Call `start`, `wait`, `stop` on one event loop."""

    def __init__(self, directory: Path, servers: Sequence[ServerSpec]) -> None:
        self.servers = [SupervisedServer(spec, self._write_status) for spec in servers]
        self._directory = directory
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all servers. MQError if one ends before it is ready."""
        for role in ServerRole:
            await asyncio.gather(*(self._start(server) for server in self._of(role)))
        await self._wait_elected()

    async def wait(self) -> None:
        """Wait until cancelled; raise the error that ended a server's supervision."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    def reload(self) -> None:
        """Let all servers read their configuration files again."""
        for server in self.servers:
            if server.spec.role is not ServerRole.ETCD:
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
            f"{server.spec.name} does not start: {server.status.last_exit}, {server.last_line!r}; "
            f"its configuration is {server.spec.config_file}, its log {server.spec.log}"
        )

    async def _wait_elected(self) -> None:
        """Wait until every electing group has a master. MQError after `ELECTION_TIMEOUT_S`."""
        members = [server.spec for server in self._of(ServerRole.MEMBER)]
        groups = {spec.group for spec in members}
        try:
            async with asyncio.timeout(ELECTION_TIMEOUT_S):
                while groups:
                    groups -= {one.group for one in members if one.current_role is ServerRole.MASTER}
                    await asyncio.sleep(PROBE_PAUSE_S)
        except TimeoutError:
            names = ", ".join(sorted(groups))
            raise MQError(f"{names}: no master was elected; the logs of the brokers say why") from None

    def _of(self, role: ServerRole) -> list[SupervisedServer]:
        return [server for server in self.servers if server.spec.role is role]

    def _write_status(self) -> None:
        # Not flushed to disk: it describes processes, which end with the machine.
        with replacing(self._directory / STATUS_FILE, is_flushed=False) as file:
            file.write(msgspec.json.encode([server.status for server in self.servers]))


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
