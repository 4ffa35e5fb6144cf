"""PULL_MESSAGE (11): the headers of the request and its response.

The body of the response is a sequence of complete records. The response has its four fields whatever its code, because
C++ clients reject a response without them.
"""

from __future__ import annotations

from rucola.protocol.command import Header

COMMIT_OFFSET = 0x1
"""Bit of `sys_flag`: commit `commit_offset` for the group."""
SUSPEND = 0x2
"""Bit of `sys_flag`: hold the request for up to `suspend_timeout_millis` if there is no message."""
SUBSCRIPTION = 0x4
"""Bit of `sys_flag`: filter by the `subscription` of this request instead of the one in the heartbeat."""
CLASS_FILTER = 0x8
"""Bit of `sys_flag`: filter by an uploaded class, which brokers of 4.9 no longer support."""


class PullMessageRequestHeader(Header):
    """A request for up to `max_msg_nums` records of a queue, from `queue_offset` on.

    `subscription` and `sub_version` are those of SubscriptionData. `expression_type` is TAG or SQL92. The fields have
    the order of `speed.UsualPull`.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    # Sum of the bits above.
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
    """The offset and broker id of the next pull, and the ends of the queue."""

    # The broker id to pull from next: `which_broker_when_consume_slowly` of the group with a large backlog, else its
    # `broker_id`.
    suggest_which_broker_id: int
    # Also advances past messages that the filter excludes.
    next_begin_offset: int
    min_offset: int
    max_offset: int
