"""A store with delayed delivery on top, driven with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rucola.broker.delivery.delay import ScheduleMessageService, redirect_by_level
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.message import MessageExt, MessageInner, properties
from rucola.message.properties import DELAY, UNIQ_KEY
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore
from support import stores

DELAYS_MS = [1000, 5000, 60_000]


T0 = 1_000_000


class DelayedStore:
    """A store with delayed delivery over it, and what a test does to both."""

    def __init__(self, store: MessageStore, delays_ms: list[int]) -> None:
        self.store = store
        self.puts = InternalPuts(store)
        self.delayed = ScheduleMessageService(
            store, self.puts, stores.topic_table(store), delays_ms, self.offsets_file.parent
        )
        self.delayed.load()

    @property
    def offsets_file(self) -> Path:
        return Path(self.store.config.store_path_root_dir) / "config" / "delayOffset.json"

    def send(self, now_ms: int, level: int, body: bytes, queue_id: int = 0, **pairs: str) -> None:
        """Put a message with a delay, as the broker does."""
        named = {DELAY: str(level), **pairs}
        place = redirect_by_level("T", queue_id, named, len(DELAYS_MS))
        message = MessageInner(
            *place, body, properties.join(named), 7, 0, 1, stores.HOST, unique_key=named.get(UNIQ_KEY)
        )
        assert self.store.put(message, now_ms).status is PutMessageStatus.PUT_OK

    def delivered(self, queue_id: int = 0) -> list[MessageExt]:
        return stores.all_messages(self.store, "T", queue_id)

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        return stores.all_bodies(self.store, "T", queue_id)


@contextmanager
def delayed_store(path: Path, delays_ms: list[int] | None = None, **settings: Any) -> Iterator[DelayedStore]:
    with stores.sound_store(path, T0, message_delay_level="1s 5s 1m", **settings) as store:
        yield DelayedStore(store, DELAYS_MS if delays_ms is None else delays_ms)
