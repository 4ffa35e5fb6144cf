"""Results of the services that move messages: structs, since one is created per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from rucola.store.held_bytes import HeldBytes


class Published(Struct, gc=False):
    """A message or batch that was stored."""

    queue_id: int
    """For a delayed message or a half message, its target queue."""
    queue_offset: int
    """The first message's, in the queue that it was stored in."""
    physical_offset: int
    end: int
    """End of the last record, a physical offset."""
    must_wait: bool
    """Whether the response waits until everything before `end` is durable (see `rucola.broker.durability`)."""
    physical_offsets: Sequence[int] = ()
    """Of all messages of a batch; empty for a single message."""
    recall_handle: str = ""
    """Of a timer message (`rucola.message.recall`)."""


class StoredSends(NamedTuple):
    """Sends whose messages were stored together; the columns after `counts` have an item for each message."""

    counts: list[int]
    """The number of messages of each send."""
    queue_ids: list[int]
    queue_offsets: list[int]
    physical_offsets: list[int]
    end: int
    waiting: Sequence[bool]
    """For each send, whether its response waits until everything before `end` is durable; empty if none does."""

    def each(self) -> Iterator[Published]:
        """Yield the result of each send."""
        first = 0
        for count in self.counts:
            ids = self.physical_offsets[first : first + count]
            yield Published(self.queue_ids[first], self.queue_offsets[first], ids[0], self.end, True, ids)
            first += count


class FetchOutcome(IntEnum):
    """The outcome of a pull: how the consumer continues."""

    FOUND = 0
    RETRY = 1
    """Pull again at once, from `next_offset`."""
    NOT_FOUND = 2
    OFFSET_MOVED = 3
    """The offset is not in the queue; continue at `next_offset`."""


class Waiting(Struct, frozen=True, gc=False):
    queue_offset: int
    max_offset: int
    codes: frozenset[int] | None
    """The tagsCodes of the messages that it waits for; None if their records have to be read."""
    is_tiered: bool = False
    """Whether it waits for the lake."""


class PoppedQueue(Struct, gc=False):
    """Messages of one queue that a receive took, in queue order."""

    topic: str
    """The topic that was asked for, or its retry topic for the group."""
    queue_id: int
    queue_offsets: Sequence[int]
    records: bytes
    """One after the other."""
    attempts: Sequence[int]
    """Of each, 1 for the first delivery from this queue."""


class Popped(Struct, gc=False):
    """The result of a receive. A handle of each message consists of its queue, offset and the two times."""

    pop_time_ms: int
    invisible_ms: int
    rest: int
    """Messages that the group has not read yet, in the queues that were looked at."""
    queues: list[PoppedQueue]


class NothingPopped(Struct, frozen=True, gc=False):
    rest: int
    is_unfinished: bool
    """Whether the read ended after its share of messages that the filter rejects."""
    is_tiered: bool = False
    """Whether it waits for the lake."""


class Fetched(Struct, gc=False):
    """The result of a pull. The offsets are always set."""

    outcome: FetchOutcome
    status: str
    """The store's status by Apache's name, such as "NO_MATCHED_MESSAGE"."""
    broker_id: int
    """The broker of this broker name to pull from next."""
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes | HeldBytes = b""
    """Whole records as stored; a large one is held, for the caller to release."""
