"""The ledger of a replay: what it is to send, and what brokers have acknowledged.

    <ledger>/replay.json        what is replayed, from where to where, and each queue of the source with its end
    <ledger>/<attempt>.acks     written by one attempt of a task: a line of JSON for messages that were acknowledged
    <ledger>/lock               held by the one run that replays
    <ledger>/senders            held by every task that sends, until it ends or its process does

A queue of the source is sent in its order, so one number says how far it is: the physical offset of the last message
that was acknowledged. A run that is killed leaves at most a line half written, which counts as not written; the
messages of that line are sent again. A task that is tried again, and a run that is started again, go on behind what
the lines of all attempts say.

The directory must be seen by driver and workers under one path, as a store directory must.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.files import make_directory, replace_file

SENDERS_TIMEOUT_S: Final = 60
"""How long a run waits for the tasks of one that was killed; they end when they notice that nobody wants their rows."""


class SourceQueue(NamedTuple):
    """A queue from which messages are replayed."""

    broker_name: str
    topic: str
    queue_id: int


@dataclass(frozen=True)
class Ack:
    """Messages of one queue that a broker has stored: `count` of them, in order, up to the one at `physical_offset`.

    `unsafe` of them were not flushed or replicated in time. `target` is the queue they went to.
    """

    queue: SourceQueue
    physical_offset: int
    count: int
    unsafe: int = 0
    target: str = ""


@dataclass(frozen=True)
class QueueProgress:
    """How far a queue is: every message up to `physical_offset`, `count` in all."""

    physical_offset: int = -1
    count: int = 0
    unsafe: int = 0


class AckReader:
    """The acknowledgements in a ledger, read as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.reached: dict[SourceQueue, QueueProgress] = {}

    @property
    def count(self) -> int:
        """Messages acknowledged so far."""
        return sum(each.count for each in self.reached.values())

    def refresh(self) -> Mapping[SourceQueue, QueueProgress]:
        """Read what was added since, and return how far each queue is that has begun."""
        for path in sorted(self._directory.glob("*.acks")):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.splitlines():
                self._add(path, begin, line)
            self._read[path] = begin + len(whole)
        return self.reached

    def _add(self, path: Path, position: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
            queue = SourceQueue(entry["brokerName"], entry["topic"], entry["queueId"])
            before = self.reached.get(queue, QueueProgress())
            self.reached[queue] = QueueProgress(
                max(before.physical_offset, entry["commitLogOffset"]),
                before.count + entry["count"],
                before.unsafe + entry["unsafe"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(path, position, f"this is no acknowledgement of a replay: {line[:80]!r}") from error


class ReplayLedger:
    """The ledger in one directory, for the run that replays. Made by `open_ledger`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "replay.json"

    def read_plan(self) -> dict[str, Any] | None:
        """Return what is replayed; None if that is not settled yet.

        Raises StoreCorrupt if the file is damaged, or missing although messages were acknowledged: another replay must
        not take these for its own.
        """
        advice = "put the file back from a copy, or begin with a new directory"
        try:
            content: dict[str, Any] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            if any(path.stat().st_size for path in self.directory.glob("*.acks")):
                why = f"the file is missing, but messages were acknowledged; {advice}"
                raise StoreCorrupt(self._path, 0, why) from None
            return None
        except ValueError as error:
            raise StoreCorrupt(self._path, 0, f"this is no JSON: {error}; {advice}") from error
        return content

    def write_plan(self, replay: Mapping[str, Any]) -> None:
        """Write down what is replayed, once and for all."""
        replace_file(self._path, json.dumps(replay, indent=1, ensure_ascii=False).encode())

    def read_acks(self) -> AckReader:
        """Return the acknowledgements so far."""
        acks = AckReader(self.directory)
        acks.refresh()
        return acks

    def wait_for_senders(self, timeout_s: float = SENDERS_TIMEOUT_S) -> None:
        """Wait until no task of an earlier run is left. Raises StoreError when one goes on sending."""
        with _open(self.directory / "senders") as senders:
            deadline = time.monotonic() + timeout_s
            while not _try_lock(senders, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise StoreError(f"tasks of an earlier run are still sending what {self.directory} says; end them")
                time.sleep(0.1)


@contextmanager
def open_ledger(directory: str | Path) -> Iterator[ReplayLedger]:
    """Open the ledger in a directory, or make one in a new or empty directory.

    Raises ConfigError for a directory that holds other things, StoreError when another run has the ledger.
    """
    root = Path(directory).absolute()
    if root.exists() and not (root / "lock").exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} holds other things than the ledger of a replay; give a new directory")
    make_directory(root)
    with _open(root / "lock") as lock:
        if not _try_lock(lock, fcntl.LOCK_EX):
            raise StoreError(f"another run replays by the ledger {root}; wait until it has ended")
        ledger = ReplayLedger(root)
        ledger.wait_for_senders()
        yield ledger


class AckWriter:
    """Adds the acknowledgements of one attempt of a task. Made by `open_for_sending`."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, acks: list[Ack]) -> None:
        """Write them down; they are on disk when this returns."""
        lines = [
            json.dumps(
                {
                    "time": time.time_ns() // 1_000_000,
                    "brokerName": ack.queue.broker_name,
                    "topic": ack.queue.topic,
                    "queueId": ack.queue.queue_id,
                    "commitLogOffset": ack.physical_offset,
                    "count": ack.count,
                    "unsafe": ack.unsafe,
                    "target": ack.target,
                },
                ensure_ascii=False,
            )
            for ack in acks
        ]
        data = memoryview("".join(f"{line}\n" for line in lines).encode())
        while data:
            data = data[os.write(self._file, data) :]
        os.fdatasync(self._file)


@contextmanager
def open_for_sending(directory: Path, attempt: str) -> Iterator[tuple[AckWriter, AckReader]]:
    """Open the ledger for an attempt of a task, with what others have acknowledged until now."""
    with _open(directory / "senders") as senders:
        fcntl.flock(senders, fcntl.LOCK_SH)
        acks = AckReader(directory)
        acks.refresh()
        with _open(directory / f"{attempt}.acks", os.O_EXCL) as file:
            yield AckWriter(file), acks


@contextmanager
def _open(path: Path, flags: int = 0) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
