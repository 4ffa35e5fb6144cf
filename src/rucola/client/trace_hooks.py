"""Hooks: calls of a trace, whose errors are logged and do not affect the messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)


def call_hook(hook: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Call a hook of a trace."""
    try:
        hook(*arguments, **options)
    except Exception:
        logger.warning("the trace failed in %s", getattr(hook, "__qualname__", hook), exc_info=True)


class HookContext:
    """A context manager of a trace; it cannot suppress errors of the code within either."""

    def __init__(self, make: Callable[..., AbstractContextManager[None]], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._context: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        call_hook(self._begin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None:
            call_hook(self._context.__exit__, kind, error, trace)

    def _begin(self) -> None:
        context = self._make(*self._arguments)
        context.__enter__()
        self._context = context
