"""Decisions of an election in situations that random schedules reach seldom: lost disks, and a lost state."""

from __future__ import annotations

from dataclasses import replace

from rucola.coordination.decisions import (
    Announce,
    ChangeInSync,
    Decision,
    Disconnect,
    Follow,
    Reclaim,
    Release,
    Resign,
    Stand,
    TakeOffice,
    Unfollow,
    Wait,
)
from rucola.coordination.election import Bounds, Election, Own, Role
from rucola.coordination.group_keys import NOT_STANDING, ElectedState, Leader, LeaderRecord, MemberRecord, View
from rucola.errors import StoreError
from support.errors import raises

BOUNDS = Bounds(ttl_s=4, loop_wait_s=1, retry_timeout_s=1.25, in_sync_timeout_s=3)
LEASE = 77


def leader(member: int, lease: int = LEASE) -> Leader:
    return Leader(LeaderRecord(member, f"host-{member}:1", f"host-{member}:2"), lease, 1)


class Member:
    """One broker with its election, and what it announces. Its log has the incarnation `member * 10` by default."""

    def __init__(
        self, member: int, own: Own, incarnation: int = 0, *, may_found: bool = False, priority: int = 100
    ) -> None:
        self.member = member
        self.own = own
        record = MemberRecord(member, "", "", priority, incarnation or member * 10)
        self.election = Election(record, BOUNDS, 0.0, may_found=may_found)
        self.announced: MemberRecord | None = record
        self.election.renewed(LEASE, 0.0)


def decide(members: list[Member], now_s: float, state: ElectedState | None, leading: Leader | None = None) -> Decision:
    """Let all members announce what they have to; return the decision of the first one."""
    decision: Decision = Wait()
    for _ in range(2):
        for each in reversed(members):
            view = View(leading, state, {one.member: one.announced for one in members if one.announced is not None})
            decision = each.election.decide(now_s, view, each.own)
            if isinstance(decision, Announce):
                each.announced = decision.record
    return decision


def master(member: int, state: ElectedState, own: Own) -> Member:
    """A broker in office, after the lease of its start and with that of `LEASE`."""
    found = Member(member, own)
    assert isinstance(decide([found], 10.0, state, leader(member)), TakeOffice)
    found.election.took_office(10.0)
    return found


def settle(members: list[Member], state: ElectedState | None, leading: Leader | None = None) -> Decision:
    """Return the decision of the first member after all waits."""
    decide(members, 10.0, state, leading)
    return decide(members, 100.0, state, leading)


NOTHING = Own(0, 0, {})


def test_a_member_on_an_empty_disk_does_not_stand_though_it_is_the_whole_set() -> None:
    """The slave had left the set, and has what was acknowledged before."""
    state = ElectedState(3, 1, {1: 10}, 5)
    wiped = Member(1, NOTHING, incarnation=11)
    decision = settle([wiped], state)
    assert isinstance(decision, Wait)
    assert "etcdFounder" in decision.reason
    slave = Member(2, Own(3, 500, {}))
    assert isinstance(settle([wiped, slave], state), Wait)
    assert settle([slave, wiped], state) == Stand(4, {2: 20}, 5)


def test_the_best_log_is_elected_when_all_of_the_set_have_lost_something() -> None:
    """Also one outside the set, whose log may lack messages as well."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first, second = Member(1, Own(3, 400, {}), incarnation=11), Member(2, Own(3, 450, {}), incarnation=21)
    third = Member(3, Own(3, 500, {}))
    assert settle([second, first], state) == Stand(4, {2: 21}, 5)
    assert isinstance(settle([second, first, third], state), Wait)
    assert settle([third, first, second], state) == Stand(4, {3: 30}, 5)
    # As long as one of the set is entitled, no other one is a candidate.
    entitled = Member(2, Own(3, 450, {}))
    assert settle([entitled, first, third], state) == Stand(4, {2: 20}, 5)
    assert isinstance(settle([third, first, entitled], state), Wait)


def test_a_later_epoch_counts_more_than_a_longer_log() -> None:
    """The longer one was written by a master of which the other epoch's master knew nothing."""
    state = ElectedState(4, 1, {1: 10, 2: 20}, 5)
    first, second = Member(1, Own(3, 900, {}), incarnation=11), Member(2, Own(4, 500, {}), incarnation=21)
    assert isinstance(settle([first, second], state), Wait)
    assert settle([second, first], state) == Stand(5, {2: 21}, 5)


