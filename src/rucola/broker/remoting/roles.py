"""Adapter of roles: GET_HA_STATUS (20001), PROMOTE_BROKER (20002), DEMOTE_BROKER (20003), SWITCH_OVER (20004)."""

from __future__ import annotations

from rucola.access import Action
from rucola.broker.services.roles import RoleService, SwitchOver
from rucola.protocol.codes import RequestCode
from rucola.protocol.roles import (
    DemoteBrokerRequestHeader,
    HaStatusRequestHeader,
    PromoteBrokerRequestHeader,
    RoleChangeResponseHeader,
    SwitchOverRequestHeader,
)
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class RoleAdapter:
    def __init__(self, service: RoleService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        alter = Action.ALTER_ROLE
        return (
            Endpoint(RequestCode.GET_HA_STATUS, Action.QUERY, self.status, HaStatusRequestHeader),
            Endpoint(RequestCode.PROMOTE_BROKER, alter, self.promote, PromoteBrokerRequestHeader),
            Endpoint(RequestCode.DEMOTE_BROKER, alter, self.demote, DemoteBrokerRequestHeader),
            Endpoint(RequestCode.SWITCH_OVER, alter, self.switch_over, SwitchOverRequestHeader),
        )

    async def status(self, request: Request[HaStatusRequestHeader]) -> Answer:
        status = await self._service.status(request.content.count_from)
        return request.success(body=status)

    async def promote(self, request: Request[PromoteBrokerRequestHeader]) -> Answer:
        header = request.content
        epoch = await self._service.promote(
            request.caller, header.epoch, force=header.force, is_switchover=header.is_switchover
        )
        return request.success(RoleChangeResponseHeader(epoch=epoch))

    def demote(self, request: Request[DemoteBrokerRequestHeader]) -> Reply:
        self._service.demote(request.caller, request.content.broker_id)
        return request.success()

    async def switch_over(self, request: Request[SwitchOverRequestHeader]) -> Answer:
        header = request.content
        target = SwitchOver(header.target_addr, header.target_id, header.broker_id, header.timeout_ms)
        epoch, pause_ms = await self._service.switch_over(request.caller, target)
        return request.success(RoleChangeResponseHeader(epoch=epoch, pause_ms=pause_ms))
