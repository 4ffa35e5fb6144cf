"""Request-reply messages between clients, by a broker: codes 324, 325 and 326.

    1. The requester sends an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL (ms).
    2. The replier sends a message to `<cluster>_REPLY_TOPIC` with MSG_TYPE=reply and these three properties, by 324
       or 325, to the broker of the request. Headers are as in SEND_MESSAGE.
    3. The broker forwards the reply by 326 to the client in REPLY_TO_CLIENT, and reports the result to the replier.
    4. The requester matches the reply by CORRELATION_ID.

Corresponds to `ReplyMessageRequestHeader` and `MessageUtil` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Final

from rucola.protocol.command import Header

REPLY_MESSAGE_FLAG: Final = "reply"
"""Property MSG_TYPE of a reply."""


class ReplyMessageRequestHeader(Header, kw_only=True):
    """The reply's send header, hosts ("ip:port") and store time (ms); the body is compressed by `sys_flag`."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    queue_id: int
    sys_flag: int
    # Milliseconds since 1970.
    born_timestamp: int
    # The application's flag.
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool | str = False
    born_host: str
    store_host: str
    store_timestamp: int
