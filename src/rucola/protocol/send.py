"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), and RECALL_MESSAGE (370): the headers.

V2 has the same fields under names of one letter; current clients send it. `properties` has pairs `name \\x01 value
\\x02`. The body of a batch is described in `rucola.message.batch`; its response has one msgId per message, separated by
commas.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.command import Header


class SendMessageRequestHeader(Header, kw_only=True):
    """A message without body. A topic created on demand gets `default_topic_queue_nums` queues."""

    producer_group: str = ""
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    queue_id: int
    # Bits for compression, transactions and batches.
    sys_flag: int
    born_timestamp: int
    # The application's, stored unchanged.
    flag: int
    properties: str = ""
    # Number of earlier attempts, in messages of retry topics.
    reconsume_times: int = 0
    unit_mode: bool | str = False
    batch: bool | str = False
    # Attempts before a message becomes a dead letter.
    max_reconsume_times: int | None = None


class SendMessageRequestHeaderV2(Header, kw_only=True):
    """The same fields under names of one letter."""

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
    """`msg_id` is the offsetMsgId, or several joined by commas."""

    msg_id: str
    queue_id: int
    queue_offset: int
    # Optional; Rucola's brokers do not send it.
    transaction_id: str | None = None
    # Of a timer message, for RECALL_MESSAGE.
    recall_handle: str | None = None


class RecallMessageRequestHeader(Header, kw_only=True):
    """Take back a timer message that is not due yet."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponseHeader(Header, kw_only=True):
    """`msg_id` is the unique key."""

    msg_id: str
