"""Which messages a subscription wants: by the hash of the tag, or by an expression over the properties.

    TAG      the tagsCode of a ConsumeQueue unit is looked up; no record is read that is not wanted
    SQL92    the properties of the record are read and the expression is evaluated (see `rucola.message.sql92`)

A hash is only a hash: two tags may share one, so the consumer compares the tags themselves.

Answers to `ExpressionMessageFilter` and `FilterFactory` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from rucola.errors import InvalidMessage
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import SubscriptionData, subscription

Accepts: TypeAlias = "Callable[[int], bool] | None"
"""Whether a unit with this tagsCode is wanted; None wants all."""
Matches: TypeAlias = Callable[[Mapping[str, str]], bool]
"""Whether a message with these properties is wanted."""


class MessageFilter(NamedTuple):
    """What a pull wants of a queue: units that are accepted and, of these, records that match."""

    accepts: Accepts = None
    matches: Matches | None = None


def accepts(subscription_data: SubscriptionData) -> Accepts:
    """The filter of a subscription by tags. InvalidMessage where it names none."""
    if subscription_data.sub_string in ("", "*"):
        return None
    return _of_expression(subscription_data.sub_string)


@lru_cache(maxsize=4096)
def _of_expression(expression: str) -> Accepts:
    """The filter of an expression. Hashed here, since clients of other languages hash non-ASCII tags their own way."""
    codes = subscription("", expression).code_set
    return frozenset(codes).__contains__ if codes else None


@lru_cache(maxsize=256)
def matches(expression_type: str, expression: str) -> Matches:
    """The filter of an expression that is not by tags. InvalidMessage says what is wrong with it."""
    if expression_type != "SQL92":
        raise InvalidMessage(f"{expression_type!r} is no type of expression that the broker knows; use TAG or SQL92")
    # Imported here, since the grammar library costs time and memory that a broker without such filters need not spend.
    from rucola.message import sql92

    return sql92.compile(expression).matches


def filter_not_supported(command: RemotingCommand, wanted: SubscriptionData) -> RemotingCommand:
    """The answer to a subscription by properties while the broker takes none."""
    return command.response(
        ResponseCode.SYSTEM_ERROR,
        remark=f"The broker does not support consumer to filter message by {wanted.expression_type}; "
        "set enablePropertyFilter=true on the broker",
    )
