"""Message filters: which messages a subscription selects, by tag hash or by properties.

    TAG      the tagsCode of a ConsumeQueue unit is looked up; only the records of accepted units are read
    SQL92    the properties of each record are parsed, and the expression is evaluated (`rucola.message.sql92`)

Two tags may have the same hash, so consumers compare the tags themselves.

Corresponds to `ExpressionMessageFilter` and `FilterFactory` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from rucola import refusals
from rucola.access import Refused
from rucola.broker.config import BrokerConfig
from rucola.domain.subscription import SubscriptionData, subscription
from rucola.errors import InvalidMessage

Matches: TypeAlias = Callable[[Mapping[str, str]], bool]


class MessageFilter(NamedTuple):
    """Filter of a pull: accepts units by tagsCode, then matches their records by properties."""

    codes: frozenset[int] | None = None
    matches: Matches | None = None


ALL_MESSAGES: Final = MessageFilter()


def accepted_codes(subscription_data: SubscriptionData) -> frozenset[int] | None:
    """Return the tagsCodes of a subscription by tags. Raises InvalidMessage if its expression has no tag."""
    if subscription_data.sub_string in ("", "*"):
        return None  # all messages: no call per unit
    expression = subscription_data.sub_string
    return _of_usual(expression) if len(expression) <= _USUAL_LENGTH else _of_long(expression)


_USUAL_LENGTH: Final = 256
"""Expressions of up to this many characters are cached, 10 KB each; longer ones need up to 400 KB."""


@lru_cache(maxsize=4096)
def _of_usual(expression: str) -> frozenset[int] | None:
    return _codes_of_tags(expression)


@lru_cache(maxsize=64)
def _of_long(expression: str) -> frozenset[int] | None:
    return _codes_of_tags(expression)


def _codes_of_tags(expression: str) -> frozenset[int] | None:
    """Hash the tags of `TagA || TagB`: clients in other languages hash non-ASCII tags differently."""
    return frozenset(subscription("", expression).code_set) or None


@lru_cache(maxsize=256)
def matches(expression_type: str, expression: str) -> Matches:
    """Return the compiled filter of an expression over properties. Raises InvalidMessage if it cannot be compiled."""
    if expression_type != "SQL92":
        raise InvalidMessage(f"{expression_type!r} is no type of expression that the broker knows; use TAG or SQL92")
    # Imported here: the grammar library costs start-up time and memory that a broker without such filters can save.
    from rucola.message import sql92

    return sql92.compile(expression).matches


def check_supported(wanted: SubscriptionData, config: BrokerConfig) -> None:
    if not wanted.is_tag_type and not config.enable_property_filter:
        raise Refused(refusals.FILTER_NOT_ENABLED, expression_type=wanted.expression_type)
