"""Held pulls: pull requests that found no message and wait for one (long polling).

A held pull waits in the group of its queue and its filter, the set of tagsCodes that it accepts. When the store
dispatches messages to a queue, one comparison decides for all pulls of a filter:

    queue T-0 gets units 40 (tagsCode a) and 41 (tagsCode b)
    filter {a, c}    its pulls are retried from 40: no earlier unit since they began to wait has one of their tagsCodes
    filter {c}       its pulls stay; 30,000 of them cost no more than one
    no filter        its pulls are retried from where they wait; so are those with a filter over properties

A retry checks topic, group and permissions again, so that a pull of a topic that was deleted meanwhile is refused. If
the group's subscription has changed since, it begins where the pull began to wait. A pull that has waited for as long
as it asked for is retried once more, and answered with whatever that finds, so that the client asks again.

**Bounds.** Retries run for `SLICE_S` at a time, and continue in the next iteration of the event loop. Pulls that are to
be retried stay in the set in which they waited, a batch, until it is their turn: 30,000 of them are woken as fast as
one. Batches take turns, so that a queue with few pulls does not wait for one with many. A pull whose connection is
congested is not retried before the peer has read what it was sent: until then its response takes no memory. A
connection holds at most `max_per_connection` pulls; another one is refused. If the broker holds `max_count`, the
connection with the most pulls gets some of them answered.

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

SLICE_S: Final = 0.005
"""Time after which retries are continued in the next iteration of the event loop, in seconds."""
_BUCKET_MS: Final = 100
"""Held pulls are looked up by deadline in buckets of this many milliseconds."""
_RELEASED_PART: Final = 16
"""When the broker holds too many pulls, this part of the pulls of one connection is answered."""

Retry = Callable[[Waiting, int, bool], "Waiting | None"]
"""`retry(waiting, checked, is_last)` answers a pull and returns None, or returns where it waits further.

