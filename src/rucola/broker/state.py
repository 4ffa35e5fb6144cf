"""BrokerState: what the processors of a broker work on, beside what is a subject's own.

Answers to the getters of `BrokerController` of Apache RocketMQ 4.9.8 that every processor there calls; here nobody can
reach the broker's machinery through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.client_registry import Clients
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.consumer_filters import ConsumerFilterTable
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.persistence import TablePersistence
from rucola.broker.tables.topics import TopicConfigTable
from rucola.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Settings, store, tables, connected clients, statistics, and the time (milliseconds since 1970)."""

    config: BrokerConfig
    store: MessageStore
    puts: InternalPuts
    topics: TopicConfigTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    filters: ConsumerFilterTable
    persistence: TablePersistence
    clients: Clients
    stats: BrokerStats
    clock: Callable[[], int]
