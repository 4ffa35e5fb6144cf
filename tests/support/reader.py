"""A reader who does literally what a page says, one block after the other.

A block of Python is saved as the file that the text before it names. The commands of a console block run in bash, and
must print what the block shows below them, if it shows anything.

Two things differ from a reader's machine. Ports are free ones, since a broker may run on the default ports: the reader
has the environment variable ROCKETMQ_NAMESRV, and a command that names localhost:9876 gets the other address. And pip
finds the packages on this machine, not on an index.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.installation import REPOSITORY, share_packages

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READY = re.compile(r"rucola ready namesrv=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+)\n")
DEFAULT_READY = "rucola ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911\n"


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its text, and the text between it and the block before."""

    language: str
    text: str
    before: str

    @property
    def file_name(self) -> str:
        """The last file name in the text before the block."""
        return re.findall(r"`(\w+\.py)`", self.before)[-1]

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield the commands and what the block shows below each."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page or of a part of it."""
    blocks, end = [], 0
    for match in BLOCK.finditer(page):
        blocks.append(Block(match[1], match[2], page[end : match.start()]))
        end = match.end()
    return blocks


class Reader:
    """A reader in a directory. `with` stops the server that a page started."""

    def __init__(self, directory: Path, wheels: Path | None = None, **environment: str) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "HOME": str(directory), "PATH": path, **environment}
        if wheels is not None:
            self.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        self.namesrv = ""
        self._activates = False
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def follow(self, blocks: list[Block]) -> None:
        """Do what the blocks say."""
        for block in blocks:
            if block.language == "python":
                (self.directory / block.file_name).write_text(block.text, encoding="utf-8")
            elif block.language == "console":
                for command, output in block.commands():
                    self.type(command, output)

    def type(self, command: str, output: str) -> None:
        """Run a command; it must succeed, and print `output` unless that is empty."""
        if command.startswith("rucola standalone "):
            self._start(command, output)
            return
        done = subprocess.run(self._bash(command), **self._settings, capture_output=True)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        if output:
            assert done.stdout == output, f"$ {command}\n{done.stderr}"
        if "activate" in command:
            if not (shared := self.directory / "venv" / "shared").exists():
                share_packages(shared.parent)
            self._activates = True

    def interrupt(self) -> None:
        """Press Ctrl-C in the terminal of the server, which stops cleanly."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        _, log = self._server.communicate()
        assert self._server.returncode == 0, log
        self._server = None

    def _start(self, command: str, output: str) -> None:
        self._server = subprocess.Popen(
            self._bash(f"exec {command} --namesrv-port 0 --broker-port 0"), **self._settings,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        match = READY.fullmatch(line)
        assert match, line
        assert output == DEFAULT_READY
        self.namesrv = match[1]
        self.environment["ROCKETMQ_NAMESRV"] = self.namesrv

    def _bash(self, command: str) -> list[str]:
        if self.namesrv:
            command = re.sub(r"\b(localhost|127\.0\.0\.1):9876\b", self.namesrv, command)
        return ["bash", "-ec", f". venv/bin/activate; {command}" if self._activates else command]

    @property
    def _settings(self) -> dict[str, object]:
        return {"cwd": self.directory, "env": self.environment, "text": True}


def page(name: str) -> str:
    """The text of a page of this repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")
