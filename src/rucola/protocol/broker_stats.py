"""VIEW_BROKER_STATS_DATA (315): statistics by name, such as TOPIC_PUT_NUMS, and key: topic, `topic@group` or cluster.

Corresponds to `BrokerStatsData` and the names in `BrokerStatsManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.protocol.body import Body
from rucola.protocol.command import Header

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"


def group_key(topic: str, group: str) -> str:
    return f"{topic}@{group}"


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    stats_name: str
    stats_key: str


class BrokerStatsItem(Body, kw_only=True):
    """One time window: sum, rate per second (`tps`), average per call (`avgpt`)."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem

    @property
    def day_count(self) -> int:
        """The sum of the last day; in an Apache broker's first hour, a shorter window."""
        return self.stats_day.sum or self.stats_hour.sum or self.stats_minute.sum
