"""Retry policy of consumer groups: how often a message is retried, and after which delay.

    reconsumeTimes of the message that failed    0    1    2    ...   15    16
    what follows (retryMaxTimes=16)              3    4    5    ...   18    %DLQ%group        numbers are delay levels

Corresponds to parts of `SendMessageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from dataclasses import replace

from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.group import SubscriptionGroupConfig
from rucola.message import MessageExt, properties
from rucola.message.topics import dlq_topic

DLQ_QUEUE_NUMS = 1
MAX_RECONSUME_TIMES = (1 << 31) - 1
FIRST_DELAY_LEVEL = 3
"""The delay level of the first retry. Each further retry waits one level longer."""


def max_reconsume_times(group: SubscriptionGroupConfig, requested: int | None) -> int:
    return group.retry_max_times if requested is None else requested


def dead_letter_queue(topics: TopicConfigTable, group: str, now_ms: int) -> tuple[str, int]:
    """Return topic and queue id of the group's dead letter queue, created if it is missing."""
    topic = topics.ensure(dlq_topic(group), DLQ_QUEUE_NUMS, now_ms)
    return topic.topic_name, 0


def next_attempt(message: MessageExt) -> MessageExt:
    """Return a copy of a stored message that a group failed to consume, counted, with where it came from first."""
    attempt = replace(message, prepared_transaction_offset=0)
    attempt.reconsume_times = min(message.reconsume_times + 1, MAX_RECONSUME_TIMES)
    pairs = attempt.properties = message.properties | {properties.WAIT: "false"}
    # Only by the first retry: a second one finds the retry topic in `message.topic`, and must keep the original.
    pairs.setdefault(properties.RETRY_TOPIC, message.topic)
    pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    return attempt
