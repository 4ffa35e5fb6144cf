"""Calls of trace hooks, whose exceptions are logged and never affect the traced messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rucola.errors import ConfigError

logger = logging.getLogger(__name__)


def check_trace(trace: object, hook: str) -> None:
    """Raise ConfigError for a trace without a hook that will be called."""
    if trace is not None and not callable(getattr(trace, hook, None)):
        raise ConfigError(
            f"trace is {trace!r}, which has no {hook}: pass a MessageTrace (rucola.client.trace) or a Telemetry "
            "(rucola.client.otel)",
            subject="trace",
        )


def call_hook(hook: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Call a trace hook; log the exception if it fails."""
    try:
        hook(*arguments, **options)
    except Exception:
        logger.warning("the trace failed in %s", getattr(hook, "__qualname__", hook), exc_info=True)


class HookContext:
    """A context manager around a trace hook's, which never raises or suppresses."""

    def __init__(self, make: Callable[..., AbstractContextManager[None]], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._context: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        call_hook(self._enter_hook)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None:
            call_hook(self._context.__exit__, kind, error, trace)

    def _enter_hook(self) -> None:
        context = self._make(*self._arguments)
        context.__enter__()
        self._context = context
