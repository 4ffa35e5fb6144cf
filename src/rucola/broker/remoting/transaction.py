"""Ends of transactions: END_TRANSACTION (37).

A producer that does not know yet (TRANSACTION_NOT) gets no answer, as clients expect; the broker asks again later. Any
other value than commit or rollback is refused.

Answers to `EndTransactionProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.delivery.transactions import TransactionalMessageService
from rucola.message import sysflag
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.transaction import EndTransactionRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply

_ENDS = (sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK)


class TransactionProcessor:
    """Ends transactions as their producers say."""

    def __init__(self, transactions: TransactionalMessageService, clock: Callable[[], int]) -> None:
        self._transactions = transactions
        self._clock = clock

    def table(self) -> dict[int, Processor]:
        return {RequestCode.END_TRANSACTION: self.end_transaction}

    def end_transaction(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(EndTransactionRequestHeader)
        if header.commit_or_rollback == sysflag.TRANSACTION_NOT:
            return None
        if header.commit_or_rollback not in _ENDS:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"commitOrRollback is {header.commit_or_rollback}; {sysflag.TRANSACTION_COMMIT} (commit), "
                f"{sysflag.TRANSACTION_ROLLBACK} (rollback) or {sysflag.TRANSACTION_NOT} (not known yet) is expected",
            )
        refusal = self._transactions.end(header, self._clock())
        if refusal is not None:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=refusal)
        return command.response(ResponseCode.SUCCESS)
