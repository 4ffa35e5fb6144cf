"""Multi-dispatch: units of one record in further queues, which its properties name.

    INNER_MULTI_DISPATCH        the names of the queues, joined by commas: `%LMQ%a,%LMQ%b`
    INNER_MULTI_QUEUE_OFFSET    the queue offset of the record in each of them: `7,4`

A put assigns the queue offsets and writes the second property. The queue id is that of the record, and 0 for a light
message queue, whose name begins with `%LMQ%` (enableLmq). A record has one unit in each queue, and is indexed once.

Corresponds to org.apache.rocketmq.store.MultiDispatch and ConsumeQueue.multiDispatchLmqQueue. Deliberate differences:
a put takes the names of light message queues only, since permissions are checked for the topic of a message alone; and
a message that waits, delayed or half of a transaction, gets no units in further queues until it is in its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from rucola.message import properties
from rucola.message.topics import DUE_TIME_TOPICS, LMQ_PREFIX, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC

SEPARATOR: Final = ","
_NAME: Final = properties.INNER_MULTI_DISPATCH.encode()
_WAITING: Final = DUE_TIME_TOPICS | {TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC}


class MultiDispatch(Enum):
    """Whether records have units in further queues."""

    OFF = "off"
    TOPICS = "enableMultiDispatch"
    """Light message queues have the queue id of the record."""
    LMQ = "enableMultiDispatch, enableLmq"
    """Light message queues have queue id 0."""

    @classmethod
    def of(cls, *, enable_multi_dispatch: bool, enable_lmq: bool) -> MultiDispatch:
        """Return the mode of a configuration."""
        return (cls.LMQ if enable_lmq else cls.TOPICS) if enable_multi_dispatch else cls.OFF

    def queue_id(self, topic: str, own: int) -> int:
        """Return the queue id of a further queue, given that of the record."""
        return 0 if self is MultiDispatch.LMQ and topic.startswith(LMQ_PREFIX) else own


def further_units(stored: bytes, own: tuple[str, int], mode: MultiDispatch) -> dict[tuple[str, int], int]:
    """Return the queue offsets of a record in further queues, by (topic, queue id), given its stored properties.

    Empty if the two properties do not fit together, as if they were not there.
    """
    if _NAME not in stored:
        return {}
    pairs = properties.parse(stored)
    names = _split(pairs.get(properties.INNER_MULTI_DISPATCH, ""))
    offsets = _split(pairs.get(properties.INNER_MULTI_QUEUE_OFFSET, ""))
    if len(names) != len(offsets) or not all(offset.isascii() and offset.isdigit() for offset in offsets):
        return {}
    units = {(name, mode.queue_id(name, own[1])): int(offset) for name, offset in zip(names, offsets, strict=True)}
    units.pop(own, None)
    return units


def further_queues(stored: bytes, own: tuple[str, int], mode: MultiDispatch) -> list[tuple[str, int]]:
    """Return the further queues that a put shall dispatch a message to; empty for most messages.

    The names are unique, and in order.
    """
    if mode is MultiDispatch.OFF or _NAME not in stored or own[0] in _WAITING:
        return []
    names = _split(properties.parse(stored).get(properties.INNER_MULTI_DISPATCH, ""))
    return [(name, mode.queue_id(name, own[1])) for name in names]


def _split(text: str) -> list[str]:
    """Split as Java does, which drops empty words at the end."""
    words = text.split(SEPARATOR)
    while words and not words[-1]:
        words.pop()
    return words
