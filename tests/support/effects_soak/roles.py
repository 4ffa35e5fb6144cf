"""The roles of an effects soak, each the main function of a process of its own.

    sender      commits orders with their messages, and rolls some back
    relay       relays the outbox, and notes each alert
    billing     one worker of this group
    stock       likewise

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

import msgspec
from sqlalchemy import Engine, insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rucola.client import ConsumeFromWhere, Message, MessageExt, PushConsumer
from rucola.errors import MQError
from rucola.reliable import Alerts, Outbox, RedisClaims, Relay, idempotent
from support.effects_soak.books import Ledger
from support.effects_soak.scene import (
    BILLING,
    GROUPS,
    STOCK,
    TOPIC,
    OrderBody,
    Scene,
    async_engine_of,
    effects,
    engine_of,
    hash_of,
    orders,
)

logger = logging.getLogger(__name__)

ORDERS_PER_S = 10.0
KEYS = 5
"""Sharding keys of one life of a sender."""
KEYED_SHARE = 0.5
ROLLED_BACK_SHARE = 0.1
FAILS_ONCE_SHARE = 0.02
POISONED_SHARE = 0.002
"""Share of the orders without sharding key on which the group without order fails until it is healed."""
LARGEST_BODY = 2000
ALERT_INTERVAL_MS = 500
RETRY_OPEN_S = 1.0


def main(kind: str, scene: Scene, name: str) -> None:
    """Run one role in this process until SIGTERM; its log is a file of its name."""
    log = os.open(scene.directory / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    ledger = Ledger(scene.ledgers / f"{name}.ledger")
    if kind == "sender":
        send(scene, name, ledger)
    else:
        asyncio.run(stay_open(relay(scene, ledger) if kind == "relay" else consumer(scene, kind, ledger)))


def send(scene: Scene, name: str, ledger: Ledger) -> None:
    """Commit one order after another; half of them have sharding keys that no other sender uses."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    chosen, outbox, engine = random.Random(name), Outbox(GROUPS), engine_of(scene.url)
    number = generation = 0
    while not stopping:
        number += 1
        order_id = f"{name}/{number}"
        is_keyed = chosen.random() < KEYED_SHARE
        key = f"{name}.{generation}.{chosen.randrange(KEYS)}" if is_keyed else None
        order = OrderBody(
            order_id,
            fails_once=chosen.random() < FAILS_ONCE_SHARE,
            is_poisoned=not is_keyed and chosen.random() < POISONED_SHARE,
            content=chosen.randbytes(chosen.randrange(LARGEST_BODY)),
        )
        body = msgspec.msgpack.encode(order)
        ledger.note("tried", order_id, hash_of(body))
        try:
            with Session(engine) as session:
                session.execute(insert(orders).values(id=order_id, hash=hash_of(body), shard_key=key))
                outbox.add(_transaction(session, number), Message(TOPIC, body), shard_key=key)
                session.flush()
                is_committed = chosen.random() >= ROLLED_BACK_SHARE
                (session.commit if is_committed else session.rollback)()
            ledger.note("committed" if is_committed else "rolled-back", order_id)
        except (SQLAlchemyError, _driver_error(engine)) as error:
            logger.info("order %s: %s", order_id, error)
            generation += 1  # if it was committed, that transaction may overlap with the next one
            time.sleep(0.2)
        time.sleep(chosen.uniform(0, 2 / ORDERS_PER_S))


def _transaction(session: Session, number: int) -> Any:
    """Return the session, or the connection of its driver, in turn."""
    return session if number % 2 else session.connection().connection.driver_connection


def _driver_error(engine: Engine) -> type[Exception]:
    error: type[Exception] = engine.dialect.loaded_dbapi.Error
    return error


def relay(scene: Scene, ledger: Ledger) -> Callable[[], Relay]:
    """Return what makes a relay. Alerts are noted by kind and number."""
    sink = lambda alert: ledger.note("alert", alert.kind, alert.count)  # noqa: E731
    alerts = Alerts([sink], interval_ms=ALERT_INTERVAL_MS)
    engine = engine_of(scene.url)
    return lambda: Relay(engine, scene.namesrv, policy=scene.policy, alerts=alerts)


def consumer(scene: Scene, group: str, ledger: Ledger) -> Callable[[], PushConsumer]:
    """Return what makes a member of a group."""
    listener = _listener(scene, group, ledger)

    def make() -> PushConsumer:
        made = PushConsumer(
            group,
            scene.namesrv,
            orderly=group == STOCK and scene.options.in_order,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            suspend_current_queue_ms=200,
            max_reconsume_times=8 if group == BILLING else None,
        )
        made.subscribe(TOPIC)
        made.listen(listener)
        return made

    return make


def _listener(scene: Scene, group: str, ledger: Ledger) -> Callable[[MessageExt], Any]:
    """Return the group's listener, which notes each delivery."""
    decode = msgspec.msgpack.Decoder(OrderBody).decode

    def effect_of(message: MessageExt) -> Any:
        """The effect of one message. Billing fails on a poisoned one, and on some at their first delivery."""
        order = decode(message.body)
        fails = order.fails_once and message.reconsume_times == 0
        if group == BILLING and (fails or (order.is_poisoned and not scene.healed.exists())):
            raise RuntimeError(f"order {order.order_id} fails on purpose")
        return insert(effects).values(order_id=order.order_id, consumer_group=group, hash=hash_of(message.body))

    def note(message: MessageExt) -> None:
        place = message.store_timestamp, message.queue_id, message.queue_offset, message.reconsume_times
        ledger.note("delivered", decode(message.body).order_id, *place)

    options: dict[str, Any] = {"lease_ms": scene.options.lease_ms, "redis": RedisClaims(scene.redis_url, backoff_s=1)}
    if group == BILLING:

        @idempotent(async_engine_of(scene.url), group, **options)
        async def bill(message: MessageExt, session: AsyncSession) -> None:
            await session.execute(effect_of(message))

        async def note_and_bill(message: MessageExt) -> None:
            note(message)
            await bill(message)

        return note_and_bill

    @idempotent(engine_of(scene.stock_url), group, ledger=engine_of(scene.url), **options)
    def take(message: MessageExt, session: Session) -> None:
        session.execute(effect_of(message))

    def note_and_take(message: MessageExt) -> None:
        note(message)
        take(message)

    return note_and_take


async def stay_open(make: Callable[[], Any]) -> None:
    """Keep a client open until SIGTERM. One that cannot open, in an outage, is followed by the next."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        try:
            async with make():
                await stopping.wait()
        except (MQError, DBAPIError, OSError) as error:
            logger.info("not opened: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_OPEN_S):
                    await stopping.wait()
