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

from rucola.client.clock import clock_ms, timer_ms
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

    __slots__ = ("_bounds_ms", "_counts", "_sum_ms")

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self._bounds_ms = bounds_ms
        self._counts = [0] * (len(bounds_ms) + 1)
        self._sum_ms = 0.0

    def add(self, ms: float) -> None:
        self._counts[bisect_left(self._bounds_ms, ms)] += 1
        self._sum_ms += ms

    def view(self) -> Durations:
        return Durations(self._bounds_ms, tuple(self._counts), self._sum_ms)


class SendCounts:
    """What was sent to one topic."""

    __slots__ = ("_failed", "_failed_ms", "_in_flight", "_not_store_ok", "_oneway", "_sent", "_sent_ms")

    def __init__(self) -> None:
        self._sent = self._not_store_ok = self._failed = self._oneway = self._in_flight = 0
        self._sent_ms = _Timer(SEND_BOUNDS_MS)
        self._failed_ms = _Timer(SEND_BOUNDS_MS)

    def begin(self, count: int) -> float:
        """So many messages are being sent; the time, to be given back at the end."""
        self._in_flight += count
        return timer_ms()

    def stored(self, count: int, begin_ms: float, *, store_ok: bool) -> None:
        """They were stored."""
        self._in_flight -= count
        self._sent += count
        if not store_ok:
            self._not_store_ok += count
        self._sent_ms.add(timer_ms() - begin_ms)

    def failed(self, count: int, begin_ms: float) -> None:
        """They were not, as far as is known."""
        self._in_flight -= count
        self._failed += count
        self._failed_ms.add(timer_ms() - begin_ms)

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


class _Consumption:
    """What was consumed of one topic. Totals and their windows are Apache's five statistics of a topic and group."""

    __slots__ = ("consumed", "consumed_ms", "failed", "failed_ms", "in_hand", "process", "pull", "pulled")

    def __init__(self, now_ms: int) -> None:
        self.pull = StatsItem(now_ms)
        self.pulled = StatsItem(now_ms)
        self.process = StatsItem(now_ms)
        self.consumed = StatsItem(now_ms)
        self.failed = StatsItem(now_ms)
        self.in_hand = 0
        self.consumed_ms = _Timer(PROCESS_BOUNDS_MS)
        self.failed_ms = _Timer(PROCESS_BOUNDS_MS)

    @property
    def items(self) -> tuple[StatsItem, ...]:
        return self.pull, self.pulled, self.process, self.consumed, self.failed


class ConsumeCounts:
    """What a consumer did, by the topic that it pulled."""

    def __init__(self) -> None:
        self._topics: dict[str, _Consumption] = {}
        self._sampled_ms = clock_ms()
        self._number = 0

    def pulled(self, topic: str, count: int, ms: float) -> None:
        """A pull brought so many messages and took so long."""
        of_topic = self._of(topic)
        of_topic.pull.add(int(ms))
        if count:
            of_topic.pulled.add(count)

    def taken(self, topic: str, count: int) -> None:
        """The application got so many messages."""
        self._of(topic).in_hand += count

    def left(self, topic: str, count: int, done: int | None, ms: float) -> None:
        """It is through with them after so long, done with so many of them; None where it did not say."""
        of_topic = self._of(topic)
        of_topic.in_hand -= count
        if done is None:
            return
        of_topic.process.add(int(ms))
        if done:
            of_topic.consumed.add(done)
        if done < count:
            of_topic.failed.add(count - done)
        (of_topic.consumed_ms if done == count else of_topic.failed_ms).add(ms)

    def sample(self) -> None:
        """Note all totals; to be called every `rucola.rates.SAMPLE_INTERVAL_MS`."""
        self._number += 1
        self._sampled_ms = clock_ms()
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
        now_ms = clock_ms()
        process = of_topic.process.minute(now_ms)
        if not process.times:
            process = of_topic.process.hour(now_ms)
        return ConsumeStatus(
            consume_failed_msgs=of_topic.failed.hour(now_ms).sum,
            consume_failed_tps=of_topic.failed.minute(now_ms).tps,
            consume_ok_tps=of_topic.consumed.minute(now_ms).tps,
            consume_rt=process.avgpt,
            pull_rt=of_topic.pull.minute(now_ms).avgpt,
            pull_tps=of_topic.pulled.minute(now_ms).tps,
        )

    def view(self, topic: str, held: int, held_size: int) -> ConsumerStats:
        """All that was counted for a topic, of which so much is held now."""
        of_topic = self._topics.get(topic) or _Consumption(self._sampled_ms)
        return ConsumerStats(
            pulled=of_topic.pulled.sum,
            consumed=of_topic.consumed.sum,
            failed=of_topic.failed.sum,
            in_hand=of_topic.in_hand,
            held=held,
            held_size=held_size,
            consumed_ms=of_topic.consumed_ms.view(),
            failed_ms=of_topic.failed_ms.view(),
        )

    def topics(self) -> list[str]:
        """The topics for which something was counted."""
        return list(self._topics)

    def _of(self, topic: str) -> _Consumption:
        of_topic = self._topics.get(topic)
        if of_topic is None:
            of_topic = self._topics[topic] = _Consumption(self._sampled_ms)
        return of_topic
