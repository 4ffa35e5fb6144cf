"""What a broker does by the clock ends with the clockwork."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.background.scheduler import (
    MESSAGES_PER_ITERATION,
    NEW_QUEUES_PER_ITERATION,
    ReputService,
    Scheduler,
    in_thread,
)
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config, inner


async def test_a_thread_that_is_under_way_ends_before_the_clockwork_has_stopped() -> None:
    """Else it would write the files that are written at the end, while they are written."""

    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait(20)
        ended.set()

    clockwork = Scheduler()
    clockwork.every(1, "work", lambda: in_thread(work))
    await asyncio.to_thread(started.wait, 20)
    stopping = asyncio.create_task(clockwork.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended.is_set()


async def test_a_step_that_waits_for_nothing_of_the_kind_is_cancelled() -> None:
    waits = asyncio.Event()

    async def step() -> None:
        waits.set()
        await asyncio.Event().wait()

    clockwork = Scheduler()
    clockwork.every(1, "step", step)
    await waits.wait()
    await clockwork.stop()


async def test_others_have_their_turn_while_files_of_many_queues_are_made(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    turns = [0]
    dispatched = asyncio.Event()

    def turn() -> None:
        turns.append(len(list((tmp_path / "store" / "consumequeue").glob("*/*/*"))))
        if store.has_pending:
            loop.call_soon(turn)
        else:
            dispatched.set()

    with MessageStore(config(tmp_path / "store"), on_pending=lambda: reput.on_pending()) as store:
        reput = ReputService(store, PullRequestHold(), lambda: None)
        for queue_id in range(50):
            store.put(inner(queue_id=queue_id), 1)
        loop.call_soon(turn)
        await dispatched.wait()
    assert turns[-1] == 50
    assert max(after - before for before, after in itertools.pairwise(turns)) == NEW_QUEUES_PER_ITERATION
    assert check(tmp_path / "store") == []


async def test_what_is_left_when_a_dispatch_fails_has_its_turn(tmp_path: Path) -> None:
    failures: list[object] = []
    told: list[int] = []
    dispatched = asyncio.Event()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context["exception"])
        loop.call_soon(dispatched.set)  # behind the dispatch of what is left

    def arrive(arrived: Mapping[str, TopicArrivals]) -> None:
        told.append(arrived["T"][0][-1].max_offset)
        if len(told) == 1:
            raise ArithmeticError

    with MessageStore(config(tmp_path / "store"), arrive, lambda: reput.on_pending()) as store:
        asyncio.get_running_loop().set_exception_handler(failed)
        reput = ReputService(store, PullRequestHold(), lambda: None)
        for _ in range(MESSAGES_PER_ITERATION + 1):
            store.put(inner(), 1)
        await dispatched.wait()
        assert told == [MESSAGES_PER_ITERATION, MESSAGES_PER_ITERATION + 1]
    assert list(map(type, failures)) == [ArithmeticError]
    assert check(tmp_path / "store") == []


async def test_what_a_thread_returns_and_raises_comes_back() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)
