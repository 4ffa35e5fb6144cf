"""Idempotent consumption: a listener whose database effect happens once, however often a message is delivered.

    @idempotent(engine, "billing")
    async def on_order(message: MessageExt, session: AsyncSession) -> None:
        session.add(Invoice(...))

    consumer.listen(on_order)

Steps of one delivery (`_steps`):

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

`_AsyncListener` performs the steps' operations on an event loop, `_SyncListener` in the calling thread.
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
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from rucola.client import ReconsumeLater
from rucola.errors import MQError
from rucola.message import MessageExt, properties
from rucola.message.topics import check_group
from rucola.reliable import migration, receipts
from rucola.reliable.database import Database
from rucola.reliable.dbapi import DriverConnection
from rucola.reliable.errors import ReliableError
from rucola.reliable.receipts import AlreadyDone, ClaimState, GroupDelivery, Voided
from rucola.reliable.redis_claims import KeyState, RedisClaims
from rucola.reliable.schema import MAX_ID_LENGTH, Tables

logger = logging.getLogger(__name__)

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


class DeliveryCounts:
    def __init__(self) -> None:
        self.done = 0
        self.duplicates = 0
        """Acknowledged without an effect: already done, or void."""
        self.held = 0
        self.failed = 0


class Step(NamedTuple):
    kind: str
    arguments: tuple[Any, ...]


Steps: TypeAlias = Generator[Step, Any, None]


def idempotent(
    database: Engine | AsyncEngine | Database,
    group: str,
    *,
    ledger: Engine | AsyncEngine | Database | None = None,
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
        kind: type[_Listener] = _AsyncListener if is_async else _SyncListener
        options = _Options(group, tables or Tables(), redis, lease_ms, unknown, transaction)
        listener = kind(handler, database, ledger, options)
        # Return a function, not the object: consumers check whether a listener is a coroutine function.
        return listener.function()

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


def _commit_effect(session: Session) -> None:
    Session.commit(session)


class _Listener:
    is_async: bool

    def __init__(
        self,
        handler: Handler,
        database: Engine | AsyncEngine | Database,
        ledger: Engine | AsyncEngine | Database | None,
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
        if self._redis is not None:
            self._redis.bind(self.is_async)

    def function(self) -> IdempotentFunction:
        raise NotImplementedError

    def _labelled(self, function: Any) -> IdempotentFunction:
        function.counts = self.counts
        function.clustering_group = self.group
        listener: IdempotentFunction = function
        return listener

    def _steps(self, message: MessageExt) -> Steps:
        delivery = delivery_of(message, self.group)
        key = self._redis.key(self.group, delivery.message_id) if self._redis is not None else ""
        if not self._is_checked:
            yield from self._check_tables()
        # Step 1. None: Redis did not respond, so the database alone decides.
        state = None
        if self._redis is not None:
            state = yield Step("take", (key, delivery.token, self._lease_ms))
        if state is KeyState.DONE:
            self.counts.duplicates += 1
            return
        if state is KeyState.HELD:
            self.counts.held += 1
            raise ReconsumeLater
        is_done = False
        try:
            # Step 2. With a separate ledger, `done` is in the business database and must be queried there.
            claim = (receipts.claim, self._tables, delivery, self._lease_ms, self._is_one_database)
            is_ours = yield Step("ledger", claim)
            if is_ours and (self._is_one_database or not (yield from self._is_done(delivery))):
                is_done = yield from self._work(message, delivery, key)
            else:
                is_done = yield from self._resolve_unclaimed(delivery)
        finally:
            if state is KeyState.TAKEN:
                yield Step("finish" if is_done else "release", (key, delivery.token))

    def _work(self, message: MessageExt, delivery: GroupDelivery, key: str) -> Generator[Step, Any, bool]:
        """Run the listener under a claim; return whether the message is done, False if it is void."""
        try:
            has_stub = yield Step("business", (message, delivery, key))
        except AlreadyDone:
            return (yield from self._settle(delivery))
        except Voided:
            return (yield from self._drop(delivery))
        except BaseException:
            # Step 5. The connection may have failed after the server applied the commit.
            if (yield from self._was_committed(delivery)):
                logger.warning("the transaction of message %s failed, but the message is done", delivery.message_id)
                return (yield from self._settle(delivery))
            self.counts.failed += 1
            yield Step("try_ledger", (receipts.release, self._tables, delivery))
            raise
        self.counts.done += 1
        if not self._is_one_database:
            has_stub = yield Step("confirm", (delivery,))
        if not has_stub:
            self._warn_about_missing_stub(delivery)
        return True

    def _resolve_unclaimed(self, delivery: GroupDelivery) -> Generator[Step, Any, bool]:
        """Handle a delivery without a claim; return whether the message is done, False if it is void."""
        state = yield Step("ledger", (receipts.state, self._tables, delivery, self._is_one_database))
        if not self._is_one_database and (yield from self._is_done(delivery)):
            state = ClaimState.DONE
        match state:
            case ClaimState.DONE:
                return (yield from self._settle(delivery))
            case ClaimState.VOID:
                return (yield from self._drop(delivery))
            case _:
                self.counts.held += 1
                raise ReconsumeLater

    def _settle(self, delivery: GroupDelivery) -> Generator[Step, Any, bool]:
        """Acknowledge a message that is done; confirm its stub and delete its receipt, in case that was lost."""
        self.counts.duplicates += 1
        yield Step("confirm", (delivery,))
        return True

    def _drop(self, delivery: GroupDelivery) -> Generator[Step, Any, bool]:
        logger.info("message %s is void: dropped", delivery.message_id)
        self.counts.duplicates += 1
        yield Step("ledger", (receipts.forget, self._tables, delivery))
        return False

    def _is_done(self, delivery: GroupDelivery) -> Generator[Step, Any, bool]:
        return bool((yield Step("business_one", (receipts.is_done, self._tables, delivery))))

    def _was_committed(self, delivery: GroupDelivery) -> Generator[Step, Any, bool]:
        """Return whether the `done` row exists; False if the query fails, since the broker then delivers again."""
        return bool((yield Step("try_business", (receipts.is_done, self._tables, delivery))))

    def _check_tables(self) -> Steps:
        yield Step("ledger_transaction", (migration.check, self._tables))
        if not self._is_one_database:
            yield Step("business_transaction", (migration.check, self._tables))
            ledger_id = yield Step("ledger", (receipts.database_id, self._tables))
            yield Step("business_one", (receipts.register_ledger, self._tables, self.group, ledger_id))
        self._is_checked = True

    def _finish_session(self, session: Session, delivery: GroupDelivery) -> bool:
        session.flush()  # raise errors of business statements here, before those of our own
        return self._finish(session.connection(), delivery)

    def _finish(self, connection: Connection | DriverConnection, delivery: GroupDelivery) -> bool:
        if not self._is_one_database:
            receipts.insert_done(connection, self._tables, delivery, self._lease_ms)
            return True
        has_stub = receipts.finish(connection, self._tables, delivery, self._lease_ms)
        if not has_stub and self._unknown is UnknownMessage.REJECT:
            raise ReliableError(f"message {delivery.message_id} has no stub and is rejected")
        return has_stub

    def _confirm(self, connection: Any, delivery: GroupDelivery) -> bool:
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

    def _databases(self, kind: str) -> Database:
        return self._business if "business" in kind else self._ledger


class _AsyncListener(_Listener):
    is_async = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._renewals: set[asyncio.Task[None]] = set()

    def function(self) -> IdempotentFunction:
        @functools.wraps(self._handler)
        async def listen(message: MessageExt) -> None:
            await self._consume(message)

        return self._labelled(listen)

    async def _consume(self, message: MessageExt) -> None:
        steps = self._steps(message)
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            return

    async def _perform(self, step: Step) -> Any:
        match step.kind:
            case "take":
                return await self._claims.take_async(*step.arguments)
            case "finish":
                return await asyncio.shield(self._claims.finish_async(*step.arguments))
            case "release":
                return await asyncio.shield(self._claims.release_async(*step.arguments))
            case "business":
                return await self._transact(*step.arguments)
            case "confirm":
                return await self._ledger.run(self._confirm, *step.arguments)
            case "ledger_transaction" | "business_transaction":
                return await self._databases(step.kind).run(*step.arguments)
            case "try_ledger" | "try_business":
                return await _try_async(self._databases(step.kind).run_one(*step.arguments))
            case _:
                return await self._databases(step.kind).run_one(*step.arguments)

    @property
    def _claims(self) -> RedisClaims:
        assert self._redis is not None
        return self._redis

    async def _transact(self, message: MessageExt, delivery: GroupDelivery, key: str) -> bool:
        # Step 4.
        ended = asyncio.Event()
        renewing = asyncio.create_task(
            self._keep_renewing(delivery, key, ended), name=f"lease of {delivery.message_id}"
        )
        self._renewals.add(renewing)
        renewing.add_done_callback(self._renewals.discard)
        try:
            async with AsyncSession(
                self._business.engine,  # type: ignore[arg-type]
                expire_on_commit=False,
                sync_session_class=_EffectSession,
            ) as session:
                await session.begin()
                await self._handler(message, session)
                has_stub = await session.run_sync(self._finish_session, delivery)
                await session.run_sync(_commit_effect)
                return has_stub
        finally:
            # Not by a cancellation: a driver may replace it by its own error, and the task would renew for ever.
            ended.set()

    async def _keep_renewing(self, delivery: GroupDelivery, key: str, ended: asyncio.Event) -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_ms / 3000):  # a third of the lease, in seconds
                    await ended.wait()
                    return
            try:
                if self._redis is not None:
                    await self._redis.renew_async(key, delivery.token, self._lease_ms)
                await self._ledger.run_one(
                    receipts.renew, self._tables, delivery.token, delivery.message_id, self.group, self._lease_ms
                )
            except Exception as error:
                _log_failure(error, "the claim on message %s was not renewed", delivery.message_id)


class _SyncListener(_Listener):
    is_async = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Deliveries whose claims the renewer thread extends, by token. `_lock` guards adding and the thread's end.
        self._in_flight: dict[str, tuple[GroupDelivery, str]] = {}
        self._renewer: threading.Thread | None = None
        self._lock = threading.Lock()

    def function(self) -> IdempotentFunction:
        @functools.wraps(self._handler)
        def listen(message: MessageExt) -> None:
            self._consume(message)

        return self._labelled(listen)

    def _consume(self, message: MessageExt) -> None:
        steps = self._steps(message)
        try:
            step = next(steps)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            return

    def _perform(self, step: Step) -> Any:
        match step.kind:
            case "take":
                assert self._redis is not None
                return self._redis.take(*step.arguments)
            case "finish":
                assert self._redis is not None
                return self._redis.finish(*step.arguments)
            case "release":
                assert self._redis is not None
                return self._redis.release(*step.arguments)
            case "business":
                return self._transact(*step.arguments)
            case "confirm":
                return self._ledger.run_sync(self._confirm, *step.arguments)
            case "ledger_transaction" | "business_transaction":
                return self._databases(step.kind).run_sync(*step.arguments)
            case "try_ledger" | "try_business":
                try:
                    return self._databases(step.kind).run_one_sync(*step.arguments)
                except Exception as error:
                    return _log_failure(error, "a query after a failed delivery failed, too")
            case _:
                return self._databases(step.kind).run_one_sync(*step.arguments)

    def _transact(self, message: MessageExt, delivery: GroupDelivery, key: str) -> bool:
        self._begin_renewing(delivery, key)
        try:
            if self._transaction is not None:
                return self._transact_with(self._transaction, message, delivery)
            with _EffectSession(self._business.engine, expire_on_commit=False) as session:  # type: ignore[arg-type]
                session.begin()
                self._handler(message, session)
                has_stub = self._finish_session(session, delivery)
                _commit_effect(session)
                return has_stub
        finally:
            del self._in_flight[delivery.token]

    def _transact_with(self, transaction: BusinessTransaction, message: MessageExt, delivery: GroupDelivery) -> bool:
        with transaction() as connection:
            self._handler(message, connection)
            has_stub = self._finish(DriverConnection(connection), delivery)
        # This transaction is not ours, and some end without a commit or an error: Django's, if it was marked for
        # rollback; PyMySQL's `with connection`. The message must not be acknowledged then.
        if not self._business.run_one_sync(receipts.is_done, self._tables, delivery):
            raise ReliableError(f"the transaction for message {delivery.message_id} ended without a commit")
        return has_stub

    def _begin_renewing(self, delivery: GroupDelivery, key: str) -> None:
        with self._lock:
            self._in_flight[delivery.token] = delivery, key
            if self._renewer is None:
                self._renewer = threading.Thread(
                    target=self._keep_renewing, name=f"leases of {self.group}", daemon=True
                )
                self._renewer.start()

    def _keep_renewing(self) -> None:
        while True:
            time.sleep(self._lease_ms / 3000)
            with self._lock:
                if not self._in_flight:
                    self._renewer = None
                    return
                in_flight = list(self._in_flight.values())
            for delivery, key in in_flight:
                try:
                    if self._redis is not None:
                        self._redis.renew(key, delivery.token, self._lease_ms)
                    self._ledger.run_one_sync(
                        receipts.renew, self._tables, delivery.token, delivery.message_id, self.group, self._lease_ms
                    )
                except Exception as error:
                    _log_failure(error, "the claim on message %s was not renewed", delivery.message_id)


def delivery_of(message: MessageExt, group: str) -> GroupDelivery:
    """Return a delivery with a new token. A retry has no position, since it comes from another queue."""
    message_id = message.unique_key or message.properties.get(properties.ORIGIN_MESSAGE_ID) or message.offset_msg_id
    if len(message_id) > MAX_ID_LENGTH:
        message_id = hashlib.sha256(message_id.encode()).hexdigest()
    token = secrets.token_hex(16)
    if message.reconsume_times:
        return GroupDelivery(message_id, group, token)
    return GroupDelivery(message_id, group, token, message.store_host, message.queue_id, message.queue_offset)


def _database(database: Engine | AsyncEngine | Database, handler: Handler, is_async: bool) -> Database:
    made = database if isinstance(database, Database) else Database(database)
    if made.is_async != is_async:
        name = getattr(handler, "__qualname__", repr(handler))
        kinds = ("a coroutine function", "an AsyncEngine") if is_async else ("a plain function", "an Engine")
        raise ReliableError(f"{name} is {kinds[0]}: pass {kinds[1]}")
    return made


async def _try_async(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await asyncio.shield(work)
    except Exception as error:
        return _log_failure(error, "a query after a failed delivery failed, too")


def _log_failure(error: Exception, what: str, *arguments: object) -> None:
    """Log a failure of the database in one line, and a bug with its traceback."""
    if isinstance(error, _EXPECTED_ERRORS):
        logger.info(f"{what}: %s", *arguments, error.orig if isinstance(error, DBAPIError) else error)
    else:
        logger.error(what, *arguments, exc_info=error)
