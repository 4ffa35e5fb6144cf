"""Locks on queues: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

Answers to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.queue_locks import QueueLocks
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.remoting.connection import Connection, Processor, Reply


class LockProcessor:
    """Gives out the locks of `QueueLocks`."""

    def __init__(self, locks: QueueLocks, clock: Callable[[], int]) -> None:
        self._locks = locks
        self._clock = clock

    def table(self) -> dict[int, Processor]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, connection: Connection, command: RemotingCommand) -> Reply:
        wanted = decode_body(LockBatchRequestBody, command.body)
        held = self._locks.lock(wanted.consumer_group, wanted.client_id, wanted.mq_set, self._clock())
        return command.response(ResponseCode.SUCCESS, body=encode_body(LockBatchResponseBody(lock_ok_mq_set=held)))

    def unlock(self, connection: Connection, command: RemotingCommand) -> Reply:
        given_back = decode_body(LockBatchRequestBody, command.body)
        self._locks.unlock(given_back.consumer_group, given_back.client_id, given_back.mq_set)
        return command.response(ResponseCode.SUCCESS)
