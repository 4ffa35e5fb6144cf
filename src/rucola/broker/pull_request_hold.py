"""Held pulls: pull requests that found no message and wait for one (long polling).

A held pull waits in the group of its queue and its filter, the set of tagsCodes that it accepts. When the store
dispatches messages to a queue, one comparison decides for all pulls of a filter:

    queue T-0 gets units 40 (tagsCode a) and 41 (tagsCode b)
    filter {a, c}    its pulls are retried from 40: no earlier unit since their start has one of their tagsCodes
    filter {c}       its pulls stay; 30,000 of them cost no more than one
    no filter        its pulls are retried from where they wait; so are those with a filter over properties

A retry checks topic, group and permissions again. If the group's subscription has changed, it starts where the pull
started to wait. At its deadline a pull is retried once more, and answered in any case.

**Bounds.** Retries run for `SLICE_S` at a time, and continue in the next iteration of the event loop. Pulls to be
retried stay in the set in which they waited, a batch, so that waking 30,000 is as fast as waking one. Batches take
turns. A pull whose connection is congested is not retried until the peer reads, so its response needs no memory before.
Pulls of closed connections are dropped in the same slices.

A pull counts as one, plus one for each `UNIT_SIZE` of its filter. A connection holds at most `max_per_connection`;
further pulls are refused. If the broker holds `max_count`, each further one is admitted for the oldest of a connection
that holds most, which is answered early. `MAX_FILTERS` different filters wait for one queue, since each message is
compared with all of them; the pulls of the oldest filter are answered early.

Corresponds to `PullRequestHoldService` of Apache RocketMQ 4.9.8. Deliberate differences: a held pull is answered at its
deadline, where Apache checks every five seconds; pulls are bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rucola.access import Reason, Refused
from rucola.broker.client_registry import ClientChannel
from rucola.broker.services.results import Waiting
from rucola.store.consume_queue import ConsumeQueue, iter_units

SLICE_S: Final = 0.0002
UNIT_SIZE: Final = 2048
"""Bytes of a filter for which a pull counts as one more."""
MAX_FILTERS: Final = 512
"""Different filters of one queue. Comparing a message with all of them takes 50 µs."""
_CODE_SIZE: Final = 100
"""Bytes of a tagsCode in a set."""
_BUCKET_MS: Final = 100
_MAX_RELEASED: Final = 16
"""Pulls that are answered early for a new one; a pull that needs more room is refused."""

Retry = Callable[[Waiting, int, bool], "Waiting | None"]
"""`retry(waiting, checked, is_last)` answers a pull and returns None, or returns where it waits further.

