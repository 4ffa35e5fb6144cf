"""Consumer groups: their settings."""

from __future__ import annotations

import msgspec

from rucola.domain.topic import DataVersion

LATEST = -1
"""A `timestamp`: the end of each queue."""
SYSTEM_GROUPS = {
    "TOOLS_CONSUMER": False,
    "FILTERSRV_CONSUMER": False,
    "SELF_TEST_C_GROUP": False,
    "CID_ONS-HTTP-PROXY": True,
    "CID_ONSAPI_PULL": True,
    "CID_ONSAPI_PERMISSION": True,
    "CID_ONSAPI_OWNER": True,
}
"""Groups of every broker, and whether they may consume in broadcasting mode."""


class SubscriptionGroupConfig(msgspec.Struct, rename="camel", kw_only=True):
    """A group. One with a large backlog reads from broker id `which_broker_when_consume_slowly`."""

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    # Kept and reported; no broker of 4.9 evaluates it.
    consume_from_min_enable: bool = True
    group_name: str
    # Whether members are notified when the membership changes.
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """config/subscriptionGroup.json and response body 201."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


PULL = "PULL"
POP = "POP"
REQUEST_MODES = (PULL, POP)


class MessageRequestMode(msgspec.Struct, rename="camel", kw_only=True):
    """How a group receives a topic's messages.

    By POP, members receive from all queues, or from their own and the queues of `pop_share_queue_num` other members.
    """

    topic: str
    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: int = 0


class MessageRequestModes(msgspec.Struct, rename="camel", kw_only=True):
    """config/messageRequestMode.json: by topic, then by group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = {}
