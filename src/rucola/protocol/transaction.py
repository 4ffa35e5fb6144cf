"""END_TRANSACTION (37), CHECK_TRANSACTION_STATE (39) to a producer, and RESUME_CHECK_HALF_MESSAGE (323).

`commit_or_rollback` is TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or TRANSACTION_NOT ("unknown", without a response). A
half message is identified by its queue offset in RMQ_SYS_TRANS_HALF_TOPIC (`tran_state_table_offset`) and its physical
offset (`commit_log_offset`). The body of a check is its record, with the real topic and queue.

Corresponds to `EndTransactionRequestHeader`, `CheckTransactionStateRequestHeader` and
`ResumeCheckHalfMessageRequestHeader` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class EndTransactionRequestHeader(Header, kw_only=True):
    """`msg_id` is the unique key."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool | str = "false"
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True):
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """Open a discarded transaction again. `msg_id` is its offsetMsgId in TRANS_CHECK_MAX_TIME_TOPIC."""

    msg_id: str | None = None
