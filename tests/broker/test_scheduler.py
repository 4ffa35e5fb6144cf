"""The scheduler ends its steps at the stop; the reput service dispatches in bounded batches."""

from __future__ import annotations

import asyncio
import errno
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
from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.faults import refusing
from support.stores import config, inner
from support.waiting import until


async def test_stop_waits_for_a_running_thread() -> None:
    """Else it would write the files that are written at the end, while they are written."""

    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait(20)
        ended.set()

    scheduler = Scheduler()
    scheduler.every(1, "work", lambda: in_thread(work))
    await asyncio.to_thread(started.wait, 20)
    stopping = asyncio.create_task(scheduler.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended.is_set()


async def test_stop_cancels_a_step_that_runs_no_thread() -> None:
    waits = asyncio.Event()

    async def step() -> None:
        waits.set()
        await asyncio.Event().wait()

    scheduler = Scheduler()
    scheduler.every(1, "step", step)
    await waits.wait()
    await scheduler.stop()


async def test_the_loop_runs_while_files_of_many_queues_are_created(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    counts = [0]
    dispatched = asyncio.Event()

    def count_files() -> None:
        counts.append(len(list((tmp_path / "store" / "consumequeue").glob("*/*/*"))))
        if store.has_pending:
            loop.call_soon(count_files)
        else:
            dispatched.set()

    with MessageStore(config(tmp_path / "store"), on_pending=lambda: reput.on_pending()) as store:
        reput = ReputService(store, PullRequestHold(), PopHold(), lambda: None)
        for queue_id in range(50):
            store.put(inner(queue_id=queue_id), 1)
        loop.call_soon(count_files)
        await dispatched.wait()
    assert counts[-1] == 50
    assert max(after - before for before, after in itertools.pairwise(counts)) == NEW_QUEUES_PER_ITERATION
    assert check(tmp_path / "store") == []


async def test_an_exhausted_dispatch_is_retried_until_the_condition_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[bool] = []
    with MessageStore(config(tmp_path / "store"), on_pending=lambda: reput.on_pending()) as store:
        reput = ReputService(store, PullRequestHold(), PopHold(), lambda: attempts.append(store.stall is not None))
        with refusing(monkeypatch, "posix_fallocate", errno.ENOSPC, after=1):  # the log has its blocks
            store.put(inner(), 1)
            await until(lambda: len(attempts) > 1)
            assert not store.write_state.is_writable
        await until(lambda: not store.has_pending)
        assert store.write_state.is_writable
        assert len(store.get("T", 0, 0, 1).records) == 1
    assert check(tmp_path / "store") == []


async def test_messages_left_by_a_failed_dispatch_are_dispatched_later(tmp_path: Path) -> None:
    failures: list[object] = []
    ends: list[int] = []
    dispatched = asyncio.Event()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context["exception"])
        loop.call_soon(dispatched.set)  # after the dispatch of the rest

    def arrive(arrived: Mapping[str, TopicArrivals]) -> None:
        ends.append(arrived["T"][0][-1].max_offset)
        if len(ends) == 1:
            raise ArithmeticError

    with MessageStore(config(tmp_path / "store"), arrive, lambda: reput.on_pending()) as store:
        asyncio.get_running_loop().set_exception_handler(failed)
        reput = ReputService(store, PullRequestHold(), PopHold(), lambda: None)
        for _ in range(MESSAGES_PER_ITERATION + 1):
            store.put(inner(), 1)
        await dispatched.wait()
        assert ends == [MESSAGES_PER_ITERATION, MESSAGES_PER_ITERATION + 1]
    assert list(map(type, failures)) == [ArithmeticError]
    assert check(tmp_path / "store") == []


async def test_results_and_errors_of_a_thread_reach_the_caller() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


@pytest.mark.parametrize(("error", "has_traceback"), [(OSError(errno.ENOSPC, "full"), False), (KeyError("bug"), True)])
async def test_a_step_that_fails_again_and_again_has_one_line(
    error: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    def step() -> None:
        nonlocal runs
        runs += 1
        if runs < 20:
            raise error

    scheduler = Scheduler()
    scheduler.every(1, "step", step)
    await until(lambda: runs > 20)
    await scheduler.stop()
    failed = [record for record in caplog.records if str(error) in record.getMessage() or record.exc_info]
    assert [bool(record.exc_info) for record in failed] == [has_traceback]
