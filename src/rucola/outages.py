"""Few log lines, however often something fails: outages, and what peers can cause at will.

An outage has a line at its start, summaries at growing intervals, and a line at its end:

    broker broker-a failed, retrying: cannot connect to 10.0.0.7:10911: connection refused
    broker broker-a: still failing after 60 s, 58 failures, the last: ...
    broker broker-a: works again after 140 s, 137 failures

A subject that fails again before the next summary is due continues its outage, so it has at most two lines per
`FIRST_SUMMARY_S`. An outage without an end is logged at most once in `LINE_INTERVAL_S`:

    10.0.0.7:50122: one-way SEND_MESSAGE_V2 failed: header field topic is missing; 98642 more since the last line
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

LINE_INTERVAL_S: Final = 60.0
FIRST_SUMMARY_S: Final = 60.0
"""Each later summary takes twice as long."""
LONGEST_PAUSE_S: Final = 3600.0
MAX_ERROR_LENGTH: Final = 300
MAX_SUBJECTS: Final = 1000
"""Beyond it, the subject that failed first is forgotten."""


def _monotonic_s() -> float:
    return time.monotonic()


@dataclass(slots=True)
class _Outage:
    begin_s: float
    next_line_s: float
    pause_s: float = FIRST_SUMMARY_S
    failures: int = 1
    is_over: bool = False
    is_told: bool = True
    """Whether the last line about the subject reports a failure."""


class Outages:
    """Outages by subject. Thread-safe. `clock_s` never runs backwards."""

    def __init__(
        self, logger: logging.Logger, clock_s: Callable[[], float] = _monotonic_s, level: int = logging.WARNING
    ) -> None:
        self._logger = logger
        self._clock_s = clock_s
        self._level = level
        self._outages: dict[str, _Outage] = {}
        self._lock = threading.Lock()
        self._failing = 0

    @property
    def any_failing(self) -> bool:
        """If False, `succeeded` has no effect."""
        return self._failing > 0

    def is_line_due(self, subject: str) -> bool:
        """Whether a failure now would be logged, for details that are costly to find."""
        outage = self._outages.get(subject)
        return outage is None or self._clock_s() >= outage.next_line_s

    def is_failing(self, subject: str) -> bool:
        outage = self._outages.get(subject)
        return outage is not None and not outage.is_over

    def failed(self, subject: str, error: object) -> None:
        with self._lock:
            now_s = self._clock_s()
            outage = self._outages.get(subject)
            if outage is None or (outage.is_over and now_s >= outage.next_line_s):
                self._forget(subject)
                self._make_room()
                self._outages[subject] = _Outage(now_s, now_s + FIRST_SUMMARY_S)
                self._failing += 1
                self._logger.log(self._level, "%s failed, retrying: %s", subject, error)
                return
            if outage.is_over:
                outage.is_over = False
                self._failing += 1
            outage.failures += 1
            if now_s >= outage.next_line_s:
                self._logger.log(
                    self._level, "%s: still failing after %d s, %d failures, the last: %s",
                    subject, now_s - outage.begin_s, outage.failures, error,
                )  # fmt: skip
                outage.is_told = True
                outage.pause_s = min(2 * outage.pause_s, LONGEST_PAUSE_S)
                outage.next_line_s = now_s + outage.pause_s

    def succeeded(self, subject: str) -> None:
        if not self._failing:
            return
        with self._lock:
            outage = self._outages.get(subject)
            if outage is None or outage.is_over:
                return
            outage.is_over = True
            self._failing -= 1
            if outage.is_told:
                outage.is_told = False
                now_s = self._clock_s()
                outage.next_line_s = now_s + FIRST_SUMMARY_S
                self._logger.log(
                    self._level, "%s: works again after %d s, %d failures",
                    subject, now_s - outage.begin_s, outage.failures,
                )  # fmt: skip

    def _forget(self, subject: str) -> None:
        outage = self._outages.pop(subject, None)
        if outage is not None and not outage.is_over:
            self._failing -= 1

    def _make_room(self) -> None:
        if len(self._outages) >= MAX_SUBJECTS:
            self._forget(next(iter(self._outages)))


def in_one_line(error: BaseException) -> str:
    """Return type, text and place of an exception: `ValueError: no such order (orders.py:12)`."""
    text = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return shown
    frame, line = frames[-1]
    return f"{shown} ({os.path.basename(frame.f_code.co_filename)}:{line})"


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[float, int]]] = WeakKeyDictionary()
"""When the next line of each kind is due, and the number of those that were not logged."""


def log_rate_limited(
    logger: logging.Logger, level: int, kind: str, message: str, *args: object, error: BaseException | None = None
) -> None:
    """Log at most one line of a kind per event loop in LINE_INTERVAL_S, with the number of those left out before.

    Kinds are few, and never a peer's text. `error` adds a traceback.
    """
    loop = asyncio.get_running_loop()
    lines = _lines.setdefault(loop, {})
    due_s, count = lines.get(kind, (0.0, 0))
    if (now_s := loop.time()) < due_s:
        lines[kind] = due_s, count + 1
        return
    lines[kind] = now_s + LINE_INTERVAL_S, 0
    more = f"; {count} more since the last line" if count else ""
    logger.log(level, message + "%s", *args, more, exc_info=error)
