"""Locks: queues that one member of a group consumes in order.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Sequence

from rucola.broker.state import BrokerState
from rucola.domain.queue import MessageQueue, QueueLocks


class LockService:
    def __init__(self, state: BrokerState) -> None:
        self._locks = state.locks
        self._clients = state.clients
        self._limits = state.limits
        self._config = state.config
        self._clock = state.clock

    def lock(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Lock or renew queues; return those that the client holds. Refused if maxQueueLocks leaves it without any."""
        limits, limit = self._limits, self._config.max_queue_locks
        limits.check_name(group, "a consumer group")
        limits.check_name(client_id, "a client")
        for topic, broker_name in {(queue.topic, queue.broker_name) for queue in queues}:
            limits.check_name(topic, "a topic")
            limits.check_name(broker_name, "a broker")
        if len(self._locks) + len(queues) <= limit:
            return self._locks.lock(group, client_id, queues, self._clock())
        known = self._locks.known(group, queues)
        added = len(set(queues)) - len(known)
        if len(self._locks) + added <= limit:
            return self._locks.lock(group, client_id, queues, self._clock())
        held = self._locks.lock(group, client_id, known, self._clock())
        if not held:
            found = f"{added} queues of group {group} are not locked beside {len(self._locks)} others"
            raise limits.refused("maxQueueLocks", limit, found)
        return held

    def unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Release queues; the clients that were refused their locks are notified, so that they request them again."""
        for refused in self._locks.unlock(group, client_id, queues):
            self._clients.notify_client(group, refused)

    def all(self, known_version: str | None) -> tuple[str, QueueLocks | None]:
        """Return the version of the table, and all locks unless it is `known_version`."""
        version = self._locks.version
        return version, None if version == known_version else self._locks.all()
