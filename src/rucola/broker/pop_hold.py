"""Held receives: POP requests that found no message and wait for one (long polling).

A receive waits for a topic or one queue of it, and for the retry topic of its group. When messages arrive there, or can
be received again, the receives of each group are tried, the one that has waited longest first, until one finds nothing:
one message costs no more with 30,000 members than with one.

A receive that is unfinished, since its filter rejects many messages, is tried again after PAUSE_S. One of a congested
connection is not tried until the peer reads. At its deadline each is tried for the last time.

Corresponds to `PopLongPollingService` of Apache RocketMQ 5. Deliberate difference: the time of the client is not
compared with the broker's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola import refusals
from rucola.access import Refused
from rucola.broker.client_registry import ClientChannel
from rucola.broker.delayed_operations import DelayedOperations
from rucola.broker.delivery.pop_log import PopQueue
from rucola.broker.services.results import NothingPopped
from rucola.message.topics import pop_retry_topic

SLICE_S: Final = 0.0002
PAUSE_S: Final = 0.002
_MAX_WAIT_MS: Final = 1 << 40

Retry = Callable[[bool], "NothingPopped | None"]
"""`retry(is_last)` answers a receive and returns None, or returns what it waits with. With `is_last` it answers."""


class _Key(NamedTuple):
    group: str
    topic: str
    queue_id: int
    """Negative: all queues."""


@dataclass(slots=True, eq=False)
class HeldPop:
    channel: ClientChannel
    group: str
    topic: str
    queue_id: int
    retry: Retry
    is_skipped: bool = False
    """Whether the last try was left out, for a congested connection."""
    peer: str = ""
    has_left: bool = False
    """Whether the member has left its group, so that no client waits for the answer."""

    @property
    def key(self) -> _Key:
        return _Key(self.group, self.topic, max(-1, self.queue_id))


_Pops = dict[HeldPop, None]
"""An ordered set, oldest first."""


class PopHold:
    """All held receives of a broker. Belongs to the event loop, by default the running one."""

    def __init__(
        self,
        max_per_connection: int = 8192,
        max_count: int = 65_536,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.held: dict[str, dict[_Key, _Pops]] = {}
        """By each topic that brings messages, the retry topic included."""
        self._max_per_connection = max_per_connection
        self._max_count = max_count
        self._of_channel: dict[ClientChannel, _Pops] = {}
        self._of_peer: Counter[str] = Counter()
        """Receives of a connection, which has one channel, or one for each call of gRPC."""
        self._woken: dict[_Key, None] = {}
        self._loop = loop or asyncio.get_running_loop()
        self._operations: DelayedOperations[HeldPop] = DelayedOperations(self._try_complete, SLICE_S, self._loop)

    def __len__(self) -> int:
        return len(self._operations)

    def hold(self, pop: HeldPop, wait_ms: int, nothing: NothingPopped) -> None:
        """Keep a receive until messages arrive or its time is up. Raises Refused if too many are held."""
        pop.peer = pop.channel.peer
        if (count := self._of_peer[pop.peer]) >= self._max_per_connection:
            raise Refused(refusals.POP_HELD, count=count, key="maxHeldPullsPerConnection")
        if len(self) >= self._max_count:
            raise Refused(refusals.POP_HELD, count=len(self), key="maxHeldPulls")
        self._of_peer[pop.peer] += 1
        self._of_channel.setdefault(pop.channel, {})[pop] = None
        for topic in _topics_of(pop.key):
            self.held.setdefault(topic, {}).setdefault(pop.key, {})[pop] = None
        self._operations.add(pop, min(wait_ms, _MAX_WAIT_MS) / 1000)
        self._go_on(pop, nothing)

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many receives wait for these messages."""
        return len(self.held.get(topic, {}).get(_Key(group, topic, max(-1, queue_id)), ()))

    def count_of(self, group: str, topic: str | None) -> int:
        """Return how many receives of a group wait for a topic, or for any."""
        return sum(
            len(pops)
            for name, keys in self.held.items()
            for key, pops in keys.items()
            if key.group == group and name == key.topic and topic in (None, name)
        )

    def arrived(self, topic: str, queue_id: int) -> None:
        """Try receives, later, since a queue has new messages."""
        for key in self.held.get(topic, ()):
            if key.queue_id in (-1, queue_id) or topic != key.topic:
                self._wake(key)

    def visible(self, queue: PopQueue) -> None:
        """Try receives of a group, later, since messages of a queue can be received again."""
        for key in self.held.get(queue.topic, ()):
            if key.group == queue.group and (key.queue_id in (-1, queue.queue_id) or queue.topic != key.topic):
                self._wake(key)

    def writable(self, channel: ClientChannel) -> None:
        for pop in self._of_channel.get(channel, ()):
            if pop.is_skipped:
                self._wake(pop.key)

    def closed(self, channel: ClientChannel) -> None:
        """Forget the receives of a connection."""
        self._operations.wake(list(self._of_channel.get(channel, ())))

    def left(self, channel: ClientChannel, group: str) -> None:
        """Forget the receives of a member that leaves its group."""
        leaving = [pop for pop in self._of_channel.get(channel, ()) if pop.group == group]
        for pop in leaving:
            pop.has_left = True
        self._operations.wake(leaving)

    def release_all(self) -> None:
        """Answer all receives."""
        self._operations.stop()

    def _wake(self, key: _Key) -> None:
        # Never at once: reading the store dispatches new messages, amid a receive.
        if not self._woken:
            self._loop.call_soon(self._try_woken)
        self._woken[key] = None

    def _try_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            self._operations.wake(self._until_none_found(key))

    def _until_none_found(self, key: _Key) -> Iterator[HeldPop]:
        for pop in list(self.held.get(key.topic, {}).get(key, ())):
            yield pop
            if pop in self._of_channel.get(pop.channel, ()) and not pop.is_skipped:
                return

    def _try_complete(self, pop: HeldPop, is_last: bool) -> bool:
        channel = pop.channel
        is_awaited = channel.is_open and not pop.has_left
        pop.is_skipped = is_awaited and channel.is_congested
        if pop.is_skipped:
            return False
        nothing = pop.retry(is_last) if is_awaited else None
        if nothing is not None:
            self._go_on(pop, nothing)
            return False
        self._of_peer[pop.peer] -= 1
        if not self._of_peer[pop.peer]:
            del self._of_peer[pop.peer]
        pops = self._of_channel[channel]
        del pops[pop]
        if not pops:
            del self._of_channel[channel]
        for topic in _topics_of(pop.key):
            keys = self.held[topic]
            del keys[pop.key][pop]
            if not keys[pop.key]:
                del keys[pop.key]
            if not keys:
                del self.held[topic]
        return True

    def _go_on(self, pop: HeldPop, nothing: NothingPopped) -> None:
        if nothing.is_unfinished:
            self._loop.call_later(PAUSE_S, self._operations.wake, (pop,))


def _topics_of(key: _Key) -> tuple[str, str]:
    return key.topic, pop_retry_topic(key.group, key.topic)
