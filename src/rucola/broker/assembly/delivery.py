"""Delivery part: delay levels, timer messages, transactions, and the puts that the broker makes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.scheduler import DueTask, Scheduler
from rucola.broker.delivery.delay import ScheduleMessageService
from rucola.broker.delivery.due_delivery import DueDelivery
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.kinds import DeliveryKinds
from rucola.broker.delivery.pop import PopConsumerService
from rucola.broker.delivery.progress import Delivery
from rucola.broker.delivery.rolling import roll
from rucola.broker.delivery.timer import TimerMessageService
from rucola.broker.delivery.transaction_check import TransactionCheckService
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.interceptors import may_receive
from rucola.broker.replication.side import Replication
from rucola.broker.tables.discard import load_or_discard
from rucola.message.delay import parse_delay_levels
from rucola.slices import in_slices
from rucola.store.dispatch import TopicArrivals

PERSIST_INTERVAL_MS = 10_000
DETACH_INTERVAL_MS = 10_000


class DeliveryServices:
    """The delivery services, each with the task that wakes it. A slave builds but does not start them."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        access: Access,
        storage: Storage,
        metadata: Metadata,
        connections: Connections,
    ) -> None:
        config, clock, directory = environment.config, environment.clock, environment.config_directory
        store, offsets = storage.store, metadata.offsets
        delays_ms = parse_delay_levels(environment.store_config.message_delay_level)
        self._environment = environment
        self._clock = clock
        self._storage = storage
        self._replication: Replication | None = None
        self.puts = InternalPuts(store, lambda due_ms: self._buffered_puts.schedule_at(due_ms))
        self._buffered_puts = DueTask("buffered puts", lambda: self.puts.put_buffered(clock()), clock)
        self.kinds = DeliveryKinds(
            ScheduleMessageService(store, self.puts, metadata.topics, delays_ms, directory),
            TimerMessageService(store, self.puts, metadata.topics, directory),
            TransactionalMessageService(config, store, self.puts, metadata.topics, offsets, len(delays_ms)),
            PopConsumerService(store, storage.tiered, self.puts, metadata.topics, metadata.groups, offsets),
        )
        self._revival = DueTask("revival of POP", lambda: self.kinds.pop.revive(clock()), clock)
        self.kinds.pop.on_due = self._revival.schedule_at
        due: tuple[DueDelivery[Any], ...] = (self.kinds.delayed, self.kinds.timers)
        self._due = [(kind, DueTask(f"delivery of {kind.name}", partial(self._deliver, kind), clock)) for kind in due]
        self._persisting = asyncio.Lock()
        """Keeps the periodic task and retention from writing older offsets over newer ones."""
        self._transaction_check = TransactionCheckService(
            self.kinds.transactions, connections.clients, connections.producer_calls, clock,
            may_receive(access.interceptor), self._persist,
        )  # fmt: skip

    def open(self, running: AsyncExitStack, replication: Replication) -> None:
        """Load all progress. Raises StoreCorrupt. At the stop: end tasks, write offsets, put what is buffered."""
        self._replication = replication
        # Registered first, so unwound last: requests may buffer puts until the server has stopped.
        running.callback(lambda: self.puts.close(self._clock()))
        running.callback(self._buffered_puts.stop)
        for kind in self.kinds:
            if kind.file is not None:
                load_or_discard(kind.file.path, kind.load, is_allowed=self._environment.config.discard_damaged_config)
            elif not self._environment.is_slave:
                kind.load()
        if self._environment.is_slave:
            return
        running.push_async_callback(self._persist)
        for task in (self._revival, *(task for _, task in self._due)):
            running.callback(task.stop)
        self._storage.subscribe(self._on_arrival)

    def start(self, scheduler: Scheduler) -> None:
        if self._environment.is_slave:
            return
        scheduler.every(PERSIST_INTERVAL_MS, "persist delivery offsets", self._persist)
        interval_ms = self._environment.config.transaction_check_interval
        scheduler.every(interval_ms, "check transactions", self._transaction_check.run)
        scheduler.every(DETACH_INTERVAL_MS, "detach POP", self._detach_pop)
        for task in (self._revival, *(task for _, task in self._due)):
            task.schedule_at(self._clock())

    async def prepare_delete(self) -> bool:
        """Roll the messages of the oldest log file, flush the copies, write the progress; False if that failed."""
        if self._environment.is_slave:
            return self._replication is not None and self._replication.may_delete_oldest()
        return await roll(self._storage.store, self.kinds, self._clock) and await self._persist()

    def _on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        for kind, task in self._due:
            if (arrivals := topics.get(kind.topic)) is not None:
                queues, due_times_ms, _ = arrivals
                kind.on_arrival(queues[0].max_offset, due_times_ms)
                task.schedule_at(min(due_times_ms))

    async def _persist(self) -> bool:
        store, timeout_ms = self._storage.store, self._environment.store_config.sync_flush_timeout
        async with self._persisting:
            progress: list[tuple[Delivery[Any], Any]] = [(kind, kind.progress()) for kind in self.kinds]
            log_end = store.max_physical_offset
            is_flushed = await self._storage.group_commit.wait_flushed(log_end, timeout_ms)
            if not is_flushed or store.write_state.failure is not None:
                return False
            for kind, delivered in progress:
                await kind.persist(delivered, log_end)
            return True

    async def _detach_pop(self) -> None:
        await in_slices(self.kinds.pop.detach_steps(self._clock()))

    def _deliver(self, kind: DueDelivery[Any]) -> int | None:
        return kind.deliver(self._clock())
