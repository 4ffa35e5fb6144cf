"""What tests of the relay have in common: stubs added and looked at, a relay until something holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.orm import Session

from rucola.client import Message
from rucola.reliable.alerts import Alert
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import Policy
from rucola.reliable.relay import Relay
from rucola.testing.rocketmq import RocketMQ
from support.databases import Place

QUICK = Policy(retry_ms=1, max_retry_ms=50, confirm_timeout_ms=1, max_check_ms=20, poll_ms=20, jitter=0)
"""Everything is due at once."""


def add(place: Place, topic: str, bodies: Iterable[bytes], *, groups: Iterable[str] = (), **options: Any) -> list[str]:
    """Add messages in one transaction; their ids."""
    outbox = Outbox(groups, tables=place.tables)
    with Session(place.engine()) as session, session.begin():
        return [outbox.add(session, Message(topic, body), **options) for body in bodies]


def stubs(place: Place) -> list[Row[Any]]:
    with place.engine().connect() as connection:
        return list(connection.execute(select(place.tables.stub).order_by(place.tables.stub.c.seq)))


def statuses(place: Place) -> dict[str, int]:
    stub = place.tables.stub
    with place.engine().connect() as connection:
        return {
            row[0]: row[1] for row in connection.execute(select(stub.c.status, func.count()).group_by(stub.c.status))
        }


def change(place: Place, **values: Any) -> None:
    """Set columns of all stubs, as time or an operator would."""
    with place.engine().begin() as connection:
        connection.execute(update(place.tables.stub).values(**values))


@asynccontextmanager
async def relay(place: Place, rocketmq: RocketMQ, **options: Any) -> AsyncIterator[Relay]:
    async with Relay(
        place.engine(), rocketmq.namesrv, **{"tables": place.tables, "policy": QUICK} | options
    ) as running:
        yield running


async def reaches(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait until a condition holds that has to be asked for."""
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # nothing tells of it


class Told:
    """A sink that keeps its alerts."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def __call__(self, alert: Alert) -> None:
        self.alerts.append(alert)
