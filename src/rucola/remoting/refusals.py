"""Refusals and errors as responses: the table from `rucola.access.Reason` to response codes."""

from __future__ import annotations

import logging
from typing import Final

from rucola.access import Reason, Refused
from rucola.errors import MQError
from rucola.outages import log_rate_limited
from rucola.protocol.codes import ResponseCode, name_of
from rucola.protocol.command import RemotingCommand

logger = logging.getLogger(__name__)

RESPONSE_CODES: Final = {
    Reason.INVALID: ResponseCode.SYSTEM_ERROR,
    Reason.NOT_FOUND: ResponseCode.SYSTEM_ERROR,
    Reason.NO_VALUE: ResponseCode.QUERY_NOT_FOUND,
    Reason.FAILED: ResponseCode.SYSTEM_ERROR,
    Reason.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Reason.DENIED: ResponseCode.NO_PERMISSION,
    Reason.ACCOUNT_NOT_CHANGED: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    Reason.ACCOUNT_NOT_DELETED: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    Reason.WHITE_ADDRESSES_NOT_CHANGED: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.NOT_MASTER: ResponseCode.SLAVE_NOT_AVAILABLE,
    Reason.ILLEGAL_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Reason.GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.INVALID_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.SUBSCRIPTION_NOT_FOUND: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.SUBSCRIPTION_OUTDATED: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.FILTER_NOT_FOUND: ResponseCode.FILTER_DATA_NOT_EXIST,
    Reason.ILLEGAL_OPERATION: ResponseCode.ILLEGAL_OPERATION,
    Reason.STALE_HANDLE: ResponseCode.NO_MESSAGE,
    Reason.POLLING_FULL: ResponseCode.POLLING_FULL,
    Reason.CLIENT_OFFLINE: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.CLIENT_TIMEOUT: ResponseCode.CONSUME_MSG_TIMEOUT,
}


def refusal_response(command: RemotingCommand, refused: Refused) -> RemotingCommand:
    """Return code, text as remark, and details as ext fields."""
    response = command.response(RESPONSE_CODES[refused.reason], remark=str(refused))
    if refused.details:
        response.ext = dict(refused.details)
    return response


def error_response(peer: str, command: RemotingCommand, error: BaseException) -> RemotingCommand:
    """Return and log an error, rate-limited; the remark exposes only texts of MQError, else the type."""
    if isinstance(error, Refused):
        return refusal_response(command, error)
    if isinstance(error, MQError):
        remark = str(error)
        if command.is_oneway:
            kind = f"one-way {command.code}"
            log_rate_limited(
                logger, logging.WARNING, kind, "%s: one-way %s failed: %s", peer, name_of(command.code), error
            )
    else:
        name, cause = name_of(command.code), type(error).__name__
        log_rate_limited(logger, logging.ERROR, f"{cause} of {name}", "%s: %s failed", peer, name, error=error)
        remark = f"{name} failed inside the server ({cause}); its log says more"
    return command.response(ResponseCode.SYSTEM_ERROR, remark=remark)
