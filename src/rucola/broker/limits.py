"""Limits of single requests and clients.

Every limit is a key of broker.conf (`BrokerConfig`, section Limits), and every refusal names it with its value:

    a heartbeat with 60000 groups; the limit is 256 (maxGroupsPerClient)

Each limit has a rate-limited log line; rocketmq_limit_refusals_total counts all refusals.
"""

from __future__ import annotations

import logging
from collections import Counter

from rucola import refusals
from rucola.access import Refused
from rucola.broker.config import BrokerConfig
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.domain.client import HeartbeatData
from rucola.domain.subscription import SubscriptionData
from rucola.domain.topic import MAX_NAME_LENGTH
from rucola.outages import log_rate_limited

logger = logging.getLogger(__name__)


class Limits:
    """Limits of one broker, and how often each was exceeded. Belongs to the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.refusals: Counter[str] = Counter()

    def refused(self, key: str, limit: int, found: str) -> Refused:
        """Count and log a refusal and return it. `found`, in lower case, is what exceeds the limit."""
        self.refusals[key] += 1
        refused = Refused(refusals.BEYOND_LIMIT, found=found, limit=limit, key=key)
        log_rate_limited(logger, logging.WARNING, key, "refused: %s", refused)
        return refused

    def check_new_topic(self, topic: str, count: int) -> None:
        """Raise Refused if a request would create a topic in addition to `count` others."""
        limit = self._config.max_topic_nums
        if count >= limit:
            raise self.refused("maxTopicNums", limit, f"topic {topic} is not created beside {count} others")

    def check_new_group(self, group: str, count: int) -> None:
        limit = self._config.max_subscription_group_nums
        if count >= limit:
            raise self.refused("maxSubscriptionGroupNums", limit, f"group {group} is not created beside {count} others")

    def check_heartbeat(self, heartbeat: HeartbeatData, known_groups: int) -> None:
        """Raise Refused for too many groups or subscriptions, counting `known_groups`, or a too long expression."""
        config = self._config
        groups = len(heartbeat.consumer_data_set) + len(heartbeat.producer_data_set) + known_groups
        if groups > config.max_groups_per_client:
            found = f"client {heartbeat.client_id} with {groups} groups"
            raise self.refused("maxGroupsPerClient", config.max_groups_per_client, found)
        subscriptions = sum(len(consumer.subscription_data_set) for consumer in heartbeat.consumer_data_set)
        if subscriptions > config.max_subscriptions_per_heartbeat:
            found = f"a heartbeat of client {heartbeat.client_id} with {subscriptions} subscriptions"
            raise self.refused("maxSubscriptionsPerHeartbeat", config.max_subscriptions_per_heartbeat, found)
        compiled = 0
        for consumer in heartbeat.consumer_data_set:
            for wanted in consumer.subscription_data_set:
                self.check_subscription(wanted)
                compiled += 0 if wanted.is_tag_type else len(wanted.sub_string)
        # SQL92 expressions are compiled at once, 4 µs a character.
        if compiled > config.max_subscription_expression_size:
            found = f"a heartbeat of client {heartbeat.client_id} with {compiled} characters of SQL92 expressions"
            raise self.refused("maxSubscriptionExpressionSize", config.max_subscription_expression_size, found)

    def check_subscription(self, wanted: SubscriptionData) -> None:
        self.check_expression(wanted.topic, wanted.sub_string)

    def check_expression(self, topic: str, expression: str | None) -> None:
        """Raise Refused for an expression that is too long, before it is parsed."""
        limit = self._config.max_subscription_expression_size
        # UTF-8 has up to 4 bytes per character: only then is it encoded.
        if expression and len(expression) * 4 > limit and (size := len(expression.encode("utf-8", "replace"))) > limit:
            raise self.refused(
                "maxSubscriptionExpressionSize", limit, f"the subscription of topic {topic} has {size} bytes"
            )

    def check_offset(self, offsets: ConsumerOffsetTable, group: str, topic: str, queue_id: int) -> None:
        """Raise Refused if a commit would add an entry to a full table, or one of another group than it names."""
        if "@" in topic or not topic:
            raise Refused(refusals.NO_TOPIC_NAME, group=group, topic=topic)
        if offsets.has(group, topic, queue_id):
            return
        if len(offsets) >= (limit := self._config.max_consumer_offsets):
            found = f"the offset of group {group} on {topic}:{queue_id} is not added to {len(offsets)} others"
            raise self.refused("maxConsumerOffsets", limit, found)
        if not offsets.has_group(group):
            self.check_name(group, "a consumer group")
            if "@" in group or not group:
                raise Refused(refusals.NO_GROUP_NAME, topic=topic, group=group)
            if offsets.group_count >= (limit := self._config.max_subscription_group_nums):
                found = f"group {group} commits no offset beside {offsets.group_count} others"
                raise self.refused("maxSubscriptionGroupNums", limit, found)

    def check_name(self, name: str, what: str) -> None:
        """Raise Refused for a name that is longer than any that clients use."""
        if len(name) > MAX_NAME_LENGTH:
            raise Refused(refusals.NAME_TOO_LONG, kind=what, size=len(name), limit=MAX_NAME_LENGTH)

    def check_queue_nums(self, name: str, count: int) -> None:
        """Raise Refused for more queues than a topic may have. `name` is the field of the request."""
        limit = self._config.max_queue_nums_per_topic
        if count > limit:
            raise self.refused("maxQueueNumsPerTopic", limit, f"{name} is {count}")
