"""The servers that are measured, each in a process of its own, and what the kernel knows about that process.

`Standalone` is `rucola standalone` on an empty store; `Echo` the floor below it. Both are started by spawning a
process and reading the line in which it says where it listens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class Server:
    """A server process. `port` is where it takes requests; leaving the `with` block ends it."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the server
        self.spawned_ns = time.perf_counter_ns()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env={**os.environ, **(env or {})}
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready:
            self._process.wait()
            raise RuntimeError(f"{' '.join(command)} ended before it was ready:\n{self.log()}")
        self.port = int(ready.rpartition(":")[2])

    def cpu_ns(self) -> int:
        """The processor time, user and system, that the process has used: all threads, in nanoseconds."""
        # The clock id of another process as clock_getcpuclockid(3) makes it, which Python does not offer.
        return time.clock_gettime_ns(~self._process.pid << 3 | 2)

    def memory(self) -> dict[str, float]:
        """Resident, proportional and private anonymous memory in MB."""
        fields: dict[str, float] = {}
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text(encoding="ascii")
        for line in rollup.splitlines()[1:]:
            name, size, _ = line.split()
            fields[name[:-1]] = int(size) * 1024 / 1e6
        return {"rss": fields["Rss"], "pss": fields["Pss"], "anonymous": fields["Anonymous"]}

    def log(self) -> str:
        """What the process has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()

    def stop(self) -> None:
        """End the process as a service manager would; RuntimeError with its log where it does not end well."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(timeout=30) != 0:
            raise RuntimeError(f"a server ended with {self._process.returncode}:\n{self.log()}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self.stop()
        self._stderr.close()


def standalone(store: Path, env: dict[str, str] | None = None) -> Server:
    """Name server and broker in one process, `port` being the broker's."""
    rucola = str(Path(sys.executable).with_name("rucola"))
    ports = ["--namesrv-port", "0", "--broker-port", "0"]
    return Server([rucola, "standalone", "--store", str(store), *ports], env)


def echo(request_size: int, answer: bytes) -> Server:
    """The floor: a server that answers every `request_size` bytes with `answer`."""
    return Server([sys.executable, str(FOLDER / "echo.py"), str(request_size), answer.hex()])
