"""Idempotent consumption: a listener whose database effect happens once, however often a message is delivered.

    @idempotent(engine, "billing")
    async def on_order(message: MessageExt, session: AsyncSession) -> None:
        session.add(Invoice(...))

    consumer.listen(on_order)

Steps of one delivery:

    1. Take the key in Redis, if configured. Done: acknowledge. Held: raise ReconsumeLater.
    2. Insert the receipt and claim it. If the claim fails, continue with 3.
    3. (No claim.) Done: confirm and acknowledge. Void: drop. Held: raise ReconsumeLater, never acknowledge.
    4. In one transaction: the listener's effect; the `done` row; deletion of the receipt, fenced by the claim's token;
       the stub's confirmation. The claim is renewed while the listener runs.
    5. After an error: if the `done` row exists, the commit was applied although it reported an error, or another worker
       took over: acknowledge.
       Otherwise release the claim and raise, so that the broker delivers again.
    6. Mark the Redis key as done, or release it.

If the stubs are in another database than the business (`ledger`), step 4 commits the effect and `done`, and a second
transaction the confirmation. If that is lost, the stub becomes due and is sent again, and step 3 confirms it.

Effects outside the session's database happen at least once; pass them `message.msg_id` as an idempotency key.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from rucola.client import ReconsumeLater
from rucola.client.consumer.listener import check_status
from rucola.errors import MQError
from rucola.message import MessageExt, properties
from rucola.message.topics import check_group
from rucola.reliable import migration, receipts
from rucola.reliable.database import BlockingDatabase, Database, complete
from rucola.reliable.dbapi import DriverConnection
from rucola.reliable.errors import ReliableError
from rucola.reliable.receipts import AlreadyDone, ClaimState, GroupDelivery, Voided
from rucola.reliable.redis_claims import KeyState, RedisClaims
from rucola.reliable.schema import MAX_ID_LENGTH, Tables

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_MS = 30_000
WARNING_INTERVAL_S = 60.0

_EXPECTED_ERRORS: Final = (MQError, DBAPIError, PoolTimeoutError)
"""Errors of a database, for example one that is unreachable. Others are bugs."""

Handler: TypeAlias = Callable[[MessageExt, Any], Any]
"""Business function of a message and a Session, or an AsyncSession for a coroutine function. It must not commit."""

BusinessTransaction: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Opens a transaction, yields its DB-API connection or Django's, and commits, or rolls back after an error."""


class UnknownMessage(Enum):
    """Handling of a message without a stub: purged, or sent without an outbox."""

    PROCESS = "process"
    """Process it once and log a warning."""
    REJECT = "reject"
    """Raise ReliableError, so that the message ends in the dead letter queue."""


@dataclass
class DeliveryCounts:
    done: int = 0
    duplicates: int = 0
    """Acknowledged without an effect: already done, or void."""
    held: int = 0
    failed: int = 0


def idempotent(
    database: Engine | AsyncEngine,
    group: str,
    *,
    ledger: Engine | AsyncEngine | None = None,
    tables: Tables | None = None,
    redis: RedisClaims | None = None,
    lease_ms: int = LEASE_MS,
    unknown: UnknownMessage = UnknownMessage.PROCESS,
    transaction: BusinessTransaction | None = None,
) -> Callable[[Handler], IdempotentFunction]:
    """Return a decorator that turns a function of message and session into a listener.

    `database` is the business's: an AsyncEngine for a coroutine function, else an Engine. `ledger` is the database with
    the stubs, if different. `lease_ms` is how long a crashed worker blocks its message.

    `transaction` replaces the session for plain functions with Django's ORM or plain SQL: the handler gets the
    connection that it yields, which must be one on `database`.
    """

    def decorate(handler: Handler) -> IdempotentFunction:
        is_async = inspect.iscoroutinefunction(handler)
        kind: type[_Listener] = _AsyncListener if is_async else _ThreadListener
        options = _Options(group, tables or Tables(), redis, lease_ms, unknown, transaction)
        # Return a function, not the object: consumers check whether a listener is a coroutine function.
        return kind(handler, database, ledger, options).function()

    return decorate


