"""Queue locks: which member of a consumer group may consume a queue in order.

A lock belongs to one client of one group until the client releases it, or until `LOCK_LIFE_MS` have passed since the
client last renewed it. Locks are kept in memory only: after a restart of the broker the first client to ask gets them.

Corresponds to `RebalanceLockManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from rucola.protocol.queue import MessageQueue

LOCK_LIFE_MS = 60_000


class QueueLockTable:
    """The queue locks of all groups. Belongs to the event loop."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        """By (group, queue): client id, and when it last locked the queue (milliseconds)."""

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock the queues that are free, and renew those that the client holds.

        Returns all of these, each once.
        """
        held = []
        for queue in dict.fromkeys(queues):
            # A free queue counts as held by this client since now.
            holder, locked_ms = self._holders.get((group, queue), (client_id, now_ms))
            if holder == client_id or now_ms - locked_ms > LOCK_LIFE_MS:
                self._holders[group, queue] = (client_id, now_ms)
                held.append(queue)
        return held

    def known(self, group: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the given queues of a group that have an entry, each once.

        An entry is a lock, which may have expired.
        """
        return [queue for queue in dict.fromkeys(queues) if (group, queue) in self._holders]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that the client holds."""
        for queue in queues:
            holder = self._holders.get((group, queue))
            if holder is not None and holder[0] == client_id:
                del self._holders[group, queue]

    def expire_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Drop locks that were not renewed for `LOCK_LIFE_MS`.

        Thus locks of lost clients take no memory. A generator of small steps (see `rucola.slices`).
        """
        for key in list(self._holders):
            holder = self._holders.get(key)
            if holder is not None and now_ms - holder[1] > LOCK_LIFE_MS:
                del self._holders[key]
            yield

    def __len__(self) -> int:
        return len(self._holders)
