"""Transactional outbox: messages stored in the caller's transaction, sent by a relay after the commit.

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, Message("Orders", b"..."), shard_key=str(order.id))

If the transaction commits, the message will be sent. If the transaction or a savepoint around `add` rolls back, the
message does not exist. `add` is a plain function and accepts every kind of transaction:

    Session, AsyncSession    the stub joins the session's unit of work: stubs of one flush share an INSERT; also the
                             session of a scoped_session or async_scoped_session, such as Flask-SQLAlchemy's db.session
    Connection               executed at once; `await connection.run_sync(outbox.add, message)` for AsyncConnection
    a DB-API connection      of sqlite3, psycopg, PyMySQL or mysqlclient, or `engine.raw_connection()`: executed at once
    django.db.connection     the same, inside transaction.atomic(); the relay of this process is woken on commit

A delayed message (DELAY, TIMER_DELIVER_MS and the like) is held in its table until it is due, and then sent without a
delay: its time is exact, its position is recorded, and it can be voided until then.

The message id is the message's UNIQ_KEY and one of its KEYS, so a broker finds the message by either, and all copies
share one id. Adding two messages with the same unique key fails the second transaction.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from zlib import crc32

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Table, case, event, insert
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, registry, scoped_session

from rucola.client.producer.send_request import MAX_MESSAGE_SIZE, check_labels
from rucola.errors import InvalidMessage
from rucola.message import Message, properties
from rucola.message.delay import due_time_ms, parse_delay_levels
from rucola.message.ids import unique_id
from rucola.message.topics import NOT_ALLOWED_SEND_TOPICS, RETRY_PREFIX, check_group, check_topic
from rucola.reliable.dbapi import DBAPIConnection, DriverConnection
from rucola.reliable.errors import ReliableError
from rucola.reliable.schema import LANES, MAX_ID_LENGTH, MAX_KEY_LENGTH, NEW, Tables, now_ms

Transaction: TypeAlias = (
    Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any] | Connection | DBAPIConnection
)

_TIMERS: Final = (properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_MS, properties.TIMER_DELAY_SEC)
_MOST_DELAY_MS: Final = 1 << 52
_REFUSED_PROPERTIES: Final = {
    properties.TRAN_MSG: "the outbox takes the place of a transactional message",
    properties.RETRY_TOPIC: "it belongs to the broker",
}


class CurrentTrace(Protocol):
    """Gives the trace of an `add` to its message, see `rucola.client.otel`."""

    def carrier(self) -> Mapping[str, str]:
        """Return properties; a message that has one of them already gets none."""


class Outbox:
    """Adds messages to transactions. InvalidMessage for an invalid group name.

    Each message awaits the confirmation of `groups`, unless `add` names others; without any, SEND_OK settles it. With
    `trace`, a message carries the context in which it was added.
    """

    def __init__(
        self,
        groups: Iterable[str] = (),
        *,
        tables: Tables | None = None,
        max_message_size: int = MAX_MESSAGE_SIZE,
        trace: CurrentTrace | None = None,
    ) -> None:
        self.tables = tables or Tables()
        self.groups = awaited(_awaiting(groups))
        self.max_message_size = max_message_size
        self.trace = trace
        self._stub = _mapped(self.tables.stub)
        self._after_commit: list[Callable[[], None]] = []
        # Sessions that already have an after_commit listener; weak, so that the outbox keeps none of them alive.
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def add(
        self,
        transaction: Transaction,
        message: Message,
        *,
        shard_key: str | None = None,
        groups: Iterable[str] | None = None,
    ) -> str:
        """Add a message to a transaction and return its id, the unique key, generated if missing.

        Messages with the same `shard_key` are sent in the order of their adds, to one queue while any is unconfirmed;
        concurrent transactions have no order. Before writing anything, raises InvalidMessage for a message that no
        broker accepts, ReliableError for an unsupported transaction or a DB-API connection in autocommit mode.
        """
        row = self._row(message, shard_key, self.groups if groups is None else groups)
        target = transaction() if isinstance(transaction, (scoped_session, async_scoped_session)) else transaction
        match target:
            case Session():
                self._add_to_session(target, row)
            case AsyncSession():
                self._add_to_session(target.sync_session, row)
            case Connection():
                target.execute(insert(self.tables.stub).values(row))
            case AsyncConnection():
                raise ReliableError("use `await connection.run_sync(outbox.add, message)` with an AsyncConnection")
            case _:
                self._add_by_driver(target, row)
        message_id: str = row["message_id"]
        return message_id

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back in the committing thread of Sessions that added messages. Returns a function that removes it."""
        self._after_commit.append(callback)
        return partial(self._after_commit.remove, callback)

    def committed(self) -> None:
        """Wake this process's relay after the commit of a Connection or a driver's connection."""
        for callback in tuple(self._after_commit):  # another thread may remove one
            callback()

    def _add_to_session(self, session: Session, row: dict[str, Any]) -> None:
        try:
            session.get_bind(self._stub)  # type: ignore[arg-type]  # a mapped class
        except UnboundExecutionError:
            raise ReliableError(
                "the session is bound to no database for the outbox's tables: add them to its binds, as in "
                "Session(binds={Order: engine, outbox.tables.stub: engine})"
            ) from None
        session.add(self._stub(**row))
        if self._after_commit and session not in self._sessions:
            self._sessions.add(session)
            event.listen(session, "after_commit", lambda session: self.committed())

    def _add_by_driver(self, transaction: DBAPIConnection, row: dict[str, Any]) -> None:
        connection = DriverConnection(transaction)
        connection.execute(insert(self.tables.stub).values(row).inline())
        if self._after_commit:
            connection.on_commit(self.committed)

    def _row(self, message: Message, shard_key: str | None, groups: Iterable[str]) -> dict[str, Any]:
        message_id = _check_message(message, self.max_message_size)
        if shard_key is not None and not isinstance(shard_key, str):
            raise InvalidMessage(f"shard_key {shard_key!r:.40} is no text: write shard_key=str(...)")
        if shard_key is not None and not 0 < len(shard_key) <= MAX_KEY_LENGTH:
            raise InvalidMessage(f"shard_key {shard_key[:40]!r}: it must have 1 to {MAX_KEY_LENGTH} characters")
        carrier = self.trace.carrier() if self.trace is not None else {}
        if carrier.keys() & message.properties.keys():
            carrier = {}
        own_columns = {properties.TAGS, properties.KEYS, properties.UNIQ_KEY}
        others = {name: value for name, value in message.properties.items() if name not in own_columns} | dict(carrier)
        return {
            "message_id": message_id,
            "topic": message.topic,
            "tags": message.tags,
            "keys": message.keys,
            "properties": json.dumps(others),
            "flag": message.flag,
            "body": bytes(message.body),
            "shard_key": shard_key,
            "lane": lane_of(shard_key or message_id),
            "delay_ms": _delay_ms(message),
            "status": NEW,
            "awaiting": _awaiting(groups),
        }


