"""Message traces: the events that clients record in the messages of RMQ_SYS_TRACE_TOPIC.

The body is UTF-8 text: entries, each terminated by 0x02, with fields separated by 0x01. Its keys are the ids and keys
of the traced messages, so a query by key finds it.

    Pub             timestamp regionId group topic msgId tags keys storeHost bodyLength costTime msgType offsetMsgId
                    success
    SubBefore       timestamp regionId group requestId msgId retryTimes keys
    SubAfter        requestId msgId costTime success keys contextCode timestamp group
    EndTransaction  timestamp regionId group topic msgId tags keys storeHost msgType transactionId transactionState
                    fromTransactionCheck

Times are in milliseconds. A SubAfter belongs to the SubBefore with the same requestId. A missing tag or key is `null`.
Older clients omit offsetMsgId, contextCode, and timestamp and group of a SubAfter.

Corresponds to `TraceDataEncoder`, `TraceContext` and `TraceBean` of Apache RocketMQ 4.9.8, as used outside Alibaba's
cloud. Deliberate difference: a malformed entry is skipped, where Apache loses the entries after it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import astuple

CONTENT_SEPARATOR: Final = "\x01"
FIELD_SEPARATOR: Final = "\x02"
NONE: Final = "null"


class MessageType(IntEnum):
    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeReturnType(IntEnum):
    """The contextCode of a SubAfter."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """A sent message; `msg_id` is the unique key."""

    timestamp: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    # Bytes.
    body_length: int
    cost_ms: int
    message_type: MessageType
    offset_msg_id: str | None
    success: bool


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: int
    region_id: str | None
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str | None


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer has completed or failed a message. Old clients record no time and no group."""

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str | None
    context_code: int = ConsumeReturnType.SUCCESS
    timestamp: int = 0
    group: str = ""


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    message_type: MessageType
    transaction_id: str | None
    transaction_state: str
    from_transaction_check: bool


Trace: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction


def encode(trace: Trace) -> str:
    """Return one terminated entry: the fields of the struct, in order."""
    return CONTENT_SEPARATOR.join([type(trace).__name__, *map(_text, astuple(trace))]) + FIELD_SEPARATOR


def decode(text: str) -> list[Trace]:
    """Return all well-formed entries, in order."""
    traces: list[Trace] = []
    for entry in text.split(FIELD_SEPARATOR):
        kind, *fields = entry.split(CONTENT_SEPARATOR)
        try:
            trace = _READERS[kind](fields)
        except (KeyError, IndexError, ValueError):
            continue
        traces.append(trace)
    return traces


def _text(value: object) -> str:
    match value:
        case None:
            return NONE
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case _:
            return str(value)


def _optional(text: str) -> str | None:
    return None if text in ("", NONE) else text


def _true(text: str) -> bool:
    return text.lower() == "true"


def _pub(fields: list[str]) -> Pub:
    """With 12 fields there is no offsetMsgId; fields after success are ignored."""
    return Pub(
        timestamp=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_optional(fields[5]),
        keys=_optional(fields[6]),
        store_host=fields[7],
        body_length=int(fields[8]),
        cost_ms=int(fields[9]),
        message_type=MessageType(int(fields[10])),
        offset_msg_id=_optional(fields[11]) if len(fields) > 12 else None,
        success=_true(fields[12] if len(fields) > 12 else fields[11]),
    )


def _sub_before(fields: list[str]) -> SubBefore:
    return SubBefore(
        timestamp=int(fields[0]),
        region_id=_optional(fields[1]),
        group=fields[2],
        request_id=fields[3],
        msg_id=fields[4],
        retry_times=int(fields[5]),
        keys=_optional(fields[6]),
    )


def _sub_after(fields: list[str]) -> SubAfter:
    return SubAfter(
        request_id=fields[0],
        msg_id=fields[1],
        cost_ms=int(fields[2]),
        success=_true(fields[3]),
        keys=_optional(fields[4]),
        context_code=int(fields[5]) if len(fields) > 5 else ConsumeReturnType.SUCCESS,
        timestamp=int(fields[6]) if len(fields) > 7 else 0,
        group=fields[7] if len(fields) > 7 else "",
    )


def _end_transaction(fields: list[str]) -> EndTransaction:
    return EndTransaction(
        timestamp=int(fields[0]),
        region_id=fields[1],
        group=fields[2],
        topic=fields[3],
        msg_id=fields[4],
        tags=_optional(fields[5]),
        keys=_optional(fields[6]),
        store_host=fields[7],
        message_type=MessageType(int(fields[8])),
        transaction_id=_optional(fields[9]),
        transaction_state=fields[10],
        from_transaction_check=_true(fields[11]),
    )


_READERS: Final[dict[str, Callable[[list[str]], Trace]]] = {
    Pub.__name__: _pub,
    SubBefore.__name__: _sub_before,
    SubAfter.__name__: _sub_after,
    EndTransaction.__name__: _end_transaction,
}
