"""Every interleaving of two deliveries of one message, with faults at every point.

The steps are the listener's own, taken one by one on a real SQLite in memory and a model of Redis. After
each run the message is delivered once more, as a broker does with what was not acknowledged. Then the effect is there
once and the stub is confirmed, or an operator voided it in time and there is no effect; nothing is left over.

Each test prints how many runs there were and how the message ended (`pytest -rP`). There are 3,230 in all:

| claims | events, each at any point and at most once | runs | CONFIRMED | VOID |
|---|---|---|---|---|
| database alone | crash, end of leases | 788 | 788 | |
| database alone | an operator voids the message | 342 | 52 | 290 |
| database alone | a commit is applied and reports an error | 441 | 441 | |
| with Redis | crash | 80 | 80 | |
| with Redis | end of leases | 1,579 | 1,579 | |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from rucola.reliable import operations
from support.reliable_model import EFFECT, Keys, Worker, World, make_world

pytestmark = pytest.mark.slow

MESSAGE_ID = "m"


class Schedules:
    """Every order of events, one after the other: each run asks `choose` at every point and is repeated otherwise."""

    def __init__(self) -> None:
        self._chosen: list[int] = []
        self._options: list[int] = []
        self._at = 0

    def __iter__(self) -> Iterator[Schedules]:
        while True:
            self._at = 0
            yield self
            del self._chosen[self._at :], self._options[self._at :]
            while self._chosen and self._chosen[-1] + 1 == self._options[-1]:
                self._chosen.pop()
                self._options.pop()
            if not self._chosen:
                return
            self._chosen[-1] += 1

    def choose(self, options: list[str]) -> str:
        if self._at == len(self._chosen):
            self._chosen.append(0)
            self._options.append(len(options))
        self._at += 1
        return options[self._chosen[self._at - 1]]


def run(world: World, schedule: Schedules, events: set[str]) -> str:
    """One schedule to its end, and the last delivery; return how the message ended."""
    world.reset()
    world.add(MESSAGE_ID)
    first, second = Worker(world, MESSAGE_ID), Worker(world, MESSAGE_ID)
    events = set(events)
    history: list[str] = []
    has_crashed = False
    while True:
        options = ["first"] if first.is_acknowledged is None and not has_crashed else []
        if first.is_started and second.is_acknowledged is None:  # the other way round is the same
            options.append("second")
        if not options:
            break
        if "crash" in events and "first" in options and first.is_started:
            options.append("crash")
        options += [name for name in ("leases end", "void", "lose commit") if name in events and first.is_started]
        what = schedule.choose(options)
        history.append(what)
        events.discard(what)
        match what:
            case "first":
                first.advance()
            case "second":
                second.advance()
            case "crash":
                has_crashed = True
                first.abandon()
            case "void":
                with world.engine.begin() as connection:
                    operations.void(connection, world.tables, [MESSAGE_ID])
            case "lose commit":
                first.listener.loses_commit = True
            case _:
                world.leases_end()
    acknowledged = [second.is_acknowledged] + ([] if has_crashed else [first.is_acknowledged])
    with world.engine.connect() as connection:
        is_void = connection.scalar(select(world.tables.stub.c.status)) == "VOID"
    effects = world.count(EFFECT)
    assert effects <= 1, f"done twice: {history}"
    assert effects == 1 or is_void or not any(acknowledged), f"acknowledged and lost: {history}"
    if not all(acknowledged) or has_crashed:
        world.leases_end()
        last = Worker(world, MESSAGE_ID)
        while last.is_acknowledged is None:
            last.advance()
        assert last.is_acknowledged, history
    assert world.count(EFFECT) == world.count(world.tables.done) == (0 if is_void else 1), history
    assert world.count(world.tables.receipt) == 0, history
    with world.engine.connect() as connection:
        status = connection.scalar(select(world.tables.stub.c.status))
    assert status == ("VOID" if is_void else "CONFIRMED"), history
    return str(status)


CASES = {
    "database alone": (None, {"crash", "leases end"}, 500),
    "database alone, void": (None, {"void"}, 100),
    "database alone, lost commit": (None, {"lose commit"}, 100),
    "Redis, crash": (Keys(), {"crash"}, 50),
    "Redis, leases end": (Keys(), {"leases end"}, 200),
}


@pytest.mark.parametrize(("keys", "events", "least"), CASES.values(), ids=CASES)
def test_every_interleaving_has_one_effect(
    keys: Keys | None, events: set[str], least: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "rucola.reliable")  # else a warning per failed commit
    world = make_world(keys)
    counts = Counter(run(world, schedule, events) for schedule in Schedules())
    print(f"{counts.total()} runs: {dict(counts)}")
    assert counts.total() >= least, "the model has lost its steps"
    assert counts["CONFIRMED"] > 0
    assert (counts["VOID"] > 0) == ("void" in events)