def lane_of(key: str) -> int:
    """Return the lane of a sharding key, or of the message id without one."""
    return crc32(key.encode()) % LANES


def message_of(row: Row[Any]) -> Message:
    """Return the message of a stub without its delay, the same for each send."""
    others = msgspec.json.decode(row.properties, type=dict[str, str])
    for name in (properties.DELAY, *_TIMERS):
        others.pop(name, None)
    message = Message(row.topic, row.body, row.tags, row._mapping["keys"], others, row.flag)
    message.unique_key = row.message_id
    return message


def awaited(awaiting: str) -> tuple[str, ...]:
    return tuple(filter(None, awaiting.split(",")))


def _awaiting(groups: Iterable[str]) -> str:
    if isinstance(groups, str):
        raise ReliableError(f"groups is the text {groups!r}: give a list of groups", subject="groups")
    names = set(groups)
    for group in names:
        if not isinstance(group, str):
            raise ReliableError(f"groups has {group!r:.40}, which is no text: give names of groups", subject="groups")
        check_group(group)
    return "".join(f",{group}" for group in sorted(names)) + ","


def _check_message(message: Message, max_message_size: int) -> str:
    """Validate a message, add its id to its keys and return the id. InvalidMessage if no relay could send it."""
    check_topic(message.topic)
    if message.topic in NOT_ALLOWED_SEND_TOPICS or message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"topic {message.topic} belongs to the broker: an application cannot send to it")
    if not isinstance(message.body, (bytes, bytearray, memoryview)) or not 0 < len(message.body) <= max_message_size:
        raise InvalidMessage(f"the body of a message for {message.topic} must be 1 to {max_message_size} bytes")
    if message.body_flags:
        raise InvalidMessage(f"a message for {message.topic} is compressed already (body_flags): add its plain body")
    for name, why in _REFUSED_PROPERTIES.items():
        if name in message.properties:
            raise InvalidMessage(f"a message for {message.topic} has the property {name}: {why}")
    message_id = message.unique_key
    if message_id is None:
        message_id = message.unique_key = unique_id()
    if len(message_id) > MAX_ID_LENGTH or not message_id.isprintable() or " " in message_id:
        raise InvalidMessage(f"unique key {message_id!r}: use up to {MAX_ID_LENGTH} printable characters, no blanks")
    keys = message.keys.split(properties.KEY_SEPARATOR) if message.keys else []
    if message_id not in keys:
        message.keys = [*keys, message_id]
    properties.join(message.properties)
    check_labels(message)
    return message_id


def _delay_ms(message: Message) -> int | ColumnElement[int]:
    """Return how long the outbox holds the message, by the default messageDelayLevel and the database's clock."""
    texts = message.properties
    name = next((name for name in _TIMERS if name in texts), properties.DELAY)
    try:
        value = int(texts.get(name, "0"))
        if not 0 <= value <= _MOST_DELAY_MS:
            raise ValueError
    except ValueError:
        raise InvalidMessage(
            f"a message for {message.topic} has the property {name}={texts[name]!r}: use a number from 0 to "
            f"{_MOST_DELAY_MS}"
        ) from None
    match name:
        case properties.TIMER_DELIVER_MS:
            return case((now_ms() < value, value - now_ms()), else_=0)
        case properties.TIMER_DELAY_MS:
            return value
        case properties.TIMER_DELAY_SEC:
            return value * 1000
        case _:
            return due_time_ms(parse_delay_levels(), value, 0) if value else 0


def _mapped(table: Table) -> Callable[..., Any]:
    """Return a new mapped class for a set of tables, so that one program can use several prefixes."""
    stub = type("Stub", (), {"__doc__": "A row of the outbox, for a session's unit of work."})

    def init(self: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    stub.__init__ = init  # type: ignore[misc]
    registry().map_imperatively(stub, table)
    return stub
