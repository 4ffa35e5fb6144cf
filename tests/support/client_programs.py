"""Clients that others wrote, in programs of their own: processes that say on stdout what happens, a JSON object a line.

`ali_ons/` has those in JavaScript, `cpp/` those around the C++ client, `rocketmq_v5/` and `rocketmq_nodejs/` those
with clients of RocketMQ 5.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rucola.acl.credentials import Credentials
from rucola.admin import AdminClient
from rucola.domain.topic import TopicConfig

PROGRAMS = Path(__file__).parents[1] / "e2e"
QUEUES = 4
"""How many a topic has by default."""
PATIENCE_S = 30
"""How long a test waits for what must come. Nothing takes nearly so long; only a failure is as late as this."""


_printed = threading.Condition()
"""Is told of every line of every program."""


class Program:
    """A running program and the lines that it has printed so far."""

    def __init__(self, interpreter: str, source: Path, arguments: dict[str, Any], log: Path) -> None:
        self._log = log
        # Where the C++ client keeps offsets and logs; two that make the same directory there stumble over each other.
        environment = {**os.environ, "HOME": tempfile.mkdtemp(dir=log.parent)}
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [interpreter, source, json.dumps(arguments)], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, encoding="utf-8",
            )  # fmt: skip
        self._lines: list[dict[str, Any]] = []
        self._has_ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def tell(self, line: object) -> None:
        """Write one line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def lines(self, what: str) -> list[Any]:
        """What it has printed under a name so far."""
        with _printed:
            return [line[what] for line in self._lines if what in line]

    def wait(self, what: str, condition: int | Callable[[list[Any]], bool]) -> list[Any]:
        """Wait for so many lines with this name, or until the condition holds of them; they are returned."""

        def is_enough() -> bool:
            there = [line[what] for line in self._lines if what in line]
            return len(there) >= condition if isinstance(condition, int) else condition(there)

        with _printed:
            if not _printed.wait_for(lambda: is_enough() or self._has_ended, PATIENCE_S) or not is_enough():
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
                with _printed:
                    self._lines.append(json.loads(line))
                    _printed.notify_all()
        with _printed:
            self._has_ended = True
            _printed.notify_all()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until lines of whichever programs make it true."""
    with _printed:
        assert _printed.wait_for(condition, PATIENCE_S)


class Client:
    """A client, installed, and the servers that its programs are to talk to."""

    def __init__(
        self,
        interpreter: str,
        programs: Path,
        namesrv: str,
        broker: str,
        logs: Path,
        operator: Credentials | None = None,
    ) -> None:
        self._operator = operator
        self.namesrv = namesrv
        self.broker = broker
        self._interpreter = interpreter
        self._programs = programs
        self._logs = logs

    @contextmanager
    def program(self, name: str, **arguments: Any) -> Iterator[Program]:
        """A program that is gone afterwards, whatever happens."""
        (source,) = self._programs.glob(f"{name}.*")
        running = Program(self._interpreter, source, {"namesrv": self.namesrv, **arguments}, self._logs / f"{name}.log")
        try:
            yield running
        finally:
            running.kill()

    def send(self, lines: Sequence[object], group: str = "producers", **arguments: Any) -> list[dict[str, Any]]:
        """Send messages one after the other; what the client says of each."""
        with self.program("producer", group=group, **arguments) as producer:
            for line in lines:
                producer.tell(line)
            return producer.finish()

    def create_topic(self, queues: int = QUEUES, *, order: bool = False) -> str:
        """A new topic, made by an operator."""
        topic = f"T{uuid.uuid4().hex}"

        async def create() -> None:
            async with AdminClient(self.namesrv, credentials=self._operator) as admin:
                config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, order=order)
                await admin.topics.create_or_update(self.broker, config)

        asyncio.run(create())
        return topic


def numbered(topic: str, count: int, begin: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": f"message {number}", **more} for number in range(begin, begin + count)]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]
