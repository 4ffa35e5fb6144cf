"""Metadata part: the tables in `config/*.json`, and the registration of topics with the name servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from rucola.acl.credentials import credentials_of_file, default_credentials
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.background.registration import Registration
from rucola.broker.background.scheduler import Scheduler, in_thread
from rucola.broker.limits import Limits
from rucola.broker.tables.consumer_filters import ConsumerFilterTable
from rucola.broker.tables.discard import load_or_discard
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import CONSUMER_OFFSET_FILE, ConsumerOffsetTable, offset_paths, sound_offsets
from rucola.broker.tables.persistence import TablePersistence
from rucola.broker.tables.queue_locks import QueueLockTable
from rucola.broker.tables.request_modes import RequestModeTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.remoting.client import RemotingClient
from rucola.slices import in_slices

PERSIST_FILTERS_INTERVAL_MS = 10_000


class Metadata:
    """Tables, their persistence, and the client for requests to name servers and to the master."""

    def __init__(self, environment: BrokerEnvironment) -> None:
        config, directory = environment.config, environment.config_directory
        self._config = config
        self._directory = directory
        self._clock = environment.clock
        self.persistence = TablePersistence()
        self.limits = Limits(config)
        enable_lmq = environment.store_config.enable_lmq
        self.topics = TopicConfigTable(
            directory / "topics.json", config, self._on_topics_changed, self.limits, enable_lmq=enable_lmq
        )
        self.groups = SubscriptionGroupTable(
            directory / "subscriptionGroup.json", config, self._on_groups_changed, self.limits, enable_lmq=enable_lmq
        )
        self.offsets = ConsumerOffsetTable(*offset_paths(directory, enable_lmq=enable_lmq))
        self.filters = ConsumerFilterTable(directory / "consumerFilter.json", config, self.limits)
        self.locks = QueueLockTable(directory / "queueLocks.json", self._on_locks_changed)
        self.modes = RequestModeTable(directory / "messageRequestMode.json", self._on_modes_changed)
        file = config.credentials_file
        self.credentials = credentials_of_file(file) if file is not None else default_credentials()
        self.client = RemotingClient(tls=environment.client_tls, credentials=self.credentials)
        self.registration = Registration(config, self.topics, self.client)

    def open(self, running: AsyncExitStack, max_offset: Callable[[str, int], int] | None, log_end: int) -> None:
        """Load all tables; for the bounds see `ConsumerOffsetTable.load`. Raises StoreCorrupt."""
        running.push_async_callback(self.client.close)
        now_ms = self._clock()
        self._load("topics.json", lambda: self.topics.load(now_ms))
        self._load("subscriptionGroup.json", self.groups.load)
        name = self.offsets.source.name
        salvage = sound_offsets if name == CONSUMER_OFFSET_FILE else None
        self._load(name, lambda: self.offsets.load(max_offset, log_end), salvage)
        self._load("consumerFilter.json", lambda: self.filters.load(now_ms))
        self.locks.load(now_ms)
        self._load("messageRequestMode.json", self.modes.load)
        # All writes at the stop come after the scheduler has ended, see `assembly.startup`.
        running.push_async_callback(self._persist_filters)
        running.push_async_callback(self._persist_offsets)
        running.push_async_callback(self.persistence.stop, self.topics.snapshot_writer, self.groups.snapshot_writer)

    def _load(self, name: str, load: Callable[[], None], salvage: Callable[[Any], Any] | None = None) -> None:
        is_allowed = self._config.discard_damaged_config
        load_or_discard(self._directory / name, load, is_allowed=is_allowed, salvage=salvage)

    def schedule(self, scheduler: Scheduler) -> None:
        scheduler.every(self._config.flush_consumer_offset_interval, "persist consumer offsets", self._persist_offsets)
        scheduler.every(PERSIST_FILTERS_INTERVAL_MS, "persist consumer filters", self._persist_filters)
        scheduler.every(self._config.register_name_server_period, "register", self._register_again)

    async def register(self, running: AsyncExitStack) -> None:
        await self.registration.register()
        running.push_async_callback(self.registration.unregister)

    async def _register_again(self) -> None:
        self.registration.schedule()
        await self.registration.wait_registered()

    def _on_topics_changed(self) -> None:
        self.persistence.schedule(self.topics.snapshot_writer)
        self.registration.schedule()

    def _on_groups_changed(self) -> None:
        self.persistence.schedule(self.groups.snapshot_writer)

    def _on_locks_changed(self) -> None:
        self.persistence.schedule(self.locks.snapshot_writer)

    def _on_modes_changed(self) -> None:
        self.persistence.schedule(self.modes.snapshot_writer)

    async def _persist_offsets(self) -> None:
        await in_thread(await in_slices(self.offsets.snapshot_steps()))

    async def _persist_filters(self) -> None:
        await in_thread(await in_slices(self.filters.snapshot_steps(self._clock())))