def test_one_of_the_set_that_is_away_may_have_everything() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first, third = Member(1, Own(3, 400, {}), incarnation=11), Member(3, Own(3, 500, {}))
    assert isinstance(settle([first, third], state), Wait)
    assert isinstance(settle([third, first], state), Wait)


def test_a_log_is_announced_when_the_promise_has_passed_and_no_master_sends_to_it_any_more() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    second = Member(2, Own(3, 400, {}, may_grow=True))
    decide([second], 10.0, state, leader(1))
    assert second.election.promise(10.5, 3)  # to a master that etcd does not hear: it goes on
    assert isinstance(decide([second], 11.0, state), Wait)
    assert second.announced is not None
    assert second.announced.standing == NOT_STANDING
    assert decide([second], 14.6, state) == Unfollow()
    assert not second.election.promise(14.6, 3), "that master would wait for a slave that follows no more"
    second.own = Own(3, 500, {})
    assert decide([second], 14.7, state) == Stand(4, {2: 20}, 5)
    assert (second.announced.standing, second.announced.end) == (5, 500)
    assert not second.election.promise(14.8, 3)


def test_a_longer_log_that_was_lost_in_part_is_chosen_by_its_length_of_now() -> None:
    """Both of the set lost power: the second one first, and then it copied what the first one acknowledged."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    second = Member(2, Own(3, 50, {}, may_grow=True), incarnation=21)
    decide([second], 1.0, state)  # etcd does not hear of the master, which goes on with promises
    assert second.election.promise(3.0, 3)
    second.own = Own(3, 500, {}, may_grow=True)
    first = Member(1, Own(3, 300, {}), incarnation=11)
    decide([first, second], 8.0, state)
    second.own = Own(3, 500, {})
    assert isinstance(settle([first, second], state), Wait)
    assert settle([second, first], state) == Stand(4, {2: 21}, 5)


def test_announcements_from_before_a_lease_was_reclaimed_do_not_count() -> None:
    """The second one has not heard that there was a leader again, and copied what that wrote."""
    state = ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 5)
    second, third = Member(2, Own(3, 200, {})), Member(3, Own(3, 300, {}))
    decide([third, second], 10.0, state)
    first = master(1, state, Own(3, 500, {}))
    decide([first], 11.0, state, leader(1))
    assert decide([first], 11.1, state) == Reclaim(3, {1: 10, 2: 20, 3: 30}, 5)
    again = ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 7)
    second.own, third.own = Own(3, 500, {}), Own(3, 400, {})
    assert second.announced is not None
    assert third.announced is not None
    records = {2: second.announced, 3: third.announced}
    announced = third.election.decide(20.0, View(None, again, records), third.own)
    assert isinstance(announced, Announce)
    # It announces its 400. What is known of the second one is 200, of the state before.
    assert [announced.record.end, second.announced.end] == [400, 200]
    view = View(None, again, records | {3: announced.record})
    assert third.election.decide(20.1, view, third.own) == Wait()
    assert decide([second, third], 20.2, again) == Stand(4, {2: 20, 3: 30}, 7)


def test_a_log_that_lost_something_is_not_chosen_while_one_of_priority_0_has_more() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first, never = Member(1, Own(3, 400, {}), incarnation=11), Member(2, Own(3, 500, {}), priority=0)
    decision = settle([first, never], state)
    assert isinstance(decision, Wait)
    assert "[2] with etcdPriority=0 has more" in decision.reason
    decision = settle([never, first], state)
    assert isinstance(decision, Wait)
    assert "never elected" in decision.reason


def test_a_log_that_lost_something_is_chosen_if_it_has_all_of_one_of_priority_0() -> None:
    """The whole set is there: it counts, though it does not stand."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first, never = Member(1, Own(3, 500, {}), incarnation=11), Member(2, Own(3, 500, {}), priority=0)
    assert settle([first, never], state) == Stand(4, {1: 11, 2: 20}, 5)
    # Also if both have lost something.
    never = Member(2, Own(3, 450, {}), incarnation=21, priority=0)
    assert settle([Member(1, Own(3, 450, {}), incarnation=11), never], state) == Stand(4, {1: 11}, 5)


def test_an_entitled_log_need_not_be_as_long_as_one_of_priority_0() -> None:
    """It has all that a SYNC_MASTER acknowledged, and the other one need never come back."""
    state = ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 5)
    second, never = Member(2, Own(3, 450, {})), Member(3, Own(3, 500, {}), priority=0)
    assert settle([second, never], state) == Stand(4, {2: 20, 3: 30}, 5)


