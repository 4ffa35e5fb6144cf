"""What a producer and a consumer count of themselves, by topic: how much, how well, and how long it took.

To count is a handful of additions, for each request of a producer and each pull and delivery of a consumer, so it is
always on. `Producer.stats` and `PushConsumer.stats` give what was counted since the client was made, and may be called
from any thread; `rucola.client.metrics` tells Prometheus the same. The rates of the last minute that operators ask a
consumer for (`statusTable` of GET_CONSUMER_RUNNING_INFO) come from here as well.

What a consumer tries again counts under the topic `%RETRY%group`, from which it was pulled.

Answers to `ConsumerStatsManager` of Apache RocketMQ 4.9.8; the bounds of durations are those of RocketMQ 5's clients.
Deliberate differences: windows end now, not at the last sample; a message that the application had for too long counts
as failed.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from rucola.client.clock import monotonic_ms, precise_monotonic_ms
from rucola.protocol.connections import ConsumeStatus
from rucola.rates import StatsItem

SEND_BOUNDS_MS = (1, 5, 10, 20, 50, 200, 500)
PROCESS_BOUNDS_MS = (1, 5, 10, 100, 1000, 10_000, 60_000)


class Durations(msgspec.Struct, frozen=True):
    """How long things took: `counts[i]` of them at most `bounds_ms[i]` and more than the bound before; the last
    count is of those above all bounds."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_ms(self) -> float:
        """0 where there was none."""
        return self.sum_ms / self.count if self.count else 0.0


class ProducerStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer sent to a topic. Durations are of requests, further tries included: a batch is one."""

    sent: int
    """Messages that were stored."""
    not_store_ok: int
    """Those of them that the broker did not vouch for, such as FLUSH_DISK_TIMEOUT."""
    failed: int
    """Messages whose sending ended with an error, or was given up."""
    oneway: int
    """Messages for which nobody answered."""
    in_flight: int
    """Messages that are being sent now."""
    sent_ms: Durations
    failed_ms: Durations


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer did of a topic. Durations are of deliveries: what one call of a listener gets is one."""

    pulled: int
    consumed: int
    """Messages that the application was done with."""
    failed: int
    """Messages that it gave back, or had for too long."""
    in_hand: int
    """Messages that it has now."""
    held: int
    """Messages that were pulled and are not done, those in hand included."""
    held_size: int
    """Bytes of their bodies."""
    consumed_ms: Durations
    failed_ms: Durations


class _Timer:
    """Counts durations."""

    __slots__ = ("_bounds_ms", "_counts", "sum_ms")

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self.sum_ms = 0.0
        self._bounds_ms = bounds_ms
        self._counts = [0] * (len(bounds_ms) + 1)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, ms: float) -> None:
        self._counts[bisect_left(self._bounds_ms, ms)] += 1
        self.sum_ms += ms

    def view(self) -> Durations:
        return Durations(self._bounds_ms, tuple(self._counts), self.sum_ms)


class SendCounters:
    """What was sent to one topic."""

    __slots__ = ("_failed", "_failed_ms", "_in_flight", "_not_store_ok", "_oneway", "_sent", "_sent_ms")

    def __init__(self) -> None:
        self._sent = self._not_store_ok = self._failed = self._oneway = self._in_flight = 0
        self._sent_ms = _Timer(SEND_BOUNDS_MS)
        self._failed_ms = _Timer(SEND_BOUNDS_MS)

    def begin(self, count: int) -> float:
        """So many messages are being sent; the time, to be given back at the end."""
        self._in_flight += count
        return precise_monotonic_ms()

    def stored(self, count: int, begin_ms: float, *, store_ok: bool) -> None:
        """They were stored."""
        self._in_flight -= count
        self._sent += count
        if not store_ok:
            self._not_store_ok += count
        self._sent_ms.add(precise_monotonic_ms() - begin_ms)

    def failed(self, count: int, begin_ms: float) -> None:
        """They were not, as far as is known."""
        self._in_flight -= count
        self._failed += count
        self._failed_ms.add(precise_monotonic_ms() - begin_ms)

    def oneway(self) -> None:
        """A message was sent for which nobody answers."""
        self._oneway += 1

    def view(self) -> ProducerStats:
        return ProducerStats(
            sent=self._sent,
            not_store_ok=self._not_store_ok,
            failed=self._failed,
            oneway=self._oneway,
            in_flight=self._in_flight,
            sent_ms=self._sent_ms.view(),
            failed_ms=self._failed_ms.view(),
        )


