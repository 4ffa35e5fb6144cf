"""Held pulls: pull requests that found no message and wait for one (long polling).

A held pull waits for its queue with a filter, the set of tagsCodes that it accepts. When the store dispatches messages
to a queue, one comparison decides for all pulls of a filter:

    queue T-0 gets units 40 (tagsCode a) and 41 (tagsCode b)
    filter {a, c}    its pulls are retried from 40: no earlier unit since their start has one of their tagsCodes
    filter {c}       its pulls stay; 30,000 of them cost no more than one
    no filter        its pulls are retried from where they wait; so are those with a filter over properties

A retry checks topic, group and permissions again. If the group's subscription has changed, it starts where the pull
started to wait. At its deadline a pull is retried once more, and answered in any case.

**Bounds.** Retries and the removal of pulls of closed connections have `SLICE_S` at a time. A pull whose connection is
congested is not retried until the peer reads, so its response needs no memory before.

A pull counts as one, plus one for each `UNIT_SIZE` of its filter. A connection holds at most `max_per_connection`;
further pulls are refused. If the broker holds `max_count`, each further one is admitted for the oldest of a connection
that does not hold less than the average, which is answered early. A message is compared with `MAX_FILTERS` filters at
most; the pulls of further ones are retried after each message, as those without a filter.

A pull of messages that have left the log waits for the lake (`rucola.broker.tiered_store`), under the same bounds.

Corresponds to `PullRequestHoldService` of Apache RocketMQ 4.9.8. Deliberate differences: a held pull is answered at its
deadline, where Apache checks every five seconds; pulls are bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rucola import refusals
from rucola.access import Refused
from rucola.broker.client_registry import ClientChannel
from rucola.broker.delayed_operations import DelayedOperations
from rucola.broker.services.results import Waiting
from rucola.store.consume_queue import ConsumeQueue, iter_units

SLICE_S: Final = 0.0002
MAX_FILTERS: Final = 512
"""Different filters of one queue. Comparing a message with all of them takes 50 µs."""
UNIT_SIZE: Final = 2048
"""Bytes of a filter for which a pull counts as one more."""
_CODE_SIZE: Final = 100
"""Bytes of a tagsCode in a set."""
_MAX_WAIT_MS: Final = 1 << 40
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
    retry: Retry
    size: int = 0
    weight: int = 0
    """Its weight, since it started to wait."""
    filter: frozenset[int] | None = None
    """The filter with which its queue has it."""
    checked: int = 0
    """After a message woke it, units before this queue offset have none of its tagsCodes."""


Pulls = dict[HeldPull, None]
"""An ordered set, oldest first."""


@dataclass(slots=True, eq=False)
class _Holder:
    pulls: Pulls = field(default_factory=dict)
    weight: int = 0
    congested: list[HeldPull] = field(default_factory=list)
    """Woken pulls that wait until the peer reads."""


@dataclass(slots=True, eq=False)
class _HeldQueue:
    end: int
    """The queue offset before which every unit was compared with the filters."""
    filters: dict[frozenset[int] | None, Pulls] = field(default_factory=dict)
    """By accepted tagsCodes; None if units do not decide. No set is empty."""


class PullRequestHold:
    """All held pulls of a broker. Belongs to the event loop, by default the running one."""

    def __init__(
        self,
        max_per_connection: int = 8192,
        max_count: int = 65_536,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.held: dict[tuple[str, int], _HeldQueue] = {}
        """By (topic, queue id); a queue without pulls has no entry."""
        self._tiered: dict[tuple[str, int], Pulls] = {}
        """Those that wait for messages of the lake, also by queue."""
        self._operations: DelayedOperations[HeldPull] = DelayedOperations(self._try_complete, SLICE_S, loop)
        self._max_per_connection = max_per_connection
        self._max_count = max_count
        self._holders: OrderedDict[ClientChannel, _Holder] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._operations)

    def hold(self, pull: HeldPull, wait_ms: int) -> None:
        """Keep a pull until messages arrive or its time is up. Raises Refused if its connection holds too many."""
        weight = _weight(pull)
        holder = self._holders.get(pull.channel)
        if holder is not None and holder.weight + weight > self._max_per_connection:
            raise Refused(refusals.PULLS_HELD, count=len(holder.pulls), weight=holder.weight)
        self._make_room(weight)
        self._holders.setdefault(pull.channel, _Holder()).pulls[pull] = None
        self._watch(pull)
        self._operations.add(pull, max(0, min(wait_ms, _MAX_WAIT_MS)) / 1000)

    def arrived(self, queue: ConsumeQueue, end: int | None = None) -> None:
        """Retry the pulls that wait for a queue and accept one of its new units, up to `end` if it is given."""
        name = (queue.topic, queue.queue_id)
        held = self.held.get(name)
        if held is None:
            return
        end = queue.max_offset if end is None else end
        # Only the units that no filter was compared with yet. A queue that was created again ends before them.
        begin, held.end = held.end, end
        if begin >= end:
            return
        woken: list[HeldPull] = []
        first_offsets: dict[int, int] | None = None
        for codes, pulls in list(held.filters.items()):
            if codes is not None:
                if first_offsets is None:
                    first_offsets = _first_offsets(queue, begin, end)
                if codes.isdisjoint(first_offsets):
                    continue
                # New units 100, 101, 102 with tagsCodes 7, 7, 9 give {7: 100, 9: 102}. A pull that accepts 9 continues
                # at 102; one that accepts 5 was skipped above, at the cost of one set operation for all pulls that do.
                checked = min(offset for code, offset in first_offsets.items() if code in codes)
                for pull in pulls:
                    pull.checked = checked
            del held.filters[codes]
            woken += pulls
        if not held.filters:
            del self.held[name]
        self._operations.wake(woken)

    def tiered_read(self, topic: str, queue_id: int) -> None:
        """Retry the pulls that wait for messages of a queue in the lake."""
        self._operations.wake(self._tiered.pop((topic, queue_id), {}))

    def release_all(self) -> None:
        """Answer every pull, since the broker stops."""
        self._operations.stop()

    def closed(self, channel: ClientChannel) -> None:
        holder = self._holders.pop(channel, None)
        if holder is not None:
            self._weight -= holder.weight
            self._operations.wake(list(holder.pulls))

    def writable(self, channel: ClientChannel) -> None:
        holder = self._holders.get(channel)
        if holder is not None and holder.congested:
            congested, holder.congested = holder.congested, []
            self._operations.wake(congested)

    def _try_complete(self, pull: HeldPull, is_last: bool) -> bool:
        holder, channel = self._holders.get(pull.channel), pull.channel
        if holder is not None and channel.is_congested and channel.is_open:
            holder.congested.append(pull)
            return False
        checked = self._leave_queue(pull)
        if holder is None:  # its connection is closed
            return True
        before = pull.waiting
        waiting = pull.retry(before, checked, is_last) if channel.is_open else None
        if channel not in self._holders:  # the retry closed it
            return True
        if waiting is None:
            self._count(holder, pull, 0)
            del holder.pulls[pull]
            if not holder.pulls:
                del self._holders[channel]
            return True
        pull.waiting, pull.checked = waiting, 0
        if before.queue_offset < waiting.queue_offset < waiting.max_offset:
            # One read looks at a part of a long queue; the rest has its turn after the other pulls.
            self._operations.wake((pull,))
        else:
            self._watch(pull)
        return False

    def _watch(self, pull: HeldPull) -> None:
        waiting = pull.waiting
        # Of a new pull, or if its group's subscription has changed.
        self._count(self._holders[pull.channel], pull, _weight(pull))
        if waiting.is_tiered:
            self._tiered.setdefault((pull.topic, pull.queue_id), {})[pull] = None
            return
        queue = self.held.setdefault((pull.topic, pull.queue_id), _HeldQueue(waiting.max_offset))
        queue.end = min(queue.end, waiting.max_offset)  # less if the topic was deleted and created again
        is_known = waiting.codes in queue.filters or len(queue.filters) < MAX_FILTERS
        pull.filter = waiting.codes if is_known else None
        queue.filters.setdefault(pull.filter, {})[pull] = None

    def _leave_queue(self, pull: HeldPull) -> int:
        """Return the queue offset before which no unit has a tagsCode of the pull."""
        name, checked = (pull.topic, pull.queue_id), pull.checked
        if pull in (tiered := self._tiered.get(name, {})):
            del tiered[pull]
            if not tiered:
                del self._tiered[name]
        queue = self.held.get(name)
        if queue is not None and pull in (pulls := queue.filters.get(pull.filter, {})):  # it was not woken by a message
            if pull.filter is not None:
                checked = queue.end
            del pulls[pull]
            if not pulls:
                del queue.filters[pull.filter]
            if not queue.filters:
                del self.held[name]
        return max(pull.waiting.queue_offset, checked)

    def _count(self, holder: _Holder, pull: HeldPull, weight: int) -> None:
        holder.weight += weight - pull.weight
        self._weight += weight - pull.weight
        pull.weight = weight

    def _make_room(self, weight: int) -> None:
        """Answer pulls of connections that do not hold less than the average. Raises Refused if that is not enough."""
        holders = self._holders
        for _ in range(_MAX_RELEASED):
            if self._weight + weight <= self._max_count or not holders:
                break
            # A connection that holds less moves to the end, so that it is not looked at again soon.
            while (first := next(iter(holders.items())))[1].weight * len(holders) < self._weight:
                holders.move_to_end(first[0])
            channel, holder = first
            if channel.is_congested:  # no answer would reach it
                channel.close()
                self.closed(channel)
            else:
                self._operations.complete(next(iter(holder.pulls)))
        if self._weight + weight > self._max_count:
            raise Refused(refusals.PULL_TOO_LARGE)


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
