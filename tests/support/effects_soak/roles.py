"""The roles of an effects soak, each the main function of a process of its own.

    sender      commits orders with their messages, and rolls some back
    relay       relays the outbox, and notes each alert
    consumer    one worker of a group

Each runs until SIGTERM and may be killed or paused at any moment. What it notes in its ledger, it notes before the next
step (`support.effects_soak.books`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rucola.client import ConsumeFromWhere, Message, MessageExt, PushConsumer
from rucola.errors import MQError
from rucola.reliable import Alert, Alerts, Outbox, RedisClaims, Relay, idempotent
from support.effects_soak.books import (
    ACKNOWLEDGED,
    ALERT,
    COMMITTED,
    DELIVERED,
    DROPPED,
    FAILED,
    ROLLED_BACK,
    TRIED,
    UNCERTAIN,
    Ledger,
)  # fmt: skip
from support.effects_soak.scene import (
    BILLING,
    GROUPS,
    STOCK,
    TOPIC,
    OrderBody,
    Scene,
    async_engine_of,
    decode_body,
    effects,
    engine_of,
    hash_of,
    orders,
)  # fmt: skip

logger = logging.getLogger(__name__)

KEYS = 5
"""Sharding keys of one life of a sender."""
KEYED_SHARE = 0.5
ROLLED_BACK_SHARE = 0.1
FAILS_ONCE_SHARE = 0.02
POISONED_SHARE = 0.002
"""Share of the orders without sharding key on which the group without order fails until it is healed."""
LARGEST_BODY = 2000
ALERT_INTERVAL_MS = 500
MAX_RECONSUME_TIMES = 8
RETRY_OPEN_S = 1.0


def main(role: str, scene: Scene, name: str) -> None:
    """Run one role in this process until SIGTERM; its log is a file of its name."""
    log = os.open(scene.directory / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    kind, _, group = role.partition("-")
    ledger = Ledger(scene.ledgers / f"{name}.ledger")
    match kind:
        case "sender":
            Sender(scene, name, ledger).run()
        case "relay":
            asyncio.run(relay(scene, ledger))
        case "consumer":
            asyncio.run(consume(scene, group, ledger))


class Sender:
    """Commits one order after another; half of them have sharding keys that no other sender uses."""

    def __init__(self, scene: Scene, name: str, ledger: Ledger) -> None:
        self._scene = scene
        self._name = name
        self._ledger = ledger
        self._random = random.Random(name)
        self._outbox = Outbox(GROUPS)
        self._number = 0
        # After an uncertain commit the keys change: that transaction may overlap with the next one.
        self._generation = 0
        self._is_stopping = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_is_stopping", True))
        engine = engine_of(self._scene.url)
        while not self._is_stopping:
            self._number += 1
            self._order(engine)
            time.sleep(self._random.uniform(0, 2 / self._scene.orders_per_s))

    def _order(self, engine: Any) -> None:
        order_id = f"{self._name}/{self._number}"
        is_keyed = self._random.random() < KEYED_SHARE
        key = f"{self._name}.{self._generation}.{self._random.randrange(KEYS)}" if is_keyed else None
        body = OrderBody(
            order_id,
            fails_once=self._random.random() < FAILS_ONCE_SHARE,
            is_poisoned=not is_keyed and self._random.random() < POISONED_SHARE,
            shard_key=key or "",
            content=self._random.randbytes(self._random.randrange(LARGEST_BODY)),
        ).encode()
        self._ledger.note(TRIED, order_id, hash_of(body))
        try:
            # With both kinds of transaction in turn.
            with_session = self._by_session if self._number % 2 else self._by_driver
            is_committed = with_session(engine, order_id, body, key)
            self._ledger.note(COMMITTED if is_committed else ROLLED_BACK, order_id)
        except (SQLAlchemyError, *_driver_errors(engine)) as error:
            logger.info("order %s: %s", order_id, error)
            self._ledger.note(UNCERTAIN, order_id)
            self._generation += 1
            time.sleep(0.2)

    def _by_session(self, engine: Any, order_id: str, body: bytes, key: str | None) -> bool:
        with Session(engine) as session:
            session.execute(insert(orders).values(id=order_id, hash=hash_of(body), shard_key=key))
            self._outbox.add(session, Message(TOPIC, body), shard_key=key)
            session.flush()
            if self._random.random() < ROLLED_BACK_SHARE:
                session.rollback()
                return False
            session.commit()
            return True

    def _by_driver(self, engine: Any, order_id: str, body: bytes, key: str | None) -> bool:
        with engine.connect() as connection:
            connection.execute(insert(orders).values(id=order_id, hash=hash_of(body), shard_key=key))
            self._outbox.add(connection.connection.driver_connection, Message(TOPIC, body), shard_key=key)
            if self._random.random() < ROLLED_BACK_SHARE:
                connection.rollback()
                return False
            connection.commit()
            return True


def _driver_errors(engine: Any) -> tuple[type[Exception], ...]:
    return (engine.dialect.dbapi.Error,)


async def relay(scene: Scene, ledger: Ledger) -> None:
    """Relay until SIGTERM. Alerts are noted by kind, number and the ids that they name."""

    def note_alert(alert: Alert) -> None:
        ledger.note(ALERT, alert.kind, str(alert.count), ",".join(alert.message_ids) or "-")

    stopping = _stopping()
    alerts = Alerts([note_alert], interval_ms=ALERT_INTERVAL_MS)
    engine = engine_of(scene.url)
    await _opened(lambda: Relay(engine, scene.namesrv, policy=scene.policy, alerts=alerts), stopping)


async def consume(scene: Scene, group: str, ledger: Ledger) -> None:
    """Consume until SIGTERM, as a member of a group."""
    stopping = _stopping()
    listener = _listener(scene, group, ledger)

    def consumer() -> PushConsumer:
        made = PushConsumer(
            group,
            scene.namesrv,
            orderly=group == STOCK and scene.in_order,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            suspend_current_queue_ms=200,
            max_reconsume_times=MAX_RECONSUME_TIMES if group == BILLING else None,
        )
        made.subscribe(TOPIC)
        made.listen(listener)
        return made

    await _opened(consumer, stopping)


def _listener(scene: Scene, group: str, ledger: Ledger) -> Callable[[MessageExt], Any]:
    """Return the group's listener, between notes of the delivery and of its end."""
    handled: set[str] = set()

    def insertion(message: MessageExt) -> Any:
        """The effect of one message. Raises for a poisoned one, and for some at their first delivery."""
        body = decode_body(message.body)
        if body.fails_once and message.reconsume_times == 0 and group == BILLING:
            raise RuntimeError(f"order {body.order_id} fails at its first delivery, on purpose")
        if body.is_poisoned and group == BILLING and not scene.healed.exists():
            raise RuntimeError(f"order {body.order_id} is poisoned, on purpose")
        handled.add(message.msg_id)
        return insert(effects).values(order_id=body.order_id, consumer_group=group, hash=hash_of(message.body))

    def note_delivery(message: MessageExt) -> None:
        words = (str(message.store_timestamp), str(message.queue_id), str(message.queue_offset))
        ledger.note(DELIVERED, decode_body(message.body).order_id, group, *words, str(message.reconsume_times))

    def note_end(message: MessageExt, *, is_acknowledged: bool) -> None:
        was_handled = message.msg_id in handled
        handled.discard(message.msg_id)
        how = (ACKNOWLEDGED if was_handled else DROPPED) if is_acknowledged else FAILED
        ledger.note(how, decode_body(message.body).order_id, group)

    options: dict[str, Any] = {"lease_ms": scene.lease_ms}
    if scene.redis_url is not None:
        options["redis"] = RedisClaims(scene.redis_url, backoff_s=1)
    if group == STOCK:
        ledger_engine = engine_of(scene.url)

        @idempotent(engine_of(scene.stock_url), group, ledger=ledger_engine, **options)
        def take_from_stock(message: MessageExt, session: Session) -> None:
            session.execute(insertion(message))

        def listen(message: MessageExt) -> None:
            note_delivery(message)
            try:
                take_from_stock(message)
            except BaseException:
                note_end(message, is_acknowledged=False)
                raise
            note_end(message, is_acknowledged=True)

        return listen

    @idempotent(async_engine_of(scene.url), group, **options)
    async def bill(message: MessageExt, session: AsyncSession) -> None:
        await session.execute(insertion(message))

    async def listen_async(message: MessageExt) -> None:
        note_delivery(message)
        try:
            await bill(message)
        except BaseException:
            note_end(message, is_acknowledged=False)
            raise
        note_end(message, is_acknowledged=True)

    return listen_async


def _stopping() -> asyncio.Event:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


async def _opened(make: Callable[[], Any], stopping: asyncio.Event) -> None:
    """Keep a client open until it is to stop. One that cannot open, in an outage, is followed by the next."""
    while not stopping.is_set():
        try:
            async with make():
                await stopping.wait()
        except (MQError, DBAPIError, OSError) as error:
            logger.info("not opened: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_OPEN_S):
                    await stopping.wait()
