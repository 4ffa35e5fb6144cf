"""Use cases: place an order together with its message, and look up an order with its invoice and message."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from order_service.tables import Invoice, Order
from rucola.client import Message
from rucola.reliable import Outbox, operations
from rucola.reliable.operations import MessageView

TOPIC = "Orders"
BILLING = "billing"

outbox = Outbox(groups=[BILLING])  # each message awaits the confirmation of billing


class OrderRequest(BaseModel):
    """What a client orders."""

    item: str = Field(min_length=1, max_length=100)
    cents: int = Field(gt=0, lt=1 << 31)


class OrderPlaced(BaseModel):
    """The body of the message about an order."""

    order_id: str
    cents: int


class KeyReused(Exception):
    """The idempotency key belongs to an order with other contents."""


class OrderDetails(NamedTuple):
    """An order, its invoices and what the tables know of its message."""

    order: Order
    invoices: list[Invoice]
    message: MessageView


async def place(sessions: async_sessionmaker[AsyncSession], key: str, request: OrderRequest) -> tuple[Order, bool]:
    """Store an order and its message in one transaction; return the order and whether it is new.

    The insert comes before any query, so that of two simultaneous requests with one key the database rejects one,
    which then returns the other's order. KeyReused if that order has other contents.
    """
    order = Order(id=uuid.uuid4().hex, idempotency_key=key, item=request.item, cents=request.cents)
    body = OrderPlaced(order_id=order.id, cents=order.cents).model_dump_json()
    try:
        async with sessions.begin() as session:
            order.message_id = outbox.add(session, Message(TOPIC, body.encode(), keys=order.id))
            session.add(order)
    except IntegrityError:
        async with sessions() as session:
            first = await session.scalar(select(Order).where(Order.idempotency_key == key))
        if first is None:
            raise
        if (first.item, first.cents) != (request.item, request.cents):
            raise KeyReused from None
        return first, False
    return order, True


async def find(sessions: async_sessionmaker[AsyncSession], order_id: str) -> OrderDetails | None:
    """Return an order with its invoices and the state of its message; None if there is no such order."""
    async with sessions() as session:
        order = await session.get(Order, order_id)
        if order is None:
            return None
        invoices = await session.scalars(select(Invoice).where(Invoice.order_id == order_id))
        connection = await session.connection()
        message = await connection.run_sync(operations.show, outbox.tables, order.message_id)
        return OrderDetails(order, list(invoices), message)
