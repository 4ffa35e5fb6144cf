"""Requests to several servers at a time."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest

from rucola.admin.requests import CONCURRENT_REQUESTS, gather_fail_fast, gather_to_completion


@pytest.mark.parametrize("gather", [gather_fail_fast, gather_to_completion])
async def test_requests_that_are_cancelled_before_they_begin_are_closed(
    gather: Callable[[Iterable[Coroutine[Any, Any, None]]], Awaitable[list[None]]],
) -> None:
    """Before, a console that was closed at once warned of coroutines that were never awaited."""

    async def request() -> None:
        await asyncio.Event().wait()

    async def cancel_after(rounds: int) -> None:
        task = asyncio.create_task(collect())
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def collect() -> None:
        await gather(request() for _ in range(CONCURRENT_REQUESTS + 1))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await cancel_after(1)
        await cancel_after(2)  # the requests up to the limit have begun
        gc.collect()
    assert not caught
