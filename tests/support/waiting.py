"""Waiting for a condition that no event announces."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

POLL_INTERVAL_S = 0.005
DEADLINE_S = 200
"""How long tests wait for other processes: less than faulthandler_timeout, at which a run ends."""
PROCESS_POLL_INTERVAL_S = 0.05


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 20) -> None:
    """Poll a plain or async condition until it holds. TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(POLL_INTERVAL_S)


def wait_until(condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    """As `until`, for tests of other processes, which have no event loop."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"the condition did not hold in {timeout_s:g} s")
        time.sleep(PROCESS_POLL_INTERVAL_S)
