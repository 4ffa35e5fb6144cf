"""Allocation strategies: pure functions that divide a topic's queues among the members of a group.

Every member computes its own share from the same two sorted lists, so that the shares are disjoint and complete without
any coordination. This requires the same strategy at every member. While members temporarily see different lists, a
queue may have two owners or none.

    average                     AVG                  contiguous ranges of equal size; the default
    average_by_circle           AVG_BY_CIRCLE        round robin, which spreads the queues of a broker
    consistent_hash(...)        CONSISTENT_HASH      a hash ring: few queues move when a member joins or leaves
    by_machine_room(rooms)      MACHINE_ROOM         as average, over brokers named room@name in one of these rooms
    machine_room_nearby(...)    MACHINE_ROOM_NEARBY  to members in the queue's room, or to all if it has none
    by_config(queues)           CONFIG               fixed queues, independent of the other members

Example of AVG: 8 queues and 3 members give 0-2, 3-5 and 6-7; AVG_BY_CIRCLE gives 0 3 6, 1 4 7 and 2 5.

The hash ring of CONSISTENT_HASH: each member has ten points on it, the hashes of `clientId-0` to `clientId-9`. A queue
belongs to the member of the first point at or after its own hash, wrapping around. The hash of a text is the first four
bytes of its MD5; the text of a queue is Java's `MessageQueue [topic=T, brokerName=B, queueId=0]`.

Corresponds to the package `org.apache.rocketmq.client.consumer.rebalance` of Apache RocketMQ 4.9.8. The results are the
same, so that Java and Python members can share a group.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from rucola.errors import ConfigError
from rucola.protocol.queue import MessageQueue

T = TypeVar("T")

Strategy: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, all queues sorted, all client ids sorted) -> own queues."""

VIRTUAL_NODES = 10
"""The default number of points of a member on the hash ring."""


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG: contiguous ranges of equal size.

    The first members get one queue more if the division has a remainder. A member gets none if it is not in
    `client_ids`, or if there are fewer queues than members before it.
    """
    if client_id not in client_ids:
        return []
    # The first `rest` members get one more, which shifts the begin of all members behind them.
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    # 8 queues and 3 members: share 2 and rest 2, so the begins are 0, 3 and 6.
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: one queue to each member in turn.

    A member that is not in `client_ids` gets none.
    """
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """CONSISTENT_HASH, with `virtual_nodes` points on the ring per member; the same number for all. ConfigError."""
    if virtual_nodes < 1:
        raise ConfigError(f"a member needs a point on the ring: virtual_nodes is {virtual_nodes}, must be 1 or more")

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        # Point -> member. Where points collide, the last member wins at every member, since the lists are sorted.
        ring = {_md5_hash(f"{member}-{number}"): member for member in client_ids for number in range(virtual_nodes)}
        points = sorted(ring)
        # The modulus wraps around from behind the last point to the first.
        owners = (ring[points[bisect_left(points, _md5_hash(_java_text(queue))) % len(points)]] for queue in queues)
        return [queue for queue, owner in zip(queues, owners, strict=True) if owner == client_id]

    return allocate


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: only the queues of brokers named `room@name` in one of these rooms.

    Each member gets a contiguous range of equal size; the first members get one of the remaining queues each.
    """
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
        # Unlike AVG, the remainder comes from the end of the list: that is how Apache's strategy divides.
        share, rest = divmod(len(inside), count)
        # 8 queues and 3 members: 0-1 and 6, 2-3 and 7, 4-5.
        own = inside[index * share : (index + 1) * share]
        return [*own, inside[count * share + index]] if index < rest else own

    return allocate


def machine_room_nearby(
    strategy: Strategy, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: `strategy` within each room.

    For queues in rooms without a member, `strategy` is applied over all members. Every queue and every client id must
    have a room: the strategy raises ConfigError otherwise.
    """

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of = _by_room(queues, room_of_queue)
        members_of = _by_room(client_ids, room_of_client)
        own_room = room_of_client(client_id)
        own = strategy(client_id, queues_of.pop(own_room, []), members_of[own_room])
        # Rooms without a member: all members divide their queues.
        for room in sorted(queues_of.keys() - members_of.keys()):
            own += strategy(client_id, queues_of[room], client_ids)
        return own

    return allocate


def by_config(queues: Iterable[MessageQueue]) -> Strategy:
    """CONFIG: always these queues.

    The configuration must cover all queues with the members of the group.

    Deliberate difference: a queue that does not exist is omitted, while Apache's client pulls it in vain.
    """
    configured = frozenset(queues)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in configured]

    return allocate


def _md5_hash(text: str) -> int:
    """Return the position of a text on the hash ring."""
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
