"""Names of topics and groups: syntax and reserved names; expressions of tags.

A name consists of letters, digits and `% | _ -`. A topic has at most 127 characters (its length is one signed byte in a
record), a group at most 255.

    %RETRY%group   retry topic: messages that the group failed to consume and will consume again
                   (`%RETRY%group_topic` by POP)
    %DLQ%group     dead letter topic: messages that the group failed to consume too often
    %LMQ%name      light message queue (enableLmq): messages of other topics that name it

Counterpart of org.apache.rocketmq.common.topic.TopicValidator, MixAll and org.apache.rocketmq.client.Validators.
"""

from __future__ import annotations

import re
from typing import Final

from rucola.errors import InvalidMessage

MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 255

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
POP_LOG_TOPIC: Final = "rmq_sys_pop_log"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"

SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        POP_LOG_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""System topics of every broker; each adds topics named after its cluster, itself and its reply topic."""

DUE_TIME_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics of delayed messages; the tagsCode of their units is the due time in milliseconds."""

NOT_ALLOWED_SEND_TOPICS: Final = SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that only the broker may write to."""

_is_name = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII).fullmatch


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic of messages of a topic that a group received by POP and did not acknowledge in time."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_lmq(name: str) -> bool:
    """Return whether this is the name of a light message queue, or of a group of one."""
    return name.startswith(LMQ_PREFIX)


def reply_topic(cluster: str) -> str:
    """Return the topic for replies to the requesters of a cluster."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is reserved: no request can create or delete it."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def check_topic(topic: str) -> None:
    """Raise InvalidMessage unless `topic` is a valid name."""
    _check("topic", topic, MAX_TOPIC_LENGTH)


def check_group(group: str) -> None:
    """Raise InvalidMessage unless `group` is a valid group name."""
    _check("group", group, MAX_GROUP_LENGTH)


def _check(what: str, name: str, max_length: int) -> None:
    if not isinstance(name, str):
        raise InvalidMessage(f"the {what} is {name!r:.50}: it must be a str")
    if not name.strip():
        raise InvalidMessage(f"the {what} is blank")
    if len(name) > max_length:
        raise InvalidMessage(f"the {what} {name!r} has {len(name)} characters; {max_length} are allowed")
    if not _is_name(name):
        raise InvalidMessage(f"the {what} {name!r} contains other characters than letters, digits and % | _ -")


_SQL92: Final = re.compile(r"\S\s+(=|<>|<=?|>=?|IN|IS|AND|OR|NOT|BETWEEN)\s+\S", re.IGNORECASE)
"""Operators of SQL92 between words, which no expression of tags has."""


def check_tags(expression: str) -> None:
    """Raise InvalidMessage for another language: a broker accepts `a && b` as one tag, which no message has."""
    if not isinstance(expression, str):
        raise InvalidMessage(f"subscription {expression!r} is no text: write `TagA || TagB` or `*`")
    if "&&" in expression or "|" in expression.replace("||", "") or _SQL92.search(expression):
        raise InvalidMessage(
            f"subscription {expression!r}: tags can only be joined by `||`, as in `TagA || TagB`; conditions "
            "over properties need expression_type SQL92"
        )
