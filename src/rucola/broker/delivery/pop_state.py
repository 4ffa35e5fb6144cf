"""State of one queue that a group consumes by POP: its deliveries, and when they end.

A message that was read is outstanding until it is acked or moved to a retry topic or dead letter topic:

    waiting     for an earlier message of its message group; never delivered
    invisible   held by one consumer, until `visible_ms`
    visible     its time is over, or its consumer gave it back

Every other offset below `next_offset` is done, so that only the outstanding ones are remembered, at most `limit`. The
group's offset is the lowest of them. A broker that knows only this offset delivers duplicates, and loses none.

A message of a message group is delivered only if all earlier ones of that group are done or in the same batch, and
again from its place in the queue. A visible message without one is delivered again from the retry topic.

Methods decide, and return a record of what they decided; `apply` alone changes the state. The records of a queue,
applied in their order to a new state, give the same state. All times are in ms, and come from the caller.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

MAX_OUTSTANDING: Final = 4096
"""Outstanding messages of one queue and group; no further ones are delivered before some are done."""


class Handle(NamedTuple):
    """One delivery of one message. It is stale after the next delivery, and after a change of its duration."""

    queue_offset: int
    pop_time_ms: int
    """Greater than every earlier one of the queue."""
    invisible_ms: int


class Candidate(Struct, frozen=True, array_like=True):
    queue_offset: int
    message_group: str | None = None


class Outstanding(Struct, frozen=True, array_like=True):
    """The state of a message, or of several with the same state."""

    message_group: str | None = None
    attempt: int = 0
    """1 for the first delivery."""
    pop_time_ms: int = 0
    invisible_ms: int = 0
    visible_ms: int = 0
    client: str = ""
    attempt_id: str | None = None
    suspensions: int = 0
    """Deliveries that were no attempt, since the consumer gave the message back."""
    is_renewed: bool = False
    """Whether the client holds it only while it is connected."""

    @property
    def attempts(self) -> int:
        return self.attempt - self.suspensions


class Pop(Struct, frozen=True, array_like=True, tag="Pop2"):
    pop_time_ms: int
    invisible_ms: int
    visible_ms: int
    client: str
    attempt_id: str | None
    next_offset: int
    added: tuple[Candidate, ...]
    """Outstanding from now on, whether taken or waiting; empty if none has a message group, and all are taken."""
    taken: tuple[int, ...]
    is_repeated: bool = False
    """The answer to the same receive was lost: the attempts are not new."""
    is_renewed: bool = False


class FirstPop(Pop, frozen=True, array_like=True, tag="Pop"):
    """A record of the first version, where `added` is never empty; it is read, and not written."""


class Done(Struct, frozen=True, array_like=True, tag=True):
    """Messages that are acked, stored in a retry topic or dead letter topic, or no longer in the log."""

    queue_offsets: tuple[int, ...]


class Change(Struct, frozen=True, array_like=True, tag=True):
    queue_offset: int
    pop_time_ms: int
    invisible_ms: int
    visible_ms: int
    is_suspended: bool = False
    """The delivery was no attempt."""


_NEW: Final = Outstanding()


class Begin(Struct, frozen=True, array_like=True, tag=True):
    """Continue at another offset. Outstanding messages below stay; later ones will be read again."""

    next_offset: int


class Snapshot(Struct, frozen=True, array_like=True, tag=True):
    """The whole state, or one of several parts of it, which count from 0."""

    pop_time_ms: int
    next_offset: int
    outstanding: tuple[tuple[int, Outstanding], ...] = ()
    part: int = 0
    is_last: bool = True


class Removed(Struct, frozen=True, array_like=True, tag=True):
    """There is no state any more."""


NO_GROUPS: Final[Mapping[int, str]] = {}

PopRecord: TypeAlias = Pop | FirstPop | Done | Change | Begin | Snapshot | Removed


@dataclass
class PopState:
    """`limit` is the number of messages that may be outstanding."""

    next_offset: int = 0
    """Where to read on."""
    limit: int = MAX_OUTSTANDING
    pop_time_ms: int = 0
    """The last one."""
    committed: int = field(default=-1, compare=False)
    """The offset of the group, as POP knows it; -1 for none."""
    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    """By queue offset, ascending: only offsets from `next_offset` on are added."""
    _groups: dict[str, OrderedDict[int, None]] = field(default_factory=dict, compare=False, repr=False)
    """The outstanding messages of each message group, ascending."""
    _attempts: dict[str, set[int]] = field(default_factory=dict, compare=False, repr=False)
    _due: list[tuple[int, int, int]] = field(default_factory=list, compare=False, repr=False)
    """Heap of (visible_ms, queue offset, pop time) of the messages that head their message group.

    An item is outdated if its message is done or has another pop time.
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

    @property
    def is_ordered(self) -> bool:
        """Whether an outstanding message belongs to a message group."""
        return bool(self._groups)

    def handle(self, queue_offset: int) -> Handle:
        """Return the handle of the last delivery of an outstanding message."""
        held = self.outstanding[queue_offset]
        return Handle(queue_offset, held.pop_time_ms, held.invisible_ms)

    def is_held_by(self, handle: Handle) -> bool:
        """Whether no other delivery or change followed. True after the invisible time until the next delivery."""
        return bool(self.held(handle.pop_time_ms, handle.invisible_ms, (handle.queue_offset,)))

    def held(self, pop_time_ms: int, invisible_ms: int, queue_offsets: Sequence[int]) -> Sequence[int]:
        """Return those messages of one delivery after which no other delivery or change followed."""
        found = list(map(self.outstanding.get, queue_offsets))
        # Usually all have one state.
        if found and found.count(found[0]) == len(found):
            return queue_offsets if _is_of(found[0], pop_time_ms, invisible_ms) else ()
        return [
            offset for offset, one in zip(queue_offsets, found, strict=True) if _is_of(one, pop_time_ms, invisible_ms)
        ]

    def is_done(self, queue_offset: int) -> bool:
        return queue_offset < self.next_offset and queue_offset not in self.outstanding

    def repeated(self, attempt_id: str, now_ms: int) -> list[int]:
        """Return the messages that the receive with this attempt_id got, and that are still invisible."""
        if attempt_id not in self._attempts:
            return []
        return sorted(offset for offset in self._attempts[attempt_id] if self.outstanding[offset].visible_ms > now_ms)

    def visible(self, now_ms: int, max_messages: int) -> list[int]:
        """Return messages of message groups that a receive can take, in the order in which it must take them."""
        taken: dict[int, None] = {}
        seen = []
        while len(taken) < max_messages and self._due and self._due[0][0] <= now_ms:
            item = heapq.heappop(self._due)
            if not self._is_current(item) or item[1] in taken:
                continue
            seen.append(item)
            for offset in self._groups[self.outstanding[item[1]].message_group or ""]:
                if self.outstanding[offset].visible_ms > now_ms or len(taken) >= max_messages:
                    break
                taken[offset] = None
        # The state changes with the record only, after which these are outdated.
        for item in seen:
            heapq.heappush(self._due, item)
        return list(taken)

    def can_be_read(self, now_ms: int, end: int) -> bool:
        """Whether a receive may find something, in a queue with this end."""
        if self.next_offset != end and len(self.outstanding) < self.limit:
            return True
        due = self._due
        while due and not self._is_current(due[0]):
            heapq.heappop(due)
        return bool(due) and due[0][0] <= now_ms

    def head_of(self, message_group: str) -> int:
        """Return the first outstanding message of a message group that has one."""
        return next(iter(self._groups[message_group]))

    def snapshot(self) -> Snapshot:
        return Snapshot(self.pop_time_ms, self.next_offset, tuple(self.outstanding.items()))

    # Decisions.

    def receive(
        self,
        pop_time_ms: int,
        now_ms: int,
        invisible_ms: int,
        max_messages: int,
        visible: Sequence[int] = (),
        candidates: Sequence[int] = (),
        message_groups: Mapping[int, str] = NO_GROUPS,
        next_offset: int = 0,
        client: str = "",
        attempt_id: str | None = None,
        *,
        is_renewed: bool = False,
    ) -> Pop | None:
        """Take messages: `visible` ones (a beginning of what the method returns), then candidates; None if none.

        The candidates are the matching messages from the state's `next_offset` up to `next_offset`, where the store
        reads on, and `message_groups` those of them that have one; what does not fit is left for the next receive.
        """
        taken = list(visible)
        end, room = self.next_offset, self.room
        if not message_groups and 0 < len(candidates) <= min(room, max_messages - len(taken)):
            taken += candidates
            end, candidates = candidates[-1] + 1, ()
        last_of_group = {self.outstanding[offset].message_group: offset for offset in visible} if visible else {}
        for offset in candidates:
            if len(taken) >= max_messages or not room:
                break
            room -= 1
            end = offset + 1
            if (group := message_groups.get(offset)) is not None:
                earlier = self._groups.get(group)
                if earlier is not None and last_of_group.get(group) != next(reversed(earlier)):
                    continue
            taken.append(offset)
        else:
            end = max(end, next_offset)
        added: tuple[Candidate, ...] = ()
        if message_groups:
            added = tuple(Candidate(offset, message_groups.get(offset)) for offset in candidates if offset < end)
        if not taken and not added:
            return None
        return Pop(
            pop_time_ms, invisible_ms, now_ms + invisible_ms, client, attempt_id, end, added, tuple(sorted(taken)),
            is_renewed=is_renewed,
        )  # fmt: skip

    def receive_again(
        self,
        pop_time_ms: int,
        now_ms: int,
        invisible_ms: int,
        taken: Iterable[int],
        client: str,
        attempt_id: str,
        *,
        is_renewed: bool = False,
    ) -> Pop:
        """Take messages that are `repeated` for the receive whose answer was lost."""
        visible_ms, next_offset = now_ms + invisible_ms, self.next_offset
        return Pop(
            pop_time_ms, invisible_ms, visible_ms, client, attempt_id, next_offset, (), tuple(taken), True, is_renewed
        )

    def change(self, handle: Handle, now_ms: int, invisible_ms: int, *, is_suspended: bool = False) -> Change:
        """Let a message that is held by this handle be visible `invisible_ms` from now."""
        pop_time_ms = max(now_ms, self.pop_time_ms + 1)
        return Change(handle.queue_offset, pop_time_ms, invisible_ms, now_ms + invisible_ms, is_suspended)

    def fit(self, begin: int, end: int) -> Snapshot | None:
        """Drop what the queue no longer has below `begin`, or lost from `end` on; None if nothing is dropped."""
        whole = self.snapshot()
        kept = tuple(each for each in whole.outstanding if begin <= each[0] < end)
        next_offset = max(begin, min(whole.next_offset, end))
        if (next_offset, len(kept)) == (whole.next_offset, len(whole.outstanding)):
            return None
        return Snapshot(whole.pop_time_ms, next_offset, kept)

    # The only change.

    def apply(self, record: PopRecord) -> None:
        if isinstance(record, Pop):
            self.next_offset = max(self.next_offset, record.next_offset)
            for candidate in record.added:
                self._add(candidate.queue_offset, Outstanding(candidate.message_group))
            self.pop_time_ms = max(self.pop_time_ms, record.pop_time_ms)
            for held, offsets in groupby(record.taken, self.outstanding.get):
                before = held or _NEW
                after = Outstanding(
                    before.message_group, before.attempt + (not record.is_repeated), record.pop_time_ms,
                    record.invisible_ms, record.visible_ms, record.client, record.attempt_id, before.suspensions,
                    record.is_renewed,
                )  # fmt: skip
                self._hold(list(offsets), before, after)
        elif isinstance(record, Change):
            self.pop_time_ms = max(self.pop_time_ms, record.pop_time_ms)
            before = self.outstanding[record.queue_offset]
            # Its holder has the answer to its receive, so that no repetition of it may take the message.
            after = Outstanding(
                before.message_group, before.attempt, record.pop_time_ms, record.invisible_ms, record.visible_ms,
                before.client, None, min(before.suspensions + record.is_suspended, before.attempt),
            )  # fmt: skip
            self._hold([record.queue_offset], before, after)
        elif isinstance(record, Done):
            self._remove(record.queue_offsets)
        elif isinstance(record, Begin):
            self._remove([offset for offset in self.outstanding if offset >= record.next_offset])
            self.next_offset = record.next_offset
        elif isinstance(record, Snapshot):
            for index in (self.outstanding, self._groups, self._attempts, self._due):
                index.clear()
            self.pop_time_ms, self.next_offset = record.pop_time_ms, record.next_offset
            for offset, message in record.outstanding:
                self._add(offset, message)

    def _add(self, offset: int, message: Outstanding) -> None:
        self.outstanding[offset] = message
        if message.attempt_id:
            self._attempts.setdefault(message.attempt_id, set()).add(offset)
        if message.message_group is not None:
            self._groups.setdefault(message.message_group, OrderedDict())[offset] = None
            self._schedule(offset, message)

    def _hold(self, offsets: list[int], before: Outstanding, after: Outstanding) -> None:
        self.outstanding.update(dict.fromkeys(offsets, after))
        if before.attempt_id:
            self._forget_attempt(offsets, before.attempt_id)
        if after.attempt_id:
            self._attempts.setdefault(after.attempt_id, set()).update(offsets)
        if after.message_group is not None:
            for offset in offsets:
                self._schedule(offset, after)

    def _remove(self, queue_offsets: Sequence[int]) -> None:
        for done, same in groupby(queue_offsets, self.outstanding.__getitem__):
            for offset in (offsets := list(same)):
                del self.outstanding[offset]
            if done.attempt_id:
                self._forget_attempt(offsets, done.attempt_id)
            if done.message_group is not None:
                self._leave(done.message_group, offsets)

    def _leave(self, message_group: str, offsets: Sequence[int]) -> None:
        group = self._groups[message_group]
        was_head = next(iter(group))
        for offset in offsets:
            del group[offset]
        if not group:
            del self._groups[message_group]
        elif (head := next(iter(group))) != was_head:
            self._schedule(head, self.outstanding[head])

    def _forget_attempt(self, offsets: Sequence[int], attempt_id: str) -> None:
        known = self._attempts[attempt_id]
        known.difference_update(offsets)
        if not known:
            del self._attempts[attempt_id]

    def _schedule(self, offset: int, message: Outstanding) -> None:
        if message.message_group is not None and self.head_of(message.message_group) == offset:
            heapq.heappush(self._due, (message.visible_ms, offset, message.pop_time_ms))
            if len(self._due) > 2 * len(self.outstanding) + 64:
                self._due = sorted({item for item in self._due if self._is_current(item)})

    def _is_current(self, item: tuple[int, int, int]) -> bool:
        message = self.outstanding.get(item[1])
        return message is not None and message.pop_time_ms == item[2]


def _is_of(held: Outstanding | None, pop_time_ms: int, invisible_ms: int) -> bool:
    """Whether the last delivery or change of a message is this one."""
    return (
        held is not None and held.pop_time_ms == pop_time_ms and held.invisible_ms == invisible_ms and held.attempt > 0
    )
