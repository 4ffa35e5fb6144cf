"""Adapter of roles: GET_HA_STATUS (20001), PROMOTE_BROKER (20002), DEMOTE_BROKER (20003), SWITCH_OVER (20004)."""

from __future__ import annotations

from rucola.access import Action, Caller
from rucola.broker.services.roles import RoleService, SwitchOver
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.roles import (
    DemoteBrokerRequestHeader,
    HaStatusRequestHeader,
    PromoteBrokerRequestHeader,
    RoleChangeResponseHeader,
    SwitchOverRequestHeader,
)
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.endpoints import Endpoint


class RoleAdapter:
    def __init__(self, service: RoleService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        alter = Action.ALTER_ROLE
        return (
            Endpoint(RequestCode.GET_HA_STATUS, Action.QUERY, self.status, HaStatusRequestHeader),
            Endpoint(RequestCode.PROMOTE_BROKER, alter, self.promote, PromoteBrokerRequestHeader),
            Endpoint(RequestCode.DEMOTE_BROKER, alter, self.demote, DemoteBrokerRequestHeader),
            Endpoint(RequestCode.SWITCH_OVER, alter, self.switch_over, SwitchOverRequestHeader),
        )

    async def status(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: HaStatusRequestHeader
    ) -> Answer:
        status = await self._service.status(header.count_from)
        return command.response(ResponseCode.SUCCESS, body=encode_body(status))

    async def promote(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: PromoteBrokerRequestHeader
    ) -> Answer:
        epoch = await self._service.promote(
            caller, header.epoch, force=header.force, is_switchover=header.is_switchover
        )
        return command.response(ResponseCode.SUCCESS, RoleChangeResponseHeader(epoch=epoch))

    def demote(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: DemoteBrokerRequestHeader
    ) -> Reply:
        self._service.demote(caller, header.broker_id)
        return command.response(ResponseCode.SUCCESS)

    async def switch_over(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: SwitchOverRequestHeader
    ) -> Answer:
        target = SwitchOver(header.target_addr, header.target_id, header.broker_id, header.timeout_ms)
        epoch, pause_ms = await self._service.switch_over(caller, target)
        return command.response(ResponseCode.SUCCESS, RoleChangeResponseHeader(epoch=epoch, pause_ms=pause_ms))
