"""Retention task: measures the disks periodically and deletes expired files.

Every cleanResourceInterval it runs one round of `rucola.store.retention`: files are deleted one by one in a thread,
deleteCommitLogFilesInterval apart, then the queues of deleted topics that are empty by now.

Corresponds to the tasks of `DefaultMessageStore.addScheduleTask` in Apache RocketMQ 4.9.8. Deliberate difference: the
disks are measured at the start, so that a full disk refuses the first message; Apache does so after one second.
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
"""Returns the usage of the file system of an existing path. Raises OSError; may block."""


def disk_usage(path: Path) -> DiskUsage:
    """Usage as computed by `df`."""
    figures = os.statvfs(path)
    # df leaves the blocks reserved for root out of the total, so that a disk which refuses writes counts as 100 % full.
    used = (figures.f_blocks - figures.f_bfree) * figures.f_frsize
    return DiskUsage(path, used, used + figures.f_bavail * figures.f_frsize)


def disks_of(config: StoreConfig, probe_disk: DiskUsageProbe) -> tuple[DiskUsage, DiskUsage]:
    """Return the usage of the disks of the CommitLog and of the store directory. Raises OSError; may block."""
    log = config.commit_log_directory
    while not log.exists():  # the directory is created by the first put
        log = log.parent
    return probe_disk(log), probe_disk(Path(config.store_path_root_dir))


class RetentionTask:
    """Applies the retention of one store. All methods must be called in its event loop.

    `prepare_delete` moves messages out of the file to delete; if it returns False, no file is deleted in this round.
    `checkpoint` makes all queues durable before that: after a power failure, a queue that lacks units of deleted
    records would not continue with the log.
    """

    def __init__(
        self,
        config: StoreConfig,
        store: MessageStore,
        clock: Callable[[], int],
        probe_disk: DiskUsageProbe,
        prepare_delete: Callable[[], Awaitable[bool]],
        checkpoint: Callable[[], Awaitable[None]],
        delete_unused_queues: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._probe_disk = probe_disk
        self._prepare_delete = prepare_delete
        self._checkpoint = checkpoint
        self._delete_unused_queues = delete_unused_queues
        self._cleaned_begin = -1
        """The log start offset at the last deletion of queues."""

    async def check_disks(self) -> None:
        """Report the time, the local hour and the disk usage to the store. Raises OSError."""
        disks = await in_thread(disks_of, self._config, self._probe_disk)
        now_ms = self._clock()
        self._store.begin_retention_round(now_ms, time.localtime(now_ms / 1000).tm_hour, disks)

    async def run(self) -> None:
        """Run one round. Raises OSError."""
        await self.check_disks()
        await self._delete_files()
        if self._cleaned_begin != (begin := self._store.min_physical_offset):
            await self._delete_unused_queues()
            self._cleaned_begin = begin

    async def _delete_files(self) -> None:
        # One file per iteration: messages are moved, the file leaves the log, a thread deletes it. The pause keeps the
        # deletion of large files from saturating the disk.
        while True:
            now_ms = self._clock()
            is_due = self._store.will_expire(now_ms)
            if is_due:
                if not await self._prepare_delete():
                    return
                await self._checkpoint()
            if not self._store.expire(now_ms, is_due=is_due):
                return
            await in_thread(self._store.delete_expired)
            await asyncio.sleep(self._config.delete_commit_log_files_interval / 1000)
