"""Group commit: which waiters share a flush, and how long a flush is delayed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config, inner


def with_group_commit(path: Path, talk: Any) -> None:
    async def run() -> None:
        sizes = {"mapped_file_size_commit_log": 64 << 20, "mapped_file_size_consume_queue": 6_000_000}
        with MessageStore(config(path, **sizes)) as store:
            group_commit = GroupCommit(store)
            try:
                async with asyncio.timeout(60):
                    await talk(store, group_commit)
            finally:
                await group_commit.stop()

    asyncio.run(run())
    assert check(path) == []


def test_waiters_of_successive_iterations_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(store: MessageStore, group_commit: GroupCommit) -> None:
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

    with_group_commit(tmp_path, talk)


def test_a_stream_of_messages_does_not_delay_a_flush_forever(tmp_path: Path) -> None:
    async def talk(store: MessageStore, group_commit: GroupCommit) -> None:
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

    with_group_commit(tmp_path, talk)
