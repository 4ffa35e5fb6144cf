"""Retry policy of consumer groups.

It decides how often a group consumes a message again, after which delay, and when the message becomes a dead letter.

    reconsumeTimes of the message that failed    0    1    2    ...   15    16
    what follows (retryMaxTimes=16)              3    4    5    ...   18    %DLQ%group        numbers are delay levels

Corresponds to parts of `SendMessageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.broker.tables.topics import TopicConfigTable
from rucola.message.topics import dlq_topic
from rucola.protocol.topic import SubscriptionGroupConfig

DLQ_QUEUE_NUMS = 1
FIRST_DELAY_LEVEL = 3
"""The delay level of the first retry. Each further retry waits one level longer."""

_V3_4_9 = 121
"""The first client version that sends its own limit of retries."""


def max_reconsume_times(group: SubscriptionGroupConfig, version: int, requested: int | None) -> int:
    """Return how often the group retries a message.

    It is the client's limit if it sent one, else retryMaxTimes.
    """
    return requested if requested is not None and version >= _V3_4_9 else group.retry_max_times


def dead_letter_queue(topics: TopicConfigTable, group: str, now_ms: int) -> tuple[str, int]:
    """Return topic and queue id of the group's dead letter queue.

    The topic is created if it does not exist. It is readable and writeable, so that operators can inspect and consume
    it.
    """
    topic = topics.ensure(dlq_topic(group), DLQ_QUEUE_NUMS, now_ms)
    return topic.topic_name, 0
