"""Filter expressions of consumer groups that do not filter by tags: `config/consumerFilter.json`.

Heartbeats register the expressions; a pull without an expression uses its group's. A newer version of a subscription
replaces an older one. An expression that cannot be compiled removes its predecessor, so that pulls fail with a remark.
The filter of a disconnected group is kept for `filterDataCleanTimeSpan`, because its retries may still be delivered.
The file has all that Apache's broker reads, including bloom filter positions (see `broker.bloom`).

Corresponds to `ConsumerFilterManager` and `ConsumerFilterData` of Apache RocketMQ 4.9.8. Deliberate difference: a group
that changes to tags is no longer filtered by its expression, not even in its retry topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import msgspec

from rucola import fastjson
from rucola.broker.bloom import BIT_COUNT, bloom_filter_positions
from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.message_filter import Matches, matches
from rucola.domain.subscription import SubscriptionData
from rucola.errors import InvalidMessage
from rucola.store.config_files import ConfigFile

logger = logging.getLogger(__name__)

_DEAD_BEFORE_START_MS = 30_000
"""Assumed time between disconnect and start, for groups that were connected at the stop."""


class BloomFilterData(msgspec.Struct, rename="camel", kw_only=True):
    bit_num: int
    bit_pos: list[int]


class ConsumerFilterData(msgspec.Struct, rename="camel", kw_only=True):
    """Filter of one group on one topic; `dead_time` is 0 while the group is connected."""

    bloom_filter_data: BloomFilterData
    born_time: int
    client_version: int
    consumer_group: str
    dead: bool = False
    dead_time: int = 0
    expression: str
    expression_type: str
    topic: str


class GroupFilters(msgspec.Struct, rename="camel", kw_only=True):
    group_filter_data: dict[str, ConsumerFilterData] = {}
    topic: str


class ConsumerFilters(msgspec.Struct, rename="camel", kw_only=True):
    filter_data_by_topic: dict[str, GroupFilters] = {}


class ConsumerFilterTable:
    """Filters by (topic, group). All methods must be called in one event loop."""

    def __init__(self, path: Path, config: BrokerConfig, limits: Limits) -> None:
        self._file = ConfigFile(path)
        self._config = config
        self._limits = limits
        self._table: dict[tuple[str, str], ConsumerFilterData] = {}
        self._matches: dict[tuple[str, str], Matches] = {}
        self._topics_of: dict[str, set[str]] = {}

    def load(self, now_ms: int) -> None:
        """Load the file; all groups count as disconnected. Raises StoreCorrupt if it cannot be parsed."""
        value = self._file.read()
        stored = fastjson.to_struct(ConsumerFilters, value) if value else ConsumerFilters()
        if self._config.enable_property_filter:
            matches("SQL92", "a IS NULL")  # builds the parser now, not at the first pull: 30 ms
        for topic, groups in stored.filter_data_by_topic.items():
            for group, data in groups.group_filter_data.items():
                if self._set(topic, group, data) and data.dead_time == 0:
                    _mark_dead(data, max(data.born_time, now_ms - _DEAD_BEFORE_START_MS))

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return the registered filter; None if the group filters by tags, or by an invalid expression."""
        return self._table.get((topic, group))

    def matches(self, topic: str, group: str) -> Matches | None:
        return self._matches.get((topic, group))

    def register(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Register the subscriptions of a heartbeat; mark filters on other topics as dead."""
        subscribed = {subscription.topic: subscription for subscription in subscriptions}
        # 1. Filters on topics that the group no longer subscribes to are dead.
        for topic in self._topics_of.get(group, set()) - subscribed.keys():
            data = self._table[topic, group]
            if not data.dead:
                _mark_dead(data, now_ms)
        # 2. Tag subscriptions need no filter; they replace an earlier expression.
        for topic, subscription in subscribed.items():
            if subscription.is_tag_type or not subscription.sub_string:
                self._remove(topic, group)
            elif self._config.enable_property_filter:  # else no pull may use it: do not compile what a client sends
                self._register(group, subscription, now_ms)

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark all filters of a group as dead, after its last member has disconnected."""
        self.register(group, (), now_ms)

    def snapshot_steps(self, now_ms: int) -> Generator[None, None, Callable[[], None]]:
        """Remove expired filters in small steps; return a function that writes the others in any thread."""
        written: dict[str, Any] = {"filterDataByTopic": {}}
        write = self._file.prepare_write(lambda: written)
        for topic, group in sorted(self._table):
            data = self._table.get((topic, group))
            # A filter outlives its group for a while, so that a consumer that connects again does not compile it again.
            if data is not None and data.dead and now_ms - data.dead_time >= self._config.filter_data_clean_time_span:
                self._remove(topic, group)
            elif data is not None:
                by_topic = written["filterDataByTopic"]
                if topic not in by_topic:
                    by_topic[topic] = msgspec.to_builtins(GroupFilters(topic=topic))
                by_topic[topic]["groupFilterData"][group] = msgspec.to_builtins(data)
            yield
        return write

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        # Versions are the client's timestamps of a subscription. An older one arrived late; an equal one with another
        # expression is ignored.
        known = self._table.get((subscription.topic, group))
        if known is not None and subscription.sub_version < known.client_version:
            return
        wanted = (subscription.expression_type, subscription.sub_string)
        if known is not None and wanted == (known.expression_type, known.expression):
            known.client_version = subscription.sub_version
            known.dead, known.dead_time = False, 0
        elif known is None and len(self._table) >= (limit := self._config.max_consumer_filters):
            found = f"the filter of group {group} on topic {subscription.topic} is not kept beside {len(self._table)}"
            self._limits.refused("maxConsumerFilters", limit, found)  # logged and counted; pulls by it are refused
        elif known is None or subscription.sub_version > known.client_version:
            self._remove(subscription.topic, group)
            self._set(
                subscription.topic,
                group,
                ConsumerFilterData(
                    bloom_filter_data=BloomFilterData(
                        bit_num=BIT_COUNT, bit_pos=bloom_filter_positions(f"{group}#{subscription.topic}")
                    ),
                    born_time=now_ms,
                    client_version=subscription.sub_version,
                    consumer_group=group,
                    expression=subscription.sub_string,
                    expression_type=subscription.expression_type,
                    topic=subscription.topic,
                ),
            )

    def _set(self, topic: str, group: str, data: ConsumerFilterData) -> bool:
        try:
            self._matches[topic, group] = matches(data.expression_type, data.expression)
        except InvalidMessage as error:
            logger.warning("group %s cannot filter topic %s: %s", group, topic, error)
            return False
        self._table[topic, group] = data
        self._topics_of.setdefault(group, set()).add(topic)
        return True

    def _remove(self, topic: str, group: str) -> None:
        self._matches.pop((topic, group), None)
        if self._table.pop((topic, group), None) is not None:
            topics = self._topics_of[group]
            topics.discard(topic)
            if not topics:
                del self._topics_of[group]


def _mark_dead(data: ConsumerFilterData, now_ms: int) -> None:
    data.dead, data.dead_time = True, now_ms
