"""Client registry: producer groups, consumer groups and their members, as heartbeats announce them.

A member of a group is a channel (one connection) with a client id. It leaves when it unregisters, when its connection
closes, or when no heartbeat arrived for `EXPIRY_MS`. Whenever the members or the subscriptions of a consumer group
change, every member is notified at once, so that the group rebalances; unless the group or the broker has
notifyConsumerIdsChangedEnable=false. A notification of a large group is followed by a pause in which its changes are
coalesced: n members that join one after the other would otherwise cost n² notifications.

Corresponds to `ConsumerManager`, `ProducerManager` and `DefaultConsumerIdsChangeListener` of Apache RocketMQ 4.9.8.
Deliberate difference: a client with two connections is listed once, and leaves with both. Apache lists it twice, and no
member consumes the queues of its second entry until the dead connection expires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol, TypeAlias

from rucola.protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData

_SLICE: Final = 256
"""Members that are notified in one iteration of the event loop: 2 ms of work."""
_PAUSE_MS_PER_MEMBER: Final = 0.2
"""Pause after a notification: a member costs 8 µs, so notifications take at most 4 % of the event loop's time."""

EXPIRY_MS = 120_000
"""The connection of a client without a heartbeat for this long is closed. Clients send one every 30 s."""


CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after a number of seconds, as the event loop's `call_later` does."""


class ClientChannel(Protocol):
    """The way back to a connected client, hashable by identity. `rucola.remoting.connection.Connection` is one."""

    @property
    def peer(self) -> str:
        """ "ip:port" of the client."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read what it is sent; a large message should wait."""

    def close(self) -> None:
        """Close the connection after what was written to it is sent."""


