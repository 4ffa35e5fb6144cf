"""Selectors: how a sender chooses the queue of a message by a key of its own.

    await producer.send(message, select_by_hash(order_id))

All messages with one key go to one queue, and are consumed there in the order in which they were stored, as long as the
topic's queues stay the same. A message for a chosen queue is tried once, and on that queue only.

Answers to the package `org.apache.rocketmq.client.producer.selector` of Apache RocketMQ 4.9.8, whose queues these
are, so that senders in Java and Python agree. Deliberate difference: SelectMessageQueueByMachineRoom chooses, where
Apache's returns nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rucola.errors import InvalidMessage
from rucola.message.hashing import string_hash
from rucola.protocol.queue import MessageQueue

MessageQueueSelector: TypeAlias = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Given the queues of a topic that may be written to, ordered by broker name and queue id, one of them."""


def select_by_hash(key: str | int) -> MessageQueueSelector:
    """SelectMessageQueueByHash: by the hash that Java gives the key, a String, an Integer or else a Long."""
    code = abs(string_hash(key) if isinstance(key, str) else _long_hash(key))
    return lambda queues: queues[code % len(queues)]


def select_by_random() -> MessageQueueSelector:
    """SelectMessageQueueByRandom: any queue."""
    return random.choice


def select_by_machine_room(rooms: Iterable[str]) -> MessageQueueSelector:
    """SelectMessageQueueByMachineRoom: any queue of a broker named `room@name` in one of these rooms.

    InvalidMessage, at sending, where the topic has none there.
    """
    allowed = frozenset(rooms)

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        inside = [queue for queue in queues if queue.broker_name.partition("@")[0] in allowed]
        if not inside:
            raise InvalidMessage(f"no broker in {', '.join(sorted(allowed))} has a queue of topic {queues[0].topic}")
        return random.choice(inside)

    return select


def _long_hash(number: int) -> int:
    """Integer.hashCode and Long.hashCode, which agree for what is not negative and fits both."""
    if -(1 << 31) <= number < 1 << 31:
        return number
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidMessage(f"{number} is too large for a key: it has to fit 64 bits, or be a text")
    code = (number ^ (number & 0xFFFF_FFFF_FFFF_FFFF) >> 32) & 0xFFFF_FFFF
    return code - (1 << 32) if code & 0x8000_0000 else code
