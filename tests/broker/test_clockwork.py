"""What a broker does by the clock ends with the clockwork."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rucola.broker.clockwork import Clockwork, in_thread


def test_a_thread_that_is_under_way_ends_before_the_clockwork_has_stopped() -> None:
    """Else it would write the files that are written at the end, while they are written."""

    async def run() -> None:
        started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            may_end.wait(20)
            ended.set()

        clockwork = Clockwork()
        clockwork.every(1, "work", lambda: in_thread(work))
        await asyncio.to_thread(started.wait, 20)
        stopping = asyncio.create_task(clockwork.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stopping.done()
        may_end.set()
        await stopping
        assert ended.is_set()

    asyncio.run(run())


def test_a_step_that_waits_for_nothing_of_the_kind_is_cancelled() -> None:
    async def run() -> None:
        waits = asyncio.Event()

        async def step() -> None:
            waits.set()
            await asyncio.Event().wait()

        clockwork = Clockwork()
        clockwork.every(1, "step", step)
        await waits.wait()
        await clockwork.stop()

    asyncio.run(run())


def test_what_a_thread_returns_and_raises_comes_back() -> None:
    async def run() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)

    asyncio.run(run())
