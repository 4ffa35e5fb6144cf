"""Client registry: producer groups, consumer groups and their members, as heartbeats announce them.

A member of a group is a channel (one connection) with a client id. It leaves when it unregisters, when its connection
closes, or after `EXPIRY_MS` without a heartbeat. Whenever members or subscriptions of a consumer group change, every
member is notified, unless the group or the broker has notifyConsumerIdsChangedEnable=false. The notification of a large
group is followed by a pause in which changes are coalesced: otherwise n members that join cause n² notifications.

With access control, requests to one user's producers reach no other user. Anyone may be in a producer group (all Java
clients are in CLIENT_INNER_PRODUCER), but its connected user that registered first takes precedence (`next_producer`).
A client id belongs to the user that announces it, and if the connection is lost, until `EXPIRY_MS` after the last
heartbeat, since the client may still wait for replies. An id shared by several users belongs to none: a reply does not
show whose request it answers.
Connections with the same client id are one client only if they are of the same user.

If heartbeats arrive over two connections with one client id in turn, they are two clients: each gets the same queues
and so all their messages. That is logged.

Corresponds to `ConsumerManager`, `ProducerManager` and `DefaultConsumerIdsChangeListener` of Apache RocketMQ 4.9.8.
Deliberate difference: a client with two connections is listed once, and leaves with both. Apache lists it twice, and no
member consumes the queues of its second entry until the dead connection expires.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from rucola.access import Caller
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.subscription import SubscriptionData

logger = logging.getLogger(__name__)

_SLICE: Final = 32
"""Members notified in one iteration of the event loop: 0.3 ms of work."""
_SLICE_PAUSE_S: Final = 0.001
_LARGE: Final = 256
_MAX_TRIED: Final = 64
_PAUSE_MS_PER_MEMBER: Final = 0.2
"""Limits notifications, at 8 µs a member, to 4 % of the event loop's time."""

EXPIRY_MS = 120_000
"""A connection without a heartbeat for this long is closed. Clients send one every 30 s."""


CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]


class ClientChannel(Protocol):
    """A connected client, hashable by identity, such as `rucola.remoting.connection.Connection`."""

    @property
    def peer(self) -> str:
        """ "ip:port" of the client."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read; a large message should wait."""

    def close(self) -> None:
        """Close the connection after sending what was written to it."""


@dataclass(slots=True)
class Member:
    """A client's membership in a group: one per channel."""

    client_id: str
    caller: Caller
    language: str
    version: int
    last_heartbeat_ms: int

    @property
    def user(self) -> str:
        """Empty without access control."""
        return "" if self.caller.user is None else self.caller.user.name

    def is_same_client(self, other: Member) -> bool:
        return self.client_id == other.client_id and self.user == other.user


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[ClientChannel, Member] = field(default_factory=dict)
    channels: dict[str, list[ClientChannel]] = field(default_factory=dict)
    shared_ids: set[str] = field(default_factory=set)
    """Client ids that several clients use at once."""
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    is_notifying: bool = False
    """Whether a notification, or the pause after it, is in progress."""
    is_outdated: bool = False
    """Whether the group has changed since that notification started."""

    @property
    def client_ids(self) -> list[str]:
        """The client id of every member, each once even if it has two connections."""
        return list(self.channels)

    def join(self, channel: ClientChannel, member: Member) -> bool:
        """Add or refresh a member; return whether it is new."""
        client_id, previous = member.client_id, self.members.get(channel)
        if previous is None or previous.client_id != client_id:
            self.leave(channel)
            self.channels.setdefault(client_id, []).append(channel)
        elif len(channels := self.channels[client_id]) > 1 and client_id not in self.shared_ids:
            others = [one for one in channels if one is not channel]
            if any(self.members[one].last_heartbeat_ms > previous.last_heartbeat_ms for one in others):
                self.shared_ids.add(client_id)
                logger.warning(
                    "group %s: client id %s is that of several clients, at %s: each consumes the same queues, so that "
                    "messages are delivered to all of them; give each an id or instance name of its own",
                    self.name, client_id, ", ".join(one.peer for one in channels),
                )  # fmt: skip
        self.members[channel] = member
        return previous is None

    def leave(self, channel: ClientChannel) -> bool:
        """Remove a member; return whether it was one."""
        member = self.members.pop(channel, None)
        if member is None:
            return False
        channels = self.channels[member.client_id]
        channels.remove(channel)
        if len(channels) < 2:
            self.shared_ids.discard(member.client_id)
        if not channels:
            del self.channels[member.client_id]
        return True

    def subscribe(self, subscriptions: list[SubscriptionData]) -> bool:
        """Replace the subscriptions; return whether a topic was added or removed."""
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


def _join(
    groups: dict[str, ConsumerGroup], channel: ClientChannel, consumer: ConsumerData, member: Member
) -> tuple[ConsumerGroup, bool]:
    """Add or refresh a member; return its group, and whether members or topics changed."""
    group = groups.setdefault(consumer.group_name, ConsumerGroup(consumer.group_name))
    is_new = group.join(channel, member)
    group.consume_type = consumer.consume_type_name
    group.message_model = consumer.message_model_name
    group.consume_from_where = consumer.consume_from_where_name
    return group, group.subscribe(consumer.subscriptions) or is_new


