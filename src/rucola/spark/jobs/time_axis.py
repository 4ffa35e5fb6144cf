"""Time axis of a chart: steps of a round length, from seconds to weeks, aligned to UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

MOST_STEPS: Final = 96
"""Columns of a chart. Only a span of many years has more, in weeks."""

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(count * _SECOND for count in (1, 2, 5, 10, 15, 30)),
    *(count * _MINUTE for count in (1, 2, 5, 10, 15, 30)),
    *(count * _HOUR for count in (1, 2, 3, 6, 12)),
    *(_DAY, 7 * _DAY),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TimeAxis:
    """The steps that cover the times from `first_ms` to `last_ms`, milliseconds since 1970."""

    def __init__(self, first_ms: int, last_ms: int) -> None:
        self.step_ms = next((step for step in _STEPS if last_ms // step - first_ms // step < MOST_STEPS), _STEPS[-1])
        """The shortest step for which at most `MOST_STEPS` cover the times."""
        self._first = first_ms // self.step_ms
        self._count = last_ms // self.step_ms - self._first + 1

    @classmethod
    def between(cls, first: datetime, last: datetime) -> TimeAxis:
        """Return the axis from one time to another."""
        return cls(_milliseconds(first), _milliseconds(last))

    @property
    def unit(self) -> str:
        """The length of a step in words: "second", "5 minutes", "day"."""
        units = (("week", 7 * _DAY), ("day", _DAY), ("hour", _HOUR), ("minute", _MINUTE), ("second", _SECOND))
        name, length = next(each for each in units if self.step_ms >= each[1])
        count = self.step_ms // length
        return name if count == 1 else f"{count} {name}s"

    @property
    def labels(self) -> list[str]:
        """The start of each step, as precise as the steps are long."""
        begins = [_EPOCH + timedelta(milliseconds=(self._first + n) * self.step_ms) for n in range(self._count)]
        if self.step_ms >= _DAY:
            form = "%d %b %Y"
        elif begins[0].date() != begins[-1].date() or self.step_ms >= _HOUR:
            form = "%d %b %H:%M:%S" if self.step_ms < _MINUTE else "%d %b %H:%M"
        else:
            form = "%H:%M:%S" if self.step_ms < _MINUTE else "%H:%M"
        return [begin.strftime(form) for begin in begins]

    def position(self, time: datetime) -> int:
        """Return the number of the step that contains a time."""
        return _milliseconds(time) // self.step_ms - self._first


def _milliseconds(time: datetime) -> int:
    """Return a time in milliseconds since 1970; one without a zone is UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
