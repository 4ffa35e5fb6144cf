"""Transactions: a producer commits or rolls back a half message, an operator resumes a discarded one.

A producer that does not know the outcome yet (TRANSACTION_NOT) gets no response, as clients expect; the broker checks
again later. Any other value is refused.

Corresponds to `EndTransactionProcessor` and `AdminBrokerProcessor.resumeCheckHalfMessage` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola import refusals
from rucola.access import Caller, Check, Reason, Refused, Resource
from rucola.broker.delivery.transactions import TransactionalMessageService, TransactionEnd
from rucola.message import sysflag
from rucola.message.ids import parse_offset_msg_id


class TransactionService:
    def __init__(
        self, transactions: TransactionalMessageService, clock: Callable[[], int], check_publish: Check
    ) -> None:
        self._transactions = transactions
        self._clock = clock
        self._check_publish = check_publish

    def end(self, caller: Caller, request: TransactionEnd) -> bool:
        """Commit or roll back a transaction; return False if its outcome is not known yet. Raises Refused."""
        outcome = request.outcome
        if outcome == sysflag.TRANSACTION_NOT:
            return False
        if outcome not in (sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK):
            raise Refused(refusals.NO_OUTCOME, outcome=outcome)
        failure = self._transactions.end(
            request, self._clock(), lambda topic: self._check_publish(caller, Resource(topic))
        )
        if failure is not None:
            raise Refused(Reason.FAILED, failure)
        return True

    def resume(self, offset_msg_id: str) -> None:
        """Reopen a discarded transaction, which is checked like a new one. Raises InvalidMessage or Refused."""
        _, physical_offset = parse_offset_msg_id(offset_msg_id)
        failure = self._transactions.resume(physical_offset, self._clock())
        if failure is not None:
            raise Refused(Reason.FAILED, failure)
