"""Shares of queues: whole, fair, stable, and the same as Apache's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.client.rebalance import average
from rucola.protocol.queue import MessageQueue

queues = st.builds(
    lambda counts: [MessageQueue("T", f"broker-{name}", i) for name, count in enumerate(counts) for i in range(count)],
    st.lists(st.integers(0, 12), max_size=4),
)
members = st.lists(st.text("abc0123456789", min_size=1, max_size=6), unique=True, min_size=1, max_size=20).map(sorted)


@given(queues, members)
def test_every_queue_has_exactly_one_owner(queues: list[MessageQueue], members: list[str]) -> None:
    owned = Counter(queue for member in members for queue in average(member, queues, members))
    assert owned == Counter(queues)


@given(queues, members)
def test_shares_differ_by_one_at_most_and_follow_the_order(queues: list[MessageQueue], members: list[str]) -> None:
    shares = [average(member, queues, members) for member in members]
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert [queue for share in shares for queue in share] == queues


@given(queues, members, st.data())
def test_a_member_that_leaves_gives_its_queues_to_the_others(
    queues: list[MessageQueue], members: list[str], data: st.DataObject
) -> None:
    leaving = data.draw(st.sampled_from(members))
    staying = [member for member in members if member != leaving]
    assert average(leaving, queues, staying) == []
    assert {queue for member in staying for queue in average(member, queues, staying)} == (
        set(queues) if staying else set()
    )


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (3, 5, [[0], [1], [2], [], []]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (1, 2, [[0], []]),
    ],
)
def test_the_shares_that_apache_computes(queue_count: int, member_count: int, expected: list[list[int]]) -> None:
    queues = [MessageQueue("T", "broker", i) for i in range(queue_count)]
    members = [f"client-{i}" for i in range(member_count)]
    assert [[queue.queue_id for queue in average(member, queues, members)] for member in members] == expected
