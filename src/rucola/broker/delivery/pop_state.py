"""State of one queue that a group consumes by POP: who holds which message until when.

A message that was read is outstanding until it is acked or moved to a retry topic or dead letter queue:

    waiting     behind an earlier message of its message group; never delivered
    invisible   held by one consumer, until `visible_ms`
    visible     its time is over, or its consumer gave it back: the next receive takes it

Every other offset below `next_offset` is done, so that only the outstanding ones are remembered, at most `limit`. The
group's offset is the lowest of them. A broker that knows only this offset delivers duplicates, and loses none.

A message of a message group is delivered only if all earlier ones of that group are done or in the same batch.

Methods decide, and return a record of what they decided; `apply` alone changes the state. The records of a queue,
applied in their order to a new state, give the same state. All times are in ms, and come from the caller.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Candidate(NamedTuple):
    """A message that the store found for the group."""

    queue_offset: int
    message_group: str | None = None


class Handle(NamedTuple):
    """One delivery of one message. It is stale after the next delivery, and after a change of its duration."""

    queue_id: int
    queue_offset: int
    pop_time_ms: int
    invisible_ms: int
    attempt: int
    """1 for the first delivery."""
    number: int
    """Of the pop or change within its queue: tells apart what happens in one ms, or before and after a reset."""


class Pop(NamedTuple):
    number: int
    pop_time_ms: int
    invisible_ms: int
    attempt_id: str | None
    next_offset: int
    added: tuple[Candidate, ...]
    """Outstanding from now on, whether taken or waiting."""
    taken: tuple[int, ...]
    is_repeated: bool
    """The answer to the same receive was lost: the attempts are not new."""


class Ack(NamedTuple):
    queue_offsets: tuple[int, ...]


class Change(NamedTuple):
    number: int
    queue_offset: int
    pop_time_ms: int
    invisible_ms: int


class Dead(NamedTuple):
    """Messages that are stored in a retry topic or dead letter queue, or no longer in the log."""

    queue_offsets: tuple[int, ...]


class Reset(NamedTuple):
    next_offset: int


@dataclass(slots=True)
class Outstanding:
    message_group: str | None
    attempt: int = 0
    number: int = 0
    pop_time_ms: int = 0
    invisible_ms: int = 0
    attempt_id: str | None = None

    @property
    def visible_ms(self) -> int:
        return self.pop_time_ms + self.invisible_ms


class Snapshot(NamedTuple):
    """The whole state."""

    number: int
    next_offset: int
    outstanding: tuple[tuple[int, Outstanding], ...]


PopRecord = Pop | Ack | Change | Dead | Reset | Snapshot


@dataclass
class PopState:
    """`limit` is the number of messages that may be outstanding."""

    queue_id: int
    next_offset: int = 0
    """Where to read on."""
    limit: int = 10_000
    number: int = 0
    outstanding: OrderedDict[int, Outstanding] = field(default_factory=OrderedDict)
    """By queue offset, ascending: only offsets from `next_offset` on are added."""
    _groups: dict[str, OrderedDict[int, None]] = field(default_factory=dict, compare=False, repr=False)
    """The outstanding messages of each message group, ascending."""
    _attempts: dict[str, set[int]] = field(default_factory=dict, compare=False, repr=False)
    _due: list[tuple[int, int, int]] = field(default_factory=list, compare=False, repr=False)
    """Heap of (visible_ms, queue offset, number): every message that heads its message group or has none.

    An item is outdated if its message is done or has another number.
    """

    # What callers ask.

    @property
    def committed_offset(self) -> int:
        """The lowest offset that is not done."""
        return next(iter(self.outstanding), self.next_offset)

    @property
    def room(self) -> int:
        """How many new messages a receive can take at most."""
        return max(0, self.limit - len(self.outstanding))

    def next_visible_ms(self) -> int | None:
        """When the next message becomes visible, if any is outstanding."""
        due = self._due
        while due and not self._is_current(due[0]):
            heapq.heappop(due)
        return due[0][0] if due else None

    def visible_again(self, now_ms: int) -> list[int]:
        """Offsets of delivered messages whose time is over, and that head their message group."""
        return sorted(
            item[1]
            for item in self._due
            if item[0] <= now_ms and self._is_current(item) and self.outstanding[item[1]].attempt
        )

    def handle(self, queue_offset: int) -> Handle:
        """Return the handle of the last delivery of an outstanding message."""
        held = self.outstanding[queue_offset]
        return Handle(self.queue_id, queue_offset, held.pop_time_ms, held.invisible_ms, held.attempt, held.number)

    def is_held_by(self, handle: Handle) -> bool:
        """Whether no other delivery or change followed. True beyond the invisible time until somebody takes it."""
        held = self.outstanding.get(handle.queue_offset)
        return held is not None and held.attempt > 0 and handle == self.handle(handle.queue_offset)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.number, self.next_offset, tuple((o, replace(m)) for o, m in self.outstanding.items()))

    # Decisions.

    def receive(
        self,
        now_ms: int,
        invisible_ms: int,
        max_messages: int,
        candidates: Sequence[Candidate] = (),
        next_offset: int | None = None,
        attempt_id: str | None = None,
    ) -> Pop | None:
        """Take messages: those that are visible again, then candidates; None if that changes nothing.

        The candidates are the matching messages from the state's `next_offset` up to `next_offset`, where the store
        reads on; what does not fit is left for the next receive. A receive with the attempt_id of messages that are
        still held gets these again, and no others.
        """
        number = self.number + 1
        repeated = sorted(
            offset
            for offset in (self._attempts.get(attempt_id, ()) if attempt_id else ())
            if self.outstanding[offset].visible_ms > now_ms
        )
        if repeated:
            return Pop(number, now_ms, invisible_ms, attempt_id, self.next_offset, (), tuple(repeated), True)
        taken = self._visible(now_ms, max_messages)
        visible = set(taken)
        added: list[Candidate] = []
        end = self.next_offset
        for candidate in candidates:
            if len(taken) >= max_messages or len(added) >= self.room:
                break
            added.append(candidate)
            end = candidate.queue_offset + 1
            earlier = self._groups.get(candidate.message_group) if candidate.message_group is not None else None
            if earlier is None or next(reversed(earlier)) in visible:
                taken.append(candidate.queue_offset)
        else:
            end = max(end, next_offset or 0)
        if not taken and end == self.next_offset:
            return None
        return Pop(number, now_ms, invisible_ms, attempt_id, end, tuple(added), tuple(sorted(taken)), False)

    def ack(self, handles: Iterable[Handle]) -> Ack:
        """Accept the handles that are not stale; the record has their offsets."""
        return Ack(tuple(sorted({handle.queue_offset for handle in handles if self.is_held_by(handle)})))

    def change(self, handle: Handle, now_ms: int, invisible_ms: int) -> Change | None:
        """Let a message be visible `invisible_ms` from now; None if the handle is stale."""
        if not self.is_held_by(handle):
            return None
        return Change(self.number + 1, handle.queue_offset, now_ms, invisible_ms)

    def fit(self, begin: int, end: int) -> Snapshot | None:
        """Drop what the queue no longer has below `begin`, or lost from `end` on; None if nothing is dropped."""
        number, next_offset, outstanding = self.snapshot()
        kept = Snapshot(
            number, max(begin, min(next_offset, end)), tuple(each for each in outstanding if begin <= each[0] < end)
        )
        return kept if (kept.next_offset, len(kept.outstanding)) != (next_offset, len(outstanding)) else None

    # The only change.

    def apply(self, record: PopRecord) -> None:
        if isinstance(record, Pop):
            self.number, self.next_offset = record.number, record.next_offset
            for offset, group in record.added:
                self._add(offset, Outstanding(group))
            for offset in record.taken:
                held = self.outstanding[offset]
                held.attempt += not record.is_repeated
                self._hold(offset, held, record, record.attempt_id)
        elif isinstance(record, Change):
            self.number = record.number
            # Its holder has the answer to its receive, so that no repetition of it may take the message.
            self._hold(record.queue_offset, self.outstanding[record.queue_offset], record, None)
        elif isinstance(record, Reset | Snapshot):
            self.next_offset = record.next_offset
            for index in (self.outstanding, self._groups, self._attempts, self._due):
                index.clear()
            if isinstance(record, Snapshot):
                self.number = record.number
                for offset, message in record.outstanding:
                    self._add(offset, replace(message))
        else:
            for offset in record.queue_offsets:
                self._remove(offset)

    def _add(self, offset: int, message: Outstanding) -> None:
        self.outstanding[offset] = message
        if message.attempt_id:
            self._attempts.setdefault(message.attempt_id, set()).add(offset)
        if message.message_group is not None:
            self._groups.setdefault(message.message_group, OrderedDict())[offset] = None
        self._schedule(offset, message)

    def _hold(self, offset: int, held: Outstanding, record: Pop | Change, attempt_id: str | None) -> None:
        self._forget_attempt(offset, held)
        held.number, held.pop_time_ms, held.invisible_ms = record.number, record.pop_time_ms, record.invisible_ms
        held.attempt_id = attempt_id
        if attempt_id:
            self._attempts.setdefault(attempt_id, set()).add(offset)
        self._schedule(offset, held)

    def _remove(self, offset: int) -> None:
        done = self.outstanding.pop(offset)
        self._forget_attempt(offset, done)
        if done.message_group is not None:
            group = self._groups[done.message_group]
            was_head = next(iter(group)) == offset
            del group[offset]
            if not group:
                del self._groups[done.message_group]
            elif was_head:
                head = next(iter(group))
                self._schedule(head, self.outstanding[head])

    def _forget_attempt(self, offset: int, held: Outstanding) -> None:
        if held.attempt_id:
            offsets = self._attempts[held.attempt_id]
            offsets.discard(offset)
            if not offsets:
                del self._attempts[held.attempt_id]

    # What is visible.

    def _schedule(self, offset: int, message: Outstanding) -> None:
        if message.message_group is None or next(iter(self._groups[message.message_group])) == offset:
            heapq.heappush(self._due, (message.visible_ms, offset, message.number))
            if len(self._due) > 2 * len(self.outstanding) + 64:
                self._due = sorted({item for item in self._due if self._is_current(item)})

    def _is_current(self, item: tuple[int, int, int]) -> bool:
        message = self.outstanding.get(item[1])
        return message is not None and message.number == item[2]

    def _visible(self, now_ms: int, max_messages: int) -> list[int]:
        """Return what a receive takes of the outstanding messages, the longest visible first."""
        taken: dict[int, None] = {}
        seen = []
        while len(taken) < max_messages and self._due and self._due[0][0] <= now_ms:
            item = heapq.heappop(self._due)
            if not self._is_current(item) or item[1] in taken:
                continue
            seen.append(item)
            group = self.outstanding[item[1]].message_group
            for offset in [item[1]] if group is None else self._groups[group]:
                if self.outstanding[offset].visible_ms > now_ms or len(taken) >= max_messages:
                    break
                taken[offset] = None
        # The state changes with the record only, after which these are outdated.
        for item in seen:
            heapq.heappush(self._due, item)
        return list(taken)
