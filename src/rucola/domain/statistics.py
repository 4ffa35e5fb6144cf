"""Statistics: what groups have consumed, and the traffic of a broker by name, such as TOPIC_PUT_NUMS, and key.

A key is a topic, `topic@group` or the cluster.

Corresponds to `BrokerStatsData` and the names in `BrokerStatsManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import msgspec

from rucola.domain.queue import MessageQueue

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"


def group_key(topic: str, group: str) -> str:
    return f"{topic}@{group}"


class OffsetWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """The end of a queue, and a group's offset and last consumed store time."""

    broker_offset: int = 0
    consumer_offset: int = 0
    # Milliseconds since 1970, 0 for none.
    last_timestamp: int = 0


class ConsumeStats(msgspec.Struct, rename="camel", kw_only=True):
    """A group's offsets by queue, and its messages per second. Not standard JSON."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}


class QueueTimeSpan(msgspec.Struct, rename="camel", kw_only=True):
    """Store times in one queue (ms); the `…_str` fields are texts: `2013-01-01#05:15:00:000`."""

    consume_time_stamp: int = 0
    consume_time_stamp_str: str = ""
    # Age of the next message to consume, 0 without a backlog.
    delay_time: int = 0
    max_time_stamp: int = 0
    max_time_stamp_str: str = ""
    message_queue: MessageQueue
    min_time_stamp: int = 0
    min_time_stamp_str: str = ""


class ConsumeStatsList(msgspec.Struct, kw_only=True):
    """GET_BROKER_CONSUME_STATS: statistics by group and topic; `total_diff` is the backlog in messages."""

    broker_addr: str = ""
    groups: dict[str, list[ConsumeStats]] = {}
    total_diff: int = 0


class BrokerStatsItem(msgspec.Struct, rename="camel", kw_only=True):
    """One time window: sum, rate per second (`tps`), average per call (`avgpt`)."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(msgspec.Struct, rename="camel", kw_only=True):
    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem

    @property
    def day_count(self) -> int:
        """The sum of the last day; in an Apache broker's first hour, a shorter window."""
        return self.stats_day.sum or self.stats_hour.sum or self.stats_minute.sum
