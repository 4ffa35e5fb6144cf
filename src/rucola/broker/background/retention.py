"""Cleaning: winds the store's retention, and asks the system what retention must be told.

Every cleanResourceInterval the disks and the hour of this machine are looked at, and a round of
`rucola.store.retention` runs: file by file, with a pause of deleteCommitLogFilesInterval between, each removed in a
thread. The first look is at the start, so that a broker on a full disk takes no message at all.

Answers to the tasks of `DefaultMessageStore.addScheduleTask` in Apache RocketMQ 4.9.8, where the first look comes
after a second, and the first round after a minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rucola.broker.background.scheduler import in_thread
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage

DiskUsageProbe = Callable[[Path], DiskUsage]
"""Says how full the file system of an existing path is. Raises OSError. May wait for the disk."""


def disk_usage(path: Path) -> DiskUsage:
    """How full the file system of a path is, as df counts it."""
    figures = os.statvfs(path)
    used = (figures.f_blocks - figures.f_bfree) * figures.f_frsize
    return DiskUsage(path, used, used + figures.f_bavail * figures.f_frsize)


class RetentionTask:
    """Cleans one store. Belongs to its event loop.

    `prepare_delete` is awaited before each file of the log: it brings to safety what must not go with the oldest,
    and says
    whether that is done.
    """

    def __init__(
        self,
        config: StoreConfig,
        store: MessageStore,
        clock: Callable[[], int],
        probe_disk: DiskUsageProbe,
        prepare_delete: Callable[[], Awaitable[bool]],
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._probe_disk = probe_disk
        self._prepare_delete = prepare_delete

    async def check_disks(self) -> None:
        """Tell the store the time, the hour and how full its disks are; a round of retention begins with that."""
        disks = await in_thread(self._disks)
        now_ms = self._clock()
        self._store.begin_retention_round(now_ms, time.localtime(now_ms / 1000).tm_hour, disks)

    async def run(self) -> None:
        """One round, from the look to the last file that goes. Raises OSError."""
        await self.check_disks()
        while await self._prepare_delete() and self._store.expire(self._clock()):
            await in_thread(self._store.delete_expired)
            await asyncio.sleep(self._config.delete_commit_log_files_interval / 1000)

    def _disks(self) -> list[DiskUsage]:
        log = self._config.commit_log_directory
        while not log.exists():
            log = log.parent  # nothing was stored yet
        return [self._probe_disk(path) for path in dict.fromkeys((log, Path(self._config.store_path_root_dir)))]