class IdempotentFunction(Protocol):
    """A listener for `PushConsumer.listen`; consumers of another group and broadcasting ones refuse it."""

    counts: DeliveryCounts
    clustering_group: str

    def __call__(self, message: MessageExt, /) -> Any: ...


class _Options(NamedTuple):
    group: str
    tables: Tables
    redis: RedisClaims | None
    lease_ms: int
    unknown: UnknownMessage
    transaction: BusinessTransaction | None


class _EffectSession(Session):
    """Session that its listener cannot commit, since without the `done` row the effect could be repeated."""

    def commit(self) -> None:
        raise ReliableError(
            "a listener with @idempotent must not commit its session: its changes are committed when it returns, "
            "together with the record that the message is done"
        )


class _Listener:
    """The steps of a delivery. `function` runs them on an event loop, or without suspending in the calling thread."""

    is_async: bool

    def __init__(
        self,
        handler: Handler,
        database: Engine | AsyncEngine,
        ledger: Engine | AsyncEngine | None,
        options: _Options,
    ) -> None:
        check_group(options.group)
        self.group, self._tables, self._redis, self._lease_ms, self._unknown, self._transaction = options
        if self._transaction is not None and self.is_async:
            raise ReliableError("`transaction` needs a plain function: a coroutine function gets an AsyncSession")
        self.counts = DeliveryCounts()
        self._handler = handler
        self._business = _database(database, handler, self.is_async)
        self._ledger = self._business if ledger is None else _database(ledger, handler, self.is_async)
        self._is_one_database = ledger is None
        self._is_checked = False
        self._unknown_count = 0
        self._next_warning_s = 0.0
        # Deliveries whose claims are renewed, by token. `_lock` guards adding and the end of the renewal.
        self._in_flight: dict[str, GroupDelivery] = {}
        self._is_renewing = False
        self._lock = threading.Lock()
        if self._redis is not None:
            self._redis.bind(self.is_async)

    def function(self) -> IdempotentFunction:
        function: Any = functools.wraps(self._handler)(self._make_function())
        function.counts = self.counts
        function.clustering_group = self.group
        listener: IdempotentFunction = function
        return listener

    def _make_function(self) -> Callable[[MessageExt], Any]:
        raise NotImplementedError

    async def _transact(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        """Step 4: return whether the message has a stub."""
        raise NotImplementedError

    def _start_renewal(self) -> None:
        """Run `_keep_renewing` during the deliveries."""
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def consume(self, message: MessageExt) -> None:
        delivery = delivery_of(message, self.group)
        if not self._is_checked:
            await self._check_tables()
        if self._redis is None:
            await self._claim_and_work(message, delivery)
            return
        # Step 1. None: Redis did not respond, so the database alone decides.
        state = await self._redis.take(delivery, self._lease_ms)
        if state is KeyState.DONE:
            self.counts.duplicates += 1
            return
        if state is KeyState.HELD:
            self.counts.held += 1
            raise ReconsumeLater
        is_done = False
        try:
            is_done = await self._claim_and_work(message, delivery)
        finally:
            if state is KeyState.TAKEN:
                await (self._redis.finish(delivery) if is_done else self._redis.release(delivery))

    async def _claim_and_work(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        """Return whether the message is done, False if it is void."""
        # Step 2. With a separate ledger, `done` is in the business database and must be queried there.
        is_ours = await self._ledger.run_one(
            receipts.claim, self._tables, delivery, self._lease_ms, self._is_one_database
        )
        if is_ours and (self._is_one_database or not await self._is_done(delivery)):
            return await self._work(message, delivery)
        # Step 3.
        state = await self._ledger.run_one(receipts.state, self._tables, delivery, self._is_one_database)
        if state is ClaimState.DONE or (not self._is_one_database and await self._is_done(delivery)):
            return await self._settle(delivery)
        if state is ClaimState.VOID:
            return await self._drop(delivery)
        self.counts.held += 1
        raise ReconsumeLater

    async def _work(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        """Run the listener under a claim; return whether the message is done, False if it is void."""
        self._begin_renewing(delivery)
        try:
            has_stub = await self._transact(message, delivery)
        except AlreadyDone:
            return await self._settle(delivery)
        except Voided:
            return await self._drop(delivery)
        except BaseException:
            # Step 5. The connection may have failed after the server applied the commit. If the query fails, too, the
            # broker delivers again.
            if await self._try(self._business, receipts.is_done, self._tables, delivery):
                logger.warning("the transaction of message %s failed, but the message is done", delivery.message_id)
                return await self._settle(delivery)
            self.counts.failed += 1
            await self._try(self._ledger, receipts.release, self._tables, delivery)
            raise
        finally:
            del self._in_flight[delivery.token]
        self.counts.done += 1
        if not self._is_one_database:
            has_stub = await self._ledger.run(self._confirm, delivery)
        if not has_stub:
            self._warn_about_missing_stub(delivery)
        return True

    async def _settle(self, delivery: GroupDelivery) -> bool:
        """Acknowledge a message that is done; confirm its stub and delete its receipt, in case that was lost."""
        self.counts.duplicates += 1
        await self._ledger.run(self._confirm, delivery)
        return True

    async def _drop(self, delivery: GroupDelivery) -> bool:
        logger.info("message %s is void: dropped", delivery.message_id)
        self.counts.duplicates += 1
        await self._ledger.run_one(receipts.forget, self._tables, delivery)
        return False

    async def _is_done(self, delivery: GroupDelivery) -> bool:
        return await self._business.run_one(receipts.is_done, self._tables, delivery)

    async def _try(self, database: Database, work: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return await database.run_one(work, *arguments)
        except Exception as error:
            _log_failure(error, "a query after a failed delivery failed, too")
            return None

    async def _check_tables(self) -> None:
        await self._ledger.run(migration.check, self._tables)
        if not self._is_one_database:
            await self._business.run(migration.check, self._tables)
            ledger_id = await self._ledger.run_one(receipts.database_id, self._tables)
            await self._business.run_one(receipts.register_ledger, self._tables, self.group, ledger_id)
        self._is_checked = True

    def _finish_session(self, session: Session, delivery: GroupDelivery) -> bool:
        session.flush()  # raise errors of business statements here, before our own
        has_stub = self._finish(session.connection(), delivery)
        Session.commit(session)
        return has_stub

    def _finish(self, connection: Connection | DriverConnection, delivery: GroupDelivery) -> bool:
        if not self._is_one_database:
            receipts.insert_done(connection, self._tables, delivery, self._lease_ms)
            return True
        has_stub = receipts.finish(connection, self._tables, delivery, self._lease_ms)
        if not has_stub and self._unknown is UnknownMessage.REJECT:
            raise ReliableError(f"message {delivery.message_id} has no stub and is rejected")
        return has_stub

    def _confirm(self, connection: Connection, delivery: GroupDelivery) -> bool:
        """Confirm the stub in the ledger; return whether there is one, even if already confirmed."""
        receipts.forget(connection, self._tables, delivery)
        is_confirmed = receipts.confirm(connection, self._tables, delivery.message_id, delivery.group)
        return is_confirmed or receipts.has_stub(connection, self._tables, delivery.message_id)

    def _warn_about_missing_stub(self, delivery: GroupDelivery) -> None:
        self._unknown_count += 1
        if time.monotonic() >= self._next_warning_s:
            self._next_warning_s = time.monotonic() + WARNING_INTERVAL_S
            logger.warning(
                "group %s: %d messages had no stub, the last is %s; they were purged or sent "
                "without an outbox, and were processed once", self.group, self._unknown_count, delivery.message_id,
            )  # fmt: skip
            self._unknown_count = 0

    def _begin_renewing(self, delivery: GroupDelivery) -> None:
        with self._lock:
            self._in_flight[delivery.token] = delivery
            if not self._is_renewing:
                self._is_renewing = True
                self._start_renewal()

    async def _keep_renewing(self) -> None:
        """Renew all claims, one after the other, until there are none."""
        try:
            while True:
                await self._sleep(self._lease_ms / 3000)  # a third of the lease, in seconds
                with self._lock:
                    if not self._in_flight:
                        self._is_renewing = False
                        return
                    in_flight = list(self._in_flight.values())
                for delivery in in_flight:
                    await self._renew(delivery)
        except BaseException:
            self._is_renewing = False  # the event loop ends: a new one may start
            raise

    async def _renew(self, delivery: GroupDelivery) -> None:
        try:
            if self._redis is not None:
                await self._redis.renew(delivery, self._lease_ms)
            await self._ledger.run_one(receipts.renew, self._tables, delivery, self._lease_ms)
        except Exception as error:
            _log_failure(error, "the claim on message %s was not renewed", delivery.message_id)


class _AsyncListener(_Listener):
    is_async = True

    def _make_function(self) -> Callable[[MessageExt], Any]:
        async def listen(message: MessageExt) -> None:
            await self.consume(message)

        return listen

    async def _transact(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        async with AsyncSession(
            self._business.engine,  # type: ignore[arg-type]
            expire_on_commit=False,
            sync_session_class=_EffectSession,
        ) as session:
            await session.begin()
            check_status(await self._handler(message, session))
            return await session.run_sync(self._finish_session, delivery)

    def _start_renewal(self) -> None:
        self._renewal = asyncio.create_task(self._keep_renewing(), name=f"leases of {self.group}")

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _ThreadListener(_Listener):
    is_async = False

    def _make_function(self) -> Callable[[MessageExt], Any]:
        return lambda message: complete(self.consume(message))

    async def _transact(self, message: MessageExt, delivery: GroupDelivery) -> bool:
        if self._transaction is not None:
            return await self._transact_with(self._transaction, message, delivery)
        with _EffectSession(self._business.engine, expire_on_commit=False) as session:  # type: ignore[arg-type]
            session.begin()
            check_status(self._handler(message, session))
            return self._finish_session(session, delivery)

    async def _transact_with(
        self, transaction: BusinessTransaction, message: MessageExt, delivery: GroupDelivery
    ) -> bool:
        with transaction() as connection:
            check_status(self._handler(message, connection))
            has_stub = self._finish(DriverConnection(connection), delivery)
        # This transaction is not ours, and some end without a commit or an error: Django's, if it was marked for
        # rollback; PyMySQL's `with connection`. The message must not be acknowledged then.
        if not await self._is_done(delivery):
            raise ReliableError(f"the transaction for message {delivery.message_id} ended without a commit")
        return has_stub

    def _start_renewal(self) -> None:
        threading.Thread(
            target=lambda: complete(self._keep_renewing()), name=f"leases of {self.group}", daemon=True
        ).start()

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - in a separate thread


def delivery_of(message: MessageExt, group: str) -> GroupDelivery:
    """Return a delivery with a new token. A retry has no position, since it comes from another queue."""
    message_id = message.unique_key or message.properties.get(properties.ORIGIN_MESSAGE_ID) or message.offset_msg_id
    if len(message_id) > MAX_ID_LENGTH:
        message_id = hashlib.sha256(message_id.encode()).hexdigest()
    token = secrets.token_hex(16)
    if message.reconsume_times:
        return GroupDelivery(message_id, group, token)
    return GroupDelivery(message_id, group, token, message.store_host, message.queue_id, message.queue_offset)


def _database(engine: Engine | AsyncEngine, handler: Handler, is_async: bool) -> Database:
    if isinstance(engine, AsyncEngine) != is_async:
        name = getattr(handler, "__qualname__", repr(handler))
        kinds = ("a coroutine function", "an AsyncEngine") if is_async else ("a plain function", "an Engine")
        raise ReliableError(f"{name} is {kinds[0]}: pass {kinds[1]}")
    return Database(engine) if is_async else BlockingDatabase(engine)


def _log_failure(error: Exception, what: str, *arguments: object) -> None:
    """Log a failure of the database in one line, and a bug with its traceback."""
    if isinstance(error, _EXPECTED_ERRORS):
        logger.info(f"{what}: %s", *arguments, error.orig if isinstance(error, DBAPIError) else error)
    else:
        logger.error(what, *arguments, exc_info=error)
