"""POP of one queue against a model: a message is acked once, delivered again or moved, and has one holder at a time."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rucola.broker.delivery.pop_state import Begin, Candidate, Done, Handle, Pop, PopRecord, PopState, Snapshot
from support.examples import examples

LIMIT = 6


def decide(
    state: PopState,
    now_ms: int,
    invisible_ms: int,
    count: int,
    *messages: Candidate,
    next_offset: int = 0,
    attempt_id: str | None = None,
) -> Pop | None:
    pop_time_ms = max(now_ms, state.pop_time_ms + 1)
    if attempt_id is not None and (taken := state.repeated(attempt_id, now_ms)):
        return state.receive_again(pop_time_ms, now_ms, invisible_ms, taken, "c", attempt_id)
    visible = state.visible(now_ms, count)
    offsets = [message.queue_offset for message in messages]
    groups = {message.queue_offset: message.message_group for message in messages if message.message_group}
    return state.receive(
        pop_time_ms, now_ms, invisible_ms, count, visible, offsets, groups, next_offset, "c", attempt_id
    )  # fmt: skip


def pop(state: PopState, now_ms: int, invisible_ms: int, count: int, *messages: Candidate, **more: str) -> list[Handle]:
    record = decide(state, now_ms, invisible_ms, count, *messages, **more)  # type: ignore[arg-type]
    if record is None:
        return []
    state.apply(record)
    return [state.handle(offset) for offset in record.taken]


def offsets(handles: list[Handle]) -> list[int]:
    return [handle.queue_offset for handle in handles]


def plain(count: int) -> list[Candidate]:
    return [Candidate(offset) for offset in range(count)]


def test_the_groups_offset_is_the_lowest_unacked_one() -> None:
    state = PopState()
    pop(state, 0, 100, 3, *plain(3))
    state.apply(Done((1, 2)))
    assert (state.committed_offset, state.next_offset) == (0, 3)
    state.apply(Done((0,)))
    assert state.committed_offset == 3


def test_a_decision_that_is_not_applied_changes_nothing() -> None:
    state = PopState()
    (held,) = pop(state, 0, 1, 1, Candidate(0, "a"))
    before = copy.deepcopy(state)
    assert state.change(held, 1, 50)
    assert decide(state, 1, 50, 1)
    assert state == before
    assert state.is_held_by(held)


def test_no_other_consumer_gets_later_messages_of_a_held_group() -> None:
    state = PopState()
    assert offsets(pop(state, 0, 100, 1, Candidate(0, "a"))) == [0]
    assert offsets(pop(state, 0, 200, 2, Candidate(1, "a"), Candidate(2, "b"))) == [2]
    assert offsets(pop(state, 100, 100, 9)) == [0, 1]


def test_a_message_given_back_comes_without_later_ones_that_are_still_held() -> None:
    state = PopState()
    first, second = pop(state, 0, 100, 2, Candidate(0, "a"), Candidate(1, "a"))
    state.apply(state.change(first, 0, 0))
    assert offsets(pop(state, 0, 100, 2)) == [0]
    assert state.is_held_by(second)


def test_another_attempt_waits_for_the_invisible_time_only() -> None:
    state = PopState()
    pop(state, 0, 100, 1, Candidate(0, "a"), attempt_id="x")
    assert pop(state, 99, 100, 1, attempt_id="y") == []
    assert offsets(pop(state, 100, 100, 1, attempt_id="y")) == [0]
    assert state.outstanding[0].attempt == 2


def test_records_of_the_first_version_have_the_same_effect() -> None:
    first = b'["Pop",5,100,105,"c","x",3,[[0,null],[1,null],[2,"a"]],[0,1,2],false]'
    states = PopState(), PopState()
    pop(states[0], 5, 100, 3, Candidate(0), Candidate(1), Candidate(2, "a"), attempt_id="x")
    states[1].apply(msgspec.json.decode(first, type=PopRecord))
    assert states[0] == states[1]
    assert states[1].repeated("x", 6) == [0, 1, 2]


def test_the_messages_of_a_receive_share_what_is_known_of_them() -> None:
    state = PopState()
    record = decide(state, 0, 100, 32, *plain(32))
    assert record is not None
    assert record.added == ()
    state.apply(record)
    assert len(set(map(id, state.outstanding.values()))) == 1


@pytest.mark.parametrize("target", [0, 1])
def test_a_reset_frees_blocked_groups_and_makes_handles_stale(target: int) -> None:
    state = PopState()
    messages = [Candidate(0, "a"), Candidate(1, "a")]
    (held,) = pop(state, 0, 100, 1, *messages)
    pop(state, 0, 100, 1, messages[1])
    state.apply(Snapshot(state.pop_time_ms, target))
    assert state.committed_offset == target
    assert not state.outstanding
    assert offsets(pop(state, 0, 100, 2, *messages[target:])) == [0, 1][target:]
    assert not state.is_held_by(held)


class PopMachine(RuleBasedStateMachine):
    """The model knows of each message how often it was delivered, its last handle, and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PopState(limit=LIMIT)
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
        assert self.state.outstanding[offset].attempt == self.attempts[offset]
        self.until[offset] = self.now_ms + invisible_ms

    @rule(groups=st.lists(st.sampled_from([None, "a", "a", "b", "skipped"]), min_size=1, max_size=5))
    def send(self, groups: list[str | None]) -> None:
        for group in groups:
            if group == "skipped":
                self.done[len(self.queue)] = "not matched"
            self.queue.append(Candidate(len(self.queue), group))

    @rule(
        count=st.integers(1, 4),
        invisible_ms=st.sampled_from([1, 10, 100]),
        attempt_id=st.sampled_from([None, "x", "y"]),
    )
    def receive(self, count: int, invisible_ms: int, attempt_id: str | None) -> None:
        state = self.state
        found = [each for each in self.queue[state.next_offset :] if each.message_group != "skipped"]
        record = decide(
            state, self.now_ms, invisible_ms, count, *found, next_offset=len(self.queue), attempt_id=attempt_id
        )
        if record is None:
            assert not found or not state.room
            if state.room and state.next_offset < len(self.queue):  # as the service does
                self.apply(Begin(len(self.queue)))
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
        handles = data.draw(st.sets(st.sampled_from([*self.held.values(), *self.stale]), max_size=4))
        held = sorted(handle.queue_offset for handle in handles if self.state.is_held_by(handle))
        assert held == sorted(each.queue_offset for each in handles if each in self.held.values())
        self.apply(Done(tuple(held)))
        for offset in held:
            self.finish(offset, "acked")

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 1, 10, 100]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        handle = data.draw(st.sampled_from([*self.held.values()]))
        self.apply(self.state.change(handle, self.now_ms, invisible_ms))
        self.follow(handle.queue_offset, invisible_ms)

    @rule()
    def move(self) -> None:
        """To the retry topic."""
        overdue = [
            offset
            for offset in self.held
            if self.until[offset] <= self.now_ms and self.queue[offset].message_group is None
        ]
        self.apply(Done(tuple(overdue)))
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

    @rule(data=st.data())
    def read_from_elsewhere(self, data: st.DataObject) -> None:
        """As after a commit of another member: what is beyond is delivered again, what is outstanding below stays."""
        begin = data.draw(st.integers(0, len(self.queue)))
        for offset in range(self.state.next_offset, begin):
            self.done.setdefault(offset, "skipped by the group")
        for offset in range(begin, self.state.next_offset):
            if self.queue[offset].message_group != "skipped":
                self.done.pop(offset, None)
            if offset in self.held:
                self.stale.append(self.held.pop(offset))
            self.attempts.pop(offset, None)
            self.until.pop(offset, None)
        self.apply(Begin(begin))

    @rule(ms=st.sampled_from([1, 10, 100]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(is_snapshot=st.booleans())
    def restart(self, is_snapshot: bool) -> None:
        state = PopState(limit=LIMIT)
        for record in [self.state.snapshot()] if is_snapshot else self.records:
            state.apply(msgspec.json.decode(msgspec.json.encode(record), type=PopRecord))
        assert state == self.state
        assert state.visible(self.now_ms, LIMIT) == self.state.visible(self.now_ms, LIMIT)
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
            self.move()
            self.receive(4, 100, None)
            for offset in list(self.held):
                self.apply(Done((offset,)))
                self.finish(offset, "acked")
        assert self.done.keys() == set(range(len(self.queue)))


TestPop = PopMachine.TestCase
TestPop.settings = settings(max_examples=examples(60), stateful_step_count=40)
