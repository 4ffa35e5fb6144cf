"""END_TRANSACTION (37) from a producer, CHECK_TRANSACTION_STATE (39) from a broker to a producer, and
RESUME_CHECK_HALF_MESSAGE (323) from an operator.

`commit_or_rollback` is a transaction state of sysFlag: TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or TRANSACTION_NOT for
"unknown", to which the broker does not respond. A half message is identified by its queue offset in
RMQ_SYS_TRANS_HALF_TOPIC (`tran_state_table_offset`) and its physical offset (`commit_log_offset`). The body of a check
is the record of the half message, with its real topic and queue.

Corresponds to `EndTransactionRequestHeader`, `CheckTransactionStateRequestHeader` and
`ResumeCheckHalfMessageRequestHeader` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class EndTransactionRequestHeader(Header, kw_only=True):
    """END_TRANSACTION: commit or roll back a half message.

    `from_transaction_check` is true in response to a check. `msg_id` is the unique key.
    """

    producer_group: str
    # Queue offset of the half message.
    tran_state_table_offset: int
    # Physical offset of the half message.
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool | str = "false"
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE: request the state of a transaction that has not ended."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE: open a discarded transaction again.

    `msg_id` is the offsetMsgId of the message in TRANS_CHECK_MAX_TIME_TOPIC.
    """

    msg_id: str | None = None