Units before `checked` have none of the tagsCodes of `waiting`. With `is_last` it always answers.
"""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

    channel: ClientChannel
    topic: str
    queue_id: int
    waiting: Waiting
    """Where it waits and for what, as of its last read."""
    deadline_ms: int
    """When it is answered at the latest, milliseconds since 1970."""
    retry: Retry


Pulls = dict[HeldPull, None]
"""A set of pulls in the order in which they came."""


@dataclass(slots=True)
class _Batch:
    """Pulls that are to be retried, and how."""

    pulls: Iterator[HeldPull]
    """Over a set of pulls that was taken out of its table, and does not change any more."""
    checked: int
    """Units before this queue offset have none of their tagsCodes; for the last retry, 0."""
    end: int
    """Pulls that wait beyond this queue offset have nothing to read yet."""
    is_last: bool = False


@dataclass(slots=True)
class _HeldQueue:
    """The pulls that wait for one queue."""

    end: int
    """The queue offset before which every unit was compared with the filters of `by_codes`."""
    by_codes: dict[frozenset[int] | None, Pulls] = field(default_factory=dict)
    """By the tagsCodes that they accept; None if the units do not tell. No set is empty."""


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
        """`call_soon` and `clock`, in seconds, are by default those of the running event loop."""
        self.held: dict[tuple[str, int], _HeldQueue] = {}
        """Held pulls by (topic, queue id); a queue without any has no entry."""
        self._max_per_connection = max_per_connection
        self._max_count = max_count
        self._call_soon = call_soon
        self._clock = clock
        self._by_channel: dict[ClientChannel, Pulls] = {}
        """Every pull that has no answer yet, by its connection."""
        self._by_deadline: dict[int, Pulls] = {}
        """Every pull that waits for its queue, by bucket of its deadline."""
        self._ready: deque[tuple[HeldPull, int, bool]] = deque()
        """Pulls to be retried next, with the last two arguments of their retry."""
        self._batches: deque[_Batch] = deque()
        """Further pulls to be retried, unless they are answered or dropped meanwhile."""
        self._congested: dict[ClientChannel, list[tuple[HeldPull, int, bool]]] = {}
        """Those whose connection was congested when it was their turn."""
        self._is_scheduled = False
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until messages arrive in its queue or its deadline passes.

        Raises Refused if its connection holds too many.
        """
        pulls = self._by_channel.get(pull.channel)
        if pulls is None:
            pulls = self._by_channel[pull.channel] = {}
        elif len(pulls) >= self._max_per_connection:
            raise Refused(
                Reason.BUSY,
                f"the connection holds {len(pulls)} pulls already (maxHeldPullsPerConnection); pull again later",
            )
        if self._count >= self._max_count:
            self._release_some()
        pulls[pull] = None
        self._count += 1
        self._wait(pull)

    def arrived(self, queue: ConsumeQueue, end: int | None = None) -> None:
        """Retry the pulls that wait for a queue and accept one of its new units, up to `end` or all of them."""
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
        """Answer the pulls whose deadline has passed."""
        bucket = now_ms // _BUCKET_MS
        # At 12,345 ms: all pulls of the buckets up to 122, and those of bucket 123 with a deadline up to 12,345.
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
        """Answer every pull now, since the broker stops."""
        self._batches.clear()
        self._ready.clear()
        self._congested.clear()
        for pull in [pull for pulls in self._by_channel.values() for pull in pulls]:
            checked = self._checked(pull)
            self._leave_queue(pull)
            self._retry(pull, checked, True)

    def closed(self, channel: ClientChannel) -> None:
        """Drop the pulls of a connection that was closed."""
        self._congested.pop(channel, None)
        for pull in self._by_channel.pop(channel, ()):
            self._count -= 1
            self._leave_queue(pull)

    def writable(self, channel: ClientChannel) -> None:
        """Retry the pulls that were not retried while their connection was congested."""
        if (pulls := self._congested.pop(channel, None)) is not None:
            self._ready.extend(pulls)
            self._retry_ready()

    # Waiting.

    def _wait(self, pull: HeldPull) -> None:
        """Let a pull wait for its queue."""
        waiting = pull.waiting
        name = (pull.topic, pull.queue_id)
        held = self.held.get(name)
        if held is None:
            held = self.held[name] = _HeldQueue(waiting.max_offset)
        elif waiting.max_offset < held.end:  # the topic was deleted and created again
            held.end = waiting.max_offset
        held.by_codes.setdefault(waiting.codes, {})[pull] = None
        self._by_deadline.setdefault(pull.deadline_ms // _BUCKET_MS, {})[pull] = None

    def _leave_queue(self, pull: HeldPull) -> None:
        """Let a pull wait for its queue no longer; no effect if it does not."""
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
        """Return whether a pull waits for its queue: it is in no batch of woken pulls, and not answered."""
        held = self.held.get((pull.topic, pull.queue_id))
        return held is not None and pull in held.by_codes.get(pull.waiting.codes, ())

    def _checked(self, pull: HeldPull) -> int:
        """Return the queue offset before which no unit has one of the tagsCodes of a pull."""
        queue_offset = pull.waiting.queue_offset
        if pull.waiting.codes is None or not self._is_waiting(pull):
            return queue_offset
        return max(queue_offset, self.held[pull.topic, pull.queue_id].end)

    def _release_some(self) -> None:
        """Answer some pulls of the connection that has the most: a client with few of them must not be refused."""
        channel, pulls = max(self._by_channel.items(), key=lambda item: len(item[1]))
        if channel.is_congested:  # no answer would reach it
            channel.close()
            return
        for pull in list(pulls)[: len(pulls) // _RELEASED_PART + 1]:
            self._leave_queue(pull)
            self._ready.append((pull, pull.waiting.queue_offset, True))
        self._schedule()

    # Retries.

    def _retry_ready(self) -> None:
        """Retry pulls for a slice of time; the rest in the next iteration."""
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
        """Make a pull of the next batch ready, unless it has been answered, dropped or woken meanwhile."""
        batch = self._batches[0]
        pull = next(batch.pulls, None)
        if pull is None:
            self._batches.popleft()
            return
        self._batches.rotate(-1)
        if batch.is_last:
            if self._is_waiting(pull):
                checked = self._checked(pull)
                self._leave_queue(pull)
                self._ready.append((pull, checked, True))
        elif pull in self._by_channel.get(pull.channel, ()):
            if pull.waiting.codes is None and pull.waiting.queue_offset >= batch.end:
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
        pulls = self._by_channel.get(pull.channel)
        if pulls is None or pull not in pulls:  # its connection is closed, or it was answered early
            return
        self._leave_queue(pull)
        before = pull.waiting
        waiting = pull.retry(before, checked, is_last) if pull.channel.is_open else None
        if waiting is None:
            self._count -= 1
            del pulls[pull]
            if not pulls and self._by_channel.get(pull.channel) is pulls:
                del self._by_channel[pull.channel]
            return
        pull.waiting = waiting
        if before.queue_offset < waiting.queue_offset < waiting.max_offset:
            # One read looks at a part of a long queue; the rest has its turn after the other pulls.
            self._ready.append((pull, waiting.queue_offset, False))
        else:
            self._wait(pull)


def _first_offsets(queue: ConsumeQueue, begin: int, end: int) -> dict[int, int]:
    """Return the queue offset of the first unit from `begin` to `end` with each tagsCode."""
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
