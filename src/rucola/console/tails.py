"""Live tails: the newest messages of topics, read once for all watchers, without their bodies.

A tail keeps its last KEPT messages, however long it runs and however slow a watcher is: what a watcher has not taken by
then is left out, and counted. A round reads at most ROUND_MESSAGES; if more have come, the older ones are left out as
well. A tail ends after IDLE_S without a watcher.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from rucola.admin import TOOLS_GROUP, AdminClient, MessageExt, MessageQueue
from rucola.admin.requests import gather_to_completion
from rucola.client import PullConsumer
from rucola.console.collector import Collector
from rucola.console.scans import Hit, hit_of
from rucola.errors import ConfigError, MQError

INTERVAL_S: Final = 1.0
KEPT: Final = 100
ROUND_MESSAGES: Final = 64
ROUND_QUEUES: Final = 16
"""Queues that one round reads, each with a request."""
FIRST_MESSAGES: Final = 20
"""Messages before the start of a tail."""
IDLE_S: Final = 30.0
MAX_TAILS: Final = 20
MAX_WATCHERS: Final = 100
FIRST_WAIT_S: Final = 3.0


class News(NamedTuple):
    """What a watcher has not seen: messages with their numbers, oldest first, and how many before them are left out."""

    messages: Sequence[tuple[int, Hit]]
    left_out: int
    number: int
    """What to ask for next."""


class Tail:
    """Messages of one topic, numbered in the order in which they were read; numbers of those left out are missing."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.begin_ms = time.time_ns() // 1_000_000
        self.failures: Mapping[str, str] = {}
        """Why brokers or queues are missing in the last round."""
        self.rounds = 0
        self.watched_s = time.monotonic()
        self._kept: deque[tuple[int, Hit]] = deque(maxlen=KEPT)
        self._number = 0
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def publish(
        self, found: Sequence[tuple[MessageExt, str]], left_out: int, failures: Mapping[str, str] | None = None
    ) -> None:
        """Add messages of one round with their broker names, after `left_out` that were not read."""
        has_news = bool(found or left_out or not self.rounds or self.failures != (failures or {}))
        self.failures = failures or {}
        self._number += left_out
        for message, broker_name in sorted(found, key=lambda one: (one[0].store_timestamp, one[0].physical_offset)):
            self._number += 1
            self._kept.append((self._number, hit_of(message, broker_name)))
        self.rounds += 1
        if has_news:
            self.wake()

    def wake(self) -> None:
        """Wake the watchers that wait."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def news(self, after: int, wait_s: float = 0.0) -> News:
        """Return the messages after a number, 0 for all that are kept; wait until there are some."""
        self.watched_s = time.monotonic()
        if wait_s and (self._number <= after or not self.rounds):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        messages = [one for one in self._kept if one[0] > after]
        seen = self._number - after - len(messages) if after else 0
        return News(messages, seen, self._number)


class Tails:
    def __init__(self, client: AdminClient, collector: Collector) -> None:
        self._client = client
        self._collector = collector
        self._tails: dict[str, Tail] = {}
        self._watchers = 0
        self.is_closed = False

    async def get(self, topic: str) -> Tail:
        """Return the tail of a topic after its first round; it starts with its first watcher. Raises ConfigError."""
        tail = self._tails.get(topic)
        if tail is None:
            if len(self._tails) >= MAX_TAILS:
                raise ConfigError(f"{MAX_TAILS} topics are watched already: close one of these pages", subject=topic)
            tail = self._tails[topic] = Tail(topic)
            tail.task = asyncio.create_task(self._run(tail))
        if not tail.rounds:
            await tail.news(0, FIRST_WAIT_S)
        tail.watched_s = time.monotonic()
        return tail

    @property
    def is_full(self) -> bool:
        """Whether as many pages stay connected as may."""
        return self._watchers >= MAX_WATCHERS

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a page that stays connected."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    async def close(self) -> None:
        """End all tails, and the streams of their watchers."""
        self.is_closed = True
        tails = list(self._tails.values())
        for tail in tails:
            tail.wake()
        tasks = [one.task for one in tails if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, tail: Tail) -> None:
        ends: dict[MessageQueue, int] = {}
        try:
            async with PullConsumer(TOOLS_GROUP, self._client.connection) as consumer:
                while not self._is_idle(tail):
                    failures: dict[str, str] = {}
                    try:
                        found, left_out = await self._round(tail.topic, consumer, ends, failures)
                    except MQError as error:
                        found, left_out, failures[tail.topic] = [], 0, str(error)
                    tail.publish(found, left_out, failures)
                    await asyncio.sleep(INTERVAL_S)
        finally:
            self._forget(tail)

    def _is_idle(self, tail: Tail) -> bool:
        """Whether it has no watcher; the next one gets another tail."""
        is_idle = time.monotonic() - tail.watched_s >= IDLE_S
        if is_idle:
            self._forget(tail)
        return is_idle

    def _forget(self, tail: Tail) -> None:
        if self._tails.get(tail.topic) is tail:
            del self._tails[tail.topic]

    async def _round(
        self, topic: str, consumer: PullConsumer, ends: dict[MessageQueue, int], failures: dict[str, str]
    ) -> tuple[list[tuple[MessageExt, str]], int]:
        """Read what has come since `ends`, the first offsets that were not read, and move these."""
        state = self._collector.snapshot.topics.get(topic)
        brokers = list(state.brokers) if state is not None else []
        await self._collector.spend(len(brokers))
        await consumer.queues(topic)  # its route, which may have changed
        is_first, maxima = not ends, dict[MessageQueue, int]()

        async def table(broker: str) -> None:
            reader = self._collector.snapshot.reader(broker)
            try:
                if reader is None:
                    raise ConfigError(f"no broker {broker} is registered", subject=broker)
                offsets = await self._client.topics.stats_at(reader.address, topic)
            except MQError as error:
                failures[broker] = str(error)
                return
            for queue, at in offsets.items():
                known = ends.setdefault(queue, at.max_offset - FIRST_MESSAGES)
                # A topic that was created again begins at 0.
                ends[queue] = max(at.min_offset, known) if known <= at.max_offset else at.min_offset
                maxima[queue] = at.max_offset

        await gather_to_completion(map(table, brokers))
        waiting = {queue: count for queue, end in maxima.items() if (count := end - ends[queue]) > 0}
        # Those with the most messages first; the others wait for the next round.
        chosen = sorted(waiting, key=lambda queue: -waiting[queue])[:ROUND_QUEUES]
        await self._collector.spend(len(chosen))
        share = max(1, (FIRST_MESSAGES if is_first else ROUND_MESSAGES) // max(1, len(chosen)))

        async def pull(queue: MessageQueue) -> tuple[list[tuple[MessageExt, str]], int]:
            begin = max(ends[queue], maxima[queue] - share)
            left_out, ends[queue] = begin - ends[queue], begin
            try:
                result = await consumer.pull(queue, begin, share)
            except MQError as error:
                failures[str(queue)] = str(error)
                return [], left_out
            ends[queue] = max(begin, result.next_begin_offset)
            return [(message, queue.broker_name) for message in result.messages], left_out

        pulled = await gather_to_completion(map(pull, chosen))
        found = [one for messages, _ in pulled for one in messages]
        return found, 0 if is_first else sum(left_out for _, left_out in pulled)
