"""Consumer process: writes one invoice for each order. SIGTERM and SIGINT stop it after the messages in flight.

python -m order_service.billing
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from order_service.orders import BILLING, TOPIC, OrderPlaced
from order_service.settings import Settings
from order_service.tables import Invoice
from rucola.client import ConsumeFromWhere, MessageExt, PushConsumer
from rucola.errors import RemotingError
from rucola.reliable import idempotent
from rucola.reliable.idempotent import IdempotentFunction

logger = logging.getLogger(__name__)

RETRY_S = 1.0


def listener_on(engine: AsyncEngine, lease_s: float) -> IdempotentFunction:
    """Return the listener whose invoice, `done` row and confirmation are one transaction."""

    @idempotent(engine, BILLING, lease_ms=int(lease_s * 1000))
    async def write_invoice(message: MessageExt, session: AsyncSession) -> None:
        order = OrderPlaced.model_validate_json(message.body)
        session.add(Invoice(order_id=order.order_id, cents=order.cents))

    return write_invoice


async def main(settings: Settings) -> None:
    """Consume until a signal arrives."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    engine = settings.async_engine()
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET  # also orders that are older than the group
    consumer = PushConsumer(BILLING, settings.namesrv, consume_from=first)
    consumer.subscribe(TOPIC)
    consumer.listen(listener_on(engine, settings.lease_s))
    try:
        while not stopped.is_set() and not await _open(consumer):
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), RETRY_S)
        if consumer.is_open:
            print("billing is ready", flush=True)
        await stopped.wait()
    finally:
        await consumer.close()
        await engine.dispose()


async def _open(consumer: PushConsumer) -> bool:
    """Join the group; return False while no broker can be reached. Later outages are the consumer's own affair."""
    try:
        await consumer.open()
    except RemotingError as error:
        logger.warning("trying again in %g s: %s", RETRY_S, error)
        return False
    return True


if __name__ == "__main__":
    asyncio.run(main(Settings.from_environment()))
