"""Programs in JavaScript: processes of node that say on stdout, a JSON object a line, what happens to them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "ali_ons"
PATIENCE_S = 30
"""How long a test waits for what must come. Nothing takes nearly so long; only a failure is as late as this."""


class Program:
    """A running program and the lines that it has printed so far."""

    def __init__(self, source: Path, arguments: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                ["node", source, json.dumps(arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, encoding="utf-8",
            )  # fmt: skip
        self._lines: list[dict[str, Any]] = []
        self._printed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def tell(self, line: dict[str, Any]) -> None:
        """Write one line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def lines(self, what: str) -> list[Any]:
        """What it has printed under a name so far."""
        with self._printed:
            return [line[what] for line in self._lines if what in line]

    def wait(self, what: str, condition: int | Callable[[list[Any]], bool]) -> list[Any]:
        """Wait for so many lines with this name, or until the condition holds of them; they are returned."""

        def is_enough() -> bool:
            there = [line[what] for line in self._lines if what in line]
            return len(there) >= condition if isinstance(condition, int) else condition(there)

        with self._printed:
            if not self._printed.wait_for(lambda: is_enough() or self._has_ended, PATIENCE_S) or not is_enough():
                raise AssertionError(f"still waiting for {what}:\n{self._lines}\n{self._log.read_text()}")
        return self.lines(what)

    def finish(self) -> list[dict[str, Any]]:
        """End its stdin, wait until it has ended well, and return all that it printed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0, self._log.read_text()
        self._reader.join()
        return self._lines

    def kill(self) -> None:
        """Let it end without another word."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._printed:
                    self._lines.append(json.loads(line))
                    self._printed.notify_all()
        with self._printed:
            self._has_ended = True
            self._printed.notify_all()


class AliOns:
    """The client, installed, and the servers that its programs are to talk to."""

    def __init__(self, directory: Path, namesrv: str, broker: str, logs: Path) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self._directory = directory
        self._logs = logs

    @contextmanager
    def program(self, name: str, **arguments: Any) -> Iterator[Program]:
        """A program that is gone afterwards, whatever happens."""
        log = self._logs / f"{name}.log"
        running = Program(self._directory / f"{name}.js", {"namesrv": self.namesrv, **arguments}, log)
        try:
            yield running
        finally:
            running.kill()

    def send(self, messages: list[dict[str, Any]], group: str = "producers") -> list[dict[str, Any]]:
        """Send messages one after the other; what the client says of each."""
        with self.program("producer", group=group) as producer:
            for message in messages:
                producer.tell(message)
            return producer.finish()
