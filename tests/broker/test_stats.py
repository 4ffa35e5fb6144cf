"""Statistics: totals, windows over them, and what midnight does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola import slices
from rucola.broker.stats import BrokerStats
from rucola.domain.statistics import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    BrokerStatsData,
)
from rucola.rates import SAMPLE_INTERVAL_MS
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import TopicArrivals
from rucola.store.mapped_file import MappedFileQueue

BEGIN_MS = 1_795_217_554_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

pytestmark = pytest.mark.usefixtures("_utc")


@pytest.fixture
def stats() -> BrokerStats:
    return BrokerStats(BEGIN_MS, "cluster")


def run(stats: BrokerStats, begin_ms: int, duration_ms: int, per_sample: int = 0) -> int:
    """Let time pass, with so many messages for topic T before each sample; the time afterwards."""
    for now_ms in range(begin_ms + SAMPLE_INTERVAL_MS, begin_ms + duration_ms + 1, SAMPLE_INTERVAL_MS):
        if per_sample:
            stats.record_put(arrived("T", per_sample, 100 * per_sample))
        slices.run(stats.sample_steps(now_ms))
    return begin_ms + duration_ms


def arrived(topic: str, count: int, size: int) -> dict[str, TopicArrivals]:
    """So many messages of so many bytes in all, in one queue."""
    queue = ConsumeQueue(topic, 0, MappedFileQueue(Path(topic), 6000, []))
    return {topic: ([queue], [0] * count, [size] + [0] * (count - 1))}


def viewed(stats: BrokerStats, name: str, key: str, now_ms: int) -> BrokerStatsData:
    data = stats.view(name, key, now_ms)
    assert data is not None
    return data


def test_counts_are_visible_at_once(stats: BrokerStats) -> None:
    stats.record_put(arrived("T", 3, 300))
    stats.record_put(arrived("T", 1, 60))
    stats.record_get("g", "T", 2, 200)
    now_ms = BEGIN_MS + 2000
    put = viewed(stats, TOPIC_PUT_NUMS, "T", now_ms).stats_minute
    assert (put.sum, put.tps, put.avgpt) == (4, 2.0, 2.0)
    assert viewed(stats, TOPIC_PUT_SIZE, "T", now_ms).stats_day.sum == 360
    assert viewed(stats, GROUP_GET_NUMS, "T@g", now_ms).stats_hour.sum == 2
    assert viewed(stats, GROUP_GET_SIZE, "T@g", now_ms).stats_hour.sum == 200
    assert viewed(stats, BROKER_PUT_NUMS, "cluster", now_ms).stats_minute.sum == 4
    assert viewed(stats, BROKER_GET_NUMS, "cluster", now_ms).stats_minute.sum == 2
    assert stats.consume_tps("g", "T", now_ms) == 1.0
    assert viewed(stats, TOPIC_PUT_NUMS, "T", BEGIN_MS).stats_minute.tps == 0.0, "no time has passed"


@pytest.mark.parametrize(
    ("name", "key"),
    [(TOPIC_PUT_NUMS, "U"), (GROUP_GET_NUMS, "T"), (GROUP_GET_NUMS, "g@T"), (BROKER_PUT_NUMS, "other"), ("NO", "T")],
)
def test_a_counter_without_events_is_none(stats: BrokerStats, name: str, key: str) -> None:
    stats.record_put(arrived("T", 1, 1))
    stats.record_get("g", "T", 1, 1)
    assert stats.view(name, key, BEGIN_MS) is None
    assert stats.consume_tps("nobody", "T", BEGIN_MS) == 0.0


def test_windows_drop_events_beyond_their_length(stats: BrokerStats) -> None:
    now_ms = run(stats, BEGIN_MS, 2 * HOUR_MS, per_sample=10)
    data = viewed(stats, TOPIC_PUT_NUMS, "T", now_ms)
    assert (data.stats_minute.sum, data.stats_minute.tps, data.stats_minute.avgpt) == (60, 1.0, 10.0)
    assert (data.stats_hour.sum, data.stats_hour.tps) == (3600, 1.0)
    assert data.stats_day.sum == 7200
    now_ms = run(stats, now_ms, MINUTE_MS)
    assert viewed(stats, TOPIC_PUT_NUMS, "T", now_ms).stats_minute.sum == 0
    now_ms = run(stats, now_ms, 2 * HOUR_MS)
    data = viewed(stats, TOPIC_PUT_NUMS, "T", now_ms)
    assert (data.stats_hour.sum, data.stats_day.sum) == (0, 7200)
    now_ms = run(stats, now_ms, 25 * HOUR_MS)
    assert viewed(stats, TOPIC_PUT_NUMS, "T", now_ms).stats_day.sum == 0
    assert stats.put_nums.sum == 7200, "the total forgets nothing"


def test_send_backs_are_counted_by_the_minute(stats: BrokerStats) -> None:
    stats.record_send_back("g", "T")
    stats.record_send_back("g", "T")
    assert viewed(stats, SNDBCK_PUT_NUMS, "T@g", BEGIN_MS + 2000).stats_minute.sum == 2
    now_ms = run(stats, BEGIN_MS, 2 * MINUTE_MS)
    assert viewed(stats, SNDBCK_PUT_NUMS, "T@g", now_ms).stats_minute.sum == 0


def test_rates_cover_ten_seconds_a_minute_and_an_hour(stats: BrokerStats) -> None:
    now_ms = run(stats, BEGIN_MS, HOUR_MS, per_sample=20)
    now_ms = run(stats, now_ms, SAMPLE_INTERVAL_MS)
    ten_seconds, minute, hour = stats.put_nums.rates(now_ms)
    assert ten_seconds == 0.0
    assert minute == pytest.approx(5 * 20 / 60)
    assert hour == pytest.approx(2.0, rel=0.01)


def test_daily_totals_are_kept_at_midnight(stats: BrokerStats) -> None:
    stats.record_put(arrived("T", 5, 5))
    now_ms = run(stats, BEGIN_MS, 24 * HOUR_MS)
    assert (stats.put_at_midnight.yesterday, stats.put_at_midnight.today) == (0, 5)
    stats.record_put(arrived("T", 2, 2))
    stats.record_get("g", "T", 1, 1)
    run(stats, now_ms, 24 * HOUR_MS)
    assert (stats.put_at_midnight.yesterday, stats.put_at_midnight.today) == (5, 7)
    assert (stats.get_at_midnight.yesterday, stats.get_at_midnight.today) == (0, 1)


def test_counters_of_deleted_topics_and_groups_are_removed(stats: BrokerStats) -> None:
    for topic in ("T", "U"):
        stats.record_put(arrived(topic, 1, 1))
        for group in ("g", "h"):
            stats.record_get(group, topic, 1, 1)
            stats.record_send_back(group, topic)
    stats.remove_group("h")
    assert stats.view(GROUP_GET_NUMS, "U@h", BEGIN_MS) is None
    assert stats.view(SNDBCK_PUT_NUMS, "U@h", BEGIN_MS) is None
    stats.remove_topic("T")
    assert stats.view(TOPIC_PUT_NUMS, "T", BEGIN_MS) is None
    assert stats.view(GROUP_GET_NUMS, "T@g", BEGIN_MS) is None
    assert stats.view(SNDBCK_PUT_NUMS, "T@g", BEGIN_MS) is None
    assert stats.view(GROUP_GET_NUMS, "U@g", BEGIN_MS) is not None
    assert stats.view(SNDBCK_PUT_NUMS, "U@g", BEGIN_MS) is not None
