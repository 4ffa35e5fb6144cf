"""Chapters of documents, carried out as a reader would: files are saved, commands run, their output compared.

A block of Python, YAML or settings that begins with `# path.py` is a file. In a console block, `$ ` precedes a command
and its output follows; output that is not shown is not compared. Servers and consumers keep running, as in a reader's
other terminals.
Addresses, ids, times and names of machines differ from run to run: they are replaced before the comparison, and ids and
addresses of a document are replaced by those that were really printed in the commands after it.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from support.databases import free_port
from support.processes import wait_for
from support.servers import READY, RUCOLA

BLOCK = re.compile(r"```(python|console|yaml|ini)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.(?:py|yml|conf))\n")
ID = re.compile(r"\b[0-9A-Fa-f]{32}\b")
KEEPS_RUNNING = re.compile(
    r"rucola standalone|rucola reliable relay|python (-m order_service\.)?billing|python manage.py bill_orders|uvicorn"
)
MAY_BE_EARLY = re.compile(r"rucola reliable (list|show|stats)|curl -s http\S+$")
"""Commands that only look: a reader is slower than the programs in the other terminals, the test is not."""
VARIABLE = {
    r"\b[0-9A-Fa-f]{32}\b": "ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+": "DATE",
    r"\b\d+(\.\d+)? (s|min)\b": "TIME",
    r"relay=\S+": "relay=NAME",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r" to \S+, queue \d+": " to BROKER, queue N",
    r"queue \d+": "queue N",
    r"[ \t]+": " ",
}
DEADLINE_S = 60


class Walkthrough:
    """A reader in an empty directory. `replacements` are texts of the document that are different here."""

    def __init__(self, directory: Path, replacements: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.replacements = {"/tmp/store": str(directory / "store")} | dict(replacements or {})
        self.environment = dict(os.environ)
        self._running: list[subprocess.Popen[bytes]] = []

    def follow(self, chapter: str) -> None:
        """Do all that a chapter says, in its order."""
        for kind, block in BLOCK.findall(chapter):
            if kind == "console":
                for command, shown in _commands(block):
                    self._do(command, shown)
            elif name := FILE.match(block):
                path = self.directory / name[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._replaced(block))

    def close(self) -> None:
        """End the programs in the other terminals."""
        for process in reversed(self._running):
            process.kill()
            process.wait()

    def _do(self, command: str, shown: str) -> None:
        words = shlex.split(self._replaced(command), comments=True)
        if words[0] == "export":
            self.environment |= dict([words[1].split("=", 1)])
        elif words[0] == "cd":
            self.directory = (self.directory / words[1]).resolve()
        elif KEEPS_RUNNING.match(command):
            self._keep_running(words, shown)
        else:
            deadline = time.monotonic() + (DEADLINE_S if MAY_BE_EARLY.match(command) else 0)
            while True:
                printed = self._run(words)
                if not shown or _same(shown, printed) or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            assert not shown or _same(shown, printed), f"$ {command}\n{printed}"
            self.replacements |= dict(zip(ID.findall(shown), ID.findall(printed), strict=False))

    def _run(self, words: list[str]) -> str:
        if words[0] == "curl":
            return _curl(words[1:])
        done = subprocess.run(_program(words), capture_output=True, text=True, cwd=self.directory, env=self.environment)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _keep_running(self, words: list[str], shown: str) -> None:
        if words[1] == "standalone":
            words += ["--namesrv-port", "0", "--broker-port", "0"]
        if words[0] == "uvicorn":
            port = str(free_port())
            words += ["--port", port]
            self.replacements["127.0.0.1:8000"] = f"127.0.0.1:{port}"
        log = self.directory / f"terminal-{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                _program(words), stdout=output, stderr=output, cwd=self.directory, env=self.environment
            )
        self._running.append(process)
        wait_for(lambda: set(_lines(shown)) <= set(_lines(log.read_text())), process)
        if ready := READY.search(log.read_text()):
            self.replacements |= {"127.0.0.1:9876": ready[1], "127.0.0.1:10911": ready[2]}
            self.environment["NAMESRV_ADDR"] = ready[1]  # for programs that would take port 9876 by default

    def _replaced(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text


def _commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    for part in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def _program(words: list[str]) -> list[str]:
    own = {
        "rucola": RUCOLA,
        "chmod": ["chmod"],
        "python": [sys.executable],
        "uvicorn": [sys.executable, "-m", "uvicorn"],
    }
    return [*own[words[0]], *words[1:]]


def _lines(text: str) -> list[str]:
    for pattern, name in VARIABLE.items():
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _same(shown: str, printed: str) -> bool:
    return _lines(shown) == _lines(printed)


def _curl(words: list[str]) -> str:
    """What `curl [-s] [-X METHOD] [-H HEADER] [--json BODY] URL` prints; a machine may lack the program."""
    method, headers, body, url = "GET", {}, None, ""
    rest = iter(words)
    for word in rest:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "--json":
                method, body = "POST", next(rest)
                headers["Content-Type"] = "application/json"
            case _:
                url = word
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=DEADLINE_S)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body, headers)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
