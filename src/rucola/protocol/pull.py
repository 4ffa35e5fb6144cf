"""Pulling: header of PULL_MESSAGE (11) and of its answer, whose body is a row of whole records.

The answer carries its four offsets whatever its code, because C++ clients refuse an answer without them.
"""

from __future__ import annotations

from rucola.protocol.command import Header

COMMIT_OFFSET = 0x1
"""Bit of `sys_flag`: take `commit_offset` as the group's progress on this queue."""
SUSPEND = 0x2
"""Bit of `sys_flag`: hold the request up to `suspend_timeout_millis` while there is nothing to return."""
SUBSCRIPTION = 0x4
"""Bit of `sys_flag`: filter by `subscription` of this request, not by the group's heartbeat."""
CLASS_FILTER = 0x8
"""Bit of `sys_flag`: filter by an uploaded class; no broker of 4.9 does that any more."""


class PullMessageRequestHeader(Header, kw_only=True):
    """Which records a consumer wants, from which queue offset on."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    """Where to go on, and what the queue holds."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
