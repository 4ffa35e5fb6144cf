"""Parts of the models of reliability: a database with an effect, Redis, and deliveries that advance step by step."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from rucola.client import Message, MessageExt, ReconsumeLater
from rucola.message import properties
from rucola.reliable import Outbox, Tables
from rucola.reliable.errors import LeaseLost
from rucola.reliable.idempotent import Step, UnknownMessage, _Options, _SyncListener
from rucola.reliable.redis_claims import KeyState

GROUP = "billing"
LEASE_MS = 3_600_000
"""Longer than any run, so that leases end only as a step of the model, however slow the machine is."""
EFFECT = Table(
    "effect", MetaData(), Column("id", Integer, primary_key=True), Column("message_id", String(40), nullable=False)
)


def message_with(message_id: str) -> MessageExt:
    unique = {properties.UNIQ_KEY: message_id}
    return MessageExt("T", 0, 7, 0, 0, b"x", unique, 0, 0, 0, 1, 0, "", 0, "b:1", 0, 0, bytes(8))


class ListenerFails(Exception):
    """The business function of a delivery fails."""


class Keys:
    """What Redis does, as far as claims need it."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def key(self, group: str, message_id: str) -> str:
        return message_id

    def bind(self, is_async: bool) -> None: ...

    def take(self, key: str, token: str, lease_ms: int) -> KeyState:
        holder = self.held.setdefault(key, token)
        return KeyState.TAKEN if holder == token else KeyState.DONE if holder == "done" else KeyState.HELD

    def finish(self, key: str, token: str) -> None:
        if self.held.get(key) == token:
            self.held[key] = "done"

    def release(self, key: str, token: str) -> None:
        if self.held.get(key) == token:
            del self.held[key]


class World:
    """The tables of one run, its effects and its listener."""

    def __init__(self, tables: Tables, engine: Any, keys: Keys | None) -> None:
        self.tables = tables
        self.engine = engine
        self.keys = keys
        self.outbox = Outbox([GROUP], tables=tables)  # once: an outbox maps a class
        options = _Options(GROUP, tables, keys, LEASE_MS, UnknownMessage.PROCESS, transaction=None)
        self.listener = _SyncListener(lambda message, session: None, engine, None, options)
        self.listener._is_checked = True

    def reset(self) -> None:
        with self.engine.begin() as connection:
            for table in (EFFECT, self.tables.stub, self.tables.receipt, self.tables.done):
                connection.execute(delete(table))
        if self.keys is not None:
            self.keys.held.clear()

    def add(self, message_id: str, shard_key: str | None = None) -> None:
        message = Message("T", b"x", properties={properties.UNIQ_KEY: message_id})
        with self.engine.begin() as connection:
            self.outbox.add(connection, message, shard_key=shard_key)

    def leases_end(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(self.tables.receipt).values(lease_until=0))
        if self.keys is not None:
            self.keys.held.clear()

    def count(self, table: Table) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(table)) or 0


class Worker:
    """One delivery, advanced step by step. `is_acknowledged` is None until it has ended.

    If `fails`, the business function raises; if `loses_commit`, its commit is applied and reports an error.
    """

    def __init__(self, world: World, message_id: str) -> None:
        self.message_id = message_id
        self.fails = False
        self.loses_commit = False
        self._world = world
        self._steps = world.listener._steps(message_with(message_id))
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
        except (ReconsumeLater, LeaseLost, ListenerFails):
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
                session.execute(insert(EFFECT).values(message_id=self.message_id))
                if self.fails:
                    raise ListenerFails
                result = self._world.listener._finish_session(session, step.arguments[1])
                session.commit()
                if self.loses_commit:
                    raise ListenerFails("the server closed the connection unexpectedly")
                return result
        return self._world.listener._perform(step)


def make_world(keys: Keys | None) -> World:
    tables = Tables("m_")
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    tables.metadata.create_all(engine)
    EFFECT.create(engine)
    return World(tables, engine, keys)
