"""Adapter of clean-ups: TRIGGER_DELETE_FILES (27), DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306) and
CLEAN_UNUSED_TOPIC (316)."""

from __future__ import annotations

from rucola.access import Action
from rucola.broker.services.cleanup import CleanupService
from rucola.protocol.codes import RequestCode
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class CleanupAdapter:
    def __init__(self, service: CleanupService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        return (
            Endpoint(RequestCode.TRIGGER_DELETE_FILES, Action.CLEAN_UP, self.delete_expired_files),
            Endpoint(RequestCode.DELETE_EXPIRED_COMMITLOG, Action.CLEAN_UP, self.delete_expired_files),
            Endpoint(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, Action.CLEAN_UP, self.delete_unused_queues),
            Endpoint(RequestCode.CLEAN_UNUSED_TOPIC, Action.CLEAN_UP, self.delete_unused_queues),
        )

    def delete_expired_files(self, request: Request[None]) -> Reply:
        self._service.delete_expired_files()
        return request.success()

    async def delete_unused_queues(self, request: Request[None]) -> Answer:
        await self._service.delete_unused_queues()
        return request.success()