class ClientRegistry:
    """All groups that have members. Belongs to the event loop. `call_later` ends the pauses after notifications."""

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
        self.on_member_left: Callable[[ClientChannel, str], None] = lambda channel, group: None
        """Gets a channel that left a consumer group."""
        self.consumers: dict[str, ConsumerGroup] = {}
        """By name; a group without members is removed."""
        self.receivers: dict[str, ConsumerGroup] = {}
        """Members that receive by gRPC. They share all queues, so other members do not count them."""
        self.producers: dict[str, dict[ClientChannel, Member]] = {}
        self._turns: dict[str, dict[str, dict[ClientChannel, None]]] = {}
        """By group, then user in order of registration: channels in rotation."""
        self._producers_by_id: dict[str, dict[str, tuple[ClientChannel | None, Member]]] = {}
        """By client id, then user; without a channel from the loss of its connection until it expires."""
        self._groups_of: dict[ClientChannel, tuple[set[str], set[str]]] = {}
        self._notifying: deque[tuple[ConsumerGroup, Iterator[ClientChannel]]] = deque()
        """Groups with the members still to be notified, in rotation."""
        self._slice_left = _SLICE

    def heartbeat(
        self,
        channel: ClientChannel,
        caller: Caller,
        heartbeat: HeartbeatData,
        language: str,
        version: int,
        now_ms: int,
    ) -> None:
        """Add or refresh a client in its groups, and notify the consumer groups that change."""
        member = Member(heartbeat.client_id, caller, language, version, now_ms)
        for producer in heartbeat.producer_data_set:
            self._join_producers(channel, producer.group_name, member)
        for consumer in heartbeat.consumer_data_set:
            self._groups_of.setdefault(channel, (set(), set()))[1].add(consumer.group_name)
            self._join(channel, consumer, member)

    def join_receivers(self, channel: ClientChannel, consumer: ConsumerData, member: Member) -> None:
        """Add a member that receives by gRPC."""
        _join(self.receivers, channel, consumer, member)

    def leave_receivers(self, channel: ClientChannel, name: str) -> None:
        group = self.receivers.get(name)
        if group is not None and group.leave(channel) and not group.members:
            del self.receivers[name]

    def is_member(self, group: str, client_id: str) -> bool:
        """Return whether a client is a consumer of a group, by either protocol."""
        found = self.consumers.get(group), self.receivers.get(group)
        return any(one is not None and client_id in one.channels for one in found)

    def other_groups(self, channel: ClientChannel, heartbeat: HeartbeatData) -> int:
        """Return the number of groups of a channel that are not in this heartbeat."""
        producers, consumers = self._groups_of.get(channel, (set(), set()))
        if not producers and not consumers:
            return 0
        announced = {producer.group_name for producer in heartbeat.producer_data_set}
        subscribing = {consumer.group_name for consumer in heartbeat.consumer_data_set}
        return len(producers - announced) + len(consumers - subscribing)

    def unregister(self, channel: ClientChannel, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client with all its channels from one or both groups; an older channel may be dead."""
        # The channels are collected first: leaving changes the dictionaries.
        producers = self.producers.get(producer_group or "", {})
        consumers = self.consumers.get(consumer_group or "")
        for one in _of_same_client(producers, channel):
            self._leave_producers(one, producer_group or "")
        for one in _of_same_client(consumers.members if consumers else {}, channel):
            self._leave_consumers(one, consumer_group or "")

    def closed(self, channel: ClientChannel) -> None:
        producers, consumers = self._groups_of.get(channel, (set(), set()))
        for group in list(producers):
            self._leave_producers(channel, group, is_lost=True)
        for group in list(consumers):
            self._leave_consumers(channel, group)

    def expire_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Close channels without a heartbeat for `EXPIRY_MS`, in small steps (see `rucola.slices`)."""
        for channel, (producers, consumers) in list(self._groups_of.items()):
            members = [self.producers[group][channel] for group in producers]
            members += [self.consumers[group].members[channel] for group in consumers]
            if any(now_ms - member.last_heartbeat_ms > EXPIRY_MS for member in members):
                channel.close()
            yield
        for client_id, holders in list(self._producers_by_id.items()):
            for user, (lost, member) in list(holders.items()):
                if lost is None and now_ms - member.last_heartbeat_ms > EXPIRY_MS:
                    self._release(client_id, user)
            yield

    def subscribed_groups(self, topic: str) -> list[str]:
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def next_producer(self, group: str, admits: Callable[[Caller], bool]) -> ClientChannel | None:
        """Return the next producer of the group that reads, of the first user with one that `admits` accepts."""
        members = self.producers.get(group, {})
        for channels in self._turns.get(group, {}).values():
            for _ in range(min(len(channels), _MAX_TRIED)):
                channel = next(iter(channels))
                channels[channel] = channels.pop(channel)  # to the end
                if not admits(members[channel].caller):
                    break
                if channel.is_open and not channel.is_congested:
                    return channel
        return None

    def producer(self, client_id: str) -> tuple[ClientChannel, Caller] | None:
        """Return the producer to which this client id belongs; None if none or several users have it."""
        holders = list(self._producers_by_id.get(client_id, {}).values())
        channel, member = holders[0] if len(holders) == 1 else (None, None)
        return None if channel is None or member is None else (channel, member.caller)

    def notify_client(self, group_name: str, client_id: str) -> None:
        """Make one client of a consumer group rebalance, if it is a member."""
        group = self.consumers.get(group_name)
        if group is not None and self._should_notify(group_name):
            for channel in group.channels.get(client_id, ()):
                self._notify_member(channel, group_name)

    def _join_producers(self, channel: ClientChannel, group: str, member: Member) -> None:
        before = self.producers.get(group, {}).get(channel)
        if before is not None and not before.is_same_client(member):
            self._leave_producers(channel, group)
        self._groups_of.setdefault(channel, (set(), set()))[0].add(group)
        self.producers.setdefault(group, {})[channel] = member
        self._turns.setdefault(group, {}).setdefault(member.user, {}).setdefault(channel)
        self._producers_by_id.setdefault(member.client_id, {})[member.user] = channel, member

    def _join(self, channel: ClientChannel, consumer: ConsumerData, member: Member) -> None:
        group, is_changed = _join(self.consumers, channel, consumer, member)
        if is_changed:
            self._notify(group)

    def _leave_producers(self, channel: ClientChannel, group: str, is_lost: bool = False) -> None:
        members = self.producers.get(group, {})
        member = members.pop(channel, None)
        if member is None:
            return
        self._forget(channel, 0, group)
        # A client that connected again has its new channel there, and one in several groups keeps its id.
        others, _ = self._groups_of.get(channel, (set[str](), set[str]()))
        is_left = not any(self.producers[other][channel].is_same_client(member) for other in others)
        holders = self._producers_by_id.get(member.client_id, {})
        if is_left and holders.get(member.user, (None,))[0] is channel:
            if is_lost and member.user:
                holders[member.user] = None, member
            else:
                self._release(member.client_id, member.user)
        users = self._turns[group]
        del users[member.user][channel]
        if not users[member.user]:
            del users[member.user]
        if not members:
            del self.producers[group], self._turns[group]

    def _release(self, client_id: str, user: str) -> None:
        holders = self._producers_by_id[client_id]
        del holders[user]
        if not holders:
            del self._producers_by_id[client_id]

    def _leave_consumers(self, channel: ClientChannel, name: str) -> None:
        group = self.consumers.get(name)
        if group is None or not group.leave(channel):
            return
        self._forget(channel, 1, name)
        self.on_member_left(channel, name)
        if not group.members:
            del self.consumers[name]
            self._on_group_left(name)
        self._notify(group)

    def _forget(self, channel: ClientChannel, kind: int, group: str) -> None:
        """Remove a group from a channel. `kind` is 0 for producers, 1 for consumers."""
        groups = self._groups_of[channel]
        groups[kind].discard(group)
        if not groups[0] and not groups[1]:
            del self._groups_of[channel]

    def _notify(self, group: ConsumerGroup) -> None:
        """Notify the members of a group, or once more after the notification in progress and its pause."""
        if group.is_notifying:
            group.is_outdated = True
        elif self._should_notify(group.name):
            group.is_notifying = True
            self._notifying.append((group, iter(list(group.members))))
            self._notify_some()

    def _notify_some(self) -> None:
        while self._notifying and self._slice_left:
            group, members = self._notifying.popleft()
            channel = next(members, None)
            if channel is None:
                self._notified(group)
                continue
            self._notifying.append((group, members))
            if self._slice_left == _SLICE:
                self._call_later(_SLICE_PAUSE_S, self._begin_slice)
            self._slice_left -= 1
            self._notify_member(channel, group.name)

    def _begin_slice(self) -> None:
        self._slice_left = _SLICE
        self._notify_some()

    def _notified(self, group: ConsumerGroup) -> None:
        if len(group.members) > _LARGE:
            # Without a pause, n members that start together cause n * n / 2 notifications. With 10,000 members it lasts
            # 2 s, and all changes of that time are announced at its end, once.
            pause_s = len(group.members) * _PAUSE_MS_PER_MEMBER / 1000
            self._call_later(pause_s, lambda: self._end_pause(group))
        else:
            self._end_pause(group)

    def _end_pause(self, group: ConsumerGroup) -> None:
        group.is_notifying = False
        if group.is_outdated:
            group.is_outdated = False
            self._notify(group)


def _of_same_client(members: dict[ClientChannel, Member], channel: ClientChannel) -> list[ClientChannel]:
    member = members.get(channel)
    return [] if member is None else [one for one, other in members.items() if other.is_same_client(member)]
