"""A broker that reads the messages that have left its log from a lake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.store.message_store import MessageStore
from support.aging_broker import AGING, ClockAndDisk, aging_broker
from support.peer import Peer
from support.stores import sound_store
from support.waiting import until

SESSION = LazySession("tests", use_spark=False)
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 200}
TIME_MS = 1_700_006_399_000  # a second before midnight, UTC


def opened_store(path: Path) -> AbstractContextManager[MessageStore]:
    """The store of a tiered broker, opened before it."""
    return sound_store(path / "store", **AGING | SIZES)


def run_archive(path: Path) -> None:
    archive.run(SESSION, path / "store", path / "lake", broker_name="broker-a")


@asynccontextmanager
async def tiered_broker(
    path: Path, tiered_read_timeout: int = 60_000, **more: Any
) -> AsyncIterator[tuple[Peer, ClockAndDisk]]:
    """A broker that reads its lake; a full disk has it delete what is archived."""
    store = {
        "delete_only_archived": True,
        "archive_progress_path": path / "lake" / "_rucola" / "progress.json",
        "archive_name": "broker-a",
        **SIZES,
    }
    settings = {"tiered_reads": True, "tiered_read_timeout": tiered_read_timeout} | more
    async with aging_broker(path / "store", store=store, **settings) as opened:
        yield opened


async def delete_archived(peer: Peer, world: ClockAndDisk, begin: int) -> None:
    """Wait until the log has no message of the queue before an offset."""
    assert peer.broker.parts is not None
    store = peer.broker.parts.storage.store
    world.percent = 86
    await until(lambda: store.min_offset("T", 0) >= begin)
    world.percent = 50