def test_empty_brokers_in_place_of_a_lost_set_let_a_broker_outside_it_be_elected() -> None:
    """What an operator does if no broker of the set will come back."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    third = Member(3, Own(3, 500, {}))
    first, second = Member(1, NOTHING, incarnation=11), Member(2, NOTHING, incarnation=21)
    assert isinstance(settle([third], state), Wait)
    assert isinstance(settle([third, first], state), Wait)
    assert settle([third, first, second], state) == Stand(4, {3: 30}, 5)


def test_an_operator_may_begin_with_empty_disks() -> None:
    state = ElectedState(3, 1, {1: 10}, 5)
    assert settle([Member(1, NOTHING, incarnation=11, may_found=True)], state) == Stand(4, {1: 11}, 5)


def test_members_of_a_new_group_with_epochs_and_no_messages_need_no_operator() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first, second = Member(1, Own(3, 0, {}), incarnation=11), Member(2, NOTHING, incarnation=21)
    assert settle([first, second], state) == Stand(4, {1: 11}, 5)


# A state that etcd has lost.


def test_a_lost_state_is_restored_with_the_set_and_not_with_all_slaves() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first = master(1, state, Own(3, 500, {2: 500, 3: 200}))
    second, third = Member(2, Own(3, 500, {})), Member(3, Own(3, 200, {}))
    for _ in range(3):
        decide([first, second, third], 11.0, state, leader(1))
    first.election.lease_lost()
    first.election.renewed(78, 11.0)
    assert not first.election.holds_lease
    assert first.election.right_until_s(11.0) == 0
    assert isinstance(decide([first, second, third], 11.0, None), Wait)
    assert first.election.promised(11.0, frozenset({2}))
    assert decide([first, second, third], 11.1, None) == Stand(3, {1: 10, 2: 20}, 0)


def test_an_empty_broker_founds_no_group_beside_a_running_one() -> None:
    """The master cannot restore the state, as a member that has to promise is away."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first = master(1, state, Own(3, 500, {2: 500}))
    first.election.lease_lost()
    first.election.renewed(78, 11.0)
    new = Member(3, NOTHING)
    assert isinstance(settle([first, new], None), Wait)
    decision = settle([new, first], None)
    assert isinstance(decision, Wait)
    assert "another broker of it has a log" in decision.reason


def test_the_founder_begins_with_its_log_though_another_one_is_longer() -> None:
    """It waits for `ttl`: it may have promised an earlier master not to stand."""
    founder, other = Member(2, Own(3, 500, {}), may_found=True), Member(1, Own(4, 900, {}))
    decide([founder, other], 1.0, None)
    assert decide([founder, other], 3.0, None) == Stand(5, {2: 20}, 0)
    state = ElectedState(5, 2, {2: 20}, 9)
    assert isinstance(decide([founder, other], 3.5, state, leader(2)), Wait)
    assert decide([founder, other], 4.5, state, leader(2)) == TakeOffice(5, frozenset({2}))
    assert isinstance(decide([other, founder], 4.5, state, leader(2)), Follow)


# A failed store.


def test_a_master_whose_store_has_failed_gives_up_if_another_one_can_follow() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first = master(1, state, Own(3, 500, {2: 500}))
    second = Member(2, Own(3, 500, {}))
    for _ in range(3):
        decide([first, second], 11.0, state, leader(1))
    assert first.election.right_until_s(11.0) == 0  # of the renewal at 0
    first.election.renewed(LEASE, 11.0)
    assert first.election.right_until_s(11.0) > 11
    first.own = Own(3, 500, {2: 500}, has_failed=True)
    view = View(leader(1), state, {1: MemberRecord(1, "", "", 100, 10), 2: MemberRecord(2, "", "", 100, 20)})
    assert first.election.decide(11.0, view, first.own) == Resign(3, {1: 10, 2: 20}, 5, 1, LEASE)
    assert first.election.right_until_s(11.0) == 0
    # Its lease has not ended, by an error of etcd: it takes office no more.
    assert first.election.decide(11.0, view, Own(3, 500, {})) == Release(LEASE)
    assert settle([second, first], state) == Stand(4, {2: 20}, 5)
    decision = settle([first, second], state)
    assert isinstance(decision, Wait)
    assert "no candidate" in decision.reason
    # It follows, and may be elected again later.
    state = ElectedState(4, 2, {1: 10, 2: 20}, 8)
    first.own = Own(4, 600, {})
    assert isinstance(decide([first, second], 200.0, state, leader(2)), Follow)
    assert isinstance(settle([first], state), Stand)


