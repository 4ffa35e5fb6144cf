"""Multi-dispatch: units of one record in further queues, which its properties name.

    INNER_MULTI_DISPATCH        the names of the queues, joined by commas: `%LMQ%a,%LMQ%b`
    INNER_MULTI_QUEUE_OFFSET    the queue offset of the record in each of them: `7,4`

A put assigns the queue offsets and writes the second property. The queue id is the record's, and 0 for a light
message queue, whose name starts with `%LMQ%` (enableLmq). A record has one unit in each queue, and is indexed once.

Corresponds to `MultiDispatch` and `ConsumeQueue.multiDispatchLmqQueue` of Apache RocketMQ 4.9.8. Deliberate
differences: a put accepts only names of light message queues, since permissions are checked for the topic of a message
alone; and a message that waits, delayed or half of a transaction, gets no units in further queues until it is in its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.record import Buffer, Peek
from rucola.message.topics import (
    DUE_TIME_TOPICS,
    LMQ_PREFIX,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    check_topic,
    is_lmq,
)

SEPARATOR: Final = ","
MULTI_DISPATCH_NAME: Final = properties.INNER_MULTI_DISPATCH.encode()
"""A record without these bytes has one unit."""
_MAX_DIGITS: Final = 17
"""More than a queue offset that a ConsumeQueue has room for."""
_WAITING: Final = DUE_TIME_TOPICS | {TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC}


class MultiDispatch(Enum):
    OFF = "off"
    TOPICS = "enableMultiDispatch"
    """Light message queues have the queue id of the record."""
    LMQ = "enableMultiDispatch, enableLmq"
    """Light message queues have queue id 0."""

    @classmethod
    def of(cls, *, enable_multi_dispatch: bool, enable_lmq: bool) -> MultiDispatch:
        return (cls.LMQ if enable_lmq else cls.TOPICS) if enable_multi_dispatch else cls.OFF

    def queue_id(self, topic: str, own: int) -> int:
        """Return the queue id of a further queue, given the record's."""
        return 0 if self is MultiDispatch.LMQ and is_lmq(topic) else own


_LMQ, _TOPICS = MultiDispatch.LMQ, MultiDispatch.TOPICS


def further_units(stored: bytes, own: tuple[str, int], mode: MultiDispatch) -> dict[tuple[str, int], int]:
    """Return the queue offsets of a record in further queues; empty if the two properties do not match."""
    if mode is MultiDispatch.OFF or MULTI_DISPATCH_NAME not in stored:
        return {}
    pairs = properties.parse(stored)
    names = _split(pairs.get(properties.INNER_MULTI_DISPATCH, ""))
    offsets = _split(pairs.get(properties.INNER_MULTI_QUEUE_OFFSET, ""))
    if len(names) != len(offsets) or not all(map(_is_offset, offsets)):
        return {}
    units = {(name, mode.queue_id(name, own[1])): int(offset) for name, offset in zip(names, offsets, strict=True)}
    units.pop(own, None)
    return units


def is_dispatched_to(buffer: Buffer, record: Peek, queue: tuple[str, int], queue_offset: int) -> bool:
    """Return whether a record names a further queue, with this queue offset, under any settings."""
    stored = bytes(buffer[record.properties_begin : record.properties_end])
    own = (record.topic, record.queue_id)
    return any(further_units(stored, own, mode).get(queue) == queue_offset for mode in (_LMQ, _TOPICS))


def assign_offsets(
    stored: bytes, own: tuple[str, int], mode: MultiDispatch, next_offsets: Mapping[tuple[str, int], int]
) -> bytes:
    """Return a message's properties with its offsets in further queues, except for names that are refused."""
    pairs = properties.parse(stored)
    pairs.pop(properties.INNER_MULTI_QUEUE_OFFSET, None)
    names = _split(pairs.get(properties.INNER_MULTI_DISPATCH, ""))
    if names and own[0] not in _WAITING and all(map(_is_valid_lmq, names)):
        offsets = [next_offsets.get((name, mode.queue_id(name, own[1])), 0) for name in names]
        pairs[properties.INNER_MULTI_QUEUE_OFFSET] = SEPARATOR.join(map(str, offsets))
    return properties.join(pairs)


def check_names(text: str) -> None:
    """Raise InvalidMessage unless INNER_MULTI_DISPATCH names light message queues only."""
    for name in _split(text):
        if not _is_valid_lmq(name):
            raise InvalidMessage(
                f"{properties.INNER_MULTI_DISPATCH} names {name!r}, which is no light message queue: those have valid "
                f"names of topics that begin with {LMQ_PREFIX}"
            )


def _is_valid_lmq(name: str) -> bool:
    try:
        check_topic(name)
    except InvalidMessage:
        return False
    return is_lmq(name)


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS


def _split(text: str) -> list[str]:
    """Split as Java does, which drops empty words at the end."""
    words = text.split(SEPARATOR)
    while words and not words[-1]:
        words.pop()
    return words