@dataclass(slots=True)
class Member:
    """The part of a client that belongs to a group: one per channel."""

    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int
    """When the last heartbeat arrived, milliseconds since 1970."""


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group and what the group subscribes to, by topic."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[ClientChannel, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    is_pausing: bool = False
    """Whether the pause after a notification lasts."""
    is_outdated: bool = False
    """Whether the group has changed in that pause."""

    @property
    def client_ids(self) -> list[str]:
        """The client id of every member, once even if a client reconnected and its old connection is still open."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def subscribe(self, subscriptions: list[SubscriptionData]) -> bool:
        """Replace the subscriptions by those of a heartbeat, and return whether a topic was added or removed."""
        changed = False
        for subscription in subscriptions:
            known = self.subscriptions.get(subscription.topic)
            changed = changed or known is None
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        topics = {subscription.topic for subscription in subscriptions}
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed


class ClientRegistry:
    """All groups that have a member now. Belongs to the event loop.

    `should_notify` tells whether the members of a consumer group are notified of changes, and `notify` notifies one of
    them. `on_group_left` is called with the name of a consumer group whose last member left. `call_later` ends the
    pauses after notifications.
    """

    def __init__(
        self,
        should_notify: Callable[[str], bool],
        notify: Callable[[ClientChannel, str], None],
        on_group_left: Callable[[str], None],
        call_later: CallLater,
    ) -> None:
        self._call_later = call_later
        self._should_notify = should_notify
        self._notify_member = notify
        self._on_group_left = on_group_left
        self.consumers: dict[str, ConsumerGroup] = {}
        """Consumer groups by name; a group without members is removed."""
        self.producers: dict[str, dict[ClientChannel, Member]] = {}
        """Members of producer groups by group name."""
        self._producers_by_id: dict[str, ClientChannel] = {}
        self._groups_of: dict[ClientChannel, tuple[set[str], set[str]]] = {}
        """The producer groups and the consumer groups of each channel."""
        self._rotation = count()
        """Rotates transaction checks through the producers of a group."""

    def heartbeat(
        self, channel: ClientChannel, heartbeat: HeartbeatData, language: str, version: int, now_ms: int
    ) -> None:
        """Add or refresh a client in its groups, and notify the consumer groups that it changes."""
        member = Member(heartbeat.client_id, language, version, now_ms)
        producer_groups, consumer_groups = self._groups_of.setdefault(channel, (set(), set()))
        for producer in heartbeat.producer_data_set:
            producer_groups.add(producer.group_name)
            self.producers.setdefault(producer.group_name, {})[channel] = member
            self._producers_by_id[member.client_id] = channel
        for consumer in heartbeat.consumer_data_set:
            consumer_groups.add(consumer.group_name)
            self._join(channel, consumer, member)

    def other_groups(self, channel: ClientChannel, heartbeat: HeartbeatData) -> int:
        """Return the number of groups of a channel that are not in this heartbeat."""
        producers, consumers = self._groups_of.get(channel, (set(), set()))
        if not producers and not consumers:
            return 0
        announced = {producer.group_name for producer in heartbeat.producer_data_set}
        subscribing = {consumer.group_name for consumer in heartbeat.consumer_data_set}
        return len(producers - announced) + len(consumers - subscribing)

    def unregister(self, channel: ClientChannel, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from one or both groups, with all of its channels: an older connection may be dead."""
        # The channels are collected first: leaving changes the dictionaries.
        producers = self.producers.get(producer_group or "", {})
        consumers = self.consumers.get(consumer_group or "")
        for one in _of_same_client(producers, channel):
            self._leave_producers(one, producer_group or "")
        for one in _of_same_client(consumers.members if consumers else {}, channel):
            self._leave_consumers(one, consumer_group or "")

    def closed(self, channel: ClientChannel) -> None:
        """Remove a channel whose connection was closed from every group."""
        producers, consumers = self._groups_of.get(channel, (set(), set()))
        for group in list(producers):
            self._leave_producers(channel, group)
        for group in list(consumers):
            self._leave_consumers(channel, group)

    def expire(self, now_ms: int) -> None:
        """Close the channels without a heartbeat for longer than `EXPIRY_MS`; they leave their groups when closed."""
        members = [item for group in self.consumers.values() for item in group.members.items()]
        members += [item for group in self.producers.values() for item in group.items()]
        for channel, member in members:
            if now_ms - member.last_heartbeat_ms > EXPIRY_MS:
                channel.close()

    def subscribed_groups(self, topic: str) -> list[str]:
        """Return the consumer groups with members that subscribe to the topic."""
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def next_producer(self, group: str) -> ClientChannel | None:
        """Return a connected producer of the group, each in rotation; None if there is none."""
        members = self.producers.get(group, ())
        producers = [channel for channel in members if channel.is_open and not channel.is_congested]
        return producers[next(self._rotation) % len(producers)] if producers else None

    def producer(self, client_id: str) -> ClientChannel | None:
        """Return the channel of the client with this id if it is in a producer group; None if not."""
        return self._producers_by_id.get(client_id)

    def _join(self, channel: ClientChannel, consumer: ConsumerData, member: Member) -> None:
        group = self.consumers.get(consumer.group_name)
        if group is None:
            group = self.consumers[consumer.group_name] = ConsumerGroup(
                consumer.group_name,
                consumer.consume_type_name,
                consumer.message_model_name,
                consumer.consume_from_where_name,
            )
        is_new = channel not in group.members
        group.members[channel] = member
        group.consume_type = consumer.consume_type_name
        group.message_model = consumer.message_model_name
        group.consume_from_where = consumer.consume_from_where_name
        if group.subscribe(consumer.subscriptions) or is_new:
            self._notify(group)

    def _leave_producers(self, channel: ClientChannel, group: str) -> None:
        members = self.producers.get(group, {})
        member = members.pop(channel, None)
        if member is None:
            return
        self._forget(channel, 0, group)
        # A client that connected again has its new channel there.
        if self._producers_by_id.get(member.client_id) is channel:
            del self._producers_by_id[member.client_id]
        if not members:
            del self.producers[group]

    def _leave_consumers(self, channel: ClientChannel, name: str) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return
        self._forget(channel, 1, name)
        if not group.members:
            del self.consumers[name]
            self._on_group_left(name)
        self._notify(group)

    def _forget(self, channel: ClientChannel, kind: int, group: str) -> None:
        """Remove a group from those of a channel; `kind` is 0 for producers, 1 for consumers."""
        groups = self._groups_of[channel]
        groups[kind].discard(group)
        if not groups[0] and not groups[1]:
            del self._groups_of[channel]

    def _notify(self, group: ConsumerGroup) -> None:
        """Notify the members, at the end of the pause if one lasts."""
        if group.is_pausing:
            group.is_outdated = True
        elif self._should_notify(group.name):
            self._notify_members(group, list(group.members))

    def _notify_members(self, group: ConsumerGroup, members: list[ClientChannel]) -> None:
        """Notify members, slice by slice. The pause begins with the first slice; small groups have none."""
        for channel in members[:_SLICE]:
            self._notify_member(channel, group.name)
        if len(group.members) > _SLICE:
            group.is_pausing = True
        if len(members) > _SLICE:
            self._call_later(0, lambda: self._notify_members(group, members[_SLICE:]))
        elif group.is_pausing:
            # Without a pause, n members that start together cause n * n / 2 notifications. With 10,000 members it lasts
            # 2 s, and all changes of that time are announced at its end, once.
            pause_s = len(group.members) * _PAUSE_MS_PER_MEMBER / 1000
            self._call_later(pause_s, lambda: self._end_pause(group))

    def _end_pause(self, group: ConsumerGroup) -> None:
        group.is_pausing = False
        if group.is_outdated:
            group.is_outdated = False
            self._notify(group)


def _of_same_client(members: dict[ClientChannel, Member], channel: ClientChannel) -> list[ClientChannel]:
    """Return the channels in a group that belong to the same client as `channel`."""
    member = members.get(channel)
    return [] if member is None else [one for one, other in members.items() if other.client_id == member.client_id]
