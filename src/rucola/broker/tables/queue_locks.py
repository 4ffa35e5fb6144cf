"""Queue locks: which member of a consumer group may consume a queue in order; `config/queueLocks.json`.

A lock belongs to one client of one group until the client releases it, or has not renewed it for `LOCK_LIFE_MS`. The
holders are in a file, so that a restarted broker grants their queues to no other client while they may still be
consuming: clients trust a lock for `CLIENT_TRUST_MS` after they renewed it.

Corresponds to `RebalanceLockManager` of Apache RocketMQ 4.9.8. Deliberate differences: Apache's locks are in memory
only, and after a restart the first member to ask gets the queues of all others. When a lock is released, the client
that was refused it last is notified here; members of Apache's client would ask again 20 s later.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import msgspec

from rucola import fastjson
from rucola.domain.queue import LockedQueues, MessageQueue, QueueLocks
from rucola.errors import RemoteProtocolError, StoreCorrupt
from rucola.store.config_files import ConfigFile

logger = logging.getLogger(__name__)

LOCK_LIFE_MS = 60_000
CLIENT_TRUST_MS = 30_000
"""How long Apache's clients and Rucola's deliver from a queue after they renewed its lock."""


class QueueLockTable:
    """The queue locks of all groups. Belongs to the event loop. `on_change` is called when a lock's holder changes."""

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self._file = ConfigFile(path)
        self._on_change = on_change
        self._holders: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        """By (group, queue): client id, and when it last locked the queue (milliseconds)."""
        self._refused: dict[tuple[str, MessageQueue], str] = {}
        """By (group, queue) of held locks: the client that was refused the lock last."""
        self._incarnation = secrets.token_hex(8)
        self._changes = 0
        self._grants_from_ms = 0
        """When locks may be granted; later than the start only if their holders are unknown."""

    def load(self, now_ms: int) -> None:
        """Load the holders with locks as long as clients may trust them; if the file is damaged, none is granted."""
        try:
            stored = fastjson.to_struct(QueueLocks, self._file.read() or {})
        except (StoreCorrupt, RemoteProtocolError) as error:
            logger.error("%s; no queue is locked for the next %d s", error, CLIENT_TRUST_MS // 1000)
            self._grants_from_ms = now_ms + CLIENT_TRUST_MS
            return
        self._set(stored, now_ms)

    def replace(self, locks: QueueLocks, now_ms: int) -> None:
        before = {key: holder for key, (holder, _) in self._holders.items()}
        self._set(locks, now_ms)
        if before != {key: holder for key, (holder, _) in self._holders.items()}:
            self._changed()

    def _set(self, locks: QueueLocks, now_ms: int) -> None:
        renewed_ms = now_ms - (LOCK_LIFE_MS - CLIENT_TRUST_MS)
        self._holders = {
            (held.consumer_group, queue): (held.client_id, renewed_ms) for held in locks.locks for queue in held.mq_set
        }

    @property
    def version(self) -> str:
        """The version of the table; another broker's, or one before a restart, never equals it."""
        return f"{self._incarnation}:{self._changes}"

    def all(self) -> QueueLocks:
        """Return the holders, as in GET_ALL_QUEUE_LOCKS and in the file."""
        held: dict[tuple[str, str], list[MessageQueue]] = {}
        for (group, queue), (client_id, _) in self._holders.items():
            held.setdefault((group, client_id), []).append(queue)
        return QueueLocks(
            locks=[
                LockedQueues(client_id=client_id, consumer_group=group, mq_set=queues)
                for (group, client_id), queues in held.items()
            ]
        )

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock the free queues, renew those that the client holds, and return all of these, each once."""
        if now_ms < self._grants_from_ms:
            return []
        held, is_changed = [], False
        for queue in dict.fromkeys(queues):
            holder, locked_ms = self._holders.get((group, queue), (None, 0))
            if holder is None or holder == client_id or now_ms - locked_ms > LOCK_LIFE_MS:
                self._holders[group, queue] = (client_id, now_ms)
                held.append(queue)
                if holder != client_id:
                    self._refused.pop((group, queue), None)
                    is_changed = True
            else:
                self._refused[group, queue] = client_id
        if is_changed:
            self._changed()
        return held

    def known(self, group: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the given queues of a group that have a lock, expired or not, each once."""
        return [queue for queue in dict.fromkeys(queues) if (group, queue) in self._holders]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[str]:
        """Release the locks that the client holds; return the clients that were refused them last."""
        held = {queue for queue in queues if self._holders.get((group, queue), ("", 0))[0] == client_id}
        for queue in held:
            del self._holders[group, queue]
        if held:
            self._changed()
        return {refused for queue in held if (refused := self._refused.pop((group, queue), None)) is not None}

    def expire_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Drop locks that were not renewed for `LOCK_LIFE_MS`, in small steps (see `rucola.slices`)."""
        is_changed = False
        for key in list(self._holders):
            holder = self._holders.get(key)
            if holder is not None and now_ms - holder[1] > LOCK_LIFE_MS:
                del self._holders[key]
                self._refused.pop(key, None)
                is_changed = True
            yield
        if is_changed:
            self._changed()

    def snapshot_writer(self) -> Callable[[], None]:
        locks = self.all()
        return self._file.prepare_write(lambda: msgspec.to_builtins(locks))

    def _changed(self) -> None:
        self._changes += 1
        self._on_change()

    def __len__(self) -> int:
        return len(self._holders)
