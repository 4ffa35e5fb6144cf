"""Waiting for a condition that no event announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

POLL_INTERVAL_S = 0.005


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 20) -> None:
    """Poll a plain or async condition until it holds. TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(POLL_INTERVAL_S)
