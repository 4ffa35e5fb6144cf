"""Codes of responses: for refusals of services, and for calls that no service gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rucola import refusals
from rucola.access import Reason, Refused
from rucola.broker.durability import Missing
from rucola.errors import MQError
from rucola.protocol.grpc.definition_pb2 import Code, Status
from rucola.store.config import PutMessageStatus

OK: Final = Status(code=Code.OK, message="OK")

_CODES: Final = {
    Reason.INVALID: Code.BAD_REQUEST,
    Reason.NOT_FOUND: Code.NOT_FOUND,
    Reason.NO_VALUE: Code.NOT_FOUND,
    Reason.FORBIDDEN: Code.FORBIDDEN,
    Reason.DENIED: Code.FORBIDDEN,
    Reason.BUSY: Code.TOO_MANY_REQUESTS,
    Reason.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    Reason.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    Reason.STALE_HANDLE: Code.INVALID_RECEIPT_HANDLE,
    Reason.ILLEGAL_MESSAGE: Code.BAD_REQUEST,
    Reason.TOPIC_NOT_FOUND: Code.TOPIC_NOT_FOUND,
    Reason.GROUP_NOT_FOUND: Code.CONSUMER_GROUP_NOT_FOUND,
    Reason.INVALID_SUBSCRIPTION: Code.ILLEGAL_FILTER_EXPRESSION,
}
"""INTERNAL_SERVER_ERROR for others, which are no fault of the client: it may try again."""
_OF_REFUSALS: Final = {
    refusals.PROPERTIES_TOO_LARGE: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    refusals.RECORD_TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    refusals.HANDLE_STALE: Code.INVALID_RECEIPT_HANDLE,
    refusals.HANDLE_ILLEGAL: Code.INVALID_RECEIPT_HANDLE,
    refusals.POP_DURATION_ILLEGAL: Code.ILLEGAL_INVISIBLE_TIME,
    refusals.RECALL_TOO_LATE: Code.PRECONDITION_FAILED,
    refusals.RECALL_NOT_FOUND: Code.NOT_FOUND,
    refusals.POP_HELD: Code.TOO_MANY_REQUESTS,
    refusals.HALF_NOT_FOUND: Code.INVALID_TRANSACTION_ID,
    refusals.HALF_OF_OTHER_GROUP: Code.INVALID_TRANSACTION_ID,
    refusals.HALF_OFFSET_WRONG: Code.INVALID_TRANSACTION_ID,
}
NOT_DURABLE: Final = {
    PutMessageStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


class IllegalCall(MQError):
    """Ends a call with a code."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(error: Refused | IllegalCall) -> Status:
    if isinstance(error, IllegalCall):
        return Status(code=error.code, message=str(error))
    code = _OF_REFUSALS.get(error.refusal) or _CODES.get(error.reason, Code.INTERNAL_SERVER_ERROR)
    return Status(code=code, message=str(error))


def common_status(statuses: list[Status]) -> Status:
    """Return the status of several results: the common one, or MULTIPLE_RESULTS."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="the results differ")


def when_durable(
    register: Callable[[int, Callable[[Missing | None], None]], None], end: int
) -> asyncio.Future[Status | None]:
    """Return a future of None once everything before `end` is durable, else of a status that says what is missing.

    `register` is the `when_durable` of a service.
    """
    status: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()

    def done(missing: Missing | None) -> None:
        if not status.done():
            status.set_result(None if missing is None else Status(code=NOT_DURABLE[missing[0]], message=missing[1]))

    register(end, done)
    return status
