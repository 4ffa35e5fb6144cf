"""Request and reply: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325) and PUSH_REPLY_MESSAGE_TO_CLIENT (326).

    asker     sends a message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL (ms), as any other
    replier   consumes it, and sends a message to `<cluster>_REPLY_TOPIC` with MSG_TYPE=reply and these three, by 324 or
              325, to the broker that it had the message from; their headers are those of SEND_MESSAGE, see `send`
    broker    pushes that with 326 to the client that REPLY_TO_CLIENT names, and answers the replier how it went
    asker     finds the request by CORRELATION_ID

Answers to `ReplyMessageRequestHeader` and `MessageUtil` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Final

from rucola.protocol.command import Header

REPLY_MESSAGE_FLAG: Final = "reply"
"""The value of MSG_TYPE in a reply."""


class ReplyMessageRequestHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the reply's own header, and where it came from. Hosts are `address:port`.

    The body is the reply's, as its sysFlag says. The client's answer has no fields.
    """

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool | str = False
    born_host: str
    store_host: str
    store_timestamp: int
