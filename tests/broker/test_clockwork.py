"""What a broker does by the clock ends with the clockwork."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import pytest

from rucola.broker.clockwork import NEW_QUEUES_A_TURN, Clockwork, Reput, in_thread
from rucola.broker.pull_hold import PullRequestHold
from rucola.store.check import check
from rucola.store.message_store import MessageStore
from stores import config, inner


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


def test_others_have_their_turn_while_files_of_many_queues_are_made(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        turns = [0]
        dispatched = asyncio.Event()

        def turn() -> None:
            turns.append(len(list((tmp_path / "store" / "consumequeue").glob("*/*/*"))))
            if store.has_pending:
                loop.call_soon(turn)
            else:
                dispatched.set()

        with MessageStore(config(tmp_path / "store")) as store:
            reput = Reput(store, PullRequestHold(), lambda: None)
            for queue_id in range(50):
                store.put(inner(queue_id=queue_id), 1)
                reput.on_put()
            loop.call_soon(turn)
            await dispatched.wait()
        assert turns[-1] == 50
        assert max(after - before for before, after in itertools.pairwise(turns)) == NEW_QUEUES_A_TURN
        assert check(tmp_path / "store") == []

    asyncio.run(run())


def test_what_a_thread_returns_and_raises_comes_back() -> None:
    async def run() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)

    asyncio.run(run())
