"""CONSUMER_SEND_MSG_BACK (36): a consumer requests a retry of a failed message.

The broker puts a copy into `%RETRY%group` after a delay, or into `%DLQ%group` after `max_reconsume_times` attempts.
`delay_level` 0 means level 3 + reconsumeTimes, a negative level the dead letter queue at once.
"""

from __future__ import annotations

from rucola.protocol.command import Header


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
