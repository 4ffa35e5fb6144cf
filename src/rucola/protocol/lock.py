"""Queue locks: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and GET_ALL_QUEUE_LOCKS (20006).

A consumer in order locks its assigned queues and renews the locks before they expire. A slave copies its master's
locks, in case it is promoted; that request is Rucola's own.

The body of 41 and 42 is `LockedQueues`. Corresponds to `LockedQueues`, `LockBatchResponseBody` and
`UnlockBatchRequestBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from msgspec import field

from rucola.domain.queue import MessageQueue
from rucola.protocol.body import Body


class LockBatchResponseBody(Body, kw_only=True):
    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)
