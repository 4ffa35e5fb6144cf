"""BrokerStats: how much was put and read, by topic, by group, and in all.

A statistic is a total that only grows, and what it was at moments past. The moments are kept in three rows:

    minute   every 10 s, the last 6 and the one before
    hour     every 10 min, the last 6 and the one before
    day      every hour, the last 24 and the one before

A window is the difference between the total now and the oldest moment of its row, so it covers the last minute, hour
or day once the broker has run that long, and all its life before. Nothing is computed when a message passes: puts are
counted once for each queue in each dispatch, reads once for each pull, and `sample` is wound every 10 s.

Every message that reaches a queue counts as put, those that the broker moves (delayed, retried) in each queue they
reach.

Answers to `BrokerStatsManager`, `BrokerStats`, `StatsItem` and the sampling in `StoreStatsService` of Apache RocketMQ
4.9.8. Deliberate difference: windows end now, not at the last sample.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from rucola.protocol import stats
from rucola.protocol.stats import BrokerStatsData, BrokerStatsItem, group_key

SAMPLE_INTERVAL_MS = 10_000
_SAMPLES_PER_TEN_MINUTES = 60
_SAMPLES_PER_HOUR = 360

_Moment = tuple[int, int, int]
"""(milliseconds, sum, times)"""


class StatsItem:
    """One statistic. `sum` is what was counted, `times` how often."""

    __slots__ = ("_day", "_hour", "_minute", "sum", "times")

    def __init__(self, now_ms: int) -> None:
        self.sum = 0
        self.times = 0
        begin = (now_ms, 0, 0)
        self._minute: deque[_Moment] = deque([begin], maxlen=7)
        self._hour: deque[_Moment] = deque([begin], maxlen=7)
        self._day: deque[_Moment] = deque([begin], maxlen=25)

    def add(self, value: int) -> None:
        self.sum += value
        self.times += 1

    def sample(self, now_ms: int, number: int) -> None:
        """Note what the total is now, in the rows whose turn it is at the sample of this number."""
        moment = (now_ms, self.sum, self.times)
        self._minute.append(moment)
        if number % _SAMPLES_PER_TEN_MINUTES == 0:
            self._hour.append(moment)
        if number % _SAMPLES_PER_HOUR == 0:
            self._day.append(moment)

    def view(self, now_ms: int) -> BrokerStatsData:
        """The three windows."""
        return BrokerStatsData(
            stats_day=self._since(self._day[0], now_ms),
            stats_hour=self._since(self._hour[0], now_ms),
            stats_minute=self._since(self._minute[0], now_ms),
        )

    def rates(self, now_ms: int) -> tuple[float, float, float]:
        """How many a second in the last 10 seconds, minute and hour."""
        minute = self._minute
        last = next((moment for moment in reversed(minute) if now_ms - moment[0] >= SAMPLE_INTERVAL_MS), minute[0])
        return tuple(self._since(moment, now_ms).tps for moment in (last, minute[0], self._hour[0]))  # type: ignore[return-value]

    def _since(self, moment: _Moment, now_ms: int) -> BrokerStatsItem:
        begin_ms, begin_sum, begin_times = moment
        counted, times = self.sum - begin_sum, self.times - begin_times
        elapsed_ms = now_ms - begin_ms
        return BrokerStatsItem(
            avgpt=counted / times if times else 0.0,
            sum=counted,
            tps=counted * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
        )


@dataclass(slots=True)
class Mornings:
    """What a total was at the last midnight, and at the one before."""

    yesterday: int = 0
    today: int = 0


class BrokerStats:
    """All statistics of a broker, which began to count at `now_ms`."""

    def __init__(self, now_ms: int, broker_key: str) -> None:
        self.begin_ms = now_ms
        self.put_nums = StatsItem(now_ms)
        self.put_size = StatsItem(now_ms)
        self.get_nums = StatsItem(now_ms)
        self.found = StatsItem(now_ms)
        self.missed = StatsItem(now_ms)
        self.put_mornings = Mornings()
        self.get_mornings = Mornings()
        self._broker_key = broker_key
        self._topics: dict[str, tuple[StatsItem, StatsItem]] = {}
        self._groups: dict[tuple[str, str], tuple[StatsItem, StatsItem]] = {}
        self._sampled_ms = now_ms
        self._number = 0
        self._day = _day(now_ms)

    def put(self, topic: str, count: int, size: int) -> None:
        """Messages arrived in a queue of the topic: so many, of so many bytes."""
        items = self._topics.get(topic)
        if items is None:
            items = self._topics[topic] = (StatsItem(self._sampled_ms), StatsItem(self._sampled_ms))
        items[0].add(count)
        items[1].add(size)
        self.put_nums.add(count)
        self.put_size.add(size)

    def got(self, group: str, topic: str, count: int, size: int) -> None:
        """A pull of the group found messages."""
        items = self._groups.get((topic, group))
        if items is None:
            items = self._groups[topic, group] = (StatsItem(self._sampled_ms), StatsItem(self._sampled_ms))
        items[0].add(count)
        items[1].add(size)
        self.get_nums.add(count)
        self.found.add(1)

    def got_nothing(self) -> None:
        """A pull found nothing."""
        self.missed.add(1)

    def sample(self, now_ms: int) -> None:
        """Note all totals; to be called every SAMPLE_INTERVAL_MS."""
        self._number += 1
        self._sampled_ms = now_ms
        for item in (self.put_nums, self.put_size, self.get_nums, self.found, self.missed):
            item.sample(now_ms, self._number)
        for table in (self._topics, self._groups):
            for items in table.values():
                for item in items:
                    item.sample(now_ms, self._number)
        day = _day(now_ms)
        if day != self._day:
            self._day = day
            self.put_mornings = Mornings(self.put_mornings.today, self.put_nums.sum)
            self.get_mornings = Mornings(self.get_mornings.today, self.get_nums.sum)

    def view(self, name: str, key: str, now_ms: int) -> BrokerStatsData | None:
        """The windows of a statistic; None where nothing was ever counted under that name and key."""
        item = self._find(name, key)
        return item.view(now_ms) if item is not None else None

    def consume_tps(self, group: str, topic: str, now_ms: int) -> float:
        """How many messages a second the group read from the topic in the last minute."""
        items = self._groups.get((topic, group))
        return items[0].view(now_ms).stats_minute.tps if items else 0.0

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._topics.pop(topic, None)
        for key in [key for key in self._groups if key[0] == topic]:
            del self._groups[key]

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        for key in [key for key in self._groups if key[1] == group]:
            del self._groups[key]

    def _find(self, name: str, key: str) -> StatsItem | None:
        if name in (stats.TOPIC_PUT_NUMS, stats.TOPIC_PUT_SIZE):
            return _of(self._topics.get(key), name == stats.TOPIC_PUT_SIZE)
        if name in (stats.GROUP_GET_NUMS, stats.GROUP_GET_SIZE):
            topic, _, group = key.partition(group_key("", ""))
            return _of(self._groups.get((topic, group)), name == stats.GROUP_GET_SIZE)
        whole = {stats.BROKER_PUT_NUMS: self.put_nums, stats.BROKER_GET_NUMS: self.get_nums}
        return whole.get(name) if key == self._broker_key else None


def _of(items: tuple[StatsItem, StatsItem] | None, by_size: bool) -> StatsItem | None:
    return items[by_size] if items else None


def _day(now_ms: int) -> tuple[int, int]:
    """The day that it is here at a time: year and day of the year."""
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
