"""POP of one queue against a model: a message is acked once, delivered again or moved, and has one holder at a time."""

from __future__ import annotations

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rucola.broker.delivery.pop_state import Candidate, Change, Dead, Handle, Pop, PopRecord, PopState, Reset

LIMIT = 6


def pop(state: PopState, now_ms: int, invisible_ms: int, count: int, *messages: Candidate, **more: str) -> list[Handle]:
    record = state.receive(now_ms, invisible_ms, count, messages, **more)  # type: ignore[arg-type]
    if record is None:
        return []
    state.apply(record)
    return [state.handle(offset) for offset in record.taken]


def offsets(handles: list[Handle]) -> list[int]:
    return [handle.queue_offset for handle in handles]


def change(state: PopState, handle: Handle, invisible_ms: int) -> None:
    record = state.change(handle, 0, invisible_ms)
    assert record is not None
    state.apply(record)


def plain(count: int) -> list[Candidate]:
    return [Candidate(offset) for offset in range(count)]


def test_the_groups_offset_is_the_lowest_unacked_one() -> None:
    state = PopState(0)
    held = pop(state, 0, 100, 3, *plain(3))
    state.apply(state.ack(held[1:]))
    assert (state.committed_offset, state.next_offset) == (0, 3)
    state.apply(state.ack(held[:1]))
    assert state.committed_offset == 3


def test_a_changed_duration_makes_the_old_handle_stale() -> None:
    state = PopState(0)
    (first,) = pop(state, 0, 100, 1, *plain(1))
    change(state, first, 100)
    assert state.ack([first]).queue_offsets == ()
    assert state.change(first, 0, 5) is None
    assert state.ack([state.handle(0)]).queue_offsets == (0,)


def test_a_decision_that_is_not_applied_changes_nothing() -> None:
    state = PopState(0)
    (held,) = pop(state, 0, 0, 1, *plain(1))
    before = copy.deepcopy(state)
    decided = state.ack([held]), state.change(held, 1, 50), state.receive(1, 50, 1)
    assert all(decided)
    assert state == before
    assert state.ack([held]).queue_offsets == (0,), "the ack is repeated with the same handle"


def test_no_other_consumer_gets_later_messages_of_a_held_group() -> None:
    state = PopState(0)
    assert offsets(pop(state, 0, 100, 1, Candidate(0, "a"))) == [0]
    assert offsets(pop(state, 0, 200, 2, Candidate(1, "a"), Candidate(2, "b"))) == [2]
    assert offsets(pop(state, 100, 100, 9)) == [0, 1]


def test_a_message_given_back_comes_without_later_ones_that_are_still_held() -> None:
    state = PopState(0)
    first, second = pop(state, 0, 100, 2, Candidate(0, "a"), Candidate(1, "a"))
    change(state, first, 0)
    assert offsets(pop(state, 0, 100, 2)) == [0]
    assert state.ack([second]).queue_offsets == (1,)


def test_no_handle_acks_a_message_that_was_never_delivered() -> None:
    state = PopState(0)
    pop(state, 0, 100, 1, Candidate(0, "a"))
    pop(state, 0, 100, 2, Candidate(1, "a"), Candidate(2))
    assert state.ack([Handle(0, 1, 0, 0, 0, 0)]).queue_offsets == ()


def test_a_repeated_receive_gets_the_same_messages_in_the_same_attempt() -> None:
    state = PopState(0)
    lost = pop(state, 0, 100, 2, Candidate(0, "a"), Candidate(1, "a"), attempt_id="x")
    again = pop(state, 1, 100, 2, Candidate(2, "b"), attempt_id="x")
    assert [(handle.queue_offset, handle.attempt) for handle in again] == [(0, 1), (1, 1)]
    assert state.ack(lost).queue_offsets == ()
    state.apply(state.ack(again))
    assert offsets(pop(state, 1, 100, 2, Candidate(2, "b"), attempt_id="x")) == [2], "never blocked by what is done"


def test_another_attempt_waits_for_the_invisible_time_only() -> None:
    state = PopState(0)
    pop(state, 0, 100, 1, Candidate(0, "a"), attempt_id="x")
    assert pop(state, 99, 100, 1, attempt_id="y") == []
    assert [handle.attempt for handle in pop(state, 100, 100, 1, attempt_id="y")] == [2]


def test_a_message_that_was_given_back_is_not_repeated() -> None:
    state = PopState(0)
    (held,) = pop(state, 0, 100, 1, *plain(1), attempt_id="x")
    change(state, held, 1000)
    assert pop(state, 1, 100, 1, attempt_id="x") == []


@pytest.mark.parametrize("target", [0, 1])
def test_a_reset_frees_blocked_groups_and_makes_handles_stale(target: int) -> None:
    state = PopState(0)
    messages = [Candidate(0, "a"), Candidate(1, "a")]
    held = pop(state, 0, 100, 1, *messages)
    pop(state, 0, 100, 1, messages[1])
    state.apply(Reset(target))
    assert state.committed_offset == target
    assert not state.outstanding
    assert offsets(pop(state, 0, 100, 2, *messages[target:])) == [0, 1][target:]
    assert state.ack(held).queue_offsets == ()


