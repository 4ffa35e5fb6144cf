"""Statistics of a broker: messages and bytes put and read, by topic, group, and overall.

For the windows (last minute, hour and day) see `rucola.rates`. Puts are recorded once per topic and dispatch, reads
once per pull. Every message counts as put in each queue that it reaches, including those that the broker moves.

Corresponds to `BrokerStatsManager`, `BrokerStats` and the sampling in `StoreStatsService` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sized
from dataclasses import dataclass
from typing import Final

from rucola.broker.durations import PutDurations
from rucola.domain import statistics
from rucola.domain.statistics import BrokerStatsData, BrokerStatsItem, group_key
from rucola.rates import SAMPLE_INTERVAL_MS, StatsItem, Window
from rucola.store.dispatch import TopicArrivals

logger = logging.getLogger(__name__)

MAX_PAIRS: Final = 65_536
"""Pairs of topic and group with statistics, 3 KB each; a client can pull any topic as any group."""
_SAMPLES_PER_MINUTE = 60_000 // SAMPLE_INTERVAL_MS


@dataclass(slots=True)
class MidnightTotals:
    """Values of a total at the last midnight and the one before."""

    yesterday: int = 0
    today: int = 0


class BrokerStats:
    """Statistics of one broker since `now_ms`. `broker_key` is the key of the totals, the cluster name."""

    def __init__(self, now_ms: int, broker_key: str) -> None:
        self.begin_ms = now_ms
        self.put_nums = StatsItem(now_ms)
        self.put_size = StatsItem(now_ms)
        self.get_nums = StatsItem(now_ms)
        self.found = StatsItem(now_ms)
        self.missed = StatsItem(now_ms)
        self.put_durations = PutDurations()
        self.failed_puts = 0
        """Messages and batches that the store refused."""
        self.get_max_ms = 0
        self.put_at_midnight = MidnightTotals()
        self.get_at_midnight = MidnightTotals()
        self._broker_key = broker_key
        self._topics: dict[str, tuple[StatsItem, StatsItem]] = {}
        self._groups: dict[tuple[str, str], tuple[StatsItem, StatsItem]] = {}
        self._sent_back: dict[tuple[str, str], StatsItem] = {}
        self._has_logged_pairs = False
        self._sampled_ms = now_ms
        self._number = 0
        self._day = _day(now_ms)

    def record_put(self, arrived: Mapping[str, TopicArrivals]) -> None:
        for topic, (queues, _, sizes) in arrived.items():
            items = self._topics.get(topic)
            if items is None:
                items = self._topics[topic] = (StatsItem(self._sampled_ms), StatsItem(self._sampled_ms))
            # Four additions per topic and dispatch, however many messages it has.
            count, size, times = len(sizes), sum(sizes), len(queues)
            for item in (items[0], self.put_nums):
                item.add(count, times)
            for item in (items[1], self.put_size):
                item.add(size, times)

    def record_get(self, group: str, topic: str, count: int, size: int) -> None:
        items = self._groups.get((topic, group))
        if items is None and self._has_room(self._groups):
            items = self._groups[topic, group] = (StatsItem(self._sampled_ms), StatsItem(self._sampled_ms))
        # StatsItem.add written out, since every pull that finds messages comes here.
        if items is not None:
            counts, sizes = items
            counts.sum += count
            counts.times += 1
            sizes.sum += size
            sizes.times += 1
        gets, found = self.get_nums, self.found
        gets.sum += count
        gets.times += 1
        found.sum += 1
        found.times += 1

    def record_send_back(self, group: str, topic: str) -> None:
        item = self._sent_back.get((topic, group))
        if item is None and self._has_room(self._sent_back):
            item = self._sent_back[topic, group] = StatsItem(self._sampled_ms)
        if item is not None:
            item.add(1)

    def record_miss(self) -> None:
        self.missed.add(1)

    def sample_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Sample all totals, every SAMPLE_INTERVAL_MS, in small steps (see `rucola.slices`)."""
        self._number += 1
        self._sampled_ms = now_ms
        for item in (self.put_nums, self.put_size, self.get_nums, self.found, self.missed):
            item.sample(now_ms, self._number)
        if self._number % _SAMPLES_PER_MINUTE == 0:
            self.put_durations.end_minute(self.put_nums.sum)
        day = _day(now_ms)
        # The first sample after midnight, up to SAMPLE_INTERVAL_MS late.
        if day != self._day:
            self._day = day
            self.put_at_midnight = MidnightTotals(self.put_at_midnight.today, self.put_nums.sum)
            self.get_at_midnight = MidnightTotals(self.get_at_midnight.today, self.get_nums.sum)
        for items in [*self._topics.values(), *self._groups.values()]:
            for item in items:
                item.sample(now_ms, self._number)
            yield
        for item in list(self._sent_back.values()):
            item.sample(now_ms, self._number)
            yield

    def view(self, name: str, key: str, now_ms: int) -> BrokerStatsData | None:
        """Return the windows of a statistic, or None if nothing was recorded."""
        item = self._find(name, key)
        if item is None:
            return None
        return BrokerStatsData(
            stats_day=_body(item.day(now_ms)),
            stats_hour=_body(item.hour(now_ms)),
            stats_minute=_body(item.minute(now_ms)),
        )

    def minute(self, name: str, key: str, now_ms: int) -> Window:
        """Return the last minute of a statistic; zeros if nothing was recorded."""
        item = self._find(name, key)
        return item.minute(now_ms) if item is not None else Window(0, 0, 0.0)

    def consume_tps(self, group: str, topic: str, now_ms: int) -> float:
        items = self._groups.get((topic, group))
        return items[0].minute(now_ms).tps if items else 0.0

    def remove_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._remove(lambda of_topic, group: of_topic == topic)

    def remove_group(self, group: str) -> None:
        self._remove(lambda topic, of_group: of_group == group)

    def _remove(self, is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in self._groups if is_gone(*key)]:
            del self._groups[key]
        for key in [key for key in self._sent_back if is_gone(*key)]:
            del self._sent_back[key]

    def _has_room(self, table: Sized) -> bool:
        if len(table) < MAX_PAIRS:
            return True
        if not self._has_logged_pairs:
            self._has_logged_pairs = True
            logger.warning("further groups and topics have no statistics beside %d pairs of them", MAX_PAIRS)
        return False

    def _find(self, name: str, key: str) -> StatsItem | None:
        if name in (statistics.TOPIC_PUT_NUMS, statistics.TOPIC_PUT_SIZE):
            return _of(self._topics.get(key), name == statistics.TOPIC_PUT_SIZE)
        if name in (statistics.GROUP_GET_NUMS, statistics.GROUP_GET_SIZE):
            topic, _, group = key.partition(group_key("", ""))
            return _of(self._groups.get((topic, group)), name == statistics.GROUP_GET_SIZE)
        if name == statistics.SNDBCK_PUT_NUMS:
            topic, _, group = key.partition(group_key("", ""))
            return self._sent_back.get((topic, group))
        whole = {statistics.BROKER_PUT_NUMS: self.put_nums, statistics.BROKER_GET_NUMS: self.get_nums}
        return whole.get(name) if key == self._broker_key else None


def _body(window: Window) -> BrokerStatsItem:
    return BrokerStatsItem(avgpt=window.avgpt, sum=window.sum, tps=window.tps)


def _of(items: tuple[StatsItem, StatsItem] | None, by_size: bool) -> StatsItem | None:
    return items[by_size] if items else None


def _day(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
