"""GroupCommit: whom it lets wait, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config, inner


@asynccontextmanager
async def flushing(path: Path) -> AsyncIterator[tuple[MessageStore, GroupCommit]]:
    sizes = {"mapped_file_size_commit_log": 64 << 20, "mapped_file_size_consume_queue": 6_000_000}
    with MessageStore(config(path, **sizes)) as store:
        flush = GroupCommit(store)
        try:
            async with asyncio.timeout(60):
                yield store, flush
        finally:
            await flush.stop()

    assert check(path) == []


async def test_sends_of_consecutive_loop_iterations_share_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with flushing(tmp_path) as (store, group_commit):
        flushed: list[int] = []
        sync = store.flush

        def note() -> None:
            flushed.append(store.max_physical_offset)
            sync()

        monkeypatch.setattr(store, "flush", note)
        waiting = []
        for number in range(5):
            put = store.put(inner(), number)
            waiting.append(asyncio.create_task(group_commit.wait_flushed(put.physical_offset + put.size, 60_000)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*waiting) == [True] * 5
        assert flushed == [store.max_physical_offset]


async def test_a_stream_of_messages_does_not_postpone_the_flush(tmp_path: Path) -> None:
    async with flushing(tmp_path) as (store, group_commit):

        async def message(number: int) -> bool:
            put = store.put(inner(), number)
            return await group_commit.wait_flushed(put.physical_offset + put.size, 60_000)

        first = asyncio.create_task(message(0))
        others = []
        while not first.done():
            others.append(asyncio.create_task(message(len(others))))
            await asyncio.sleep(0)
        assert first.result()
        assert all(await asyncio.gather(*others))
