"""Locks on queues: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), from consumers that keep the order of a queue.

A consumer asks for the queues of its share, hears which of them it holds, and asks again before the locks expire.

Answers to `LockBatchRequestBody`, `LockBatchResponseBody` and `UnlockBatchRequestBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.queue import MessageQueue


class LockBatchRequestBody(Body, kw_only=True):
    """Which queues a client wants, or gives back, for its group. The body of both requests."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    """The queues that the client holds now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)
