"""Serving part: the processors of all request codes, the queue locks, and flow control."""

from __future__ import annotations

import time

from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.delivery import Delivery
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.metadata import Metadata
from rucola.broker.assembly.replication import Replication
from rucola.broker.assembly.storage import Storage
from rucola.broker.background.scheduler import Scheduler
from rucola.broker.flow_control import TICK_MS, Congestion
from rucola.broker.queue_locks import QueueLocks
from rucola.broker.remoting.cleaning import CleaningProcessor
from rucola.broker.remoting.connections import ConnectionProcessor
from rucola.broker.remoting.group import GroupProcessor
from rucola.broker.remoting.heartbeat import HeartbeatProcessor
from rucola.broker.remoting.lock import LockProcessor
from rucola.broker.remoting.offset import OffsetProcessor
from rucola.broker.remoting.pull import PullProcessor
from rucola.broker.remoting.query import QueryProcessor
from rucola.broker.remoting.reply import ReplyProcessor
from rucola.broker.remoting.runtime import RuntimeProcessor
from rucola.broker.remoting.send import SendProcessor
from rucola.broker.remoting.send_back import SendBackProcessor
from rucola.broker.remoting.slave import SlaveProcessor
from rucola.broker.remoting.topic import TopicProcessor
from rucola.broker.remoting.transaction import TransactionProcessor
from rucola.broker.state import BrokerState
from rucola.remoting.connection import Processor

TOUCH_PAGES_INTERVAL_MS = 100
EXPIRE_LOCKS_INTERVAL_MS = 10_000


class Serving:
    """The state that all processors share, and the table of processors.

    `state` and `runtime` are also the sources of the metrics.
    """

    def __init__(
        self,
        environment: BrokerEnvironment,
        metadata: Metadata,
        connections: Connections,
        storage: Storage,
        delivery: Delivery,
        replication: Replication,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._connections = connections
        self._store = storage.store
        self._locks = QueueLocks()
        self.state = BrokerState(
            environment.config,
            storage.store,
            delivery.puts,
            metadata.topics,
            metadata.groups,
            metadata.offsets,
            metadata.filters,
            metadata.persistence,
            connections.clients,
            connections.stats,
            environment.clock,
        )
        self.runtime = RuntimeProcessor(
            environment.config,
            environment.store_config,
            storage.store,
            metadata.topics,
            metadata.registration,
            connections.stats,
            delivery.delayed,
            environment.clock,
            environment.config_file,
        )
        connections.processors |= self._build_processors(delivery, replication)
        storage.subscribe(connections.on_arrival)

    def schedule(self, scheduler: Scheduler) -> None:
        """Schedule flow control, the page toucher that it watches, and the expiry of locks."""
        clock, store = self._environment.clock, self._store
        flow_control = Congestion(self._environment.config, self._connections.processors, _monotonic_ms)
        scheduler.every(TICK_MS, "flow control", flow_control.tick)
        scheduler.every(TOUCH_PAGES_INTERVAL_MS, "touch pages", lambda: flow_control.touch(store.warm))
        scheduler.every(EXPIRE_LOCKS_INTERVAL_MS, "expire locks", lambda: self._locks.expire(clock()))

    def _build_processors(self, delivery: Delivery, replication: Replication) -> dict[int, Processor]:
        """Return the processor of each request code. On a slave, later entries replace those of the master."""
        environment, metadata, state = self._environment, self._metadata, self.state
        config, store, clock = environment.config, self._store, environment.clock
        send = SendProcessor(
            config,
            environment.store_config,
            store,
            metadata.topics,
            metadata.groups,
            metadata.registration,
            metadata.persistence,
            replication.durability,
            delivery.level_count,
            delivery.transactions,
            clock,
        )
        tables = [
            send.table(),
            ReplyProcessor(state, send).table(),
            SendBackProcessor(state, delivery.level_count).table(),
            TransactionProcessor(delivery.transactions, clock).table(),
            PullProcessor(state, self._connections.hold).table(),
            QueryProcessor(config, store).table(),
            OffsetProcessor(store, metadata.offsets, delivery.delayed).table(),
            HeartbeatProcessor(state).table(),
            LockProcessor(self._locks, clock).table(),
            TopicProcessor(state, metadata.registration).table(),
            GroupProcessor(state).table(),
            CleaningProcessor(store, metadata.topics).table(),
            ConnectionProcessor(state).table(),
            self.runtime.table(),
        ]
        # Every code appears once, except on a slave.
        table: dict[int, Processor] = {}
        for codes in tables:
            table |= codes
        if environment.is_slave:
            table |= SlaveProcessor(metadata.registration).table()  # refuses what only a master may change
        return table


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
