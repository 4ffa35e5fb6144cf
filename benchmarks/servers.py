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
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Process:
    """A server that another process started: the port where it takes requests, and its process id."""

    port: int
    pid: int

    def cpu_ns(self) -> int:
        """The processor time, user and system, that the process has used: all threads, in nanoseconds."""
        # The clock id of another process as clock_getcpuclockid(3) makes it, which Python does not offer.
        return time.clock_gettime_ns(~self.pid << 3 | 2)


class Server:
    """A server process. `port` is where it takes requests, `namesrv` the address for clients, empty for a floor.

    `port` is 0 if it takes none. Leaving the `with` block ends it.
    """

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
        self.namesrv = ready.partition("namesrv=")[2].partition(" ")[0]
        self.port = int(ready.rpartition(":")[2]) if ":" in ready else 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_ns(self) -> int:
        """The processor time, as that of `Process`."""
        return Process(self.port, self.pid).cpu_ns()

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

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End the process as a service manager would; RuntimeError with its log where it does not end well."""
        self.signal(signal.SIGTERM)
        if self._process.wait(timeout=30) != 0:
            raise RuntimeError(f"a server ended with {self._process.returncode}:\n{self.log()}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self.stop()
        self._stderr.close()


def standalone(store: Path, env: dict[str, str] | None = None, *, conf: str = "", probe: Path | None = None) -> Server:
    """Name server and broker in one process, `port` being the broker's. `conf` is what broker.conf says besides.

    With `probe` the server writes there how long its event loop stood still (`probed.py`).
    """
    arguments = ["standalone", "--store", str(store), "--namesrv-port", "0", "--broker-port", "0"]
    if conf:
        store.mkdir(parents=True, exist_ok=True)
        path = store.with_name(f"{store.name}.conf")
        path.write_text(conf, encoding="utf-8")
        arguments += ["-c", str(path)]
    if probe is not None:
        return Server([sys.executable, str(FOLDER / "probed.py"), str(probe), "rucola", *arguments], env)
    return Server([str(Path(sys.executable).with_name("rucola")), *arguments], env)


def relay(namesrv: str, database: str, *arguments: str) -> Server:
    """`rucola reliable relay` on the tables of a database."""
    command = [str(Path(sys.executable).with_name("rucola")), "reliable", "relay", "-n", namesrv, "-d", database]
    return Server([*command, *arguments])


def echo(request_size: int, answer: bytes, *, probe: Path | None = None) -> Server:
    """The floor: a server that answers every `request_size` bytes with `answer`. `probe` as in `standalone`."""
    arguments = [str(request_size), answer.hex()]
    if probe is not None:
        return Server([sys.executable, str(FOLDER / "probed.py"), str(probe), "echo.py", *arguments])
    return Server([sys.executable, str(FOLDER / "echo.py"), *arguments])