def test_a_master_whose_store_has_failed_stays_without_another_one() -> None:
    """It serves reads."""
    state = ElectedState(3, 1, {1: 10}, 5)
    first = master(1, state, Own(3, 500, {}, has_failed=True))
    assert isinstance(decide([first], 11.0, state, leader(1)), Wait)
    assert first.election.role is Role.MASTER
    assert isinstance(decide([first], 12.0, state), Reclaim)


# Promises.


def test_all_that_may_be_elected_have_to_promise() -> None:
    first = master(1, ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 5), Own(3, 500, {}))
    assert not first.election.promised(50.0, frozenset({2}))
    assert first.election.right_until_s(50.1) == 0
    assert first.election.promised(50.0, frozenset({2, 3}))
    assert first.election.right_until_s(50.1) > 50.1


def test_a_master_that_hears_of_a_later_epoch_stops_at_once() -> None:
    first = master(1, ElectedState(3, 1, {1: 10, 2: 20}, 5), Own(3, 500, {}))
    first.election.renewed(LEASE, 50.0)
    first.election.deposed(3)
    assert first.election.right_until_s(50.1) > 50.1
    first.election.deposed(4)
    assert first.election.right_until_s(50.1) == 0


def test_a_promise_to_a_master_that_gave_up_holds_no_one_back() -> None:
    """Nor does the start of a broker, which may have promised before; nor is the old master waited for."""
    state = ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 5)
    second, third = Member(2, Own(3, 500, {}), priority=101), Member(3, Own(3, 500, {}))
    first = Member(1, Own(3, 500, {}))
    assert isinstance(decide([second], 0.1, state, leader(1)), Follow)
    assert second.election.promise(0.1, 3)
    assert isinstance(decide([second, third, first], 0.2, state), Wait)
    resigned = replace(state, revision=6, resigned=True)
    assert decide([second, third], 0.3, resigned) == Stand(4, {2: 20, 3: 30}, 6)
    assert isinstance(decide([second], 0.4, ElectedState(4, 2, {2: 20, 3: 30}, 9), leader(2)), TakeOffice)
    # A promise to a later master counts.
    third = Member(3, Own(3, 500, {}))
    assert third.election.promise(0.1, 4)
    assert isinstance(decide([third], 0.3, resigned), Wait)


def test_a_wish_to_hand_over_ends_with_the_mastership() -> None:
    """The master was replaced before it could, and is elected again later."""
    first, second = master(1, ElectedState(3, 1, {1: 10, 2: 20}, 5), Own(3, 500, {2: 500})), Member(2, Own(3, 500, {}))
    first.election.hand_over()
    assert isinstance(decide([first, second], 11.0, ElectedState(4, 2, {1: 10, 2: 20}, 6), leader(2)), Follow)
    again = ElectedState(5, 1, {1: 10, 2: 20}, 7)
    assert isinstance(decide([first, second], 12.0, again, leader(1)), TakeOffice)
    first.election.took_office(12.0)
    assert decide([first, second], 12.1, again, leader(1)) == Wait()
    assert first.election.role is Role.MASTER


def test_the_others_wait_for_a_slow_successor_until_its_lease_would_have_ended() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20, 3: 30}, 5)
    second, third = Member(2, Own(3, 500, {})), Member(3, Own(3, 500, {}))
    assert isinstance(decide([third, second], 5.0, state, leader(1)), Follow)
    third.election.prefer()
    assert isinstance(decide([second, third], 5.1, state, leader(1)), Follow)
    resigned = replace(state, revision=6, resigned=True)

    def alone(now_s: float) -> Decision:
        """What the second does while the successor is busy."""
        for _ in range(2):
            assert third.announced is not None
            decision = second.election.decide(
                now_s, View(None, resigned, {2: second.election.record, 3: third.announced}), second.own
            )
        return decision

    assert [alone(now_s) for now_s in (6.0, 6 + 1.3, 6 + 2.6, 6 + 3.9)] == [Wait()] * 4
    assert decide([third, second], 6 + 3.9, resigned) == Stand(4, {2: 20, 3: 30}, 6)
    assert alone(6 + 2 * 4 + 0.1) == Stand(4, {2: 20, 3: 30}, 6)


def test_a_broker_that_is_never_elected_is_not_preferred_either() -> None:
    never = Member(2, Own(3, 500, {}), priority=0)
    with raises(StoreError, subject="etcdPriority"):
        never.election.prefer()
    assert never.election.record.priority == 0


