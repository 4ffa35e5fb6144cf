"""The write state of a store: whether it accepts puts, and if not, why.

    state       puts      set by                                            left by
    CLOSED      refused   construction, `close`                             `open`
    WRITABLE    accepted  `open`, the end of the conditions below           any of the others
    SLAVE       refused   `open` of a slave                                 `fail`, `close`
    DISK_FULL   refused   `set_disk_full(reason)`                           `set_disk_full(None)`, `fail`, `close`
    STALLED     refused   `set_stalled(reason)`: a dispatch got no          `set_stalled(None)`, `fail`, `close`
                          descriptor or no disk space, and is retried
    FENCED      refused   `set_fenced(reason)`: another broker is master,   `set_fenced(None)`, `fail`, `close`
                          or becomes it
    FAILED      refused   `fail`: bytes may not have reached the disk       opening the store again

FAILED stays after `close`: only the recovery of the next opening finds out what is on disk. Reads are served in every
state but CLOSED. Corresponds to `RunningFlags` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Final

SLAVE_REASON: Final = "the broker is a slave: its log takes only what the master sends"
CLOSED_REASON: Final = "the store is closed"


class WriteStatus(Enum):
    CLOSED = "closed"
    WRITABLE = "writable"
    SLAVE = "slave"
    DISK_FULL = "disk full"
    STALLED = "stalled"
    FENCED = "fenced"
    FAILED = "failed"


class WriteState:
    """The write state; any thread may read it or call `fail`, so a lock makes transitions atomic."""

    __slots__ = ("_conditions", "_lock", "is_writable", "reason", "status")

    def __init__(self, *, is_slave: bool = False) -> None:
        self.status = WriteStatus.CLOSED
        self.reason: str | None = "the store is not open"
        """Why puts are refused, for responses and logs; None if WRITABLE."""
        self.is_writable = False
        """An attribute because each put reads it."""
        self._conditions: dict[WriteStatus, str | None] = dict.fromkeys(
            (WriteStatus.SLAVE, WriteStatus.FENCED, WriteStatus.STALLED, WriteStatus.DISK_FULL)
        )
        """Several may hold. The first in this order is shown; when it ends, the next one is."""
        if is_slave:
            self._conditions[WriteStatus.SLAVE] = SLAVE_REASON
        self._lock = threading.Lock()

    @property
    def failure(self) -> str | None:
        """Why the store accepts no puts until reopened (CLOSED, FAILED); None in other states."""
        with self._lock:
            return self.reason if self._is_final() else None

    def open(self) -> None:
        """Accept puts, unless the store is a slave's."""
        with self._lock:
            self._set_open()

    def close(self) -> None:
        """Refuse puts because the store is closed. A failure stays the reason."""
        with self._lock:
            if self.status is not WriteStatus.FAILED:
                self._set(WriteStatus.CLOSED, CLOSED_REASON)

    def fail(self, reason: str) -> None:
        """Refuse puts until the store is opened again. The latest failure is the reason."""
        with self._lock:
            self._set(WriteStatus.FAILED, reason)

    def set_disk_full(self, reason: str | None) -> None:
        """Refuse puts while the disk is too full; None ends that. No effect if CLOSED or FAILED."""
        self._set_condition(WriteStatus.DISK_FULL, reason)

    def set_stalled(self, reason: str | None) -> None:
        """Refuse puts while messages cannot be dispatched; None ends that. No effect if CLOSED or FAILED."""
        self._set_condition(WriteStatus.STALLED, reason)

    def set_fenced(self, reason: str | None) -> None:
        """Refuse puts because of another master; None ends that. No effect if CLOSED or FAILED."""
        self._set_condition(WriteStatus.FENCED, reason)

    def _set_condition(self, status: WriteStatus, reason: str | None) -> None:
        with self._lock:
            self._conditions[status] = reason
            if not self._is_final():
                self._set_open()

    def _is_final(self) -> bool:
        return self.status is WriteStatus.CLOSED or self.status is WriteStatus.FAILED

    def _set_open(self) -> None:
        holding = ((status, reason) for status, reason in self._conditions.items() if reason is not None)
        self._set(*next(holding, (WriteStatus.WRITABLE, None)))

    def _set(self, status: WriteStatus, reason: str | None) -> None:
        self.status, self.reason, self.is_writable = status, reason, reason is None
