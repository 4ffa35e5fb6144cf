"""Queue selectors: functions by which an application chooses the queue of a message.

    await producer.send(message, select_by_hash(order_id))

Messages with the same key go to the same queue as long as the number of the topic's queues does not change, and are
consumed in order. A message for a selected queue is sent once, to that queue only.

Corresponds to the package `org.apache.rocketmq.client.producer.selector` of Apache RocketMQ 4.9.8 and selects the same
queues. Deliberate difference: SelectMessageQueueByMachineRoom selects a queue; Apache's returns null.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from rucola.domain.queue import MessageQueue
from rucola.errors import InvalidMessage
from rucola.message.hashing import string_hash

MessageQueueSelector: TypeAlias = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Maps the write queues of a topic, ordered by broker name and queue id, to one of them."""

QueueChoice: TypeAlias = MessageQueue | MessageQueueSelector | None
"""The destination of a message: a queue, a selector that chooses one, or None for the next queue in rotation."""


def select_by_hash(key: str | int) -> MessageQueueSelector:
    """SelectMessageQueueByHash: select by Java's hash code of the key (String, Integer or Long)."""
    hash_code = abs(string_hash(key) if isinstance(key, str) else _long_hash(key))
    return lambda queues: queues[hash_code % len(queues)]


def select_by_id(queue_id: int, broker_name: str | None = None) -> MessageQueueSelector:
    """Select the queue with this id, preferably of this broker, else the queue at the id modulo their number."""

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        with_id = [queue for queue in queues if queue.queue_id == queue_id]
        on_broker = [queue for queue in with_id if queue.broker_name == broker_name]
        return (on_broker or with_id or [queues[queue_id % len(queues)]])[0]

    return select


def select_by_random() -> MessageQueueSelector:
    """SelectMessageQueueByRandom: select a random queue."""
    return random.choice


def select_by_machine_room(rooms: Iterable[str]) -> MessageQueueSelector:
    """SelectMessageQueueByMachineRoom: select a random queue of brokers `room@name` in these rooms. InvalidMessage."""
    allowed = frozenset(rooms)

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        inside = [queue for queue in queues if queue.broker_name.partition("@")[0] in allowed]
        if not inside:
            raise InvalidMessage(f"no broker in {', '.join(sorted(allowed))} has a queue of topic {queues[0].topic}")
        return random.choice(inside)  # noqa: S311 - spreads load

    return select


def _long_hash(number: int) -> int:
    """Return Integer.hashCode if the number fits 32 bits, else Long.hashCode."""
    if -(1 << 31) <= number < 1 << 31:
        return number
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidMessage(f"{number} is too large for a key: pass a number of at most 64 bits, or a string")
    code = (number ^ (number & 0xFFFF_FFFF_FFFF_FFFF) >> 32) & 0xFFFF_FFFF
    return code - (1 << 32) if code & 0x8000_0000 else code
