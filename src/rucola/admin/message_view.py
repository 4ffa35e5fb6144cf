"""Views of a stored message: text lines as mqadmin prints them, or JSON with the names of Apache's MessageExt."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from rucola.message import MessageExt
from rucola.presentation import LAYOUT, printable, time_text

JSON_FIELDS: Final = {
    "topic": "topic",
    "msgId": "msg_id",
    "offsetMsgId": "offset_msg_id",
    "tags": "tags",
    "keys": "keys",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "commitLogOffset": "physical_offset",
    "storeSize": "store_size",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "reconsumeTimes": "reconsume_times",
    "sysFlag": "sys_flag",
    "flag": "flag",
    "bodyCRC": "body_crc",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "properties": "properties",
}
"""Attributes of a message by their names in Apache's MessageExt, without the body."""


WHY_HIDDEN: Final[ContextVar[Callable[[MessageExt], str]]] = ContextVar("WHY_HIDDEN", default=lambda _: "")
"""Why the body of a message is not shown to the one who asks, where one asks for others; empty if it is shown."""


def message_json(message: MessageExt) -> dict[str, Any]:
    """Return all fields.

    A body that is not printable UTF-8 is `bodyBase64` instead of `body`; `bodyError` says why one is still compressed,
    `bodyHidden` why one is not shown.
    """
    fields: dict[str, Any] = {name: getattr(message, attribute) for name, attribute in JSON_FIELDS.items()}
    if message.body_error is not None:
        fields["bodyError"] = message.body_error
    if why := WHY_HIDDEN.get()(message):
        return fields | {"bodyHidden": why}
    text = _text_of(message.body)
    if text is None:
        fields["bodyBase64"] = base64.b64encode(message.body).decode("ascii")
    else:
        fields["body"] = text
    return fields


def message_text(message: MessageExt) -> str:
    """Return the lines of mqadmin and the body, which mqadmin writes to a file."""
    body = _text_of(message.body)
    lines: dict[str, object] = {
        "OffsetID": message.offset_msg_id,
        "Message ID": message.msg_id,
        "Topic": message.topic,
        "Tags": f"[{message.tags or ''}]",
        "Keys": f"[{message.keys or ''}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": time_text(message.born_timestamp),
        "Store Timestamp": time_text(message.store_timestamp),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": "{" + ", ".join(f"{name}={value}" for name, value in message.properties.items()) + "}",
    }
    if message.body_error is not None:
        lines["Body Error"] = f"{message.body_error}; shown as stored"
    shown = f"{len(message.body)} bytes that are not text" if body is None else body
    lines["Message Body"] = WHY_HIDDEN.get()(message) or shown
    return "\n".join(
        f"{name + ':':<20} {printable(str(value), keep=LAYOUT if name == 'Message Body' else '')}"
        for name, value in lines.items()
    )


def _text_of(body: bytes) -> str | None:
    """The body as text, or None for control characters, which could alter a terminal, and invalid UTF-8."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in LAYOUT for character in text) else None
