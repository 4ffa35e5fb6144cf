"""Queues of topics: their names, ends and locks. Corresponds to `MessageQueue` of Apache RocketMQ 4.9.8."""

from __future__ import annotations

import msgspec


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A queue, ordered for rebalance."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class TopicOffset(msgspec.Struct, rename="camel", kw_only=True):
    """The ends of a queue, and its newest store time (ms); 0 if empty."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class LockedQueues(msgspec.Struct, rename="camel", kw_only=True):
    """Queues that a client of a group has locked, or asks to lock or unlock."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class QueueLocks(msgspec.Struct, rename="camel", kw_only=True):
    """The locked queues of each client and group."""

    locks: list[LockedQueues] = []
