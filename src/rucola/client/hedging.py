"""Hedged requests: ask the next server when one fails or stays silent for a moment, and take the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rucola.errors import MQError

T = TypeVar("T")


async def hedged(attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], pause_ms: float) -> tuple[int, T]:
    """Return the index of the attempt that succeeds first, and its result.

    Each attempt starts when one before it fails, or `pause_ms` after the last start; earlier ones go on, so a slow
    server still counts. Each must be bounded in time by itself. The others are cancelled after the first success. If
    every attempt fails, an ExceptionGroup holds the MQErrors in the order in which they came; any other error is raised
    at once.
    """
    running: dict[asyncio.Task[T], int] = {}
    failures: list[MQError] = []
    try:
        for index, attempt in enumerate(attempts):
            running[asyncio.create_task(attempt())] = index
            is_last = index == len(attempts) - 1
            while running:
                timeout = None if is_last else pause_ms / 1000
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    of_task = running.pop(task)
                    try:
                        return of_task, task.result()
                    except MQError as error:
                        failures.append(error)
                if not is_last:
                    break
        raise ExceptionGroup("every attempt failed", failures)
    finally:
        for task in running:
            task.cancel()
