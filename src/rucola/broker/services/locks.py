"""Locks: queues that one member of a group consumes in order.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rucola.broker.queue_locks import QueueLockTable
from rucola.protocol.queue import MessageQueue


class LockService:
    """Locks and unlocks queues for members of groups."""

    def __init__(self, locks: QueueLockTable, clock: Callable[[], int]) -> None:
        self._locks = locks
        self._clock = clock

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock or renew queues for a client, and return those of them that it holds now."""
        return self._locks.lock(group, client_id, queues, self._clock())

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that the client holds."""
        self._locks.unlock(group, client_id, queues)
