"""Every interleaving of two deliveries of one message, with a crash and the end of leases at every point.

The steps are the listener's own (`_steps`), performed one by one on a real SQLite in memory and a model of Redis. After
each run the message is delivered once more, as a broker does with what was not acknowledged. Then the effect is there
once, the stub is confirmed and nothing is left over, with and without Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, delete, func, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from rucola.client import Message, MessageExt, ReconsumeLater
from rucola.message import properties
from rucola.reliable import Outbox, Tables
from rucola.reliable.errors import LeaseLost
from rucola.reliable.idempotent import Step, UnknownMessage, _Options, _SyncListener

pytestmark = pytest.mark.slow

GROUP = "billing"
EFFECT = Table("effect", MetaData(), Column("id", Integer, primary_key=True))
MESSAGE = MessageExt("T", 0, 7, 0, 0, b"x", {properties.UNIQ_KEY: "m"}, 0, 0, 0, 1, 0, "", 0, "b:1", 0, 0, bytes(8))


class Keys:
    """What Redis does, as far as claims need it."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def key(self, group: str, message_id: str) -> str:
        return message_id

    def bind(self, is_async: bool) -> None: ...

    def take(self, key: str, token: str, lease_ms: int) -> bool:
        return self.held.setdefault(key, token) == token

    def release(self, key: str, token: str) -> None:
        if self.held.get(key) == token:
            del self.held[key]


class World:
    """One message, its tables and its deliveries."""

    def __init__(self, tables: Tables, engine: Any, keys: Keys | None) -> None:
        self.tables = tables
        self.engine = engine
        self.keys = keys
        self.listener = _SyncListener(
            lambda message, session: None, engine, None, _Options(GROUP, tables, keys, 1000, UnknownMessage.PROCESS)
        )
        self.listener._is_checked = True

    def reset(self) -> None:
        with self.engine.begin() as connection:
            for table in (EFFECT, self.tables.stub, self.tables.receipt, self.tables.done):
                connection.execute(delete(table))
            Outbox([GROUP], tables=self.tables).add(connection, Message("T", b"x", properties={"UNIQ_KEY": "m"}))
        if self.keys is not None:
            self.keys.held.clear()

    def leases_end(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(self.tables.receipt).values(lease_until=0))
        if self.keys is not None:
            self.keys.held.clear()

    def count(self, table: Table) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(table)) or 0


class Worker:
    """One delivery, advanced step by step. `is_acknowledged` is None until it has ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = world.listener._steps(MESSAGE)
        self._step: Step | None = None
        self._is_at_work = False
        self.is_started = False
        self.is_acknowledged: bool | None = None

    def abandon(self) -> None:
        """Crash: whatever the listener would still do, in `finally` and `except`, is not done."""
        try:
            self._steps.throw(KeyboardInterrupt)
            while True:
                self._steps.send(None)
        except (KeyboardInterrupt, StopIteration):
            pass

    def advance(self) -> None:
        self.is_started = True
        try:
            if self._step is None:
                self._step = next(self._steps)
            elif self._step.kind == "business" and not self._is_at_work:
                self._is_at_work = True  # the listener has begun; its transaction ends with a step of its own
            else:
                self._step = self._performed(self._step)
        except StopIteration:
            self.is_acknowledged = True
        except (ReconsumeLater, LeaseLost):
            self.is_acknowledged = False

    def _performed(self, step: Step) -> Step:
        try:
            result = self._perform(step)
        except Exception as error:
            return self._steps.throw(error)
        return self._steps.send(result)

    def _perform(self, step: Step) -> Any:
        if step.kind == "business":
            with Session(self._world.engine) as session:
                session.execute(insert(EFFECT))
                result = self._world.listener._finish(session, step.arguments[1])
                session.commit()
                return result
        return self._world.listener._perform(step)


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


def run(world: World, schedule: Schedules, events: set[str]) -> list[str]:
    """One schedule to its end, and the last delivery; returns what happened."""
    world.reset()
    first, second = Worker(world), Worker(world)
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
        if "leases end" in events and first.is_started:
            options.append("leases end")
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
            case _:
                world.leases_end()
    acknowledged = [second.is_acknowledged] + ([] if has_crashed else [first.is_acknowledged])
    effects = world.count(EFFECT)
    assert effects <= 1, f"done twice: {history}"
    assert effects == 1 or not any(acknowledged), f"acknowledged and lost: {history}"
    if not all(acknowledged) or has_crashed:
        world.leases_end()
        last = Worker(world)
        while last.is_acknowledged is None:
            last.advance()
        assert last.is_acknowledged, history
    assert world.count(EFFECT) == world.count(world.tables.done) == 1, history
    assert world.count(world.tables.receipt) == 0, history
    with world.engine.connect() as connection:
        assert connection.scalar(select(world.tables.stub.c.status)) == "CONFIRMED", history
    return history


def make_world(keys: Keys | None) -> World:
    tables = Tables("m_")
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    tables.metadata.create_all(engine)
    EFFECT.create(engine)
    return World(tables, engine, keys)


@pytest.mark.parametrize(
    ("keys", "events", "least"),
    [(None, {"crash", "leases end"}, 500), (Keys(), {"crash"}, 200), (Keys(), {"leases end"}, 200)],
    ids=["database alone", "Redis, crash", "Redis, leases end"],
)
def test_every_interleaving_has_one_effect(keys: Keys | None, events: set[str], least: int) -> None:
    world = make_world(keys)
    count = sum(1 for schedule in Schedules() if run(world, schedule, events))
    assert count >= least, "the model has lost its steps"
