"""Hedged requests: query another server after a failure or delay, and use the first response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rucola.errors import MQError

T = TypeVar("T")


async def hedged(attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], pause_ms: float) -> tuple[int, T]:
    """Return the index of the first attempt that succeeds, and its result.

    Starts an attempt when an earlier one fails, or `pause_ms` after the previous start. If all fail, an ExceptionGroup
    has their MQErrors in order; other exceptions are raised immediately. Attempts must have timeouts.
    """
    running: dict[asyncio.Task[T], int] = {}
    failures: list[MQError] = []
    try:
        for index, attempt in enumerate(attempts):
            running[asyncio.create_task(attempt())] = index
            is_last = index == len(attempts) - 1
            while running:
                # The last attempt has nothing to hedge it, so wait without a limit.
                timeout = None if is_last else pause_ms / 1000
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index_of_task = running.pop(task)
                    try:
                        return index_of_task, task.result()
                    except MQError as error:
                        failures.append(error)
                if not is_last:
                    break
        raise ExceptionGroup("every attempt failed", failures)
    finally:
        for task in running:
            task.cancel()