class PopMachine(RuleBasedStateMachine):
    """The model knows of each message how often it was delivered, its last handle, and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PopState(3, limit=LIMIT)
        self.records: list[PopRecord] = []
        self.now_ms = 1000
        self.queue: list[Candidate] = []
        self.attempts: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.held: dict[int, Handle] = {}
        self.stale: list[Handle] = []
        self.done: dict[int, str] = {}

    def apply(self, record: PopRecord) -> None:
        self.records.append(record)
        self.state.apply(record)

    def follow(self, offset: int, invisible_ms: int) -> None:
        """The handle of a message that was delivered or changed just now."""
        if offset in self.held:
            self.stale.append(self.held[offset])
        self.held[offset] = self.state.handle(offset)
        assert self.held[offset].attempt == self.attempts[offset]
        self.until[offset] = self.now_ms + invisible_ms

    @rule(groups=st.lists(st.sampled_from([None, "a", "a", "b", "skipped"]), min_size=1, max_size=5))
    def send(self, groups: list[str | None]) -> None:
        for group in groups:
            if group == "skipped":
                self.done[len(self.queue)] = "not matched"
            self.queue.append(Candidate(len(self.queue), group))

    @rule(
        count=st.integers(1, 4),
        invisible_ms=st.sampled_from([0, 1, 10, 100]),
        attempt_id=st.sampled_from([None, "x", "y"]),
    )
    def receive(self, count: int, invisible_ms: int, attempt_id: str | None) -> None:
        state = self.state
        found = [each for each in self.queue[state.next_offset :] if each.message_group != "skipped"]
        record = state.receive(self.now_ms, invisible_ms, count, found, len(self.queue), attempt_id)
        if record is None:
            visible = [
                offset
                for offset in self.attempts.keys() - self.done.keys()
                if self.until[offset] <= self.now_ms and self.queue[offset].message_group is None
            ]
            assert not visible, "a message that is visible was not delivered"
            assert state.next_offset == len(self.queue) or not state.room
            return
        self.apply(record)
        assert len(record.taken) <= count or record.is_repeated
        for offset in record.taken:
            assert offset not in self.done
            if record.is_repeated:
                assert self.until[offset] > self.now_ms
            else:
                assert self.until.get(offset, 0) <= self.now_ms, "two holders"
                self.attempts[offset] = self.attempts.get(offset, 0) + 1
            self.follow(offset, invisible_ms)
            group = self.queue[offset].message_group
            if group is not None and not record.is_repeated:
                earlier = {each.queue_offset for each in self.queue[:offset] if each.message_group == group}
                assert earlier <= self.done.keys() | set(record.taken), "overtaken within a message group"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        handles = data.draw(st.lists(st.sampled_from([*self.held.values(), *self.stale]), max_size=4))
        record = self.state.ack(handles)
        assert set(record.queue_offsets) == {each.queue_offset for each in handles if each in self.held.values()}
        self.apply(record)
        for offset in record.queue_offsets:
            self.finish(offset, "acked")

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 1, 10, 100]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        handle = data.draw(st.sampled_from([*self.held.values(), *self.stale]))
        record = self.state.change(handle, self.now_ms, invisible_ms)
        assert (record is None) == (handle in self.stale)
        if isinstance(record, Change):
            self.apply(record)
            self.follow(handle.queue_offset, invisible_ms)

    @rule()
    def move(self) -> None:
        """To the retry topic or dead letter queue."""
        overdue = self.state.visible_again(self.now_ms)
        assert all(self.until[offset] <= self.now_ms for offset in overdue)
        self.apply(Dead(tuple(overdue)))
        for offset in overdue:
            self.finish(offset, "moved")

    def finish(self, offset: int, how: str) -> None:
        assert offset not in self.done
        self.done[offset] = how
        self.stale.append(self.held.pop(offset))

    @rule(data=st.data())
    def lose_the_end_of_the_log(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(max(0, len(self.queue) - 3), len(self.queue)))
        record = self.state.fit(0, end)
        assert (record is None) == (self.state.next_offset <= end)
        if record is not None:
            self.apply(record)
        del self.queue[end:]
        for lost in [offset for offset in self.held if offset >= end]:
            self.stale.append(self.held.pop(lost))
        for table in (self.attempts, self.until, self.done):
            for lost in [offset for offset in table if offset >= end]:
                del table[lost]

    @rule(data=st.data())
    def delete_the_begin_of_the_log(self, data: st.DataObject) -> None:
        begin = data.draw(st.integers(0, min(3, len(self.queue))))
        record = self.state.fit(begin, len(self.queue))
        if record is not None:
            self.apply(record)
        for offset in range(begin):
            if offset not in self.done:
                self.done[offset] = "deleted"
                if offset in self.held:
                    self.stale.append(self.held.pop(offset))

    @rule(ms=st.sampled_from([1, 10, 100]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(is_snapshot=st.booleans())
    def restart(self, is_snapshot: bool) -> None:
        state = PopState(3, limit=LIMIT)
        for record in [self.state.snapshot()] if is_snapshot else self.records:
            state.apply(record)
        assert state == self.state
        assert state.next_visible_ms() == self.state.next_visible_ms()
        self.state = state

    @invariant()
    def every_message_is_accounted_for(self) -> None:
        state = self.state
        read = set(range(state.next_offset))
        assert state.outstanding.keys() == read - self.done.keys()
        assert state.committed_offset == min(read - self.done.keys(), default=state.next_offset)
        assert len(state.outstanding) <= LIMIT
        assert not any(state.is_held_by(handle) for handle in self.stale)

    def teardown(self) -> None:
        """All that is left is delivered in the end."""
        for _ in range(3 * len(self.queue) + 1):
            self.now_ms += 1000
            self.receive(4, 100, None)
            for offset in list(self.held):
                self.apply(self.state.ack([self.held[offset]]))
                self.finish(offset, "acked")
        assert self.done.keys() == set(range(len(self.queue)))


TestPop = PopMachine.TestCase
TestPop.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_pop_record_has_what_a_handle_needs() -> None:
    record = PopState(7).receive(5, 30, 1, plain(1))
    assert isinstance(record, Pop)
    state = PopState(7)
    state.apply(record)
    assert state.handle(0) == Handle(7, 0, 5, 30, 1, 1)
