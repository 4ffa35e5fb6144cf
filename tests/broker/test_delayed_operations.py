"""DelayedOperations: each operation ends once, at its condition or at its deadline, and makes no other one wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rucola.broker.delayed_operations import DelayedOperations
from simulation.turns import Turns


@dataclass(eq=False)
class Operation:
    deadline_s: float
    ready: bool = False
    ended: list[bool] | None = None


class Desk:
    """Operations that are completed once they are ready."""

    def __init__(self, slice_s: float = 60.0, tick_s: float = 0.0) -> None:
        self.loop = Turns(tick_s)
        self.operations: DelayedOperations[Operation] = DelayedOperations(self._try_complete, slice_s, self.loop)

    def add(self, timeout_s: float = 100.0) -> Operation:
        operation = Operation(self.loop.time_s + timeout_s, ended=[])
        self.operations.add(operation, timeout_s)
        return operation

    def _try_complete(self, operation: Operation, is_last: bool) -> bool:
        assert operation.ended == []
        assert is_last == (operation.deadline_s <= self.loop.time_s)
        if operation.ready or is_last:
            operation.ended = [is_last]
        return bool(operation.ended)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 20)),
        st.tuples(st.just("ready"), st.integers(0, 9)),
        st.tuples(st.just("wake"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 9)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([0.0, 60.0]))
def test_an_operation_ends_once_when_it_is_ready_or_at_its_deadline(
    steps: list[tuple[str, int]], slice_s: float
) -> None:
    desk = Desk(slice_s, tick_s=1e-9)
    waiting: list[Operation] = []
    for step, number in steps:
        if step == "add":
            waiting.append(desk.add(number))
        elif step == "ready" and number < len(waiting):
            waiting[number].ready = True
            desk.operations.wake([waiting[number]])
        elif step == "wake":
            desk.operations.wake_all()
        elif step == "pass":
            desk.loop.pass_until(desk.loop.time_s + number)
        elif step == "turn":
            desk.loop.turn()
        assert len(desk.operations) == sum(operation.ended == [] for operation in waiting)
    while desk.loop.calls:
        desk.loop.turn()
    for operation in waiting:
        is_due = operation.ready or operation.deadline_s <= desk.loop.time_s - 1
        assert bool(operation.ended) or not is_due
    desk.loop.pass_until(desk.loop.time_s + 30)
    while desk.loop.calls:
        desk.loop.turn()
    assert len(desk.operations) == 0
    assert all(operation.ended for operation in waiting)


def test_sets_take_turns_and_continue_in_later_iterations() -> None:
    desk = Desk(slice_s=0.001, tick_s=0.0004)
    many, one = [desk.add() for _ in range(100)], desk.add()
    for operation in (*many, one):
        operation.ready = True
    desk.operations.wake(many)
    desk.operations.wake([one])
    assert sum(bool(operation.ended) for operation in many) < 5
    while not one.ended:
        desk.loop.turn()
    assert sum(bool(operation.ended) for operation in many) < 10
    turns = 0
    while desk.loop.calls:
        desk.loop.turn()
        turns += 1
    assert turns > 20
    assert len(desk.operations) == 0


def test_an_operation_that_fails_is_reported_and_the_others_end() -> None:
    loop, failures, ended = Turns(), list[Any](), list[str]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def try_complete(operation: str, is_last: bool) -> bool:
        if operation == "failing":
            raise ArithmeticError
        ended.append(operation)
        return True

    operations: DelayedOperations[str] = DelayedOperations(try_complete, loop=loop)
    for name in ("first", "failing", "last"):
        operations.add(name, 1)
    operations.wake_all()
    assert ended == ["first", "last"]
    assert list(map(type, failures)) == [ArithmeticError]
    assert len(operations) == 0


async def test_operations_that_ended_long_before_their_deadline_take_no_memory() -> None:
    """Their deadlines are forgotten when they outnumber those that wait."""
    operations: DelayedOperations[list[int]] = DelayedOperations(lambda operation, is_last: True)
    alive = 0

    class Large(list[int]):
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

        __hash__ = object.__hash__

    most = 0
    for _ in range(10_000):
        operations.add(Large(), 3600)
        operations.wake_all()
        most = max(most, alive)
    assert most < 2000
    operations.stop()
    await asyncio.sleep(0)
