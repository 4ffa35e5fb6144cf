"""Statistics of producers and consumers by topic: totals since the client was made, from any thread.

Retried messages count under `%RETRY%group`. Corresponds to `ConsumerStatsManager` of Apache RocketMQ 4.9.8, with
RocketMQ 5's bounds of durations. Deliberate differences: windows end now, not at the last sample; a message that timed
out in the application counts as failed.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from rucola.client.clock import monotonic_ms, precise_monotonic_ms
from rucola.protocol.connections import ConsumeStatus
from rucola.rates import StatsItem

# The upper bounds of the histograms' buckets, in milliseconds.
SEND_BOUNDS_MS = (1, 5, 10, 20, 50, 200, 500)
PROCESS_BOUNDS_MS = (1, 5, 10, 100, 1000, 10_000, 60_000)


class Durations(msgspec.Struct, frozen=True):
    """A histogram: `counts[i]` durations were at most `bounds_ms[i]`, the last ones above all bounds."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_ms(self) -> float:
        """The mean duration; 0 if there is none."""
        return self.sum_ms / self.count if self.count else 0.0


class ProducerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a producer for one topic. Durations are of requests including retries; a batch is one request."""

    sent: int
    """Messages that were stored."""
    not_store_ok: int
    """Stored messages with another status than SEND_OK; included in `sent`."""
    failed: int
    """Messages whose send failed or was cancelled."""
    oneway: int
    """Messages that were sent one-way, with unknown outcome."""
    in_flight: int
    """Messages that are being sent now."""
    sent_ms: Durations
    """Durations of successful requests."""
    failed_ms: Durations
    """Durations of failed requests."""


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a consumer for one topic. Durations are of deliveries: one call of a listener is one delivery."""

    pulled: int
    """Messages that were pulled."""
    consumed: int
    """Messages that the application consumed."""
    failed: int
    """Messages on which the application failed, or that timed out."""
    in_hand: int
    """Messages in flight: delivered to the application and not completed."""
    held: int
    """Messages that were pulled and are not completed, including those in flight."""
    held_size: int
    """The bytes of their bodies."""
    consumed_ms: Durations
    """Durations of the deliveries that were consumed completely."""
    failed_ms: Durations
    """Durations of the deliveries that failed, at least for a part of a batch."""


class _Histogram:
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

    def snapshot(self) -> Durations:
        return Durations(self._bounds_ms, tuple(self._counts), self.sum_ms)


class SendCounters:
    __slots__ = ("_failed", "_failed_ms", "_in_flight", "_not_store_ok", "_oneway", "_sent", "_sent_ms")

    def __init__(self) -> None:
        self._sent = self._not_store_ok = self._failed = self._oneway = self._in_flight = 0
        self._sent_ms = _Histogram(SEND_BOUNDS_MS)
        self._failed_ms = _Histogram(SEND_BOUNDS_MS)

    def begin(self, count: int) -> float:
        """Count messages as in flight; return the time for `begin_ms` of `stored` or `failed`."""
        self._in_flight += count
        return precise_monotonic_ms()

    def stored(self, count: int, begin_ms: float, *, store_ok: bool) -> None:
        self._in_flight -= count
        self._sent += count
        if not store_ok:
            self._not_store_ok += count
        self._sent_ms.add(precise_monotonic_ms() - begin_ms)

    def failed(self, count: int, begin_ms: float) -> None:
        """Count messages of one request as failed; after a timeout they may be stored."""
        self._in_flight -= count
        self._failed += count
        self._failed_ms.add(precise_monotonic_ms() - begin_ms)

    def sent_again(self, count: int) -> None:
        """Count messages of a failed request as not failed: each has a separate request."""
        self._failed -= count

    def oneway(self) -> None:
        self._oneway += 1

    def snapshot(self) -> ProducerStats:
        return ProducerStats(
            sent=self._sent,
            not_store_ok=self._not_store_ok,
            failed=self._failed,
            oneway=self._oneway,
            in_flight=self._in_flight,
            sent_ms=self._sent_ms.snapshot(),
            failed_ms=self._failed_ms.snapshot(),
        )


class TopicConsumeCounters:
    __slots__ = ("_items", "consumed", "consumed_ms", "failed", "failed_ms", "in_flight", "pull_ms", "pulled", "pulls")

    def __init__(self, now_ms: int) -> None:
        self.pulls = self.pulled = self.consumed = self.failed = self.in_flight = 0
        self.pull_ms = 0.0
        self.consumed_ms = _Histogram(PROCESS_BOUNDS_MS)
        self.failed_ms = _Histogram(PROCESS_BOUNDS_MS)
        self._items = tuple(StatsItem(now_ms) for _ in range(5))

    def add_pull(self, count: int, ms: float) -> None:
        self.pulls += 1
        self.pull_ms += ms
        self.pulled += count

    def end_delivery(self, count: int, completed: int | None, ms: float) -> None:
        """Count the end of a delivery, of which `completed` messages were consumed; None if the outcome is unknown."""
        self.in_flight -= count
        if completed is None:
            return
        self.consumed += completed
        if completed == count:
            self.consumed_ms.add(ms)
        else:
            self.failed += count - completed
            self.failed_ms.add(ms)

    @property
    def items(self) -> tuple[StatsItem, ...]:
        """Apache's statistics, up to date: pull times, pulled, process times, consumed, failed."""
        # Pairs of sum and number of events, from which a window derives rates and means.
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
    def __init__(self) -> None:
        self._topics: dict[str, TopicConsumeCounters] = {}
        self._sampled_ms = monotonic_ms()
        self._number = 0

    def of(self, topic: str) -> TopicConsumeCounters:
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicConsumeCounters(self._sampled_ms)
        return counters

    def sample(self) -> None:
        """Sample all totals for the windows of `status`; to be called every `rucola.rates.SAMPLE_INTERVAL_MS`."""
        self._number += 1
        self._sampled_ms = monotonic_ms()
        for counters in self._topics.values():
            for item in counters.items:
                item.sample(self._sampled_ms, self._number)

    def status(self, topic: str) -> ConsumeStatus:
        """Return rates of the last minute and failures of the last hour; the mean time falls back to the last hour."""
        counters = self._topics.get(topic)
        if counters is None:
            return ConsumeStatus()
        now_ms = monotonic_ms()
        pull, pulled, process, consumed, failed = counters.items
        process_window = process.minute(now_ms)
        if not process_window.times:
            process_window = process.hour(now_ms)
        return ConsumeStatus(
            consume_failed_msgs=failed.hour(now_ms).sum,
            consume_failed_tps=failed.minute(now_ms).tps,
            consume_ok_tps=consumed.minute(now_ms).tps,
            consume_rt=process_window.avgpt,
            pull_rt=pull.minute(now_ms).avgpt,
            pull_tps=pulled.minute(now_ms).tps,
        )

    def snapshot(self, topic: str, held: int, held_size: int) -> ConsumerStats:
        counters = self._topics.get(topic) or TopicConsumeCounters(self._sampled_ms)
        return ConsumerStats(
            pulled=counters.pulled,
            consumed=counters.consumed,
            failed=counters.failed,
            in_hand=counters.in_flight,
            held=held,
            held_size=held_size,
            consumed_ms=counters.consumed_ms.snapshot(),
            failed_ms=counters.failed_ms.snapshot(),
        )

    def topics(self) -> list[str]:
        return list(self._topics)
