"""Who is connected: producer groups, consumer groups and their members, as heartbeats tell it.

A member of a group is a connection with a client id. It goes when it says so, when its connection closes, or when no
heartbeat came for `EXPIRY_MS`. Whenever the members or the subscriptions of a consumer group change, every member
is told at once (NOTIFY_CONSUMER_IDS_CHANGED), so that the group shares out its queues anew; unless the group or the
broker has notifyConsumerIdsChangedEnable=false.

Answers to `ConsumerManager`, `ProducerManager` and `DefaultConsumerIdsChangeListener` of Apache RocketMQ 4.9.8.
Deliberate difference: a client with two connections is listed once, and leaves with both. Apache lists it twice, and
the queues of its second place are consumed by no member until the dead connection expires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    NotifyConsumerIdsChangedRequestHeader,
    SubscriptionData,
)
from rucola.remoting.connection import Connection

EXPIRY_MS = 120_000
"""A client that sends no heartbeat for so long is taken for gone; clients send one every 30 s."""


@dataclass(slots=True)
class Member:
    """One connection that belongs to a group."""

    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group and what the group subscribes to, by topic."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Connection, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """Every client once, also one that has reconnected while its old connection is not known to be dead."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def subscribe(self, subscriptions: list[SubscriptionData]) -> bool:
        """Take over a heartbeat's subscriptions; whether a topic came or went."""
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
    """All groups that have a member now.

    `should_notify` tells whether the members of a consumer group are notified of changes. `on_group_left` is called
    with the name of a consumer group whose last member left.
    """

    def __init__(self, should_notify: Callable[[str], bool], on_group_left: Callable[[str], None]) -> None:
        self._should_notify = should_notify
        self._on_group_left = on_group_left
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, Member]] = {}
        self._producers_by_id: dict[str, Connection] = {}
        self._turns = count()

    def heartbeat(
        self, connection: Connection, heartbeat: HeartbeatData, language: str, version: int, now_ms: int
    ) -> None:
        """Note a client and its groups, and tell the groups that change by it."""
        member = Member(heartbeat.client_id, language, version, now_ms)
        for producer in heartbeat.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[connection] = member
            self._producers_by_id[member.client_id] = connection
        for consumer in heartbeat.consumer_data_set:
            self._join(connection, consumer, member)

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves one or both groups, with all of its connections: an older one may be dead."""
        producers = self.producers.get(producer_group or "", {})
        consumers = self.consumers.get(consumer_group or "")
        for one in _of_same_client(producers, connection):
            self._leave_producers(one, producer_group or "")
        for one in _of_same_client(consumers.members if consumers else {}, connection):
            self._leave_consumers(one, consumer_group or "")

    def closed(self, connection: Connection) -> None:
        """A connection is gone, and with it its membership in every group."""
        for group in list(self.producers):
            self._leave_producers(connection, group)
        for group in list(self.consumers):
            self._leave_consumers(connection, group)

    def expire(self, now_ms: int) -> None:
        """Close the connections whose heartbeats have ceased."""
        members = [item for group in self.consumers.values() for item in group.members.items()]
        members += [item for group in self.producers.values() for item in group.items()]
        for connection, member in members:
            if now_ms - member.last_heartbeat_ms > EXPIRY_MS:
                connection.close()

    def subscribed_groups(self, topic: str) -> list[str]:
        """The consumer groups with members that subscribe to the topic."""
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def next_producer(self, group: str) -> Connection | None:
        """A producer of the group, each in its turn; None while nobody of the group is connected."""
        producers = [connection for connection in self.producers.get(group, ()) if connection.is_open]
        return producers[next(self._turns) % len(producers)] if producers else None

    def producer(self, client_id: str) -> Connection | None:
        """The client of that id, where it is in a producer group now."""
        return self._producers_by_id.get(client_id)

    def _join(self, connection: Connection, consumer: ConsumerData, member: Member) -> None:
        group = self.consumers.get(consumer.group_name)
        if group is None:
            group = self.consumers[consumer.group_name] = ConsumerGroup(
                consumer.group_name,
                consumer.consume_type_name,
                consumer.message_model_name,
                consumer.consume_from_where_name,
            )
        is_new = connection not in group.members
        group.members[connection] = member
        group.consume_type = consumer.consume_type_name
        group.message_model = consumer.message_model_name
        group.consume_from_where = consumer.consume_from_where_name
        if group.subscribe(consumer.subscriptions) or is_new:
            self._notify(group)

    def _leave_producers(self, connection: Connection, group: str) -> None:
        members = self.producers.get(group, {})
        member = members.pop(connection, None)
        if member is None:
            return
        if self._producers_by_id.get(member.client_id) is connection:
            del self._producers_by_id[member.client_id]
        if not members:
            del self.producers[group]

    def _leave_consumers(self, connection: Connection, name: str) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        if not group.members:
            del self.consumers[name]
            self._on_group_left(name)
        self._notify(group)

    def _notify(self, group: ConsumerGroup) -> None:
        if not self._should_notify(group.name):
            return
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group.name)
        for connection in group.members:
            connection.send(RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))


def _of_same_client(members: dict[Connection, Member], connection: Connection) -> list[Connection]:
    """Return the connections in a group of the client that has this one."""
    member = members.get(connection)
    return [] if member is None else [one for one, other in members.items() if other.client_id == member.client_id]
