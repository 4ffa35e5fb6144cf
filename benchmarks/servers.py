"""The servers under measurement, each in a process of its own, with its CPU time and memory.

`standalone` is `rucola standalone` on an empty store, `echo` its floor. Both print a line with their address when they
are ready.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_ADDRESS = re.compile(r":(\d+)(?:/?\s*$| grpc=|\] boot success)")


@dataclass(frozen=True)
class Process:
    """A server that another process started: its port for requests and its process id."""

    port: int
    pid: int

    def cpu_ns(self) -> int:
        """The CPU time, user and system, that all threads of the process have used, in nanoseconds."""
        # The clock id of another process as by clock_getcpuclockid(3), which Python does not offer.
        return time.clock_gettime_ns(~self.pid << 3 | 2)


class Server:
    """A server process, which ends with the `with` block.

    `port` is its port for requests, 0 if it has none; `namesrv` and `grpc_endpoint` are addresses for clients, empty
    for a floor.
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
        self.grpc_endpoint = ready.partition("grpc=")[2].strip()
        found = _ADDRESS.search(ready)
        self.port = int(found[1]) if found else 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_ns(self) -> int:
        """The CPU time, as of `Process`."""
        return Process(self.port, self.pid).cpu_ns()

    def memory(self) -> dict[str, float]:
        """Return resident, proportional and private anonymous memory in MB."""
        fields: dict[str, float] = {}
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text(encoding="ascii")
        for line in rollup.splitlines()[1:]:
            name, size, _ = line.split()
            fields[name[:-1]] = int(size) * 1024 / 1e6
        return {"rss": fields["Rss"], "pss": fields["Pss"], "anonymous": fields["Anonymous"]}

    def log(self) -> str:
        """Return the text that the process has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the process by SIGTERM; RuntimeError with its log if it fails."""
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
    """Start name server and broker in one process; `port` is the broker's, `conf` has further lines of broker.conf.

    With `probe` the server writes the stalls of its event loop to that file (`probed.py`).
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
    """Start `rucola reliable relay` on the tables of a database."""
    command = [str(Path(sys.executable).with_name("rucola")), "reliable", "relay", "-n", namesrv, "-d", database]
    return Server([*command, *arguments])


def echo(request_size: int, answer: bytes, *, probe: Path | None = None) -> Server:
    """Start the floor: a server that answers every `request_size` bytes with `answer`. `probe` as in `standalone`."""
    arguments = [str(request_size), answer.hex()]
    if probe is not None:
        return Server([sys.executable, str(FOLDER / "probed.py"), str(probe), "echo.py", *arguments])
    return Server([sys.executable, str(FOLDER / "echo.py"), *arguments])


def grpc_echo() -> Server:
    """Start the floor of gRPC: a server of grpc.aio that returns each message."""
    return Server([sys.executable, str(FOLDER / "grpc_echo.py")])
