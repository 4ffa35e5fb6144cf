"""Log of POP: the records of all queues and groups, as messages of one internal topic.

Each message of rmq_sys_pop_log, queue 0, has JSON as body:

    [first, [[topic, group, queue id, record], ...]]      records: see `broker.delivery.pop_state`

They are part of the CommitLog, so that they are flushed, replicated and cut off with the messages that they speak of.
Reading begins at `first` of the last message: every state has a snapshot since then, followed by its later records. A
snapshot of many messages takes several log messages; before its last one, the earlier snapshot counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.pop_state import PopRecord
from rucola.broker.stored_message import stored_message
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message import MessageInner
from rucola.message.topics import POP_LOG_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class PopQueue(NamedTuple):
    topic: str
    group: str
    queue_id: int


Entry = tuple[str, str, int, PopRecord]
"""A PopQueue, spread out, and its record."""

_Content = tuple[int, list[Entry]]
_decode = msgspec.json.Decoder(_Content).decode
_encode = msgspec.json.Encoder().encode


class Logged(NamedTuple):
    log_offset: int
    """The queue offset in the log of POP."""
    physical_offset: int
    first: int
    """Where the reading begins if this is the last message."""
    entries: list[Entry]


class PopLog:
    def __init__(self, store: MessageStore, puts: InternalPuts, topics: TopicConfigTable) -> None:
        self._store = store
        self._puts = puts
        self._topics = topics

    @property
    def end(self) -> int:
        return self._store.max_offset(POP_LOG_TOPIC, 0)

    def put(self, first: int, entries: Sequence[Entry], now_ms: int) -> tuple[int, int] | str:
        """Put records; return the queue offset of their message and the end of its record, or why it failed."""
        self._topics.ensure(POP_LOG_TOPIC, 1, now_ms)  # now, since Apache's tools would list it as a user's
        message = MessageInner(
            POP_LOG_TOPIC, 0, _encode((first, entries)), b"", 0, 0, now_ms, self._store.config.store_host
        )
        # On a full disk as well: consumers go on, and the oldest file is deleted only after its snapshots were put.
        result = self._puts.put("POP log", message, now_ms, is_roll=True)
        if result.status is not PutMessageStatus.PUT_OK:
            return self._puts.reason(result)
        return result.queue_offset, result.physical_offset + result.size

    def physical_offset(self, log_offset: int) -> int | None:
        units = self._store.units(POP_LOG_TOPIC, 0, log_offset, 1)
        return units[0][0] if units else None

    def read(self) -> Iterator[Logged | None]:
        """Yield what the states need, in order; None for a damaged message, which ends the reading."""
        begin, end = self._store.min_offset(POP_LOG_TOPIC, 0), self.end
        last = self._read(end - 1) if end else None
        for log_offset in range(begin if last is None else max(begin, last.first), end):
            found = self._read(log_offset)
            yield found
            if found is None:
                return

    def _read(self, log_offset: int) -> Logged | None:
        try:
            if (physical_offset := self.physical_offset(log_offset)) is None:
                raise InvalidMessage("it is not in its queue")
            first, entries = _decode(stored_message(self._store, physical_offset).body)
        except (InvalidMessage, msgspec.DecodeError) as error:
            logger.error(
                "message %d of %s cannot be read: %s; what was acknowledged since then is delivered again",
                log_offset, POP_LOG_TOPIC, error,
            )  # fmt: skip
            return None
        return Logged(log_offset, physical_offset, first, entries)
