"""Message trace: what clients tell of a message's way, and how it stands in the messages of RMQ_SYS_TRACE_TOPIC.

The body of such a message is UTF-8 text: entries, each of them ended by 0x02, with fields that are separated by 0x01.
Its keys are the ids and keys of the messages that it tells of, so that a key query finds it.

    Pub             timestamp regionId group topic msgId tags keys storeHost bodyLength costTime msgType offsetMsgId
                    success
    SubBefore       timestamp regionId group requestId msgId retryTimes keys
    SubAfter        requestId msgId costTime success keys contextCode timestamp group
    EndTransaction  timestamp regionId group topic msgId tags keys storeHost msgType transactionId transactionState
                    fromTransactionCheck

Times are milliseconds. A SubAfter belongs to the SubBefore with its requestId. What a message lacks (a tag, keys) reads
`null`. Older clients leave out offsetMsgId, contextCode, and timestamp and group of a SubAfter.

Answers to `TraceDataEncoder`, `TraceContext` and `TraceBean` of Apache RocketMQ 4.9.8, as its clients write outside
Alibaba's cloud. Deliberate difference: an entry that cannot be read is passed over, where Apache loses the rest.
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
    """What kind of message was sent."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeReturnType(IntEnum):
    """How a listener ended: the context code of a SubAfter."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """A message was sent, and stored at `store_host`."""

    timestamp: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_length: int
    cost_ms: int
    message_type: MessageType
    offset_msg_id: str | None
    success: bool


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer begins with a message, which was tried `retry_times` times before."""

    timestamp: int
    region_id: str | None
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str | None


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer has done with a message, well or not. Old clients tell no time and no group."""

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str | None
    context_code: int = ConsumeReturnType.SUCCESS
    timestamp: int = 0
    group: str = ""


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A producer has committed a transaction or rolled it back, of itself or because it was asked."""

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
    """One entry, with the 0x02 at its end: the fields of the struct in their order."""
    return CONTENT_SEPARATOR.join([type(trace).__name__, *map(_text, astuple(trace))]) + FIELD_SEPARATOR


def decode(text: str) -> list[Trace]:
    """All entries that can be read, in order."""
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
    """With 12 fields there is no offsetMsgId; what follows the success is the client's host, which is not read."""
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
