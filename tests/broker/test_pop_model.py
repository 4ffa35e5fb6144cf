"""POP against a model over time, with kills at every put: a message is acked, delivered again or a dead letter."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rucola.broker.delivery import pop as pop_module
from support.examples import examples
from support.killing import Killed
from support.pop_store import Held, PopStore

RETRY_MAX_TIMES = 2


class Known:
    """What a client can know of a message."""

    def __init__(self) -> None:
        self.until_ms = 0
        """Nobody else may get it before."""
        self.held: Held | None = None
        self.attempts = 0
        self.unanswered = 0
        """Receives that were killed, and may have been attempts."""
        self.is_acked = False
        self.may_be_acked = False


class PopMachine(RuleBasedStateMachine):
    is_ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.pop = PopStore(self.directory / "store", retry_max_times=RETRY_MAX_TIMES)
        self.known: dict[bytes, Known] = {}
        self.keys: dict[bytes, tuple[int, str]] = {}
        self.was_killed = False

    def kill_or(self, action: Callable[[], None], on_kill: Callable[[], None]) -> None:
        try:
            action()
        except Killed:
            on_kill()
            self.was_killed = True
            self.pop.kill()
        else:
            self.pop.live_on()

    @rule(queue_ids=st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab")), min_size=1, max_size=4))
    def send(self, queue_ids: list[tuple[int, str]]) -> None:
        self.pop.live_on()
        for queue_id, key in queue_ids:
            body = b"%d" % len(self.known)
            self.known[body] = Known()
            self.keys[body] = queue_id, key
            self.pop.send(body, queue_id, key)

    @rule(calls=st.integers(1, 6), after=st.booleans())
    def die_soon(self, calls: int, after: bool) -> None:
        self.pop.live_on()
        self.pop.die_at(calls, after=after)

    @rule(count=st.integers(1, 4), times=st.integers(0, 3), invisible_ms=st.sampled_from([1, 10, 100]))
    def receive(self, count: int, times: int, invisible_ms: int) -> None:
        """Once, or several times together."""

        def action() -> None:
            with self.pop.service.together() if times else nullcontext():
                found = [
                    held
                    for _ in range(max(1, times))
                    for held in self.pop.receive(count, invisible_ms, is_ordered=self.is_ordered)
                ]
            for held in found:
                self.received(held, invisible_ms)

        def on_kill() -> None:
            for known in self.known.values():
                if known.until_ms <= self.pop.now_ms:
                    known.unanswered += 1

        self.kill_or(action, on_kill)

    def received(self, held: Held, invisible_ms: int) -> None:
        known = self.known[held.body]
        assert not known.is_acked, "acked, and delivered again"
        assert known.until_ms <= self.pop.now_ms, "two holders"
        assert known.attempts < held.attempt <= known.attempts + 1 + known.unanswered
        assert held.attempt <= RETRY_MAX_TIMES + 1
        if self.is_ordered and not self.was_killed:
            for body, earlier in self.known.items():
                if int(body) < int(held.body) and self.keys[body] == self.keys[held.body]:
                    in_same = earlier.until_ms == self.pop.now_ms + invisible_ms
                    is_dead = earlier.attempts > RETRY_MAX_TIMES
                    assert earlier.is_acked or in_same or is_dead, "overtaken within a message group"
        known.held, known.attempts, known.unanswered = held, held.attempt, 0
        known.until_ms, known.may_be_acked = self.pop.now_ms + invisible_ms, False

    def holders(self) -> list[Known]:
        return [known for known in self.known.values() if known.held is not None]

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.holders()), min_size=1, max_size=3, unique=True))

        def action() -> None:
            for known in chosen:
                assert known.held is not None
                state = self.pop.pop.states.get((known.held.topic, "g", known.held.queue_id))  # type: ignore[call-overload]
                is_held = state is not None and state.is_held_by(known.held.handle)
                done = self.pop.ack(known.held)
                assert done.accepted + len(done.stale[0]) == 1
                if known.until_ms > self.pop.now_ms:
                    assert done.stale == [[]]
                if is_held:
                    known.is_acked = True

        def on_kill() -> None:
            for known in chosen:
                known.may_be_acked = True

        self.kill_or(action, on_kill)
        for known in chosen:
            known.held = None

    @precondition(lambda self: self.holders())
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 10, 100]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        known = data.draw(st.sampled_from(self.holders()))
        if known.until_ms <= self.pop.now_ms:
            return

        def action() -> None:
            self.pop.change(known.held, invisible_ms)
            known.until_ms = self.pop.now_ms + invisible_ms

        def on_kill() -> None:
            known.held = None
            known.until_ms = min(known.until_ms, self.pop.now_ms + invisible_ms)

        self.kill_or(action, on_kill)

    @rule(ms=st.sampled_from([1, 10, 100]))
    def wait(self, ms: int) -> None:
        self.pop.now_ms += ms

    @rule(calls=st.integers(1, 6), after=st.booleans())
    def revive(self, calls: int, after: bool) -> None:
        """All that is held is overdue; the kill may come between a copy and its record."""
        self.pop.now_ms += 1000
        self.die_soon(calls, after)
        self.kill_or(lambda: self.pop.pop.revive(self.pop.now_ms) and None, lambda: None)

    @rule()
    def restart(self) -> None:
        self.pop.live_on()
        self.pop.restart()

    @rule()
    def kill(self) -> None:
        self.pop.kill()

    @rule()
    def persist_offsets(self) -> None:
        self.pop.persist_offsets()

    def teardown(self) -> None:
        """What is left is delivered once more, each message once, or is a dead letter."""
        try:
            self.pop.live_on()
            self.drain()
            self.pop.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def drain(self) -> None:
        delivered: Counter[bytes] = Counter()
        for _ in range(3 * len(self.known) + 5):
            self.pop.now_ms += 1000
            for held in self.pop.receive(invisible_ms=10_000_000, is_ordered=self.is_ordered):
                delivered[held.body] += 1
                assert self.pop.ack(held).accepted == 1
        dead = Counter(message.body for message in self.pop.all_of("%DLQ%g"))
        for body, known in self.known.items():
            ends = delivered[body] + dead[body]
            assert ends <= 1, (body, "delivered and dead, or twice")
            if known.is_acked:
                assert ends == 0, (body, "acked, and there again")
            elif not known.may_be_acked:
                assert ends == 1, (body, "lost")
        for queue_id in range(2):
            if self.pop.offsets.has("g", "T", queue_id):
                end = self.pop.store.max_offset("T", queue_id)
                assert self.pop.offsets.get("g", "T", queue_id) == end
        assert self.pop.pop.count == 0


class OrderedMachine(PopMachine):
    is_ordered = True


def life(pop: PopStore, acked: set[bytes], maybe: set[bytes]) -> None:
    """Everything that POP does, one after the other."""
    for body in (b"a", b"b", b"c", b"d"):
        pop.send(body)
    a, b, c, _ = pop.receive()
    for held in (a, b):
        maybe.add(held.body)
        pop.ack(held)
        acked.add(held.body)
    pop.change(c, 500)
    pop.now_ms += 200
    pop.pop.revive(pop.now_ms)  # d
    pop.now_ms += 400
    (again,) = pop.receive(1)
    maybe.add(again.body)
    pop.ack(again)
    acked.add(again.body)
    pop.now_ms += 1000
    pop.receive()
    pop.now_ms += 1000
    pop.receive()


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_put_loses_and_repeats_nothing(tmp_path: Path, after: bool) -> None:
    for calls in range(1, 1000):
        pop = PopStore(tmp_path / str(calls) / "store", queues=1, retry_max_times=1)
        acked: set[bytes] = set()
        maybe: set[bytes] = set()
        pop.die_at(calls, after=after)
        try:
            life(pop, acked, maybe)
        except Killed:
            pop.kill()
        else:
            assert calls > 15
            break
        sent = {message.body for message in pop.all_of("T")}
        ends: Counter[bytes] = Counter()
        for _ in range(10):
            pop.now_ms += 1000
            for held in pop.receive():
                ends[held.body] += 1
                pop.ack(held)
        ends.update(message.body for message in pop.all_of("%DLQ%g"))
        assert acked.isdisjoint(ends), (calls, "acked, and there again")
        assert all(count == 1 for count in ends.values()), (calls, "twice")
        assert sent - maybe <= ends.keys(), (calls, "lost")
        pop.close()


@pytest.fixture(autouse=True, scope="module")
def _frequent_snapshots() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pop_module, "SNAPSHOT_INTERVAL", 4)
        patch.setattr(pop_module, "_SNAPSHOT_PART", 2)
        patch.setattr(pop_module, "_MAX_OUTDATED", 2)
        yield


TestPop = PopMachine.TestCase
TestPop.settings = settings(max_examples=examples(30), stateful_step_count=30)
TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = settings(max_examples=examples(30), stateful_step_count=30)
