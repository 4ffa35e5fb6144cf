"""CONSUMER_SEND_MSG_BACK (36): a consumer requests a retry of a failed message.

The broker puts a copy into `%RETRY%group` after a delay, or into `%DLQ%group` after `max_reconsume_times` attempts.
`delay_level` 0 means level 3 + reconsumeTimes, a negative level the dead letter queue at once.
"""

from __future__ import annotations

from rucola.protocol.command import Header

_V3_4_9 = 121
"""First client version that sends a limit of retries."""


def known_limit(max_reconsume_times: int | None, version: int) -> int | None:
    """Return the limit of retries in a header of a client of this version, None if it has none."""
    return max_reconsume_times if version >= _V3_4_9 else None


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True):
    """`offset` is a physical offset of the receiving broker."""

    offset: int
    group: str
    # 0: the broker chooses; negative: dead letter queue.
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | str = False
    # None: `retryMaxTimes` of the group.
    max_reconsume_times: int | None = None
