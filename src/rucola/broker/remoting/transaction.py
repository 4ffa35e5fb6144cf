"""Adapter of END_TRANSACTION (37)."""

from __future__ import annotations

from rucola.access import Action, Caller
from rucola.broker.services.transactions import TransactionService
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import EndTransactionRequestHeader
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Endpoint, server_resource


class TransactionAdapter:
    """Ends of transactions.

    The header names no topic: the half message is found by its physical offset.
    """

    def __init__(self, service: TransactionService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        request = EndTransactionRequestHeader
        return (Endpoint(RequestCode.END_TRANSACTION, Action.END_TRANSACTION, self.end, request, server_resource),)

    def end(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: EndTransactionRequestHeader
    ) -> Reply:
        return command.response(ResponseCode.SUCCESS) if self._service.end(caller, header) else None
