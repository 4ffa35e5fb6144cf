"""Adapter of LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and GET_ALL_QUEUE_LOCKS (20006)."""

from __future__ import annotations

from collections.abc import Iterator

from rucola.access import Action, Caller, Resource
from rucola.broker.services.locks import LockService
from rucola.broker.tables.persistence import TablePersistence
from rucola.domain.queue import LockedQueues
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.lock import LockBatchResponseBody
from rucola.protocol.topic import TableVersionHeader
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Endpoint


def _locked_topics(request: LockedQueues) -> Iterator[Resource]:
    for topic in {queue.topic for queue in request.mq_set} or {""}:
        yield Resource(topic, request.consumer_group)


class LockAdapter:
    def __init__(self, service: LockService, writing: TablePersistence) -> None:
        self._service = service
        self._writing = writing

    def endpoints(self) -> tuple[Endpoint, ...]:
        request = LockedQueues
        return (
            Endpoint(RequestCode.LOCK_BATCH_MQ, Action.LOCK, self.lock, request, _locked_topics),
            Endpoint(RequestCode.UNLOCK_BATCH_MQ, Action.LOCK, self.unlock, request, _locked_topics),
            Endpoint(RequestCode.GET_ALL_QUEUE_LOCKS, Action.QUERY, self.all, TableVersionHeader),
        )

    def lock(self, connection: Connection, caller: Caller, command: RemotingCommand, request: LockedQueues) -> Reply:
        held = self._service.lock(request.consumer_group, request.client_id, request.mq_set)
        # A new holder is in the file before it starts, so that a restarted broker grants its queues to no other client.
        body = encode_body(LockBatchResponseBody(lock_ok_mq_set=held))
        return self._writing.when_persisted(lambda: command.response(ResponseCode.SUCCESS, body=body))

    def unlock(self, connection: Connection, caller: Caller, command: RemotingCommand, request: LockedQueues) -> Reply:
        self._service.unlock(request.consumer_group, request.client_id, request.mq_set)
        return command.response(ResponseCode.SUCCESS)

    def all(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TableVersionHeader
    ) -> Reply:
        version, locks = self._service.all(header.table_version)
        body = b"" if locks is None else encode_body(locks)
        return command.response(ResponseCode.SUCCESS, TableVersionHeader(table_version=version), body)
