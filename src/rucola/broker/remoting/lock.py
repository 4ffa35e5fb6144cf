"""Adapter of LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and GET_ALL_QUEUE_LOCKS (20006)."""

from __future__ import annotations

from collections.abc import Iterator

from rucola.access import Action, Resource
from rucola.broker.services.locks import LockService
from rucola.broker.tables.persistence import TablePersistence
from rucola.domain.queue import LockedQueues
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.lock import LockBatchResponseBody
from rucola.protocol.topic import TableVersionHeader
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def _locked_topics(request: LockedQueues) -> Iterator[Resource]:
    for topic in {queue.topic for queue in request.mq_set} or {""}:
        yield Resource(topic, request.consumer_group)


class LockAdapter:
    def __init__(self, service: LockService, writing: TablePersistence) -> None:
        self._service = service
        self._writing = writing

    def endpoints(self) -> Endpoints:
        request = LockedQueues
        return (
            Endpoint(RequestCode.LOCK_BATCH_MQ, Action.LOCK, self.lock, request, _locked_topics),
            Endpoint(RequestCode.UNLOCK_BATCH_MQ, Action.LOCK, self.unlock, request, _locked_topics),
            Endpoint(RequestCode.GET_ALL_QUEUE_LOCKS, Action.QUERY, self.all, TableVersionHeader),
        )

    def lock(self, request: Request[LockedQueues]) -> Reply:
        queues = request.content
        held = self._service.lock(queues.consumer_group, queues.client_id, queues.mq_set)
        # A new holder is in the file before it starts, so that a restarted broker grants its queues to no other client.
        body = encode_body(LockBatchResponseBody(lock_ok_mq_set=held))
        return self._writing.when_persisted(lambda: request.success(body=body))

    def unlock(self, request: Request[LockedQueues]) -> Reply:
        queues = request.content
        self._service.unlock(queues.consumer_group, queues.client_id, queues.mq_set)
        return request.success()

    def all(self, request: Request[TableVersionHeader]) -> Reply:
        version, locks = self._service.all(request.content.table_version)
        body = b"" if locks is None else locks
        return request.success(TableVersionHeader(table_version=version), body)