def test_a_member_promises_neither_an_older_master_nor_when_it_may_be_elected_itself() -> None:
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    second = Member(2, Own(3, 500, {}))
    assert isinstance(decide([second], 10.0, state, leader(1)), Follow)
    assert not second.election.promise(10.0, 2)
    assert second.election.promise(10.0, 3)
    decide([second], 11.0, state)
    assert isinstance(decide([second], 13.9, state), Wait)  # it has promised
    assert decide([second], 14.1, state) == Stand(4, {2: 20}, 5)
    assert not second.election.promise(14.1, 3), "its transaction may have been executed"
    assert isinstance(decide([second], 14.2, ElectedState(4, 2, {2: 20}, 9), leader(2)), TakeOffice)
    second.election.took_office(14.2)
    assert not second.election.promise(14.3, 9)


def test_a_promise_tells_a_member_of_the_epoch() -> None:
    """A broker that has just started, and has not reached etcd."""
    second = Member(2, Own(3, 500, {}))
    assert second.election.promise(1.0, 5)
    assert not second.election.promise(1.1, 4)


# The right to acknowledge, and the in-sync set.


def test_the_right_of_a_master_with_a_slow_clock_ends_before_its_lease() -> None:
    """When etcd has counted 4 s, a clock that loses 4 % shows 3.84."""
    first = master(1, ElectedState(3, 1, {1: 10, 2: 20}, 5), Own(3, 500, {}))
    first.election.renewed(LEASE, 20.0)
    assert first.election.right_until_s(23.7) > 23.7
    assert first.election.right_until_s(23.84) == 0
    assert first.election.promised(30.0, frozenset({2}))
    assert first.election.right_until_s(33.7) > 33.7
    assert first.election.right_until_s(33.84) == 0


def test_a_member_joins_once_it_has_what_was_acknowledged_when_it_was_required() -> None:
    state = ElectedState(3, 1, {1: 10}, 5)
    first = master(1, state, Own(3, 500, {2: 500}))
    records = {number: MemberRecord(number, "", "", 100, number * 10) for number in (1, 2)}
    view = View(leader(1), state, records)
    assert first.election.decide(11.0, view, first.own) == Disconnect(2)
    assert first.election.decide(11.0, view, Own(3, 500, {2: 499})) == Wait()
    assert first.election.required == {1, 2}
    assert first.election.decide(11.1, view, Own(3, 700, {2: 699})) == Wait()  # it has to have 700
    assert first.election.decide(11.2, view, Own(3, 800, {2: 699})) == Wait()
    assert first.election.decide(11.3, view, Own(3, 900, {2: 700})) == ChangeInSync(3, {1: 10, 2: 20}, 5, 1)
    # The outcome is not known: etcd may have either set.
    assert first.election.must_ask == {2}
    assert first.election.required == {1, 2}


def test_a_slave_that_lags_is_not_required() -> None:
    state = ElectedState(3, 1, {1: 10}, 5)
    first = master(1, state, Own(3, 500, {2: 100}))
    view = View(leader(1), state, {number: MemberRecord(number, "", "", 100, number * 10) for number in (1, 2)})
    first.election.decide(11.0, view, Own(3, 500, {}))
    assert first.election.decide(11.1, view, Own(3, 500, {})) == Wait()
    assert first.election.decide(11.2, view, first.own) == Wait()
    assert first.election.required == {1}


def test_a_member_with_another_log_leaves_the_set_though_it_has_everything() -> None:
    """It may be elected again once it has joined with this log."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first = master(1, state, Own(3, 500, {2: 500}))
    records = {1: MemberRecord(1, "", "", 100, 10), 2: MemberRecord(2, "", "", 100, 21)}
    view = View(leader(1), state, records)
    assert first.election.decide(11.0, view, first.own) == Disconnect(2)
    assert first.election.decide(11.0, view, first.own) == ChangeInSync(3, {1: 10}, 5, 1)
    assert first.election.required == {1, 2}


def test_a_member_that_lags_for_too_long_leaves_the_set() -> None:
    """Its lag is that behind the end at the decision before, and `required` has it until etcd has accepted."""
    state = ElectedState(3, 1, {1: 10, 2: 20}, 5)
    first = master(1, state, Own(3, 500, {2: 500}))
    view = View(leader(1), state, {number: MemberRecord(number, "", "", 100, number * 10) for number in (1, 2)})
    assert first.election.decide(11.0, view, first.own) == Wait()
    assert first.election.decide(13.0, view, Own(3, 600, {2: 500})) == Wait()  # it had all of 500
    assert first.election.decide(15.9, view, Own(3, 700, {2: 599})) == Wait()
    assert first.election.decide(16.1, view, Own(3, 700, {2: 699})) == ChangeInSync(3, {1: 10}, 5, 1)
    assert first.election.required == {1, 2}
