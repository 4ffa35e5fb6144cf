"""Subscriptions: an expression (`TagA || TagB`, `*`, or SQL92), with its tags.

Corresponds to `SubscriptionData` and `FilterAPI` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import msgspec

from rucola.errors import InvalidMessage
from rucola.message.hashing import string_hash

SUB_ALL = "*"
TAG = "TAG"
_TAG_TYPES = (TAG, "")


class SubscriptionData(msgspec.Struct, rename="camel", kw_only=True):
    """A group's subscription to a topic; the newest `sub_version` is valid. No tags in `tags_set` means all."""

    # Filtering by an uploaded class, which brokers of 4.9 no longer support.
    class_filter_mode: bool = False
    # `string_hash` of each tag, which brokers compare with the tagsCode of a unit.
    code_set: list[int] = []
    expression_type: str = TAG
    sub_string: str = SUB_ALL
    # Milliseconds since 1970.
    sub_version: int = 0
    tags_set: list[str] = []
    topic: str

    @property
    def is_tag_type(self) -> bool:
        """Whether the expression consists of tags; otherwise it is SQL92."""
        return self.expression_type in _TAG_TYPES


def subscription(topic: str, expression: str | None, expression_type: str = TAG, version: int = 0) -> SubscriptionData:
    """Parse tags joined by `||`; other types are not parsed. InvalidMessage if there are only separators."""
    if expression_type not in _TAG_TYPES:
        return SubscriptionData(
            topic=topic, sub_string=expression or "", expression_type=expression_type, sub_version=version
        )
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic=topic, sub_version=version)
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise InvalidMessage(f"subscription {expression!r} of topic {topic} names no tag: write `TagA || TagB` or `*`")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=[string_hash(tag) for tag in tags],
        sub_version=version,
    )