Units before `checked` have none of the tagsCodes of `waiting`. With `is_last` it always answers.
"""


@dataclass(slots=True, eq=False)
class HeldPull:
    channel: ClientChannel
    topic: str
    queue_id: int
    waiting: Waiting
    deadline_ms: int
    retry: Retry
    size: int = 0
    weight: int = 0
    """What it counts as, since it started to wait."""


Pulls = dict[HeldPull, None]
"""An ordered set, oldest first."""


@dataclass(slots=True, eq=False)
class _Holder:
    channel: ClientChannel
    pulls: Pulls = field(default_factory=dict)
    weight: int = 0


@dataclass(slots=True)
class _Batch:
    """Pulls to be retried. Those that are answered or dropped before their turn are skipped."""

    pulls: Iterator[HeldPull]
    """Over a set that was removed from its table, and does not change."""
    checked: int
    """Units before this queue offset have none of their tagsCodes; for the last retry, 0."""
    end: int
    """Pulls that wait beyond this queue offset have nothing to read yet."""
    is_last: bool = False
    is_evicted: bool = False
    """Whether they left the queue because of MAX_FILTERS, and not because a message woke them."""


@dataclass(slots=True)
class _HeldQueue:
    end: int
    """The queue offset before which every unit was compared with the filters of `by_codes`."""
    by_codes: dict[frozenset[int] | None, Pulls] = field(default_factory=dict)
    """By accepted tagsCodes; None if units do not decide. No set is empty."""


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class PullRequestHold:
    """All held pulls of a broker. Belongs to the event loop."""

    def __init__(
        self,
        max_per_connection: int = 8192,
        max_count: int = 65_536,
        call_soon: Callable[[Callable[[], None]], None] = _call_soon,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`call_soon` and `clock` (seconds) default to the running event loop's."""
        self.held: dict[tuple[str, int], _HeldQueue] = {}
        """By (topic, queue id); a queue without pulls has no entry."""
        self._max_per_connection = max_per_connection
        self._max_count = max_count
        self._call_soon = call_soon
        self._clock = clock
        self._holders: dict[ClientChannel, _Holder] = {}
        self._by_size: dict[int, dict[_Holder, None]] = {}
        """Holders by the number of binary digits of their weight, to find one of the heaviest without a search."""
        self._by_deadline: dict[int, Pulls] = {}
        self._ready: deque[tuple[HeldPull, int, bool]] = deque()
        """Pulls to be retried next, with the last two arguments of their retry."""
        self._batches: deque[_Batch] = deque()
        """Further pulls to be retried, or dropped after their connection closed."""
        self._congested: dict[ClientChannel, list[tuple[HeldPull, int, bool]]] = {}
        self._is_scheduled = False
        self._count = 0
        self._weight = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until messages arrive or its deadline passes. Raises Refused if its connection holds too many."""
        weight = _weight(pull)
        holder = self._holders.get(pull.channel)
        if holder is not None and holder.weight + weight > self._max_per_connection:
            counted = "" if holder.weight == len(holder.pulls) else f", which count as {holder.weight}"
            raise Refused(
                Reason.BUSY,
                f"the connection holds {len(holder.pulls)} pulls already{counted} (maxHeldPullsPerConnection); "
                "pull again later",
            )
        if self._weight + weight > self._max_count:
            self._release(self._weight + weight - self._max_count)
            holder = self._holders.get(pull.channel)
        if holder is None:
            holder = self._holders[pull.channel] = _Holder(pull.channel)
        holder.pulls[pull] = None
        self._count += 1
        self._wait(pull)

    def arrived(self, queue: ConsumeQueue, end: int | None = None) -> None:
        """Retry the pulls that wait for a queue and accept one of its new units, up to `end` if it is given."""
        held = self.held.get((queue.topic, queue.queue_id))
        if held is None:
            return
        end = queue.max_offset if end is None else end
        # Only the units that no filter was compared with yet. A queue that was created again ends before them.
        begin, held.end = min(held.end, end), end
        first_offsets: dict[int, int] | None = None
        for codes, pulls in list(held.by_codes.items()):
            first = begin
            if codes is not None:
                if first_offsets is None:
                    first_offsets = _first_offsets(queue, begin, end)
                if codes.isdisjoint(first_offsets):
                    continue
                # New units 100, 101, 102 with tagsCodes 7, 7, 9 give {7: 100, 9: 102}. A pull that accepts 9 continues
                # at 102; one that accepts 5 was skipped above, at the cost of one set operation for all pulls that do.
                first = min(offset for code, offset in first_offsets.items() if code in codes)
            del held.by_codes[codes]
            self._batches.append(_Batch(iter(pulls), 0 if codes is None else first, end))
        if not held.by_codes:
            del self.held[queue.topic, queue.queue_id]
        self._retry_ready()

    def expire(self, now_ms: int) -> None:
        bucket = now_ms // _BUCKET_MS
        # At 12,345 ms: all pulls of the buckets up to 122, and in bucket 123 those with a deadline up to 12,345.
        for key in [key for key in self._by_deadline if key <= bucket]:
            pulls = self._by_deadline[key]
            due = pulls if key < bucket else {pull: None for pull in pulls if pull.deadline_ms <= now_ms}
            if len(due) == len(pulls):
                del self._by_deadline[key]
            else:
                for pull in due:
                    del pulls[pull]
            if due:
                self._batches.append(_Batch(iter(due), 0, 0, is_last=True))
        self._retry_ready()

    def release_all(self) -> None:
        """Answer every pull, since the broker stops."""
        self._batches.clear()
        self._ready.clear()
        self._congested.clear()
        for pull in [pull for holder in self._holders.values() for pull in holder.pulls]:
            self._retry(pull, self._checked(pull), True)

    def closed(self, channel: ClientChannel) -> None:
        self._congested.pop(channel, None)
        holder = self._holders.pop(channel, None)
        if holder is not None:
            self._count -= len(holder.pulls)
            self._add_weight(holder, -holder.weight)
            self._batches.append(_Batch(iter(holder.pulls), 0, 0))
            self._schedule()

    def writable(self, channel: ClientChannel) -> None:
        if (pulls := self._congested.pop(channel, None)) is not None:
            self._ready.extend(pulls)
            self._retry_ready()

    # Waiting.

    def _wait(self, pull: HeldPull) -> None:
        waiting = pull.waiting
        if (weight := _weight(pull)) != pull.weight:  # of a new pull, or if its group's subscription has changed
            self._add_weight(self._holders[pull.channel], weight - pull.weight)
            pull.weight = weight
        name = (pull.topic, pull.queue_id)
        held = self.held.get(name)
        if held is None:
            held = self.held[name] = _HeldQueue(waiting.max_offset)
        elif waiting.max_offset < held.end:  # the topic was deleted and created again
            held.end = waiting.max_offset
        if waiting.codes not in held.by_codes and len(held.by_codes) >= MAX_FILTERS:
            oldest = next(codes for codes in held.by_codes if codes is not None)
            self._batches.append(_Batch(iter(held.by_codes.pop(oldest)), 0, 0, is_last=True, is_evicted=True))
            self._schedule()
        held.by_codes.setdefault(waiting.codes, {})[pull] = None
        self._by_deadline.setdefault(pull.deadline_ms // _BUCKET_MS, {})[pull] = None

    def _leave_queue(self, pull: HeldPull) -> None:
        name, codes = (pull.topic, pull.queue_id), pull.waiting.codes
        held = self.held.get(name)
        pulls = held.by_codes.get(codes) if held is not None else None
        if held is not None and pulls is not None and pull in pulls:
            del pulls[pull]
            if not pulls:
                del held.by_codes[codes]
                if not held.by_codes:
                    del self.held[name]
        key = pull.deadline_ms // _BUCKET_MS
        bucket = self._by_deadline.get(key)
        if bucket is not None and pull in bucket:
            del bucket[pull]
            if not bucket:
                del self._by_deadline[key]

    def _is_waiting(self, pull: HeldPull) -> bool:
        """Whether a pull waits for its queue: it is in no batch of woken pulls, and not answered."""
        held = self.held.get((pull.topic, pull.queue_id))
        return held is not None and pull in held.by_codes.get(pull.waiting.codes, ())

    def _checked(self, pull: HeldPull) -> int:
        """Queue offset before which no unit has a tagsCode of a pull."""
        queue_offset = pull.waiting.queue_offset
        if pull.waiting.codes is None or not self._is_waiting(pull):
            return queue_offset
        return max(queue_offset, self.held[pull.topic, pull.queue_id].end)

    def _is_held(self, pull: HeldPull) -> bool:
        holder = self._holders.get(pull.channel)
        return holder is not None and pull in holder.pulls

    def _add_weight(self, holder: _Holder, weight: int) -> None:
        before, after = holder.weight.bit_length(), (holder.weight + weight).bit_length()
        holder.weight += weight
        self._weight += weight
        if before != after:
            if before:
                del self._by_size[before][holder]
                if not self._by_size[before]:
                    del self._by_size[before]
            if after:
                self._by_size.setdefault(after, {})[holder] = None

    def _release(self, weight: int) -> None:
        """Answer pulls of the connections that hold most, never of those with few. Refused if that is not enough."""
        end = self._weight - weight
        for _ in range(_MAX_RELEASED):
            # Of two with 5 and 7 pulls, both in class 3, either one; one with 3, in class 2, keeps its own.
            holder = next(iter(self._by_size[max(self._by_size)]))
            if holder.channel.is_congested:  # no answer would reach it
                holder.channel.close()
                self.closed(holder.channel)
            else:
                pull = next(iter(holder.pulls))
                self._retry(pull, self._checked(pull), True)
            if self._weight <= end or not self._by_size:
                break
        if self._weight > end:
            raise Refused(Reason.BUSY, "the broker holds too many pulls for one this large (maxHeldPulls)")

    # Retries.

    def _retry_ready(self) -> None:
        if self._is_scheduled:
            return
        clock = self._clock or asyncio.get_running_loop().time
        until_s = clock() + SLICE_S
        while self._ready or self._batches:
            if self._batches:
                self._take_from_batch()
            if self._ready:
                pull, checked, is_last = self._ready.popleft()
                if pull.channel.is_congested and pull.channel.is_open:
                    self._congested.setdefault(pull.channel, []).append((pull, checked, is_last))
                else:
                    self._retry(pull, checked, is_last)
            if clock() > until_s:
                break
        if self._ready or self._batches:
            self._schedule()

    def _take_from_batch(self) -> None:
        """Make a pull of the next batch ready, unless answered, dropped or woken before; remove a dropped one."""
        batch = self._batches[0]
        pull = next(batch.pulls, None)
        if pull is None:
            self._batches.popleft()
            return
        self._batches.rotate(-1)
        if not self._is_held(pull):
            self._leave_queue(pull)
        elif batch.is_last:
            if batch.is_evicted or self._is_waiting(pull):
                checked = self._checked(pull)
                self._leave_queue(pull)
                self._ready.append((pull, checked, True))
        elif pull.waiting.codes is None and pull.waiting.queue_offset >= batch.end:
            self._wait(pull)
        else:
            self._leave_queue(pull)
            self._ready.append((pull, max(pull.waiting.queue_offset, batch.checked), False))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        self._retry_ready()

    def _retry(self, pull: HeldPull, checked: int, is_last: bool) -> None:
        if not self._is_held(pull):  # its connection is closed, or it was answered early
            return
        holder = self._holders[pull.channel]
        self._leave_queue(pull)
        before = pull.waiting
        waiting = pull.retry(before, checked, is_last) if pull.channel.is_open else None
        if not self._is_held(pull):  # the retry closed its connection, or dispatched a message and so answered others
            return
        if waiting is None:
            self._count -= 1
            del holder.pulls[pull]
            self._add_weight(holder, -pull.weight)
            if not holder.pulls:
                del self._holders[pull.channel]
            return
        pull.waiting = waiting
        if before.queue_offset < waiting.queue_offset < waiting.max_offset:
            # One read looks at a part of a long queue; the rest has its turn after the other pulls.
            self._ready.append((pull, waiting.queue_offset, False))
        else:
            self._wait(pull)


def _weight(pull: HeldPull) -> int:
    return 1 + (pull.size + _CODE_SIZE * len(pull.waiting.codes or ())) // UNIT_SIZE


def _first_offsets(queue: ConsumeQueue, begin: int, end: int) -> dict[int, int]:
    first_offsets: dict[int, int] = {}
    while begin < end:
        units = queue.units_in_file(begin, end - begin)
        if not units:
            begin = queue.end_of_file(begin)
            continue
        for _, _, tags_code in iter_units(units):
            first_offsets.setdefault(tags_code, begin)
            begin += 1
    return first_offsets
