"""Adapter of END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323)."""

from __future__ import annotations

from rucola.access import Action
from rucola.broker.delivery.transactions import TransactionEnd
from rucola.broker.services.transactions import TransactionService
from rucola.protocol.codes import RequestCode
from rucola.protocol.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class TransactionAdapter:
    """Ends of transactions, and the resumption of discarded ones, by physical offset: the headers name no topic."""

    def __init__(self, service: TransactionService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        end, resume = EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
        return (
            Endpoint(RequestCode.END_TRANSACTION, Action.END_TRANSACTION, self.end, end),
            Endpoint(RequestCode.RESUME_CHECK_HALF_MESSAGE, Action.RESUME_TRANSACTION, self.resume, resume),
        )

    def end(self, request: Request[EndTransactionRequestHeader]) -> Reply:
        header = request.content
        end = TransactionEnd(
            header.producer_group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            header.commit_or_rollback,
            header.transaction_id,
        )
        return request.success() if self._service.end(request.caller, end) else None

    def resume(self, request: Request[ResumeCheckHalfMessageRequestHeader]) -> Reply:
        self._service.resume(request.content.msg_id or "")
        return request.success()
