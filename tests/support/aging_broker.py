"""A broker whose clock and disk usage the test sets, so that files expire."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.store.config import StoreConfig
from rucola.store.retention import DiskUsage
from support.broker_peer import broker_peer
from support.cluster import SMALL_FILES
from support.peer import Peer
from support.stores import HOST

NOON_MS = int(time.mktime((2026, 1, 10, 12, 0, 0, 0, 0, -1))) * 1000


class ClockAndDisk:
    """The time, and how full the disk is."""

    def __init__(self) -> None:
        self.now_ms = NOON_MS
        self.percent = 50
        self.probes = 0
        """How often the disk was measured: twice at the start, and twice a round of retention, for log and store."""

    def clock(self) -> int:
        return self.now_ms

    def probe_disk(self, path: Path) -> DiskUsage:
        self.probes += 1
        return DiskUsage(path, self.percent << 30, 100 << 30)


AGING: dict[str, Any] = SMALL_FILES | {
    "mapped_file_size_commit_log": 4096, "clean_file_forcibly_enable": True, "clean_resource_interval": 5,
    "delete_commit_log_files_interval": 1,
}  # fmt: skip
"""Settings of a store whose files expire soon."""


def store_config(path: Path, **more: Any) -> StoreConfig:
    """The same settings, of a store that no broker serves yet."""
    return StoreConfig(path, HOST, **AGING | more)


@asynccontextmanager
async def aging_broker(
    path: Path, world: ClockAndDisk | None = None, store: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Peer, ClockAndDisk]]:
    """A broker with a clock and a disk of the test's, and a peer of it; `store` are settings of the store."""
    world = world or ClockAndDisk()
    async with broker_peer(path, AGING | (store or {}), world.clock, world.probe_disk, **settings) as peer:
        yield peer, world
