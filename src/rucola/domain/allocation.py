"""Allocation strategies: pure functions that divide a topic's queues among the members of a group.

Every member computes its queues from the same sorted lists, without coordination; all must use the same strategy. While
members temporarily see different lists, a queue may have two owners or none.

    average                     AVG                  contiguous ranges of equal size; the default
    average_by_circle           AVG_BY_CIRCLE        round robin, which spreads the queues of a broker
    consistent_hash(...)        CONSISTENT_HASH      a hash ring: few queues move when a member joins or leaves
    by_machine_room(rooms)      MACHINE_ROOM         as average, over brokers named room@name in one of these rooms
    machine_room_nearby(...)    MACHINE_ROOM_NEARBY  to members in the queue's room, or to all if it has none
    by_config(queues)           CONFIG               fixed queues, independent of the other members

On the hash ring each member has ten points, the hashes of `clientId-0` to `clientId-9`. A queue belongs to the member
of the first point at or after its own hash, wrapping around. The hash of a text is the first four bytes of its MD5; the
text of a queue is Java's `MessageQueue [topic=T, brokerName=B, queueId=0]`.

Corresponds to the package `org.apache.rocketmq.client.consumer.rebalance` of Apache RocketMQ 4.9.8, with the same
results, so that Java and Python members can share a group.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError

T = TypeVar("T")

Strategy: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, all queues sorted, all client ids sorted) -> own queues."""

VIRTUAL_NODES = 10
"""The default number of points of a member on the hash ring."""


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG: contiguous ranges of equal size. The first members get one queue more if there is a remainder."""
    if client_id not in client_ids:
        return []
    # The first `rest` members get one more, which shifts the start of all members after them.
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: one queue to each member in turn."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """CONSISTENT_HASH, with `virtual_nodes` points on the ring per member; the same number for all. ConfigError."""
    if virtual_nodes < 1:
        raise ConfigError(
            f"a member needs a point on the ring: virtual_nodes is {virtual_nodes}, must be 1 or more",
            subject="virtual_nodes",
        )

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        # Where points collide, the last member wins at every member, since the lists are sorted.
        ring = {_md5_hash(f"{member}-{number}"): member for member in client_ids for number in range(virtual_nodes)}
        points = sorted(ring)
        # The modulus wraps around from the last point to the first.
        owners = (ring[points[bisect_left(points, _md5_hash(_java_text(queue))) % len(points)]] for queue in queues)
        return [queue for queue, owner in zip(queues, owners, strict=True) if owner == client_id]

    return allocate


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: as AVG, over the queues of brokers named `room@name` in one of these rooms."""
    allowed = frozenset(rooms)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        index, count = client_ids.index(client_id), len(client_ids)
        inside = []
        for queue in queues:
            room, _, name = queue.broker_name.partition("@")
            if name and "@" not in name and room in allowed:
                inside.append(queue)
        # Unlike AVG, the remainder comes from the end of the list, as in Apache's strategy.
        share, rest = divmod(len(inside), count)
        # 8 queues and 3 members: 0-1 and 6, 2-3 and 7, 4-5.
        own = inside[index * share : (index + 1) * share]
        return [*own, inside[count * share + index]] if index < rest else own

    return allocate


def machine_room_nearby(
    strategy: Strategy, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: `strategy` within each room; over all members in rooms without one. ConfigError."""

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of = _by_room(queues, room_of_queue)
        members_of = _by_room(client_ids, room_of_client)
        own_room = room_of_client(client_id)
        own = strategy(client_id, queues_of.pop(own_room, []), members_of[own_room])
        for room in sorted(queues_of.keys() - members_of.keys()):
            own += strategy(client_id, queues_of[room], client_ids)
        return own

    return allocate


def by_config(queues: Iterable[MessageQueue]) -> Strategy:
    """CONFIG: always these queues, which must cover all with the members of the group.

    Deliberate difference: a queue that does not exist is omitted, while Apache's client pulls it.
    """
    configured = frozenset(queues)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in configured]

    return allocate


def _md5_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """Return `MessageQueue.toString()` of Java."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Group queues or client ids by machine room. ConfigError if one has none."""
    rooms: defaultdict[str, list[T]] = defaultdict(list)
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ConfigError(f"{thing} has no machine room")
        rooms[room].append(thing)
    return rooms
