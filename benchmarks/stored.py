"""The messages of a topic over the socket: fill it before a measurement, count them afterwards."""

from __future__ import annotations

import frames
from load import answer_to, drive
from rucola.protocol.offset import OffsetResponseHeader
from servers import Process, Server

_BATCHES = 64


def fill(broker: Server | Process, topic: str, count: int) -> None:
    """Send messages with the keys 0 to `count` - 1, the same number to every queue; `count` is a multiple of 2,048."""
    step = _BATCHES * frames.BATCH_COUNT
    if count % step:
        raise ValueError(f"{count} messages cannot be sent as {_BATCHES} batches of {frames.BATCH_COUNT} at a time")
    for begin in range(0, count, step):
        batches = [
            frames.send_batch(topic, number, number // frames.BATCH_COUNT % frames.QUEUES)
            for number in range(begin, begin + step, frames.BATCH_COUNT)
        ]
        drive(broker, batches, len(batches), in_flight=4 if begin else 1)  # the first one creates the topic


def count_stored(broker: Server | Process, topic: str, queues: int = frames.QUEUES) -> int:
    """Return the number of messages in all queues of a topic."""
    answers = [answer_to(broker, frames.max_offset(topic, queue_id)) for queue_id in range(queues)]
    return sum(answer.decode_header(OffsetResponseHeader).offset for answer in answers)


def check_stored(broker: Server | Process, topic: str, count: int, queues: int = frames.QUEUES) -> None:
    """Fail unless the topic has exactly `count` messages: a broker that loses messages has no figures."""
    stored = count_stored(broker, topic, queues)
    if stored != count:
        raise RuntimeError(f"{count} messages were acknowledged, and {stored} are stored")
