"""Adapter of END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323)."""

from __future__ import annotations

from rucola.access import Action, Caller
from rucola.broker.delivery.transactions import TransactionEnd
from rucola.broker.services.transactions import TransactionService
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Endpoint


class TransactionAdapter:
    """Ends of transactions, and the resumption of discarded ones, by physical offset: the headers name no topic."""

    def __init__(self, service: TransactionService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        end, resume = EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
        return (
            Endpoint(RequestCode.END_TRANSACTION, Action.END_TRANSACTION, self.end, end),
            Endpoint(RequestCode.RESUME_CHECK_HALF_MESSAGE, Action.RESUME_TRANSACTION, self.resume, resume),
        )

    def end(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: EndTransactionRequestHeader
    ) -> Reply:
        end = TransactionEnd(
            header.producer_group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            header.commit_or_rollback,
            header.transaction_id,
        )
        return command.response(ResponseCode.SUCCESS) if self._service.end(caller, end) else None

    def resume(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: ResumeCheckHalfMessageRequestHeader,
    ) -> Reply:
        self._service.resume(header.msg_id or "")
        return command.response(ResponseCode.SUCCESS)