class TopicConsumeCounters:
    """What was consumed of one topic. `items` are Apache's five statistics of a topic and group, brought up to date
    before they are looked at: a message that passes adds to plain numbers only."""

    __slots__ = ("_items", "consumed", "consumed_ms", "failed", "failed_ms", "in_hand", "pull_ms", "pulled", "pulls")

    def __init__(self, now_ms: int) -> None:
        self.pulls = self.pulled = self.consumed = self.failed = self.in_hand = 0
        self.pull_ms = 0.0
        self.consumed_ms = _Timer(PROCESS_BOUNDS_MS)
        self.failed_ms = _Timer(PROCESS_BOUNDS_MS)
        self._items = tuple(StatsItem(now_ms) for _ in range(5))

    def brought(self, count: int, ms: float) -> None:
        """A pull brought so many messages and took so long."""
        self.pulls += 1
        self.pull_ms += ms
        self.pulled += count

    def left(self, count: int, done: int | None, ms: float) -> None:
        """The application is through with a delivery after so long: so many of its messages are done, None where it
        did not say."""
        self.in_hand -= count
        if done is None:
            return
        self.consumed += done
        if done == count:
            self.consumed_ms.add(ms)
        else:
            self.failed += count - done
            self.failed_ms.add(ms)

    @property
    def items(self) -> tuple[StatsItem, ...]:
        """Pulls and what they took, messages pulled, deliveries and what they took, messages done, messages failed."""
        deliveries = self.consumed_ms.count + self.failed_ms.count
        totals = (
            (int(self.pull_ms), self.pulls),
            (self.pulled, self.pulls),
            (int(self.consumed_ms.sum_ms + self.failed_ms.sum_ms), deliveries),
            (self.consumed, deliveries),
            (self.failed, deliveries),
        )
        for item, total in zip(self._items, totals, strict=True):
            item.sum, item.times = total
        return self._items


class ConsumeCounters:
    """What a consumer did, by the topic that it pulled."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicConsumeCounters] = {}
        self._sampled_ms = monotonic_ms()
        self._number = 0

    def of(self, topic: str) -> TopicConsumeCounters:
        """Where a topic is counted."""
        of_topic = self._topics.get(topic)
        if of_topic is None:
            of_topic = self._topics[topic] = TopicConsumeCounters(self._sampled_ms)
        return of_topic

    def sample(self) -> None:
        """Note all totals; to be called every `rucola.rates.SAMPLE_INTERVAL_MS`."""
        self._number += 1
        self._sampled_ms = monotonic_ms()
        for of_topic in self._topics.values():
            for item in of_topic.items:
                item.sample(self._sampled_ms, self._number)

    def status(self, topic: str) -> ConsumeStatus:
        """How fast the topic is consumed: in the last minute, and how many messages failed in the last hour.

        Where nothing was consumed in the last minute, how long that took is of the last hour.
        """
        of_topic = self._topics.get(topic)
        if of_topic is None:
            return ConsumeStatus()
        now_ms = monotonic_ms()
        pull, pulled, process, consumed, failed = of_topic.items
        took = process.minute(now_ms)
        if not took.times:
            took = process.hour(now_ms)
        return ConsumeStatus(
            consume_failed_msgs=failed.hour(now_ms).sum,
            consume_failed_tps=failed.minute(now_ms).tps,
            consume_ok_tps=consumed.minute(now_ms).tps,
            consume_rt=took.avgpt,
            pull_rt=pull.minute(now_ms).avgpt,
            pull_tps=pulled.minute(now_ms).tps,
        )

    def view(self, topic: str, held: int, held_size: int) -> ConsumerStats:
        """All that was counted for a topic, of which so much is held now."""
        of_topic = self._topics.get(topic) or TopicConsumeCounters(self._sampled_ms)
        return ConsumerStats(
            pulled=of_topic.pulled,
            consumed=of_topic.consumed,
            failed=of_topic.failed,
            in_hand=of_topic.in_hand,
            held=held,
            held_size=held_size,
            consumed_ms=of_topic.consumed_ms.view(),
            failed_ms=of_topic.failed_ms.view(),
        )

    def topics(self) -> list[str]:
        """The topics for which something was counted."""
        return list(self._topics)
