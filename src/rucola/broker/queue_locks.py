"""QueueLocks: which member of a group may consume a queue in order.

A lock belongs to one client of one group until it is given back, or until `LOCK_LIFE_MS` have passed since the client
last asked for it. Locks live in memory only: after a restart of the broker the first who asks gets them.

Answers to `RebalanceLockManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Iterable

from rucola.protocol.queue import MessageQueue

LOCK_LIFE_MS = 60_000


class QueueLocks:
    """The locks of all groups."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Take or renew what is free or this client's own, and return the queues that it holds now, each once."""
        held = []
        for queue in dict.fromkeys(queues):
            holder, asked_ms = self._holders.get((group, queue), (client_id, now_ms))
            if holder == client_id or now_ms - asked_ms > LOCK_LIFE_MS:
                self._holders[group, queue] = (client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give back those of the queues that this client holds."""
        for queue in queues:
            holder = self._holders.get((group, queue))
            if holder is not None and holder[0] == client_id:
                del self._holders[group, queue]

    def expire(self, now_ms: int) -> None:
        """Forget the locks whose time is up, so that none is kept for clients that are gone."""
        for key, (_, asked_ms) in list(self._holders.items()):
            if now_ms - asked_ms > LOCK_LIFE_MS:
                del self._holders[key]

    def __len__(self) -> int:
        return len(self._holders)
