"""Adapter of ASK_PROMISE (20005), of brokers whose master is elected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rucola.access import Action
from rucola.coordination.coordinator import PromiseResponse
from rucola.coordination.group_keys import LeaderRecord
from rucola.protocol.codes import RequestCode
from rucola.protocol.promise import AskPromiseRequestHeader
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request

Promise: TypeAlias = Callable[[int, LeaderRecord], PromiseResponse]
"""Responds to the master of an epoch, see `Coordinator.promise`."""


def no_promise(epoch: int, master: LeaderRecord) -> PromiseResponse:
    """Promise nothing: without an election, the configuration decides whether a broker is master."""
    return PromiseResponse(False, 0)


class PromiseAdapter:
    def __init__(self, promise: Promise) -> None:
        self._promise = promise

    def endpoints(self) -> Endpoints:
        # Replicating has the same right: a peer that may ask for promises is a broker of the group.
        return (Endpoint(RequestCode.ASK_PROMISE, Action.REPLICATE, self.ask, AskPromiseRequestHeader),)

    def ask(self, request: Request[AskPromiseRequestHeader]) -> Reply:
        header = request.content
        master = LeaderRecord(header.member, header.address, header.ha_address)
        has_promised, epoch = self._promise(header.epoch, master)
        answer = request.success()
        answer.ext = {"promised": "true" if has_promised else "false", "epoch": str(epoch)}
        return answer
