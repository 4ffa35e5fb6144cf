"""Queue locks: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and GET_ALL_QUEUE_LOCKS (20006).

A consumer in order requests the locks of its assigned queues, learns which of them it holds, and renews them before
they expire. A slave copies the locks of its master, so that it knows the holders once it is promoted; that request is
Rucola's own.

Corresponds to `LockBatchRequestBody`, `LockBatchResponseBody` and `UnlockBatchRequestBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.queue import MessageQueue


class LockBatchRequestBody(Body, kw_only=True):
    """The body of both requests: the queues to lock or unlock for a group."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    """The response body of LOCK_BATCH_MQ: the queues whose locks the client holds now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class QueueLocks(Body, kw_only=True):
    """The response body of GET_ALL_QUEUE_LOCKS: the locked queues of each client and group."""

    locks: list[LockBatchRequestBody] = []
