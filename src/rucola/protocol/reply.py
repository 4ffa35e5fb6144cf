"""Request-reply messages between clients, by way of a broker.

SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325) and PUSH_REPLY_MESSAGE_TO_CLIENT (326):

    1. The requester sends an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL (ms).
    2. The replier consumes it, and sends a message to `<cluster>_REPLY_TOPIC` with MSG_TYPE=reply and these three
       properties, by 324 or 325, to the broker from which it received the request. Headers are those of SEND_MESSAGE.
    3. The broker forwards the reply by 326 to the client in REPLY_TO_CLIENT, and reports the result to the replier.
    4. The requester matches the reply by CORRELATION_ID.

Corresponds to `ReplyMessageRequestHeader` and `MessageUtil` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Final

from rucola.protocol.command import Header

REPLY_MESSAGE_FLAG: Final = "reply"
"""The value of property MSG_TYPE in a reply."""


class ReplyMessageRequestHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the send header of the reply, its hosts ("ip:port") and its store time (ms).

    The body is the reply's, compressed if `sys_flag` says so. The response has no fields.
    """

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    queue_id: int
    sys_flag: int
    # Milliseconds since 1970.
    born_timestamp: int
    # The application's flag of the message.
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool | str = False
    born_host: str
    store_host: str
    store_timestamp: int
