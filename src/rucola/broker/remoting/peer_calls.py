"""Calls from a broker to another broker of its name, for the switchover."""

from __future__ import annotations

from rucola.domain.role import HaStatus
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.roles import HaStatusRequestHeader, PromoteBrokerRequestHeader
from rucola.remoting.client import RemotingClient


class RemotingPeerCalls:
    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    async def promote(self, address: str, epoch: int) -> None:
        header = PromoteBrokerRequestHeader(epoch=epoch, force=True, is_switchover=True)
        await self._client.invoke_ok(address, RemotingCommand.request(RequestCode.PROMOTE_BROKER, header))

    async def status(self, address: str) -> HaStatus:
        request = RemotingCommand.request(RequestCode.GET_HA_STATUS, HaStatusRequestHeader())
        return decode_body(HaStatus, (await self._client.invoke_ok(address, request)).body)
