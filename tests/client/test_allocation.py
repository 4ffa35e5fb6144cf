"""Shares of queues: whole, fair, stable, and the same as Apache's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.domain.allocation import (
    Strategy,
    average,
    average_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
)
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError
from support.errors import raises

ROOMS = ["a", "a", "b", "b"]
queues = st.builds(
    lambda counts: [
        MessageQueue("T", f"{room}@broker-{name}", i)
        for name, (room, count) in enumerate(zip(ROOMS, counts, strict=True))
        for i in range(count)
    ],
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
members = st.lists(st.text("abc0123456789", min_size=1, max_size=6), unique=True, min_size=1, max_size=20).map(sorted)


@pytest.mark.parametrize(
    "strategy",
    [
        average,
        average_by_circle,
        consistent_hash(),
        consistent_hash(1),
        by_machine_room(["a", "b"]),
        machine_room_nearby(average, lambda queue: queue.broker_name[:1], lambda client_id: client_id[0]),
        machine_room_nearby(consistent_hash(), lambda queue: queue.broker_name[:1], lambda client_id: client_id[0]),
    ],
)
@given(queues=queues, members=members)
def test_every_queue_is_assigned_to_exactly_one_member(
    strategy: Strategy, queues: list[MessageQueue], members: list[str]
) -> None:
    owned = Counter(queue for member in members for queue in strategy(member, queues, members))
    assert owned == Counter(queues)


@given(queues, members)
def test_average_assignments_differ_by_one_at_most_and_follow_the_order(
    queues: list[MessageQueue], members: list[str]
) -> None:
    shares = [average(member, queues, members) for member in members]
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert [queue for share in shares for queue in share] == queues


@given(queues, members, st.data())
def test_the_queues_of_a_leaving_member_go_to_the_others(
    queues: list[MessageQueue], members: list[str], data: st.DataObject
) -> None:
    leaving = data.draw(st.sampled_from(members))
    staying = [member for member in members if member != leaving]
    assert average(leaving, queues, staying) == []
    assert {queue for member in staying for queue in average(member, queues, staying)} == (
        set(queues) if staying else set()
    )


# What Apache's own classes of 4.9.8 answer, run with so many queues and members: the owner of each queue, by its place
# among the members, "-" where nobody gets it. Half of the queues, one more where they are odd, are room1@broker-a's,
# the rest room2@broker-b's; the members are 10.0.0.1@4710, 10.0.0.2@4711 and so on.
SIZES = [(8, 3), (4, 4), (3, 5), (5, 2), (16, 4), (1, 2)]
APACHE = {
    "AVG": "00011122 0123 012 00011 0000111122223333 0",
    "CIRCLE": "01201201 0123 012 01010 0123012301230123 0",
    "HASH": "21000211 3132 313 11000 3100223132111220 1",
    "HASH3": "20110200 3002 304 00100 3011223102001201 0",
    "ROOM": "0120---- 01-- 01- 010-- 00112233-------- 0",
    "NEARBY": "11110012 1301 130 11101 1111333300112233 1",
}

NEARBY_ROOMS = {"1": "room3", "2": "room1", "3": "room3", "4": "room1", "5": "room3"}
STRATEGIES = {
    "AVG": average,
    "CIRCLE": average_by_circle,
    "HASH": consistent_hash(),
    "HASH3": consistent_hash(3),
    "ROOM": by_machine_room(["room1"]),
    "NEARBY": machine_room_nearby(
        average, lambda queue: queue.broker_name.split("@")[0], lambda client_id: NEARBY_ROOMS[client_id[7]]
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_assignments_equal_apaches(name: str) -> None:
    for (queue_count, member_count), owners in zip(SIZES, APACHE[name].split(), strict=True):
        halves = {"room1@broker-a": (queue_count + 1) // 2, "room2@broker-b": queue_count // 2}
        queues = [MessageQueue("T", broker, i) for broker, count in halves.items() for i in range(count)]
        members = [f"10.0.0.{i + 1}@471{i}" for i in range(member_count)]
        shares = [STRATEGIES[name](member, queues, members) for member in members]
        owner_of = {queue: str(number) for number, share in enumerate(shares) for queue in share}
        assert "".join(owner_of.get(queue, "-") for queue in queues) == owners
        assert STRATEGIES[name]("10.0.0.9@4719", queues, members) == []
        assert all(share == sorted(share) for share in shares if name != "NEARBY")


def test_consistent_hashing_moves_few_queues_when_a_member_leaves() -> None:
    """Only those of the member that left."""
    allocate = consistent_hash()
    queues = [MessageQueue("T", "broker-a", i) for i in range(64)]
    members = [f"10.0.0.{i}@1" for i in range(5)]
    before = {member: allocate(member, queues, members) for member in members}
    for member in members[1:]:
        assert set(before[member]) <= set(allocate(member, queues, members[1:]))


def test_by_config_a_member_gets_its_configured_queues_that_exist() -> None:
    queues = [MessageQueue("T", "broker-a", i) for i in range(4)]
    allocate = by_config([queues[2], queues[0], MessageQueue("T", "broker-a", 9)])
    assert allocate("me", queues, ["me", "you"]) == [queues[0], queues[2]]


def test_an_impossible_allocation_is_an_error() -> None:
    with raises(ConfigError, subject="virtual_nodes"):
        consistent_hash(0)
    nearby = machine_room_nearby(average, lambda queue: "", lambda client_id: "room1")
    with pytest.raises(ConfigError):
        nearby("me", [MessageQueue("T", "broker-a", 0)], ["me"])
