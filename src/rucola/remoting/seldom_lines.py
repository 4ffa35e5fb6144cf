"""Rate-limited log lines that peers can cause at will.

The next line of a kind has the number of suppressed ones:

    10.0.0.7:50122: one-way SEND_MESSAGE_V2 failed: header field topic is missing; 98642 more since the last line

Unlike outages (`rucola.outages`), their causes have no end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

LINE_INTERVAL_S: Final = 60.0


class SeldomLines:
    """Logs at most one line of each kind in `interval_s`. Kinds are few, and never a peer's text."""

    def __init__(self, interval_s: float = LINE_INTERVAL_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._next_line_s: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def log(
        self, logger: logging.Logger, level: int, kind: str, message: str, *args: object,
        error: BaseException | None = None,
    ) -> None:  # fmt: skip
        """Log or count a line; `error` adds a traceback."""
        now_s = self._clock_s()
        if now_s < self._next_line_s.get(kind, now_s):
            self._unlogged[kind] += 1
            return
        self._next_line_s[kind] = now_s + self._interval_s
        more = f"; {count} more since the last line" if (count := self._unlogged.pop(kind, 0)) else ""
        logger.log(level, message + "%s", *args, more, exc_info=error)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, SeldomLines] = WeakKeyDictionary()


def log_seldom(
    logger: logging.Logger, level: int, kind: str, message: str, *args: object, error: BaseException | None = None
) -> None:
    """Log at most one line of a kind per event loop in LINE_INTERVAL_S."""
    loop = asyncio.get_running_loop()
    lines = _lines.get(loop)
    if lines is None:
        lines = _lines[loop] = SeldomLines()
    lines.log(logger, level, kind, message, *args, error=error)
