"""A store with timer messages on top, driven with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.rolling import roll
from rucola.broker.delivery.timer import TimerMessageService, redirect_delayed
from rucola.message import MessageExt, MessageInner, properties
from rucola.message.properties import TIMER_DELIVER_MS, UNIQ_KEY
from rucola.message.topics import TIMER_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores

T0 = 1_000_000


DAY_MS = 24 * 3600 * 1000


class TimerStore:
    """A store with timed delivery over it, and what a test does to both."""

    def __init__(self, path: Path, sizes: dict[str, int], **more: Any) -> None:
        self.path = path
        self.store = MessageStore(stores.config(path, **more), self._arrived)
        self.store.open(T0)
        self.puts = InternalPuts(self.store)
        self.timed = TimerMessageService(
            self.store, self.puts, stores.topic_table(self.store), path / "config", **sizes
        )
        self.timed.load()

    def _arrived(self, topics: Mapping[str, TopicArrivals]) -> None:
        if TIMER_TOPIC in topics:
            queues, tags_codes, _ = topics[TIMER_TOPIC]
            self.timed.on_arrival(queues[0].max_offset, tags_codes)

    def send(self, now_ms: int, due_ms: int, body: bytes, queue_id: int = 0, **pairs: str) -> None:
        """Put a message for a time, as the broker does."""
        named = {TIMER_DELIVER_MS: str(due_ms), **pairs}
        place = redirect_delayed("T", queue_id, named, 18, now_ms)
        message = MessageInner(
            *place, body, properties.join(named), 7, 0, 1, stores.HOST, unique_key=named.get(UNIQ_KEY)
        )
        assert self.store.put(message, now_ms).status is PutMessageStatus.PUT_OK

    def recall(self, now_ms: int, due_ms: int, unique_key: str) -> None:
        assert self.timed.waits("T", unique_key, due_ms)
        self.send(now_ms, due_ms, b"0", TIMER_DEL_UNIQKEY=unique_key)

    def deliver(self, now_ms: int) -> int | None:
        """Deliver until nothing is left to do now; when to come back."""
        while (due_ms := self.timed.deliver(now_ms)) is not None and due_ms <= now_ms:
            pass
        return due_ms

    async def roll(self, now_ms: int) -> bool:
        self.store.reput()
        return await roll(self.store, [self.timed], lambda: now_ms)

    def delivered(self, queue_id: int = 0) -> list[MessageExt]:
        return stores.all_messages(self.store, "T", queue_id)

    def bodies(self) -> list[bytes]:
        return stores.all_bodies(self.store)


@contextmanager
def timer_store(path: Path, *, near_capacity: int = 4, segment_units: int = 8, **more: Any) -> Iterator[TimerStore]:
    here = TimerStore(path, {"near_capacity": near_capacity, "segment_units": segment_units}, **more)
    try:
        yield here
    finally:
        here.store.close()
    assert check(path) == []


def fill(here: TimerStore, now_ms: int, until_begin: int) -> None:
    """Put other messages until the log's last file begins there or behind."""
    while here.store.max_physical_offset < until_begin:
        here.store.put(stores.inner("Other", body=bytes(500)), now_ms)
