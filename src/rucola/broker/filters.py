"""Which messages a subscription wants, as far as the ConsumeQueue can tell: by the hash of the tag.

A hash is only a hash: two tags may share one, so the consumer compares the tags themselves. Answers to
`ExpressionMessageFilter` of Apache RocketMQ 4.9.8 for expressions of type TAG.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from rucola.protocol.heartbeat import SubscriptionData, subscription

Accepts: TypeAlias = "Callable[[int], bool] | None"
"""Whether a unit with this tagsCode is wanted; None wants all."""


def accepts(subscription_data: SubscriptionData) -> Accepts:
    """The filter of a subscription that a heartbeat brought."""
    if subscription_data.sub_string in ("", "*"):
        return None
    return _of_expression(subscription_data.sub_string)


@lru_cache(maxsize=4096)
def _of_expression(expression: str) -> Accepts:
    """The filter of an expression. Hashed here, since clients of other languages hash non-ASCII tags their own way.

    InvalidMessage where the expression names no tag.
    """
    codes = subscription("", expression).code_set
    return frozenset(codes).__contains__ if codes else None
