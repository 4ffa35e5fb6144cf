"""The ledger of a chaos run: what clients tried to send, what was acknowledged, and what each group consumed.

Clients append lines to files of one directory, each with one write before they take the next step, so that a client
that is killed leaves no line about what it did not do:

    t NAME            about to be sent
    a NAME BROKER     acknowledged by this broker
    GROUP NAME BROKER consumed, and pulled from this broker

A name is `lane/number`. Messages of a lane are sent one after another, those of a `keyed` lane to one queue. The files
of consumers are shared by all members of a group: the order of their lines is that of consumption.

What has to hold: every acknowledged message was consumed by every group, nothing was consumed that was not sent, and
the group that consumes in order got the acknowledged messages of every keyed lane in the order of their numbers, not
counting repetitions. Repetitions are allowed: delivery is at least once.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

TRIED, ACKNOWLEDGED = "t", "a"
KEYED = "keyed"


class Ledger:
    """The writer's side. Threads and processes may share a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())


class Account:
    """The reader's side: `read` takes in what was appended to the files since."""

    def __init__(self, directory: Path, groups: list[str], in_order: str) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """How many messages were acknowledged (`a`), or consumed by a group for the first time, by broker."""
        self.repeated: Counter[str] = Counter()
        self._directory = directory
        self._groups = groups
        self._in_order = in_order
        self._places: defaultdict[Path, int] = defaultdict(int)
        self._tried: set[str] = set()
        self._acknowledged: set[str] = set()
        self._consumed: dict[str, dict[str, None]] = {group: {} for group in groups}

    def read(self) -> None:
        for path in self._directory.glob("*.ledger"):
            with path.open("rb") as file:
                file.seek(self._places[path])
                text = file.read()
            end = text.rfind(b"\n") + 1  # a line may be half written
            self._places[path] += end
            for line in text[:end].decode().splitlines():
                self._take(*line.split(" "))

    def _take(self, what: str, name: str, broker: str = "") -> None:
        if what == TRIED:
            self._tried.add(name)
        elif what == ACKNOWLEDGED:
            self._acknowledged.add(name)
            self.counts[what, broker] += 1
        elif name in self._consumed[what]:
            self.repeated[what] += 1
        else:
            self._consumed[what][name] = None
            self.counts[what, broker] += 1

    @property
    def missing(self) -> dict[str, set[str]]:
        """What was acknowledged and not consumed yet, by group."""
        missing = {group: self._acknowledged - self._consumed[group].keys() for group in self._groups}
        return {group: names for group, names in missing.items() if names}

    def findings(self) -> list[str]:
        """What does not balance at the end."""
        found = []
        for group, names in self.missing.items():
            found.append(f"{len(names)} acknowledged messages did not come to {group}: {sorted(names)[:5]}")
        for group in self._groups:
            if invented := self._consumed[group].keys() - self._tried:
                found.append(f"{len(invented)} messages that were not sent came to {group}: {sorted(invented)[:5]}")
        last: dict[str, int] = {}
        for name in self._consumed[self._in_order]:
            lane, number = name.split("/")
            if lane.startswith(KEYED) and name in self._acknowledged:
                if int(number) < last.get(lane, -1):
                    found.append(f"{self._in_order} got {name} after {lane}/{last[lane]}")
                last[lane] = int(number)
        return found

    def __str__(self) -> str:
        groups = ", ".join(
            f"{group} {len(self._consumed[group])} (and {self.repeated[group]} again)" for group in self._groups
        )
        return f"tried {len(self._tried)}, acknowledged {len(self._acknowledged)}, consumed: {groups}"
