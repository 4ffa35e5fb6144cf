"""Flush: whom it lets wait, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.background.group_commit import GroupCommit
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support.stores import config, inner


def flushing(path: Path, talk: Any) -> None:
    async def run() -> None:
        sizes = {"mapped_file_size_commit_log": 64 << 20, "mapped_file_size_consume_queue": 6_000_000}
        with MessageStore(config(path, **sizes)) as store:
            flush = GroupCommit(store)
            try:
                async with asyncio.timeout(60):
                    await talk(store, flush)
            finally:
                await flush.stop()

    asyncio.run(run())
    assert check(path) == []


def test_who_comes_turn_by_turn_shares_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(store: MessageStore, flush: GroupCommit) -> None:
        flushed: list[int] = []
        sync = store.flush

        def note() -> None:
            flushed.append(store.max_physical_offset)
            sync()

        monkeypatch.setattr(store, "flush", note)
        waiting = []
        for number in range(5):
            put = store.put(inner(), number)
            waiting.append(asyncio.create_task(flush.wait_flushed(put.physical_offset + put.size, 60_000)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*waiting) == [True] * 5
        assert flushed == [store.max_physical_offset]

    flushing(tmp_path, talk)


def test_a_stream_of_messages_does_not_put_a_flush_off(tmp_path: Path) -> None:
    async def talk(store: MessageStore, flush: GroupCommit) -> None:
        async def message(number: int) -> bool:
            put = store.put(inner(), number)
            return await flush.wait_flushed(put.physical_offset + put.size, 60_000)

        first = asyncio.create_task(message(0))
        others = []
        while not first.done():
            others.append(asyncio.create_task(message(len(others))))
            await asyncio.sleep(0)
        assert first.result()
        assert all(await asyncio.gather(*others))

    flushing(tmp_path, talk)
