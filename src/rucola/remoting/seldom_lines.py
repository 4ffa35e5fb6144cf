"""Log lines that peers can cause at will, one of each kind in an interval.

The next line of a kind has the number of those that were left out:

    10.0.0.7:50122: one-way SEND_MESSAGE_V2 failed: header field topic is missing; 98642 more since the last line

So a peer cannot fill the disk by them. Unlike an outage (`rucola.outages`), what they report has no end.
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
"""Least time between two lines of a kind of which a peer needs no limit to cause them."""


class SeldomLines:
    """Logs at most one line of each kind in `interval_s`.

    Kinds are few, and never what a peer sends. `clock_s` never runs backwards.
    """

    def __init__(self, interval_s: float = LINE_INTERVAL_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._next_line_s: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def log(
        self, logger: logging.Logger, level: int, kind: str, message: str, *args: object,
        error: BaseException | None = None,
    ) -> None:  # fmt: skip
        """Log a line, or count it if one of its kind was logged recently.

        `error` adds a traceback.
        """
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
    """Log a line unless the event loop had one of its kind in LINE_INTERVAL_S."""
    loop = asyncio.get_running_loop()
    lines = _lines.get(loop)
    if lines is None:
        lines = _lines[loop] = SeldomLines()
    lines.log(logger, level, kind, message, *args, error=error)
