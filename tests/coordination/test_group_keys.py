"""Transactions on the keys of a group, in a real etcd: what was decided on an older view changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rucola.coordination.etcd import EtcdAccess, EtcdClient, LeaseNotFound
from rucola.coordination.group_keys import ElectedState, GroupKeys, LeaderRecord, MemberRecord, StateRecord, View
from support.etcd import EtcdServer

FIRST, SECOND = LeaderRecord(1, "a:1", "a:2"), LeaderRecord(2, "b:1", "b:2")
STATE = StateRecord(3, 1, {1: 10, 2: 20})


class Group:
    """The keys of one group, and the client."""

    def __init__(self, name: str, client: EtcdClient) -> None:
        self.keys = GroupKeys("c", name)
        self.client = client

    async def view(self) -> View:
        return self.keys.view(await self.client.range(self.keys.prefix))

    async def lead(self, leader: LeaderRecord, lease: int, revision: int, state: StateRecord) -> int | None:
        return await self.client.transact(*self.keys.leading(leader, lease, revision, state))

    async def change(self, state: StateRecord, revision: int, leader_revision: int) -> int | None:
        return await self.client.transact(*self.keys.changing(state, revision, leader_revision))


@pytest.fixture
async def group(shared_etcd: EtcdServer, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with EtcdClient(EtcdAccess((shared_etcd.endpoint,)), 20) as client:
        yield Group(request.node.name, client)


async def test_one_broker_leads_until_its_lease_ends(group: Group) -> None:
    first, _ = await group.client.grant(60)
    second, _ = await group.client.grant(60)
    assert (await group.lead(FIRST, first, 0, STATE)) is not None
    view = await group.view()
    assert view.leader is not None
    assert view.state is not None
    assert (view.leader.record, view.leader.lease, view.state.in_sync) == (FIRST, first, {1: 10, 2: 20})
    for revision in (0, view.state.revision):
        assert await group.lead(SECOND, second, revision, StateRecord(4, 2, {2: 20})) is None
    assert await group.view() == view
    await group.client.revoke(first)
    view = await group.view()
    assert view.leader is None
    assert view.state is not None
    assert await group.lead(SECOND, second, view.state.revision, StateRecord(4, 2, {2: 20})) is not None


async def test_none_is_elected_on_an_older_state(group: Group) -> None:
    """Another one was, and its lease has ended as well."""
    lease, _ = await group.client.grant(60)
    old = await group.lead(FIRST, lease, 0, STATE)
    assert old is not None
    await group.client.revoke(lease)
    lease, _ = await group.client.grant(60)
    new = await group.lead(SECOND, lease, old, StateRecord(4, 2, {2: 20}))
    assert new is not None
    await group.client.revoke(lease)
    lease, _ = await group.client.grant(60)
    state = StateRecord(4, 1, {1: 10})
    assert await group.lead(FIRST, lease, old, state) is None
    assert await group.lead(FIRST, lease, new, state) is not None


async def test_a_set_is_changed_by_the_leader_of_the_same_state(group: Group) -> None:
    lease, _ = await group.client.grant(60)
    revision = await group.lead(FIRST, lease, 0, STATE)
    assert revision is not None
    changed = await group.change(StateRecord(3, 1, {1: 10}), revision, revision)
    assert changed is not None
    # The state of before, and the leader of before, which has lost its lease and led again.
    assert await group.change(STATE, revision, revision) is None
    await group.client.revoke(lease)
    assert await group.change(STATE, changed, revision) is None
    again, _ = await group.client.grant(60)
    led = await group.lead(FIRST, again, changed, StateRecord(3, 1, {1: 10}))
    assert led is not None
    # The content is the same, and the revision is not: candidates have to announce their logs anew.
    assert (await group.view()).state == ElectedState(3, 1, {1: 10}, led)
    assert await group.change(STATE, changed, led) is None
    assert await group.change(STATE, led, revision) is None
    assert await group.change(STATE, led, led) is not None


async def test_a_record_ends_with_its_lease(group: Group) -> None:
    lease, _ = await group.client.grant(60)
    record = MemberRecord(1, "a:1", "a:2", 100, 10)
    await group.client.transact(*group.keys.announcing(record, lease))
    assert (await group.view()).members == {1: record}
    await group.client.revoke(lease)
    assert (await group.view()).members == {}
    with pytest.raises(LeaseNotFound):
        await group.client.transact(*group.keys.announcing(record, lease))
