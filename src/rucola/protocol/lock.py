"""Queue locks: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and GET_ALL_QUEUE_LOCKS (20006).

A consumer in order locks its assigned queues and renews the locks before they expire. A slave copies its master's
locks, in case it is promoted; that request is Rucola's own.

Corresponds to `LockBatchRequestBody`, `LockBatchResponseBody` and `UnlockBatchRequestBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.queue import MessageQueue


class LockBatchRequestBody(Body, kw_only=True):
    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class QueueLocks(Body, kw_only=True):
    """The locked queues of each client and group."""

    locks: list[LockBatchRequestBody] = []
