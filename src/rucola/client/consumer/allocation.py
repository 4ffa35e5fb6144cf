"""Who of a group consumes which queue: pure functions from members and queues to one member's share.

Every member computes its own share from the same two lists, both sorted, so that the shares fit together without
anybody being asked: each queue belongs to exactly one member. That needs the same strategy at every member. While
members see different lists, for a moment, a queue may have two owners or none.

    average                     AVG                  neighbouring queues, as even as can be; the default
    average_by_circle           AVG_BY_CIRCLE        queue by queue in turn, which spreads the queues of a broker
    consistent_hash(...)        CONSISTENT_HASH      a ring of hashes: few queues move when a member comes or goes
    by_machine_room(rooms)      MACHINE_ROOM         evenly, of brokers named room@name whose room is one of these
    machine_room_nearby(...)    MACHINE_ROOM_NEARBY  to members in the queue's own room, to all where it has none
    by_config(queues)           CONFIG               what this member was told, whoever else there is

The hash ring of CONSISTENT_HASH: each member stands at ten places of it, by the hashes of `clientId-0` to `clientId-9`,
and a queue belongs to the first member at its own hash or after, around the ring. The hash of a text is the first
four bytes of its MD5, and a queue's text is Java's `MessageQueue [topic=T, brokerName=B, queueId=0]`.

Answers to the package `org.apache.rocketmq.client.consumer.rebalance` of Apache RocketMQ 4.9.8, whose results these
functions give, so that members of both kinds can share a group.
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


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG: neighbouring queues, as even as can be; the first members take one more where it does not come out even.

    A member that is not among `client_ids`, or beyond the number of queues, gets none.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: the members take one queue each in turn. A member that is not among `client_ids` gets none."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """CONSISTENT_HASH, with so many places on the ring for each member. All members need the same number."""
    if virtual_nodes < 1:
        raise ConfigError(f"a member needs a place on the ring: virtual_nodes is {virtual_nodes}, must be 1 or more")

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ring = {_md5_hash(f"{member}-{number}"): member for member in client_ids for number in range(virtual_nodes)}
        places = sorted(ring)
        owners = (ring[places[bisect_left(places, _md5_hash(_java_text(queue))) % len(places)]] for queue in queues)
        return [queue for queue, owner in zip(queues, owners, strict=True) if owner == client_id]

    return allocate


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: the queues of brokers with names of the form `room@name`, in one of these rooms; no others.

    Members share them evenly: each gets neighbouring queues, and what is left over goes to the first members, one each.
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
        share, rest = divmod(len(inside), count)
        own = inside[index * share : (index + 1) * share]
        return [*own, inside[count * share + index]] if index < rest else own

    return allocate


def machine_room_nearby(
    strategy: Strategy, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: `strategy` within each room, and over all members for the queues of rooms without one.

    Every queue and every client id must have a room; ConfigError at the rebalance where one has none.
    """

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
    """CONFIG: always these queues of those that there are. Whoever configures members sees that all are given out.

    Deliberate difference: a queue that does not exist is left out, where Apache's client pulls it in vain.
    """
    told = frozenset(queues)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in told]

    return allocate


def _md5_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: defaultdict[str, list[T]] = defaultdict(list)
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ConfigError(f"{thing} has no machine room")
        rooms[room].append(thing)
    return rooms
