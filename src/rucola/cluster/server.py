"""Server of a cluster: a child process with its state and its log."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from rucola.cluster.layout import ServerSpec

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 30.0
STABLE_S: Final = 60.0
"""Time in service after which the next restart is immediate."""
STOP_TIMEOUT_S: Final = 60.0
PROBE_PAUSE_S: Final = 0.05
LOG_SIZE: Final = 16 << 20
READ_SIZE: Final = 1 << 16


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class ServerLog:
    """Log of a server, in a file of at most `LOG_SIZE` bytes; the previous file has the suffix `.1`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_line = ""

    def write(self, chunk: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size + len(chunk) > LOG_SIZE:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        with self.path.open("ab") as file:
            file.write(chunk)
        if lines := chunk.decode(errors="replace").strip().splitlines():
            self.last_line = lines[-1]


class SupervisedServer:
    """One server, restarted whenever it ends. `on_change` is called after every state change."""

    def __init__(self, spec: ServerSpec, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.state = State.STARTING
        self.since = time.time()
        """Time of the last state change, in seconds since 1970."""
        self.restarts = 0
        self.pid: int | None = None
        self.last_exit: str | None = None
        """How the process last ended: `exit code 1` or `SIGKILL`."""
        self.log = ServerLog(spec.log)
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> None:
        backoff_s = 0.0
        try:
            while not self._stopping.is_set():
                begin = time.monotonic()
                await self._run_once()
                if self._stopping.is_set():
                    break
                # Restart at once after a long time in service, otherwise back off.
                is_stable = time.monotonic() - begin >= STABLE_S
                backoff_s = 0.0 if is_stable else min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, backoff_s * 2))
                logger.warning(
                    "%s: %s after %d s, starting it again in %d s; %s", self.spec.name, self.last_exit,
                    time.monotonic() - begin, backoff_s, self.log.last_line or f"see {self.spec.log}",
                )  # fmt: skip
                self._set(State.RESTARTING)
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff_s):
                        await self._stopping.wait()
                self.restarts += 1
        finally:
            self._set(State.STOPPED)

    async def started(self) -> bool:
        """Wait until the server is ready or has ended; return whether it is ready."""
        while self.state is State.STARTING:
            self._changed.clear()
            await self._changed.wait()
        return self.state is State.READY

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop the server, killing it after `STOP_TIMEOUT_S`."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            logger.error("%s did not stop within %d s and is killed", self.spec.name, STOP_TIMEOUT_S)
            self.signal(signal.SIGKILL)
            await process.wait()

    async def _run_once(self) -> None:
        self._set(State.STARTING)
        command = self.spec.program or [
            "rucola", self.spec.command, "-c", str(self.spec.config_file)
        ]  # fmt: skip
        # In a separate session: Ctrl-C reaches only the supervisor, which stops the servers in order.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rucola.cli.supervised", str(os.getpid()), *command,
            stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
        )  # fmt: skip
        self._process, self.pid = process, process.pid
        self._on_change()
        if self._stopping.is_set():  # `stop` found no process to signal
            self.signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stderr is not None
        logging_task = asyncio.ensure_future(_copy(process.stderr, self.log))
        # The first line on stdout announces that the server is ready; an empty one, that it has ended.
        if self.spec.program is not None:
            is_ready = await self._answers(process)
        else:
            is_ready = bool(await process.stdout.readline())
        if is_ready:
            logger.info("%s is ready at %s, pid %d", self.spec.name, self.spec.address, process.pid)
            self._set(State.READY)
        await _copy(process.stdout, self.log)
        await logging_task
        code = await process.wait()
        self._process = self.pid = None
        self.last_exit = signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def _answers(self, process: Process) -> bool:
        """Wait until the port accepts connections; return False if the process ends first."""
        host, _, port = self.spec.address.rpartition(":")
        while process.returncode is None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                return True
            await asyncio.sleep(PROBE_PAUSE_S)
        return False

    def _set(self, state: State) -> None:
        self.state, self.since = state, time.time()
        self._changed.set()
        self._on_change()


async def _copy(stream: asyncio.StreamReader, log: ServerLog) -> None:
    while chunk := await stream.read(READ_SIZE):
        log.write(chunk)
