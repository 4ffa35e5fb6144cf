"""An event loop of which the test runs each iteration, for parts that only schedule calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Turns(asyncio.SelectorEventLoop):
    """`time_s` is the time; each look at the clock takes `tick_s`."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.time_s = 0.0
        self.tick_s = tick_s
        self.calls: list[Callable[[], object]] = []
        self.timers: list[asyncio.TimerHandle] = []
        super().__init__()
        self.close()  # it has no sockets

    def time(self) -> float:
        self.time_s += self.tick_s
        return self.time_s

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        self.calls.append(lambda: callback(*arguments))

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        self.timers.append(asyncio.TimerHandle(when, callback, arguments, self))
        return self.timers[-1]

    def turn(self) -> None:
        """Run what was scheduled, and not what that schedules."""
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()

    def pass_until(self, time_s: float) -> None:
        """Let time pass, and run the timers that are due."""
        self.time_s = time_s
        due = [timer for timer in self.timers if timer.when() <= time_s]
        self.timers = [timer for timer in self.timers if timer.when() > time_s]
        for timer in due:
            if not timer.cancelled():
                timer._run()
