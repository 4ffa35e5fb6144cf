"""GroupCommit: whom it lets wait, and for how long."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.store.config import FlushDiskType
from rucola.store.kernel_flush import KernelFlush
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config, inner, sound_store


@asynccontextmanager
async def flushing(
    path: Path, flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
) -> AsyncIterator[tuple[MessageStore, GroupCommit]]:
    """A store whose flushes need a thread with ASYNC_FLUSH, and only the kernel with SYNC_FLUSH."""
    settings = {
        "mapped_file_size_commit_log": 64 << 20,
        "mapped_file_size_consume_queue": 6_000_000,
        "flush_disk_type": flush_disk_type,
    }
    with sound_store(path, **settings) as store:
        flush = GroupCommit(store)
        try:
            async with asyncio.timeout(60):
                yield store, flush
        finally:
            await flush.stop()


def put(store: MessageStore, number: int = 0) -> int:
    """Put a message; the physical offset that it ends at."""
    stored = store.put(inner(), number)
    return stored.physical_offset + stored.size


async def test_sends_of_consecutive_loop_iterations_share_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with flushing(tmp_path) as (store, group_commit):
        flushed: list[int] = []
        sync = store.flush

        def note() -> None:
            flushed.append(store.max_physical_offset)
            sync()

        def wait(number: int) -> asyncio.Task[bool]:
            return asyncio.create_task(group_commit.wait_flushed(put(store, number), 60_000))

        # Five senders at once: each of them sends its next message within a few iterations after the flush.
        assert await asyncio.gather(*map(wait, range(5))) == [True] * 5
        monkeypatch.setattr(store, "flush", note)
        waiting = []
        for number in range(5):
            waiting.append(wait(number))
            await asyncio.sleep(0)
        assert await asyncio.gather(*waiting) == [True] * 5
        assert flushed == [store.max_physical_offset]


async def test_a_waiter_whose_time_is_over_gets_false_and_the_others_wait_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three waiters of a disk that stands still: of the running flush, and of the next one."""
    async with flushing(tmp_path) as (store, group_commit):
        standing, moving = threading.Event(), threading.Event()
        sync = store.flush

        def stand_still() -> None:
            standing.set()
            assert moving.wait(60)
            sync()

        def wait(timeout_ms: int) -> asyncio.Task[bool]:
            return asyncio.create_task(group_commit.wait_flushed(put(store), timeout_ms))

        monkeypatch.setattr(store, "flush", stand_still)
        running = wait(20)
        assert await asyncio.to_thread(standing.wait, 60)
        short, long = wait(10), wait(60_000)
        assert not await running
        assert not await short
        assert not long.done()
        moving.set()
        assert await long


async def test_a_cancelled_waiter_does_not_disturb_the_flush(tmp_path: Path) -> None:
    async with flushing(tmp_path) as (store, group_commit):
        end = put(store)
        cancelled, kept = (asyncio.create_task(group_commit.wait_flushed(end, 60_000)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await kept
        assert cancelled.cancelled() or await asyncio.wait([cancelled])


async def test_a_flush_that_fails_is_no_success_for_any_waiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error is: also one that the store does not expect."""
    for failure in (OSError(5, "Input/output error"), ZeroDivisionError()):
        async with flushing(tmp_path / type(failure).__name__) as (store, group_commit):

            def fail(failure: Exception = failure) -> None:
                raise failure

            end = put(store)
            with monkeypatch.context() as context:
                context.setattr(store, "flush", fail)
                assert await asyncio.gather(*(group_commit.wait_flushed(end, 60_000) for _ in range(3))) == [False] * 3
            assert await group_commit.wait_flushed(end, 60_000)  # the next flush is a new attempt


async def test_a_stream_of_messages_does_not_postpone_the_flush(tmp_path: Path) -> None:
    async with flushing(tmp_path) as (store, group_commit):

        async def message(number: int) -> bool:
            return await group_commit.wait_flushed(put(store, number), 60_000)

        first = asyncio.create_task(message(0))
        others = []
        while not first.done():
            others.append(asyncio.create_task(message(len(others))))
            await asyncio.sleep(0)
        assert first.result()
        assert all(await asyncio.gather(*others))


async def test_the_kernel_alone_flushes_when_senders_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of the broker takes part, which would have to wait for the interpreter lock."""
    async with flushing(tmp_path, FlushDiskType.SYNC_FLUSH) as (store, group_commit):

        async def send(number: int) -> bool:
            return await group_commit.wait_flushed(put(store, number), 60_000)

        assert await send(0)  # by the thread: the name of the file has to be made durable
        with monkeypatch.context() as context:
            context.setattr(store, "flush", lambda: pytest.fail("a thread flushes"))
            for number in range(20):
                assert await asyncio.gather(*(send(number) for _ in range(3))) == [True] * 3


async def test_waiters_of_a_flush_that_fails_in_the_kernel_get_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = KernelFlush.result

    def fail(kernel: KernelFlush) -> OSError | None:
        assert result(kernel) is None
        return OSError(errno.EIO, os.strerror(errno.EIO))

    with MessageStore(config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        group_commit = GroupCommit(store)
        assert await group_commit.wait_flushed(put(store), 60_000)
        end = put(store, 1)
        with monkeypatch.context() as context:
            context.setattr(KernelFlush, "result", fail)
            assert await asyncio.gather(*(group_commit.wait_flushed(end, 60_000) for _ in range(3))) == [False] * 3
        assert not await group_commit.wait_flushed(end, 60_000), "the store is read-only until it is opened again"
        assert "Input/output" in str(store.write_state.failure)
        await group_commit.stop()
    with MessageStore(config(tmp_path)):
        pass
    assert check(tmp_path) == []


async def test_a_stream_of_kernel_flushes_shares_them(tmp_path: Path) -> None:
    async with flushing(tmp_path, FlushDiskType.SYNC_FLUSH) as (store, group_commit):

        async def sender() -> None:
            for number in range(50):
                end = put(store, number)
                assert await group_commit.wait_flushed(end, 60_000)
                assert store.flushed_physical_offset >= end

        await asyncio.gather(*(sender() for _ in range(8)))
