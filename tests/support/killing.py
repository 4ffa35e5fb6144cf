"""Functions that end the process at a chosen call, or see each line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Killed(BaseException):
    """The process ends here."""


class Deadly:
    """A function that kills, or fails with another error, at its n-th call, after doing its work or before."""

    def __init__(
        self, function: Callable[..., Any], calls: int, *, after: bool, error: type[BaseException] = Killed
    ) -> None:
        self.function, self.calls, self.after, self.error = function, calls, after, error
        self.killed = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls -= 1
        is_last = self.calls == 0
        self.killed |= is_last
        if is_last and not self.after:
            raise self.error
        result = self.function(*arguments, **named)
        if is_last:
            raise self.error
        return result

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self
        return lambda *arguments, **named: self(instance, *arguments, **named)


def trace_lines(
    run: Callable[[], object], is_traced: Callable[[str], bool], on_line: Callable[[FrameType], None]
) -> None:
    """Run, and call `on_line` before each line of the files that `is_traced` chooses."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_traced(frame.f_code.co_filename):
            return None
        if event == "line":
            on_line(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
