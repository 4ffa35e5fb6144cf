"""Transactions: END_TRANSACTION (37) from a producer, CHECK_TRANSACTION_STATE (39) from a broker to a producer.

`commit_or_rollback` is one of the transaction states of sysFlag: TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or
TRANSACTION_NOT for "not known yet", to which there is no answer. Half messages are named by their place: the queue
offset in RMQ_SYS_TRANS_HALF_TOPIC and the physical offset. The body of a check is the half message as a record, with
its real topic and queue.

Answers to `EndTransactionRequestHeader` and `CheckTransactionStateRequestHeader` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class EndTransactionRequestHeader(Header, kw_only=True):
    """END_TRANSACTION: what becomes of a half message."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool | str = "false"
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE: the broker has not heard how this transaction ended."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
