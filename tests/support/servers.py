"""Servers as a user starts them: processes of `rucola`, seen through output, signals and exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from rucola.cli.main import main

RUCOLA = [sys.executable, "-c", "from rucola.cli.main import main; main(prog_name='rucola')"]
READY = re.compile(
    r"rucola ready namesrv=(127\.0\.0\.1:[1-9]\d*) broker=(127\.0\.0\.1:[1-9]\d*)(?: grpc=(127\.0\.0\.1:[1-9]\d*))?\n"
)


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [*RUCOLA, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **environment}
    )


def run_here(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `run`, in this process: a second less for each command that starts no server."""
    done = CliRunner().invoke(main, [*map(str, arguments)], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


class Server:
    """A running server. `first_line` is what it printed when it served."""

    def __init__(self, *arguments: str | Path, log: Path, program: Sequence[str] = RUCOLA) -> None:
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.log = log
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        self.first_line = self.stdout.readline()

    def addresses(self) -> tuple[str, str]:
        """Name server and broker of a `standalone`, as it prints them."""
        match = READY.fullmatch(self.first_line)
        assert match, f"{self.first_line!r}\n{self.log.read_text()}"
        return match[1], match[2]

    def grpc_endpoint(self) -> str:
        """The address of a `standalone` for clients of gRPC, as it prints it."""
        match = READY.fullmatch(self.first_line)
        assert match, f"{self.first_line!r}\n{self.log.read_text()}"
        return match[3]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; the exit code. It must have printed nothing more."""
        self.process.send_signal(number)
        rest = self.stdout.read()
        assert rest == ""
        return self.process.wait()


@contextmanager
def server(*arguments: str | Path, log: Path, program: Sequence[str] = RUCOLA) -> Iterator[Server]:
    """A server that is gone afterwards, whatever happens."""
    running = Server(*arguments, log=log, program=program)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        running.stdout.close()
