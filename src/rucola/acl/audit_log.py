"""The audit log: administrative and denied requests, one JSON object a line.

    {"time":"2026-03-01T10:15:00.123Z","user":"alice","certificate":"CN=alice,O=Example","address":"10.0.0.7:51234",
     "request":"DELETE_TOPIC_IN_BROKER 215","action":"DELETE_TOPIC","topics":["Orders"],"groups":[],"outcome":"done",
     "reason":""}

`certificate` is the subject of the client's certificate, null without mutual TLS. `outcome` is `done`, `failed` (by the
service, with the reason) or `denied` (by access control). Peers' texts are cut to `MAX_TEXT` characters; no line has a
key, password or signature.

The event loop only appends to a bounded queue; a thread writes. Lines that do not fit or cannot be written are dropped
and counted. At `max_size` files rotate: name.1, name.2, up to `max_files`, all with mode 0600. Against floods, only
`DENIED_PER_WINDOW` denied requests of each peer are written per minute, then the number of the others.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from rucola.access import Action, Caller, Resource
from rucola.errors import ConfigError
from rucola.outages import Outages
from rucola.protocol.codes import name_of

logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 10_000
MAX_TEXT: Final = 256
MAX_NAMES: Final = 16
DENIED_WINDOW_MS: Final = 60_000
DENIED_PER_WINDOW: Final = 20
MAX_PEERS: Final = 10_000
"""Peers whose denied requests are counted; further ones count as one peer."""

_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class AuditLog:
    """Appends to one file. `record` and `denied` never block, on any thread. `clock` returns ms since 1970."""

    def __init__(self, path: Path, max_size: int, max_files: int, clock: Callable[[], int]) -> None:
        self._path = path
        self._max_size = max_size
        self._max_files = max_files
        self._clock = clock
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self._outages = Outages(logger)
        self._window_begin_ms = 0
        self._denied: dict[str, int] = {}
        self.dropped = 0

    def open(self) -> None:
        """Create the file, and start the thread. ConfigError if the file cannot be written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(self._open_file())
        except OSError as error:
            raise ConfigError(
                f"auditLogPath: cannot write {self._path}: {error.strerror}", subject="auditLogPath"
            ) from None
        self._thread = threading.Thread(target=self._write_lines, name="audit log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the queued lines and end the thread. Blocks."""
        if self._thread is not None:
            self._end_window()
            self._lines.put(None)
            self._thread.join()
            self._thread = None

    def record(
        self, caller: Caller, code: int, action: Action, resources: Iterable[Resource], outcome: str, reason: str = ""
    ) -> None:
        self._put(_line(self._clock(), caller, code, action, resources, outcome, reason))

    def denied(
        self, caller: Caller, request: int | str, action: Action, resources: Iterable[Resource], reason: str
    ) -> None:
        """Record a denied request, by its code or name, unless its peer had too many in this minute."""
        now_ms = self._clock()
        if not 0 <= now_ms - self._window_begin_ms < DENIED_WINDOW_MS:
            self._end_window()
            self._window_begin_ms = now_ms
        peer = caller.host if caller.host in self._denied or len(self._denied) < MAX_PEERS else "others"
        count = self._denied[peer] = self._denied.get(peer, 0) + 1
        if count <= DENIED_PER_WINDOW:
            self._put(_line(now_ms, caller, request, action, resources, "denied", reason))

    def _end_window(self) -> None:
        denied, self._denied = self._denied, {}
        for peer, count in denied.items():
            if count > DENIED_PER_WINDOW:
                self._put(
                    {
                        "time": _time(self._clock()),
                        "address": peer,
                        "outcome": "denied",
                        "suppressed": count - DENIED_PER_WINDOW,
                    }
                )

    def _put(self, line: dict[str, Any]) -> None:
        try:
            self._lines.put_nowait(_encode(line) + b"\n")
        except queue.Full:
            self.dropped += 1

    # The thread.

    def _write_lines(self) -> None:
        is_ending = False
        while not is_ending:
            batch = [self._lines.get()]
            while len(batch) < 1000 and not self._lines.empty():
                batch.append(self._lines.get_nowait())
            is_ending = None in batch
            lines = [line for line in batch if line is not None]
            try:
                self._append(lines)
            except OSError as error:
                self.dropped += len(lines)
                self._outages.failed("audit log", f"{self._path}: {error.strerror}")
            else:
                self._outages.succeeded("audit log")

    def _append(self, lines: list[bytes]) -> None:
        remaining = iter(lines)
        line = next(remaining, None)
        while line is not None:
            fd = self._open_file()
            try:
                size = os.fstat(fd).st_size
                pieces = []
                while line is not None and (size + len(line) <= self._max_size or not size):
                    pieces.append(line)
                    size += len(line)
                    line = next(remaining, None)
                data = memoryview(b"".join(pieces))
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
            if line is not None:
                self._rotate()

    def _rotate(self) -> None:
        def name(number: int) -> Path:
            return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

        if self._max_files <= 1:
            self._path.unlink()
            return
        for number in range(self._max_files - 2, -1, -1):
            if name(number).exists():
                name(number).replace(name(number + 1))

    def _open_file(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _line(
    now_ms: int,
    caller: Caller,
    request: int | str,
    action: Action,
    resources: Iterable[Resource],
    outcome: str,
    reason: str,
) -> dict[str, Any]:
    named = list(resources)
    groups = [group for one in named for group in (one.group, one.producer_group)]
    return {
        "time": _time(now_ms),
        "user": caller.user.name if caller.user is not None else None,
        "certificate": caller.certificate[:MAX_TEXT] or None,
        "address": caller.address,
        "request": name_of(request) if isinstance(request, int) else request,
        "action": action.name,
        "topics": _names(one.topic for one in named),
        "groups": _names(groups),
        "outcome": outcome,
        "reason": reason[:MAX_TEXT],
    }


def _names(texts: Iterable[str]) -> list[str]:
    return [text[:MAX_TEXT] for text in dict.fromkeys(texts) if text][:MAX_NAMES]


def _time(now_ms: int) -> str:
    time = datetime.fromtimestamp(now_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
