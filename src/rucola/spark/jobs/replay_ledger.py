"""Replay ledger: the durable plan of a replay and the acknowledgements of its messages.

    <ledger>/replay.json        the plan: source, destination, selection, and each source queue with its last message
    <ledger>/<attempt>.acks     one file per attempt of a task; each line is JSON for a range of acknowledged messages
    <ledger>/lock               locked exclusively by the one run that replays
    <ledger>/senders            locked in shared mode by every task that sends, until the task or its process ends

A source queue's progress is the physical offset of its last acknowledged message in the files of all attempts, from
which retried tasks and restarted runs continue. An incomplete line is ignored; its messages are sent again. Driver and
workers must reach the directory under the same path.
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

import msgspec

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.files import check_inside, local_path, make_directory, open_file, open_inside, read_inside, replace_file
from rucola.system_calls import sync_data

SENDERS_TIMEOUT_S: Final = 60
"""Maximum wait for orphaned tasks of a killed run; a task ends when it cannot deliver its result."""


class SourceQueue(NamedTuple):
    """Identity of a queue in the source of a replay."""

    broker_name: str
    topic: str
    queue_id: int


class Ack(msgspec.Struct, frozen=True, rename="camel"):
    """Acknowledgement of `count` consecutive messages of one queue, the last one at `commit_log_offset`.

    `unsafe` of them were not flushed or replicated in time. `target` is the queue they were sent to.
    """

    broker_name: str
    topic: str
    queue_id: int
    commit_log_offset: int
    count: int
    unsafe: int = 0
    target: str = ""
    time: int = msgspec.field(default_factory=lambda: time.time_ns() // 1_000_000)


@dataclass(frozen=True)
class QueueProgress:
    """Progress of one source queue: `count` messages acknowledged, up to and including `physical_offset`."""

    physical_offset: int = -1
    count: int = 0
    unsafe: int = 0


class AckReader:
    """Incremental reader of the acknowledgements in a ledger; `reached` is the progress by queue."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Bytes of each file that were read, so that a refresh reads only complete new lines.
        self._read: dict[Path, int] = {}
        self.reached: dict[SourceQueue, QueueProgress] = {}

    @property
    def count(self) -> int:
        """Number of messages acknowledged so far, in all queues."""
        return sum(each.count for each in self.reached.values())

    def refresh(self) -> Mapping[SourceQueue, QueueProgress]:
        """Read the lines added since the last refresh; return the progress of each queue that has begun."""
        for path in sorted(self._directory.glob("*.acks")):
            begin = self._read.get(path, 0)
            with open(open_inside(self._directory, path), "rb") as file:
                file.seek(begin)
                data = file.read()
            # A line without its newline is still being written, or its writer was killed; the next refresh decides.
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.splitlines():
                self._add(path, begin, line)
            self._read[path] = begin + len(whole)
        return self.reached

    def _add(self, path: Path, position: int, line: bytes) -> None:
        try:
            ack = msgspec.json.decode(line, type=Ack)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorrupt(path, position, f"this is no acknowledgement of a replay: {line[:80]!r}") from error
        queue = SourceQueue(ack.broker_name, ack.topic, ack.queue_id)
        before = self.reached.get(queue, QueueProgress())
        self.reached[queue] = QueueProgress(
            max(before.physical_offset, ack.commit_log_offset), before.count + ack.count, before.unsafe + ack.unsafe
        )


class ReplayLedger:
    """Ledger of one replay, held by the run with its lock; created by `open_ledger`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "replay.json"

    def read_plan(self) -> dict[str, Any] | None:
        """Return the plan, or None if the ledger is new.

        Raises StoreCorrupt if it is damaged, or missing although acknowledgements exist, which a new plan must not
        count.
        """
        advice = "restore the file from a backup, or start with a new directory"
        try:
            content: dict[str, Any] = json.loads(read_inside(self.directory, self._path))
        except FileNotFoundError:
            if any(path.stat().st_size for path in self.directory.glob("*.acks")):
                why = f"the file is missing, but messages were acknowledged; {advice}"
                raise StoreCorrupt(self._path, 0, why) from None
            return None
        except ValueError as error:
            raise StoreCorrupt(self._path, 0, f"this is no JSON: {error}; {advice}") from error
        return content

    def write_plan(self, replay: Mapping[str, Any]) -> None:
        """Store the plan durably; it is written once and never changes."""
        replace_file(self._path, json.dumps(replay, indent=1, ensure_ascii=False).encode())

    def read_acks(self) -> AckReader:
        """Return a reader that has read all acknowledgements so far."""
        acks = AckReader(self.directory)
        acks.refresh()
        return acks

    def wait_for_senders(self, timeout_s: float = SENDERS_TIMEOUT_S) -> None:
        """Wait until an earlier run's tasks have ended, which could send the same messages; StoreError on timeout."""
        with _open(self.directory / "senders") as senders:
            deadline = time.monotonic() + timeout_s
            while not _try_lock(senders, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise StoreError(f"tasks of an earlier run are still sending by {self.directory}; stop them first")
                time.sleep(0.1)


@contextmanager
def open_ledger(directory: str | Path) -> Iterator[ReplayLedger]:
    """Open a ledger exclusively, creating it in a new or empty directory.

    Raises ConfigError if the directory contains other files, StoreError if another run holds the ledger or it has
    links.
    """
    root = local_path(directory).absolute()
    if root.exists() and not os.path.lexists(root / "lock") and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} holds other things than the ledger of a replay; name a new directory", subject=root)
    check_inside(root)
    make_directory(root)
    with _open(root / "lock") as lock:
        if not _try_lock(lock, fcntl.LOCK_EX):
            raise StoreError(f"another run is using the ledger {root}; wait until it has ended")
        ledger = ReplayLedger(root)
        ledger.wait_for_senders()
        yield ledger


class AckWriter:
    """Writer of the acknowledgements of one task attempt. Created by `open_for_sending`."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, acks: list[Ack]) -> None:
        """Append one line per acknowledgement; all of them are on disk when this returns."""
        data = memoryview(b"".join(msgspec.json.encode(ack) + b"\n" for ack in acks))
        while data:
            data = data[os.write(self._file, data) :]
        sync_data(self._file)


@contextmanager
def open_for_sending(directory: Path, attempt: str) -> Iterator[tuple[AckWriter, AckReader]]:
    """Open the ledger for a task attempt: its writer and the acknowledgements of all earlier attempts."""
    with _open(directory / "senders") as senders:
        # Shared by all tasks, and released by the kernel when a task's process ends in any way: an exclusive lock
        # (`wait_for_senders`) therefore waits for exactly the tasks that may still send.
        fcntl.flock(senders, fcntl.LOCK_SH)
        acks = AckReader(directory)
        acks.refresh()
        with _open(directory / f"{attempt}.acks", os.O_EXCL) as file:
            yield AckWriter(file), acks


@contextmanager
def _open(path: Path, flags: int = 0) -> Iterator[int]:
    file = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | flags)
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
