"""A store with POP on top, driven with a fake clock, and killed at its puts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rucola import slices
from rucola.access import Caller
from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.pop import PopConsumerService
from rucola.broker.delivery.pop_log import PopQueue
from rucola.broker.delivery.pop_state import Handle
from rucola.broker.durability import Durability
from rucola.broker.limits import Limits
from rucola.broker.services.fetch import FetchService
from rucola.broker.services.pop import Ack, Acknowledged, PopService
from rucola.broker.services.requests import PopRequest
from rucola.broker.services.results import Popped
from rucola.broker.state import BrokerState
from rucola.broker.stats import BrokerStats
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tiered_store import TieredStore
from rucola.domain.topic import TopicConfig
from rucola.message import MessageExt
from rucola.message.record import decode, split
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from support import stores
from support.killing import Deadly

CALLER = Caller("127.0.0.1:1")


class Held:
    """A received message."""

    def __init__(self, topic: str, queue_id: int, handle: Handle, message: MessageExt, attempt: int) -> None:
        self.topic, self.queue_id, self.handle, self.message = topic, queue_id, handle, message
        self.attempt = message.reconsume_times + attempt
        self.body = message.body


class PopStore:
    """The store in `path`. Consumer offsets are written with `persist_offsets` only, as every five seconds."""

    def __init__(self, path: Path, queues: int = 2, retry_max_times: int = 2, **settings: Any) -> None:
        self.path = path
        self.now_ms = 1_000_000
        self._queues = queues
        self._retry_max_times = retry_max_times
        self._settings: dict[str, Any] = {
            "mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20 * 64
        } | settings  # fmt: skip
        self.open()

    def open(self) -> None:
        self.store = store = MessageStore(stores.config(self.path, **self._settings))
        store.open(self.now_ms)
        config = BrokerConfig(broker_name="b", bind_address="127.0.0.1")
        limits, directory = Limits(config), self.path / "config"
        topics = stores.topic_table(store)
        topics.put(TopicConfig(topic_name="T", read_queue_nums=self._queues, write_queue_nums=self._queues), 0)
        groups = SubscriptionGroupTable(directory / "groups.json", config, lambda: None, limits)
        group = groups.find("g", 0)
        assert group is not None
        group.retry_max_times = self._retry_max_times
        self.offsets = ConsumerOffsetTable(directory / "consumerOffset.json")
        self.offsets.load(store.max_offset)
        tiered = TieredStore(store)
        self.pop = PopConsumerService(store, tiered, InternalPuts(store), topics, groups, self.offsets)
        self.pop.load()
        parts = SimpleNamespace(
            config=config, limits=limits, store=store, topics=topics, groups=groups, offsets=self.offsets,
            tiered=tiered, stats=BrokerStats(self.now_ms, "c"), clock=lambda: self.now_ms, pop=self.pop,
        )  # fmt: skip
        state = cast("BrokerState", parts)
        self.service = PopService(state, FetchService(state), Durability(store, cast("GroupCommit", None), None))

    def kill(self) -> None:
        """Continue with what a kill -9 leaves."""
        self.live_on()
        copy = self.path.with_name("copy")
        stores.crashed_copy(self.store, copy)
        self.store.close()
        shutil.rmtree(self.path)
        copy.rename(self.path)
        self.open()

    def restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.persist_offsets()
        self.store.close()
        assert check(self.path) == []

    def persist_offsets(self) -> None:
        slices.run(self.offsets.snapshot_steps())()

    def die_at(self, calls: int, *, after: bool) -> None:
        """Raise Killed at a put from now on."""
        self.store.__dict__["put"] = Deadly(self.store.put, calls, after=after)

    def live_on(self) -> None:
        self.store.__dict__.pop("put", None)

    # What clients do.

    def send(self, body: bytes, queue_id: int = 0, key: str | None = None) -> None:
        pairs = f"__SHARDINGKEY\x01{key}".encode() if key else b""
        self.store.put(stores.inner("T", queue_id, body, properties=pairs), self.now_ms)

    def receive(self, count: int = 32, invisible_ms: int = 100, **more: Any) -> list[Held]:
        result = self.service.receive(CALLER, PopRequest("g", "T", count, invisible_ms, **more))
        if not isinstance(result, Popped):
            return []
        return [
            Held(
                queue.topic, queue.queue_id, Handle(offset, result.pop_time_ms, result.invisible_ms), decode(record),
                attempt,
            )
            for queue in result.queues
            for (offset, record), attempt in zip(split(queue.records).items(), queue.attempts, strict=True)
        ]  # fmt: skip

    def ack(self, *held: Held) -> Acknowledged:
        acks = []
        for each in held:
            offset, pop_time_ms, invisible_ms = each.handle
            acks.append(Ack(each.topic, each.queue_id, pop_time_ms, invisible_ms, (offset,)))
        return self.service.acknowledge("g", acks)

    def change(self, held: Held, invisible_ms: int) -> None:
        held.handle, _ = self.service.change_invisible("g", held.topic, held.queue_id, held.handle, invisible_ms)

    def all_of(self, topic: str) -> list[MessageExt]:
        return stores.all_messages(self.store, topic)

    def state(self, queue_id: int = 0, topic: str = "T") -> Any:
        return self.pop.states[PopQueue(topic, "g", queue_id)]
