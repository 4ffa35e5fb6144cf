"""Delivery part: delay levels, timer messages, transactions, and the puts that the broker makes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.replication import Replication
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.scheduler import DueTask, Scheduler, in_thread
from rucola.broker.delivery.delay import DELAY_OFFSET_FILE, PERSIST_INTERVAL_MS, ScheduleMessageService
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.rolling import roll
from rucola.broker.delivery.timer import TIMER_FILE, TimerMessageService
from rucola.broker.delivery.transaction_check import TransactionCheckService
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.interceptors import may_receive
from rucola.broker.tables.discard import load_or_discard
from rucola.message.delay import parse_delay_levels
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.store.dispatch import TopicArrivals


class DeliveryServices:
    """The delivery services, each with the task that wakes it. A slave builds but does not start them."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        access: Access,
        storage: Storage,
        metadata: Metadata,
        connections: Connections,
        replication: Replication,
    ) -> None:
        config, clock, directory = environment.config, environment.clock, environment.config_directory
        store, offsets = storage.store, metadata.offsets
        delays_ms = parse_delay_levels(environment.store_config.message_delay_level)
        self._environment = environment
        self._clock = clock
        self._storage = storage
        self._replication = replication
        self.puts = InternalPuts(store, self._on_buffered)
        self._buffered_puts = DueTask("buffered puts", self._put_buffered, clock)
        self.delayed = ScheduleMessageService(
            store, self.puts, metadata.topics, delays_ms, directory / DELAY_OFFSET_FILE
        )
        self._delayed_delivery = DueTask("delayed delivery", self._deliver_delayed, clock)
        self._timers = TimerMessageService(store, self.puts, metadata.topics, directory / TIMER_FILE)
        self._timer_delivery = DueTask("timer delivery", self._deliver_timers, clock)
        self.transactions = TransactionalMessageService(
            config, store, self.puts, metadata.topics, offsets, len(delays_ms)
        )
        self._persisting = asyncio.Lock()
        """Keeps the periodic task and retention from writing older offsets over newer ones."""
        self._transaction_check = TransactionCheckService(
            self.transactions, store, offsets, connections.clients, connections.calls, storage.group_commit, clock,
            may_receive(access.interceptor),
        )  # fmt: skip

    def open(self, running: AsyncExitStack) -> None:
        """Load all progress. Raises StoreCorrupt. At the stop: end tasks, write offsets, put what is buffered."""
        # Registered first, so unwound last: requests may buffer puts until the server has stopped.
        running.callback(self._close_puts)
        running.callback(self._buffered_puts.stop)
        is_allowed, directory = self._environment.config.discard_damaged_config, self._environment.config_directory
        load_or_discard(directory / DELAY_OFFSET_FILE, self.delayed.load, is_allowed=is_allowed)
        load_or_discard(directory / TIMER_FILE, self._timers.load, is_allowed=is_allowed)
        if self._environment.is_slave:
            return
        running.push_async_callback(self._persist)
        running.callback(self._delayed_delivery.stop)
        running.callback(self._timer_delivery.stop)
        self.transactions.load()
        running.push_async_callback(self._transaction_check.commit_offsets)
        self._storage.subscribe(self._on_arrival)

    def start(self, scheduler: Scheduler) -> None:
        if self._environment.is_slave:
            return
        scheduler.every(PERSIST_INTERVAL_MS, "persist delivery offsets", self._persist)
        interval_ms = self._environment.config.transaction_check_interval
        scheduler.every(interval_ms, "check transactions", self._transaction_check.run)
        now_ms = self._clock()
        self._delayed_delivery.schedule_at(now_ms)
        self._timer_delivery.schedule_at(now_ms)

    async def prepare_delete(self) -> bool:
        """Roll the messages of the oldest log file, flush the copies, write the progress; False if that failed."""
        if self._environment.is_slave:
            return self._replication.may_delete_oldest()
        services = (self.delayed, self._timers, self.transactions)
        return (
            await roll(self._storage.store, services, self._clock)
            and await self._persist()
            and await self._transaction_check.commit_offsets()
        )

    def _on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        # In both topics the tags code of a unit is a due time.
        if (timers := topics.get(TIMER_TOPIC)) is not None:
            queues, due_times_ms, _ = timers
            self._timers.on_arrival(queues[0].max_offset, due_times_ms)
            self._timer_delivery.schedule_at(min(due_times_ms))
        if (delayed := topics.get(SCHEDULE_TOPIC)) is not None:
            self._delayed_delivery.schedule_at(min(delayed[1]))

    async def _persist(self) -> bool:
        store, timeout_ms = self._storage.store, self._environment.store_config.sync_flush_timeout
        async with self._persisting:
            offsets, checkpoint, log_end = self.delayed.offsets(), self._timers.checkpoint(), store.max_physical_offset
            is_flushed = await self._storage.group_commit.wait_flushed(log_end, timeout_ms)
            if not is_flushed or store.write_state.failure is not None:
                return False
            await in_thread(self.delayed.persist, offsets, log_end)
            await in_thread(self._timers.persist, checkpoint, log_end)
            return True

    def _on_buffered(self, due_ms: int) -> None:
        self._buffered_puts.schedule_at(due_ms)

    def _put_buffered(self) -> int | None:
        return self.puts.put_buffered(self._clock())

    def _close_puts(self) -> None:
        self.puts.close(self._clock())

    def _deliver_delayed(self) -> int | None:
        return self.delayed.deliver(self._clock())

    def _deliver_timers(self) -> int | None:
        return self._timers.deliver(self._clock())
