"""Sending: headers of SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320), and of the answer.

V2 carries the same fields under names of one letter, which is what clients of today send; both decode to objects
with the same attributes. `properties` is the property string, pairs `name \\x01 value \\x02`. The body of a batch is
described in `rucola.message.batch`; its answer lists one msgId a message, separated by commas.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.command import Header


class SendMessageRequestHeader(Header, kw_only=True):
    """What a producer says of a message besides its body."""

    producer_group: str = ""
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool | str = False
    batch: bool | str = False
    max_reconsume_times: int | None = None


class SendMessageRequestHeaderV2(Header, kw_only=True):
    """The same under names of one letter."""

    producer_group: str = field(name="a", default="")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default="TBW102")
    default_topic_queue_nums: int = field(name="d", default=4)
    queue_id: int = field(name="e")
    sys_flag: int = field(name="f")
    born_timestamp: int = field(name="g")
    flag: int = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: int = field(name="j", default=0)
    unit_mode: bool | str = field(name="k", default="false")
    max_reconsume_times: int | None = field(name="l", default=None)
    batch: bool | str = field(name="m", default="false")


class SendMessageResponseHeader(Header, kw_only=True):
    """Where the message came to lie. `msg_id` is the offsetMsgId, or several of them joined by commas."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
