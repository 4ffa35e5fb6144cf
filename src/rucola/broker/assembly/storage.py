"""Storage part: the message store, its dispatch, group commit and retention."""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.background.retention import RetentionTask
from rucola.broker.background.scheduler import ReputService, Scheduler, in_thread
from rucola.broker.lake_reader import LakeReader
from rucola.broker.mastership import Mastership
from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.broker.tiered_store import TieredStore, lake_of
from rucola.store.dispatch import TopicArrivals
from rucola.store.epoch_file import EpochFile
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_MS = 1000

DESCRIPTOR_TABLE_SIZE = 1 << 16
"""Files that a process can map with the default vm.max_map_count; the table uses half a megabyte."""

OPEN_MAX = 10_240

ArrivalListener = Callable[[Mapping[str, TopicArrivals]], None]
"""Called after each dispatch with the new messages by topic, which can be read by then."""


class Storage:
    def __init__(self, environment: BrokerEnvironment, hold: PullRequestHold, pops: PopHold) -> None:
        self._environment = environment
        self._arrival_listeners: list[ArrivalListener] = []
        self.store = MessageStore(environment.store_config, self._on_arrival, self._on_pending)
        self.tiered = TieredStore(self.store, timeout_ms=environment.config.tiered_read_timeout)
        self.tiered.listeners += hold.tiered_read, pops.arrived
        self.group_commit = GroupCommit(self.store)
        self.reput = ReputService(self.store, hold, pops)
        self._mastership: Mastership | None = None

    async def open(self, running: AsyncExitStack) -> None:
        """Open the store in a thread: recovery may read the whole log. Raises StoreError."""
        # First the callback: a cancelled start waits for the thread, and closes what it has opened.
        running.push_async_callback(in_thread, self.store.close)
        await in_thread(self.store.open, self._environment.clock())
        config = self._environment.config
        if config.tiered_reads:
            self.tiered.reader = LakeReader(
                *lake_of(self._environment.store_config), config.tiered_read_catalog or None
            )
            running.push_async_callback(self.tiered.close)
        epochs = await in_thread(self._open_epochs)
        self._mastership = Mastership(self.store, epochs, is_elected=self._environment.coordination is not None)
        running.push_async_callback(self.group_commit.stop)
        # Closing the store dispatches what is pending in its own thread; the loop must not do it concurrently.
        running.callback(self.reput.stop)

    @property
    def mastership(self) -> Mastership:
        """The epochs of the log, and the mastership of this broker; after `open`."""
        assert self._mastership is not None
        return self._mastership

    def _open_epochs(self) -> EpochFile:
        epochs = EpochFile(Path(self._environment.store_config.store_path_root_dir))
        epochs.limit(self.store.min_physical_offset, self.store.max_physical_offset)
        return epochs

    def subscribe(self, listener: ArrivalListener) -> None:
        self._arrival_listeners.append(listener)

    async def start(
        self,
        scheduler: Scheduler,
        prepare_delete: Callable[[], Awaitable[bool]],
        delete_unused_queues: Callable[[], Awaitable[None]],
    ) -> None:
        """Measure the disks, then schedule flush, checkpoint and retention (callables: see `RetentionTask`)."""
        config = self._environment.store_config
        clock, probe_disk = self._environment.clock, self._environment.probe_disk
        checkpoint = partial(self.group_commit.checkpoint, None)
        retention = RetentionTask(
            config, self.store, clock, probe_disk, prepare_delete, checkpoint, delete_unused_queues
        )
        await retention.check_disks()
        scheduler.every(config.flush_interval_commit_log, "flush", self.group_commit.start_flush)
        scheduler.every(CHECKPOINT_INTERVAL_MS, "checkpoint", self.group_commit.checkpoint)
        scheduler.every(config.clean_resource_interval, "retention", retention.run)

    def _on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        # Called once per dispatch, not per message. The units are written: a listener that fails is no failed dispatch.
        for listener in self._arrival_listeners:
            try:
                listener(topics)
            except Exception:
                logger.exception("a listener for new messages failed")

    def _on_pending(self) -> None:
        self.reput.on_pending()


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the system's maximum, and grow the descriptor table once.

    Otherwise each doubling of the table makes the thread that opens a file wait 10 ms for an RCU grace period.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_MAX, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = DESCRIPTOR_TABLE_SIZE if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTOR_TABLE_SIZE)
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, size - 1))
    finally:
        os.close(descriptor)
