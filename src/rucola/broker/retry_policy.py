"""Messages that a group failed to consume: how often they are tried, and where those go that were tried too often.

Answers to parts of `SendMessageProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.broker.tables.topics import TopicConfigTable
from rucola.message.topics import dlq_topic
from rucola.protocol.topic import SubscriptionGroupConfig

DLQ_QUEUE_NUMS = 1
FIRST_DELAY_LEVEL = 3
"""The delay level of the first retry; each further one waits a level longer."""

_V3_4_9 = 121
"""The version from which on clients say themselves how often to try."""


def max_reconsume_times(group: SubscriptionGroupConfig, version: int, asked: int | None) -> int:
    """How often the group tries a message again: what the client asks for, else what the group is set to."""
    return asked if asked is not None and version >= _V3_4_9 else group.retry_max_times


def dead_letter_place(topics: TopicConfigTable, group: str, now_ms: int) -> tuple[str, int]:
    """Topic and queue id for a message that the group gives up. The topic is made now where it is missing.

    It is readable and writeable, so that operators can look into it and consume it.
    """
    topic = topics.ensure(dlq_topic(group), DLQ_QUEUE_NUMS, now_ms)
    return topic.topic_name, 0
