"""Rates of counters over the last minute, hour and day.

A statistic is an increasing total, with past samples in three series:

    minute   every 10 s, the last 6 and the one before
    hour     every 10 min, the last 6 and the one before
    day      every hour, the last 24 and the one before

A window is the difference from the oldest sample of its series. `sample` is called every SAMPLE_INTERVAL_MS.

Counterpart of `StatsItem` of Apache RocketMQ 4.9.8. Deliberate difference: windows end now, not at the last sample.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

SAMPLE_INTERVAL_MS = 10_000
_SAMPLES_PER_TEN_MINUTES = 60
_SAMPLES_PER_HOUR = 360

_Moment = tuple[int, int, int]
"""(milliseconds, sum, times)"""


class Window(NamedTuple):
    """The sum of the values in a window, their number, and the sum per second."""

    sum: int
    times: int
    tps: float

    @property
    def avgpt(self) -> float:
        return self.sum / self.times if self.times else 0.0


class StatsItem:
    __slots__ = ("_day", "_hour", "_minute", "sum", "times")

    def __init__(self, now_ms: int) -> None:
        self.sum = 0
        self.times = 0
        begin = (now_ms, 0, 0)
        # Moments one after the other, which takes 1 KB; as tuples in a deque they take 7.
        self._minute, self._hour, self._day = array("q", begin), array("q", begin), array("q", begin)

    def add(self, value: int, times: int = 1) -> None:
        self.sum += value
        self.times += times

    def sample(self, now_ms: int, number: int) -> None:
        """Add the current total to the series that are due at this sample `number`."""
        moment = (now_ms, self.sum, self.times)
        _append(self._minute, moment, 6)
        if number % _SAMPLES_PER_TEN_MINUTES == 0:
            _append(self._hour, moment, 6)
        if number % _SAMPLES_PER_HOUR == 0:
            _append(self._day, moment, 24)

    def minute(self, now_ms: int) -> Window:
        return self._since(self._minute, now_ms)

    def hour(self, now_ms: int) -> Window:
        return self._since(self._hour, now_ms)

    def day(self, now_ms: int) -> Window:
        return self._since(self._day, now_ms)

    def rates(self, now_ms: int) -> tuple[float, float, float]:
        """Return the sums per second over the last 10 seconds, minute and hour."""
        minute = self._minute
        last = len(minute) - 3
        while last > 0 and now_ms - minute[last] < SAMPLE_INTERVAL_MS:
            last -= 3
        return self._since(minute, now_ms, last).tps, self.minute(now_ms).tps, self.hour(now_ms).tps

    def _since(self, series: array[int], now_ms: int, at: int = 0) -> Window:
        begin_ms, begin_sum, begin_times = series[at : at + 3]
        counted, elapsed_ms = self.sum - begin_sum, now_ms - begin_ms
        return Window(counted, self.times - begin_times, counted * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0)


def _append(series: array[int], moment: _Moment, intervals: int) -> None:
    series.extend(moment)
    if len(series) > 3 * (intervals + 1):
        del series[:3]
