"""A reader who does literally what a document says, one block after the other.

A block of Python, or of a configuration, is saved as the file that its first line or the text before it names; one
without a name is only read. The commands of a console block run in bash, one after the other as in one terminal, and
must print what the block shows below them, if it shows anything. Programs that do not end, such as servers, keep
running as in the reader's other terminals.

Four things differ from a reader's machine:

- Ports are free ones, since a broker may run on the default ports. Addresses in commands and files are replaced by the
  real ones, and ROCKETMQ_NAMESRV and NAMESRV_ADDR have that of the name server.
- Ids, addresses, times and names of machines differ from run to run. They are replaced before the comparison, and ids
  of a document by those that were really printed in the commands after it.
- `replacements` are further texts of the document that are different here.
- With `wheels`, pip finds the packages on this machine, not on an index.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from support import curl
from support.documents import Block, Document
from support.installation import share_packages
from support.ports import free_port
from support.processes import wait_for
from support.servers import READY

_KEEPS_RUNNING = re.compile(
    r"rucola (standalone|namesrv|broker)\b|rucola reliable relay|uvicorn"
    r"|python (-m order_service\.billing|billing\.py|kitchen\.py|manage\.py bill_orders)"
)
_MAY_BE_EARLY = re.compile(r"rucola reliable (list|show|stats)|rucola admin \w+|grep \w+ store|curl -s http\S+$")
"""Commands that only look: a reader is slower than the programs in the other terminals, a test is not."""
_DEADLINE_S = 60
_ID = re.compile(r"\b[0-9A-Fa-f]{32}\b")
_VARIABLE = {
    r"\b[0-9A-Fa-f]{32}\b": "ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+": "DATE",
    r"\b\d+(\.\d+)? (s|min)\b": "TIME",
    r"relay=\S+": "relay=NAME",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r" to \S+, queue \d+": " to BROKER, queue N",
    r"queue \d+": "queue N",
    r"\b\d+:\d+ at \d+": "QUEUE:OFFSET at N",
    r"^ID +\d+ +\d+": "ID QUEUE OFFSET",
    r"[ \t]+": " ",
}
_PROGRAMS = {
    "rucola": [sys.executable, "-c", "from rucola.cli.main import main; main(prog_name='rucola')"],
    "python": [sys.executable],
    "uvicorn": [sys.executable, "-m", "uvicorn"],
    "curl": [sys.executable, curl.__file__],
}
"""What a reader has installed."""


class Reader:
    """A reader in a directory; `environment` is added to that of this process. `with` ends all programs."""

    def __init__(
        self,
        directory: Path,
        replacements: Mapping[str, str] | None = None,
        *,
        wheels: Path | None = None,
        **environment: str,
    ) -> None:
        self.directory = directory
        self.replacements = {"/tmp/store": str(directory / "store")} | dict(replacements or {})
        self._own = tempfile.TemporaryDirectory()
        self._state = Path(self._own.name, "state")
        """Shell commands that restore exported variables and the directory of the command before."""
        # The cache of this machine saves the first Spark session from storing Spark's classes, 20 s of processor time.
        cache = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
        own = {"HOME": str(directory), "PATH": self._install()}
        self._environment = {**os.environ, **own, **cache, **environment}
        self._wheels = wheels
        if wheels is not None:
            self._environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        """The programs in the other terminals, and what they print, by their commands."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the programs in the other terminals."""
        for process, _ in reversed(self._running.values()):
            process.kill()
            process.wait()
        self._own.cleanup()

    @property
    def namesrv(self) -> str:
        """The address of the name server of `rucola standalone`."""
        return self.replacements["127.0.0.1:9876"]

    def follow(self, part: Document | Iterable[Block]) -> None:
        """Do all that a document or some of its blocks say, in their order."""
        for block in part.blocks if isinstance(part, Document) else part:
            if block.language == "console":
                for command, shown in block.commands:
                    self.type(command, shown)
            elif block.language in ("python", "properties", "yaml", "ini") and block.file_name:
                path = self.directory / block.file_name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._replaced(block.text), encoding="utf-8")

    def type(self, command: str, shown: str = "") -> None:
        """Run a command; it must succeed, and print what is shown unless that is empty."""
        if _KEEPS_RUNNING.match(command):
            self._keep_running(command, shown)
            return
        deadline = time.monotonic() + (_DEADLINE_S if _MAY_BE_EARLY.match(command) else 0)
        while True:
            done = self._run(self._replaced(command))
            is_same = not shown or _lines(shown) == _lines(done.stdout)
            if (done.returncode == 0 and is_same) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        assert is_same, f"$ {command}\n{done.stdout}{done.stderr}"
        self.replacements |= dict(zip(_ID.findall(shown), _ID.findall(done.stdout), strict=False))
        if self._wheels is not None and "activate" in command:
            environment = self.directory / "venv"
            if not (environment / "shared").exists():
                share_packages(environment)

    def printed(self, command: str) -> str:
        """What the program that was started by such a command has printed."""
        _, log = self._find(command)
        return log.read_text(encoding="utf-8")

    def interrupt(self, command: str = "") -> None:
        """Press Ctrl-C in the terminal of the program that was started last by such a command; it ends cleanly."""
        process, log = self._find(command)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0, log.read_text(encoding="utf-8")

    def kill(self, command: str) -> None:
        """Kill the program that was started by such a command."""
        process, _ = self._find(command)
        process.kill()
        process.wait()

    def _find(self, command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """The program that was started last by a command that begins so, and what it has printed."""
        started = next(one for one in reversed(self._running) if one.startswith(command))
        return self._running[started]

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        script = f"set -e; {self._restore()}\n{command}\n{{ export -p; pwd > '{self._state}.cwd'; }} > '{self._state}'"
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, cwd=self.directory, env=self._environment
        )
        if done.returncode == 0:
            self.directory = Path(Path(f"{self._state}.cwd").read_text(encoding="utf-8").strip())
        return done

    def _keep_running(self, command: str, shown: str) -> None:
        line = self._replaced(command)
        if command.startswith("rucola standalone"):
            line = line.partition(" #")[0] + " --namesrv-port 0 --broker-port 0"
        elif command.startswith("uvicorn"):
            port = free_port()
            line += f" --port {port}"
            self.replacements["127.0.0.1:8000"] = f"127.0.0.1:{port}"
        log = Path(self._own.name, f"terminal-{len(self._running)}.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._restore()}\nexec {line}"], stdout=output, stderr=output, cwd=self.directory,
                env=self._environment,
            )  # fmt: skip
        self._running[command] = process, log
        wait_for(lambda: set(_lines(shown)) <= set(_lines(log.read_text())), process, _DEADLINE_S)
        if ready := READY.search(log.read_text()):
            self.replacements |= {"127.0.0.1:9876": ready[1], "localhost:9876": ready[1], "127.0.0.1:10911": ready[2]}
            if ready[3]:
                self.replacements["127.0.0.1:8081"] = ready[3]
            self._environment |= {"ROCKETMQ_NAMESRV": ready[1], "NAMESRV_ADDR": ready[1]}

    def _restore(self) -> str:
        return f"[ ! -e '{self._state}' ] || . '{self._state}'"

    def _install(self) -> str:
        """Make the programs that a reader has installed; return the PATH with them."""
        directory = Path(self._own.name, "bin")
        directory.mkdir()
        for name, words in _PROGRAMS.items():
            program = directory / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        return f"{directory}:{os.environ['PATH']}"

    def _replaced(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text


def _lines(text: str) -> list[str]:
    for pattern, name in _VARIABLE.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines() if line.strip()]
