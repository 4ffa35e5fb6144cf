"""PULL_MESSAGE (11). Responses hold complete records; C++ clients require all four header fields."""

from __future__ import annotations

from rucola.protocol.command import Header

COMMIT_OFFSET = 0x1
"""`sys_flag`: commit `commit_offset`."""
SUSPEND = 0x2
"""`sys_flag`: hold the request for up to `suspend_timeout_millis` if there is no message."""
SUBSCRIPTION = 0x4
"""`sys_flag`: filter by the `subscription` of this request, not of the heartbeat."""
CLASS_FILTER = 0x8
"""`sys_flag`: filter by an uploaded class, which brokers of 4.9 no longer support."""


class PullMessageRequestHeader(Header):
    """Up to `max_msg_nums` records from `queue_offset` on."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    # Valid with COMMIT_OFFSET.
    commit_offset: int = 0
    # Valid with SUSPEND.
    suspend_timeout_millis: int = 0
    # Valid with SUBSCRIPTION.
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    # `which_broker_when_consume_slowly` of a group with a large backlog, else its `broker_id`.
    suggest_which_broker_id: int
    # Also advances past messages that the filter excludes.
    next_begin_offset: int
    min_offset: int
    max_offset: int
