"""Web process: accepts orders while the database is up, whether or not a broker is.

    uvicorn --factory order_service.app:create_app

A relay runs on the same event loop; each commit wakes it. When uvicorn gets SIGTERM or SIGINT, it completes open
requests, and then the relay its batch. What is not sent is left to the next process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from order_service.orders import KeyReused, OrderDetails, OrderRequest, find, outbox, place
from order_service.settings import Settings
from rucola.admin import AdminClient
from rucola.errors import MQError
from rucola.reliable import Policy, Relay, ReliableError, migration
from rucola.reliable.joined_view import look_up
from rucola.reliable.metrics import ReliableCollector
from rucola.reliable.operations import next_step

HEALTH_TIMEOUT_MS = 1000


class OrderAccepted(BaseModel):
    """The response to a POST."""

    id: str
    message_id: str


class CopyView(BaseModel):
    """One copy of the message at a broker."""

    topic: str
    queue_id: int
    queue_offset: int


class MessageStatus(BaseModel):
    """Where the order's message is, and what happens to it next; `copies` is null unless brokers were queried."""

    id: str
    status: str
    awaiting: list[str]
    next_step: str
    copies: list[CopyView] | None = None


class OrderView(BaseModel):
    """An order, the numbers of its invoices, and its message; null once it is purged."""

    id: str
    item: str
    cents: int
    invoices: list[int]
    message: MessageStatus | None


class Health(BaseModel):
    """`ok`, or the problem, of each part."""

    tables: str = "ok"
    broker: str = "ok"


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the application; by default, with the settings from the environment."""
    chosen = settings or Settings.from_environment()
    engine, metrics_engine = chosen.async_engine(), chosen.engine()
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    registry = CollectorRegistry()
    registry.register(ReliableCollector(metrics_engine))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(metrics_engine.dispose)
            stack.push_async_callback(engine.dispose)
            if chosen.relay:
                policy = Policy(lease_ms=int(chosen.lease_s * 1000))
                await stack.enter_async_context(Relay(engine, chosen.namesrv, outbox=outbox, policy=policy))
            yield

    app = FastAPI(title="Orders", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def post_order(
        request: OrderRequest,
        response: Response,
        idempotency_key: Annotated[str, Header(min_length=1, max_length=64)],
    ) -> OrderAccepted:
        """Accept an order. A repeated request with the same Idempotency-Key returns the first one's order, with 200."""
        try:
            order, is_new = await place(sessions, idempotency_key, request)
        except KeyReused:
            raise HTTPException(422, "this Idempotency-Key was used for an order with other contents") from None
        if not is_new:
            response.status_code = 200
        return OrderAccepted(id=order.id, message_id=order.message_id)

    @app.get("/orders/{order_id}")
    async def get_order(order_id: str, brokers: bool = False) -> OrderView:
        """Show an order; with `?brokers=true` also the copies of its message at brokers."""
        details = await find(sessions, order_id)
        if details is None:
            raise HTTPException(404, f"there is no order {order_id}")
        return await _view(details, chosen.namesrv if brokers else None)

    @app.get("/health")
    async def health(response: Response) -> Health:
        """Tell whether orders are accepted: 503 if not. Without a broker they are, and their messages wait."""
        found = Health(tables=await _tables_problem(engine), broker=await _broker_problem(chosen.namesrv))
        if found.tables != "ok":
            response.status_code = 503
        return found

    @app.get("/metrics")
    def metrics() -> Response:  # a plain function: FastAPI runs its queries in a thread
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(OperationalError)
    async def database_is_away(request: Request, error: OperationalError) -> JSONResponse:
        # The commit may have been applied all the same: the client repeats the request with the same key.
        return JSONResponse({"detail": "the database does not answer: try again"}, 503, {"Retry-After": "1"})

    return app


async def _view(details: OrderDetails, namesrv: str | None) -> OrderView:
    order, invoices, known = details
    message, stub = None, known.stub
    if stub is not None:
        message = MessageStatus(
            id=stub.message_id, status=stub.status, awaiting=list(stub.awaiting), next_step=next_step(stub)
        )
        if namesrv is not None:
            try:
                found = await look_up(namesrv, stub.message_id, stub.topic, known)
            except MQError as error:
                raise HTTPException(503, f"the brokers were not queried: {error}") from None
            if found.failures:
                raise HTTPException(503, f"a broker did not answer: {'; '.join(found.failures.values())}")
            message.copies = [
                CopyView(topic=copy.topic, queue_id=copy.queue_id, queue_offset=copy.queue_offset)
                for copy in found.copies
            ]
    return OrderView(
        id=order.id,
        item=order.item,
        cents=order.cents,
        invoices=[invoice.number for invoice in invoices],
        message=message,
    )


async def _tables_problem(engine: AsyncEngine) -> str:
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migration.check, outbox.tables)
    except (ReliableError, SQLAlchemyError) as error:
        return str(error)
    return "ok"


async def _broker_problem(namesrv: str) -> str:
    try:
        async with AdminClient(namesrv, timeout_ms=HEALTH_TIMEOUT_MS) as admin:
            brokers = (await admin.cluster.info()).broker_addr_table
            if not brokers:
                return f"name server {namesrv} knows no broker"
            for broker in brokers.values():
                await admin.brokers.runtime_stats(broker.broker_addrs[0])
    except MQError as error:
        return str(error)
    return "ok"
