"""Heartbeats and membership of consumer groups: codes 34, 35, 38 and 40. The body of 34 is a `HeartbeatData`."""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.command import Header


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
