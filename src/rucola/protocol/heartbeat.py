"""Heartbeats, subscriptions and membership of consumer groups.

Codes 34, 35, 38 and 40. Java and JavaScript clients write enums as names, C++ clients as ordinals; the properties
`…_name` return the name in either case. A subscription is an expression (`TagA || TagB`, `*`, or SQL92), with its tags.

Corresponds to `HeartbeatData`, `ConsumerData`, `SubscriptionData` and `FilterAPI` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from msgspec import field

from rucola.errors import InvalidMessage
from rucola.message.hashing import string_hash
from rucola.protocol.body import Body
from rucola.protocol.command import Header

SUB_ALL = "*"
_TAG_TYPES = ("TAG", "")
# The enums below are in the order of their ordinals.
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class SubscriptionData(Body, kw_only=True):
    """A group's subscription to a topic; the newest `sub_version` is valid. No tags in `tags_set` means all."""

    # Filtering by an uploaded class, which brokers of 4.9 no longer support.
    class_filter_mode: bool = False
    # `string_hash` of each tag, which brokers compare with the tagsCode of a unit.
    code_set: list[int] = []
    expression_type: str = "TAG"
    sub_string: str = SUB_ALL
    # Milliseconds since 1970.
    sub_version: int = 0
    tags_set: list[str] = []
    topic: str

    @property
    def is_tag_type(self) -> bool:
        """Whether the expression consists of tags; otherwise it is SQL92."""
        return self.expression_type in _TAG_TYPES


class ConsumerData(Body, kw_only=True):
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str | int = "CONSUME_PASSIVELY"
    group_name: str
    message_model: str | int = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    # Whether the retry topic gets TOPIC_FLAG_UNIT_SUB, for deployments of several units.
    unit_mode: bool | str = False

    def __post_init__(self) -> None:
        """Raise ValueError, which decoders convert, for an unknown ordinal."""
        _name(self.consume_from_where, CONSUME_FROM_WHERE)
        _name(self.consume_type, CONSUME_TYPES)
        _name(self.message_model, MESSAGE_MODELS)

    @property
    def subscriptions(self) -> list[SubscriptionData]:
        """One per topic: the newest, and the first of equally new ones."""
        newest: dict[str, SubscriptionData] = {}
        for subscription_data in self.subscription_data_set:
            known = newest.setdefault(subscription_data.topic, subscription_data)
            if subscription_data.sub_version > known.sub_version:
                newest[subscription_data.topic] = subscription_data
        return list(newest.values())

    @property
    def consume_type_name(self) -> str:
        return _name(self.consume_type, CONSUME_TYPES)

    @property
    def message_model_name(self) -> str:
        return _name(self.message_model, MESSAGE_MODELS)

    @property
    def consume_from_where_name(self) -> str:
        return _name(self.consume_from_where, CONSUME_FROM_WHERE)


class ProducerData(Body, kw_only=True):
    group_name: str


class HeartbeatData(Body, kw_only=True):
    client_id: str = field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []


class UnregisterClientRequestHeader(Header, kw_only=True):
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header, kw_only=True):
    consumer_group: str


class GetConsumerListByGroupResponseBody(Body, kw_only=True):
    """Client ids of the members."""

    consumer_id_list: list[str]


class NotifyConsumerIdsChangedRequestHeader(Header, kw_only=True):
    """The members have changed: rebalance now."""

    consumer_group: str


def subscription(
    topic: str, expression: str | None, expression_type: str = "TAG", version: int = 0
) -> SubscriptionData:
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


def _name(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and not value.isdigit():
        return value
    if not 0 <= int(value) < len(names):
        raise ValueError(f"{value} is none of 0 to {len(names) - 1} ({', '.join(names)})")
    return names[int(value)]
