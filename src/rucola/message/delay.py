"""Delay levels: the fixed delays with which messages can be delivered.

The broker keeps a message with level n (from 1, in its property DELAY; above the last means the last) in
SCHEDULE_TOPIC_XXXX, queue n - 1, until due. Counterpart of
org.apache.rocketmq.store.schedule.ScheduleMessageService.parseDelayLevel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rucola.errors import ConfigError

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_DELAY_LEVEL: Final = len(DEFAULT_DELAY_LEVELS.split())
"""The number of levels of a broker with the default messageDelayLevel."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str = DEFAULT_DELAY_LEVELS) -> list[int]:
    """Return the delays in milliseconds of a `messageDelayLevel`; level n is item n - 1. Raises ConfigError."""
    levels = []
    for word in text.split():
        if not (match := re.fullmatch(r"([0-9]+)([smhd])", word, re.ASCII)):
            raise ConfigError(
                f"messageDelayLevel contains {word!r}; write delays such as 10s, 5m, 2h or 1d",
                subject="messageDelayLevel",
            )
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    if not levels:
        raise ConfigError(
            f"messageDelayLevel is empty; the default is {DEFAULT_DELAY_LEVELS!r}", subject="messageDelayLevel"
        )
    return levels


def due_time_ms(levels: Sequence[int], level: int, store_timestamp: int) -> int:
    return store_timestamp + levels[min(level, len(levels)) - 1]
