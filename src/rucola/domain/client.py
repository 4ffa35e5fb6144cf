"""Clients of a broker: their heartbeats, and what operators see of their connections.

Java and JavaScript clients write enums as names, C++ clients as ordinals; the properties `…_name` return the name in
either case.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from rucola.domain.subscription import SubscriptionData
from rucola.message.properties import is_true

# The enums are in the order of their ordinals.
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


class ConsumerData(msgspec.Struct, rename="camel", kw_only=True):
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
        self.unit_mode = is_true(self.unit_mode)

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


class ProducerData(msgspec.Struct, rename="camel", kw_only=True):
    group_name: str


class HeartbeatData(msgspec.Struct, rename="camel", kw_only=True):
    client_id: str = field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []


class ClientConnection(msgspec.Struct, rename="camel", kw_only=True):
    # "ip:port" of the client's connection.
    client_addr: str
    client_id: str
    # Name of a LanguageCode.
    language: str
    # Ordinal of `MQVersion`; 409 is V4_9_8.
    version: int


class ConsumerConnection(msgspec.Struct, rename="camel", kw_only=True):
    connection_set: list[ClientConnection] = []
    # Name of a value of CONSUME_FROM_WHERE.
    consume_from_where: str = ""
    # Name of a value of CONSUME_TYPES.
    consume_type: str = ""
    # Name of a value of MESSAGE_MODELS.
    message_model: str = ""
    subscription_table: dict[str, SubscriptionData] = {}

    @property
    def shared_client_ids(self) -> dict[str, list[str]]:
        """Addresses of client ids with several connections: several clients, or one that has just reconnected."""
        addresses: dict[str, list[str]] = {}
        for one in self.connection_set:
            addresses.setdefault(one.client_id, []).append(one.client_addr)
        return {client_id: found for client_id, found in addresses.items() if len(found) > 1}


class ProducerConnection(msgspec.Struct, rename="camel", kw_only=True):
    connection_set: list[ClientConnection] = []


class ProducerInfo(msgspec.Struct, rename="camel", kw_only=True):
    """A client of a producer group, and the time of its last heartbeat."""

    client_id: str
    language: str
    # Milliseconds since 1970.
    last_update_timestamp: int
    remote_ip: str = field(name="remoteIP")
    version: int


class ProducerTableInfo(msgspec.Struct, rename="camel", kw_only=True):
    data: dict[str, list[ProducerInfo]] = {}


def _name(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and not value.isdigit():
        return value
    if not 0 <= int(value) < len(names):
        raise ValueError(f"{value} is none of 0 to {len(names) - 1} ({', '.join(names)})")
    return names[int(value)]
