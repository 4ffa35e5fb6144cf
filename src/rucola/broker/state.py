"""BrokerState: the parts of a broker that its services share.

The event loop owns all of it: no part may be used from another thread unless its docstring allows that.

Corresponds to the getters of `BrokerController` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.client_registry import ClientRegistry
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.delay import ScheduleMessageService
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.pop import PopConsumerService
from rucola.broker.delivery.timer import TimerMessageService
from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.broker.limits import Limits
from rucola.broker.mastership import Mastership
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.consumer_filters import ConsumerFilterTable
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.persistence import TablePersistence
from rucola.broker.tables.queue_locks import QueueLockTable
from rucola.broker.tables.request_modes import RequestModeTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.broker.tiered_store import TieredStore
from rucola.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Settings, store, tables, connected clients and statistics of one broker."""

    config: BrokerConfig
    limits: Limits
    store: MessageStore
    tiered: TieredStore
    mastership: Mastership
    puts: InternalPuts
    topics: TopicConfigTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    filters: ConsumerFilterTable
    persistence: TablePersistence
    """A response to a change of a table waits for it."""
    clients: ClientRegistry
    locks: QueueLockTable
    modes: RequestModeTable
    delayed: ScheduleMessageService
    timers: TimerMessageService
    transactions: TransactionalMessageService
    pop: PopConsumerService
    stats: BrokerStats
    clock: Callable[[], int]

    @property
    def delay_level_count(self) -> int:
        return self.delayed.level_count
