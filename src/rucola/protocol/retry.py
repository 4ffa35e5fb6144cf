"""Giving a message back: CONSUMER_SEND_MSG_BACK (36), from a consumer that failed to process it.

The broker finds the message by its physical offset and puts it into `%RETRY%group` after a delay, or into `%DLQ%group`
once it has been tried `max_reconsume_times` times. `delay_level` 0 leaves the delay to the broker, which chooses
level 3 + reconsumeTimes; a negative one asks for the dead letter queue at once.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True):
    """Which message of which group. `offset` is the physical offset in the log of the broker that is asked."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | str = False
    max_reconsume_times: int | None = None
