"""Parts of the models of reliability: a database with an effect, Redis, and deliveries that advance step by step."""

from __future__ import annotations

import types
from collections.abc import Generator
from contextlib import suppress
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
from rucola.reliable.database import BlockingDatabase
from rucola.reliable.errors import LeaseLost
from rucola.reliable.idempotent import UnknownMessage, _Options, _ThreadListener
from rucola.reliable.receipts import GroupDelivery
from rucola.reliable.redis_claims import KeyState
from support.outbox import delivery

GROUP = "billing"
LEASE_MS = 3_600_000
"""Longer than any run, so that leases end only as a step of the model, however slow the machine is."""
EFFECT = Table(
    "effect", MetaData(), Column("id", Integer, primary_key=True), Column("message_id", String(40), nullable=False)
)


class ListenerFails(Exception):
    """The business function of a delivery fails."""


@types.coroutine
def step() -> Generator[None]:
    """Suspend a delivery until it is advanced."""
    yield


class Keys:
    """What Redis does, as far as claims need it."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def bind(self, is_async: bool) -> None: ...

    async def take(self, delivery: GroupDelivery, lease_ms: int) -> KeyState:
        await step()
        holder = self.held.setdefault(delivery.message_id, delivery.token)
        return KeyState.TAKEN if holder == delivery.token else KeyState.DONE if holder == "done" else KeyState.HELD

    async def finish(self, delivery: GroupDelivery) -> None:
        await step()
        if self.held.get(delivery.message_id) == delivery.token:
            self.held[delivery.message_id] = "done"

    async def release(self, delivery: GroupDelivery) -> None:
        await step()
        if self.held.get(delivery.message_id) == delivery.token:
            del self.held[delivery.message_id]


class SteppedDatabase(BlockingDatabase):
    """A database each of whose transactions is a step."""

    async def _run(self, *arguments: Any, **options: Any) -> Any:
        await step()
        return await super()._run(*arguments, **options)


class SteppedListener(_ThreadListener):
    """The listener of one delivery. If it `fails`, its function raises; if it `loses_commit`, its commit seems to."""

    fails = False
    loses_commit = False

    def __init__(self, world: World) -> None:
        options = _Options(GROUP, world.tables, world.keys, LEASE_MS, UnknownMessage.PROCESS, transaction=None)
        super().__init__(self._apply, world.engine, None, options)
        self._business = self._ledger = SteppedDatabase(world.engine)
        self._is_checked = True

    def _apply(self, message: MessageExt, session: Session) -> None:
        session.execute(insert(EFFECT).values(message_id=message.msg_id))
        if self.fails:
            raise ListenerFails

    async def _transact(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        await step()
        await step()  # the listener has begun; its transaction ends with a step of its own
        has_stub = await super()._transact(message, delivery)
        if self.loses_commit:
            raise ListenerFails("the server closed the connection unexpectedly")
        return has_stub

    def _start_renewal(self) -> None: ...


class World:
    """The tables of one run and its effects."""

    def __init__(self, tables: Tables, engine: Any, keys: Keys | None) -> None:
        self.tables = tables
        self.engine = engine
        self.keys = keys
        self.outbox = Outbox([GROUP], tables=tables)  # once: an outbox maps a class

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
    """One delivery, advanced step by step. `is_acknowledged` is None until it has ended."""

    def __init__(self, world: World, message_id: str) -> None:
        self.message_id = message_id
        self.listener = SteppedListener(world)
        self._steps = self.listener.consume(delivery(message_id))
        self.is_started = False
        self.is_acknowledged: bool | None = None

    def abandon(self) -> None:
        """Crash: whatever the listener would still do, in `finally` and `except`, is not done."""
        with suppress(KeyboardInterrupt, StopIteration):
            while True:
                self._steps.throw(KeyboardInterrupt)

    def advance(self) -> None:
        self.is_started = True
        try:
            self._steps.send(None)
        except StopIteration:
            self.is_acknowledged = True
        except (ReconsumeLater, LeaseLost, ListenerFails):
            self.is_acknowledged = False


def make_world(keys: Keys | None) -> World:
    tables = Tables("m_")
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    tables.metadata.create_all(engine)
    EFFECT.create(engine)
    return World(tables, engine, keys)
