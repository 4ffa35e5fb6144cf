"""The order service of examples/, end to end: its programs are killed while orders are posted."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text

from rucola.name_server_addresses import NAMESRV_VARIABLES
from support.databases import create_database
from support.order_service import EXAMPLES, OrderService
from support.outbox import until
from support.servers import run, server

pytestmark = pytest.mark.slow

ORDERS_A_KILL = 25
KILLS_A_PROGRAM = 2
IN_PARALLEL = 6
SETTLE_S = 180

Start = Callable[..., OrderService]


@pytest.fixture
def order_service(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker and creates the tables, by default in a new SQLite file."""
    with ExitStack() as stack:

        def start(database: str = f"sqlite:///{tmp_path / 'orders.db'}", **settings: str) -> OrderService:
            service = OrderService(tmp_path, database, **settings)
            stack.callback(service.close)
            return service

        yield start


def test_the_order_service_finds_name_servers_as_the_rest_of_rucola(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    read = importlib.import_module("order_service.settings").Settings.from_environment
    for name in NAMESRV_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert read().namesrv == "localhost:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "second:1")
    assert read().namesrv == "second:1"
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "first:1")
    assert read().namesrv == "first:1"


def settled(service: OrderService) -> bool:
    return service.rows("SELECT count(*) FROM rucola_stub WHERE status <> 'CONFIRMED'") == [0]


async def kill_amid_orders(service: OrderService, seed: int) -> dict[str, str]:
    """Post orders, each up to three times at once, and kill a program in each batch; the ids by key."""
    random = Random(seed)
    limit = asyncio.Semaphore(IN_PARALLEL)
    accepted: dict[str, str] = {}

    async def order(key: str) -> None:
        async with limit:
            status, body = await service.post(key)
        assert status in (200, 201), body
        assert accepted.setdefault(key, body["id"]) == body["id"], "a repeated POST made a second order"

    victims = service.programs * KILLS_A_PROGRAM
    random.shuffle(victims)
    for batch, victim in enumerate(victims):
        posts = [f"{batch}-{number}" for number in range(ORDERS_A_KILL) for _ in range(random.choice((1, 1, 2, 3)))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(order(key)) for key in posts]
            for accepted_post in itertools.islice(asyncio.as_completed(tasks), random.randrange(1, len(tasks) - 5)):
                await accepted_post
            await service.kill(victim)
            if victim is service.app:  # nothing is accepted without it
                await service.restart(victim)
        if victim is not service.app:  # orders were accepted without it
            await service.restart(victim)
    return accepted


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_each_accepted_order_is_billed_once_whatever_is_killed(
    database: str, order_service: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        service = order_service(create_database(request.getfixturevalue("postgresql")))
    else:
        service = order_service()
    await service.start_app()
    await asyncio.to_thread(service.billing.start)

    accepted = await kill_amid_orders(service, seed=14)
    await until(lambda: settled(service), SETTLE_S)

    assert len(accepted) == ORDERS_A_KILL * KILLS_A_PROGRAM * 3
    assert sorted(service.rows("SELECT id FROM orders")) == sorted(accepted.values())
    assert sorted(service.rows("SELECT order_id FROM invoices")) == sorted(accepted.values())
    assert service.rows("SELECT count(*) FROM rucola_done") == [len(accepted)]
    assert service.rows("SELECT count(*) FROM rucola_receipt") == [0]
    assert [program.starts for program in service.programs] == [KILLS_A_PROGRAM + 1] * 3
    # uvicorn shuts down first, and then raises the signal again.
    codes = [program.stop() for program in (service.billing, service.app, service.broker)]
    assert codes == [0, -signal.SIGTERM, 0]
    assert "Application shutdown complete" in service.app.output()
    assert run("store", "check", service.store).returncode == 0


async def test_repeated_post_returns_the_first_order(order_service: Start) -> None:
    service = order_service()
    await service.start_app()
    answers = await asyncio.gather(*(service.post("key-1") for _ in range(8)))
    assert sorted(status for status, _ in answers) == [200] * 7 + [201]
    assert len({body["id"] for _, body in answers}) == 1
    assert (await service.post("key-1", "pasta"))[0] == 422
    assert (await service.post("key-1"))[0] == 200
    assert (await service.request("POST", "/orders", None, {"item": "pizza", "cents": 950}))[0] == 422
    assert (await service.post("key-2", cents=0))[0] == 422
    assert service.rows("SELECT idempotency_key FROM orders") == ["key-1"]
    assert service.rows("SELECT count(*) FROM rucola_stub") == [1]


async def test_orders_are_accepted_without_a_broker_and_billed_later(order_service: Start) -> None:
    service = order_service()
    await service.kill(service.broker)
    await service.start_app()
    health = await service.get("/health")
    assert health["tables"] == "ok"
    assert "no name server answers" in health["broker"]
    status, order = await service.post("key-1")
    assert status == 201
    path = f"/orders/{order['id']}"
    waiting = await service.get(path)
    assert waiting["invoices"] == []
    assert (waiting["message"]["status"], waiting["message"]["awaiting"]) == ("NEW", ["billing"])
    assert (await service.request("GET", f"{path}?brokers=true"))[0] == 503
    assert 'rucola_reliable_messages{status="NEW"} 1.0' in (await service.request("GET", "/metrics"))[1]

    await service.restart(service.broker)
    await asyncio.to_thread(service.billing.start)
    await until(lambda: settled(service), SETTLE_S)
    billed = await service.get(f"{path}?brokers=true")
    assert len(billed["invoices"]) == 1
    assert billed["message"]["status"] == "CONFIRMED"
    assert "Orders" in [copy["topic"] for copy in billed["message"]["copies"]]
    assert await service.get("/health") == {"tables": "ok", "broker": "ok"}
    assert (await service.request("GET", "/orders/none"))[0] == 404


async def test_relay_may_be_a_process_of_its_own(order_service: Start, tmp_path: Path) -> None:
    service = order_service(ORDERS_RELAY="off")
    await service.start_app()
    await asyncio.to_thread(service.billing.start)
    _, order = await service.post("key-1")
    database = service.engine.url.render_as_string()
    with server("reliable", "relay", "-d", database, "-n", service.namesrv, log=tmp_path / "relay.log"):
        await until(lambda: settled(service), SETTLE_S)
    assert service.rows("SELECT order_id FROM invoices") == [order["id"]]


async def test_missing_tables_make_the_service_unready(order_service: Start, tmp_path: Path) -> None:
    service = order_service(ORDERS_RELAY="off")
    with service.engine.begin() as connection:
        connection.execute(text("DROP TABLE rucola_version"))
    await service.start_app()
    status, body = await service.request("GET", "/health")
    assert status == 503
    assert "rucola reliable init" in body
