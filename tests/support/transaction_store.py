"""A store with transactions on top, driven with a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rucola.access import Refusal, Refused
from rucola.broker.config import BrokerConfig
from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.transactions import TransactionalMessageService, TransactionCheckRequest, TransactionEnd
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.message import MessageExt, MessageInner, properties, sysflag
from rucola.message.record import decode
from rucola.store.config import PutMessageStatus, PutResult
from rucola.store.message_store import MessageStore
from support import stores

T0 = 1_000_000


TIMEOUT_MS = 6000


COMMIT, ROLLBACK = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK


class TransactionStore:
    """A store with transactions over it, and a producer of group `p`."""

    def __init__(self, store: MessageStore, check_max: int = 3) -> None:
        self.store = store
        root = Path(store.config.store_path_root_dir)
        self.offsets = ConsumerOffsetTable(root / "config" / "consumerOffset.json")
        self.offsets.load(self.store.max_offset)
        config = BrokerConfig(
            broker_name="b",
            bind_address="127.0.0.1",
            transaction_time_out=TIMEOUT_MS,
            transaction_check_max=check_max,
        )
        self.topics = stores.topic_table(store)
        self.puts = InternalPuts(store)
        self.transactions = TransactionalMessageService(config, store, self.puts, self.topics, self.offsets, 3)
        self.transactions.load()

    def prepare(self, now_ms: int, body: bytes, queue_id: int = 0, **pairs: str) -> PutResult:
        named = {properties.TRAN_MSG: "true", properties.PGROUP: "p", **pairs}
        place = self.transactions.prepare("T", queue_id, named, now_ms)
        born_ms = int(named.pop("born_timestamp", now_ms))
        message = MessageInner(
            *place, body, properties.join(named), 7, 0, born_ms, stores.HOST, unique_key=named.get(properties.UNIQ_KEY)
        )
        put = self.store.put(message, now_ms)
        assert put.status is PutMessageStatus.PUT_OK
        return put

    def end(
        self, half: PutResult | TransactionCheckRequest, outcome: int, now_ms: int = T0, **fields: Any
    ) -> str | Refusal | None:
        """Return None, or why not."""
        if isinstance(half, TransactionCheckRequest):
            place = (half.half_queue_offset, half.physical_offset)
        else:
            place = (half.queue_offset, half.physical_offset)
        try:
            return self.transactions.end(TransactionEnd("p", *place, outcome)._replace(**fields), now_ms)
        except Refused as error:
            return error.refusal

    def questions(self, now_ms: int, *, is_connected: bool = True) -> Iterator[TransactionCheckRequest]:
        """Check, while a producer of each group is connected or none is."""
        checks = self.transactions.check(now_ms, lambda group, topic: group if is_connected else None)
        return (found[1] for found in checks if found is not None)

    def check(self, now_ms: int, *, is_connected: bool = True) -> list[TransactionCheckRequest]:
        return list(self.questions(now_ms, is_connected=is_connected))

    def note(self) -> None:
        """Write the progress, as a broker does."""
        asyncio.run(self.transactions.persist(self.transactions.progress(), self.store.max_physical_offset))

    def messages(self, topic: str = "T", queue_id: int = 0, first: int = 0) -> list[MessageExt]:
        return stores.all_messages(self.store, topic, queue_id, first)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return stores.all_bodies(self.store, topic, queue_id)


@contextmanager
def transaction_store(path: Path, **settings: Any) -> Iterator[TransactionStore]:
    with stores.sound_store(path, T0) as store:
        yield TransactionStore(store, **settings)


def checked_body(question: TransactionCheckRequest) -> bytes:
    return decode(question.record).body
